"""Shared by all tests."""

import os

# threads that sleep between operations instead of spinning: several times faster when cores are shared
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # two workers, two cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import io
from collections.abc import Iterator

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits

# few tests that take long: xdist would give them out last, and one worker would end alone with them
SLOW_FILES = {
    "test_examples.py", "test_distributed.py", "test_resume.py", "test_determinism.py", "test_docs_data.py",
    "test_cli.py", "test_reference.py", "test_readme.py", "test_docs_site.py", "test_compare.py",
    "test_frozen_encoder.py", "test_sklearn.py",
}  # fmt: skip

BLANK = {"svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "png": b""}  # pictures that nobody looks at
with io.BytesIO() as file:
    Image.new("RGB", (8, 8)).save(file, "png")
    BLANK["png"] = file.getvalue()
RENDER = Figure.savefig


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first; `make test` keeps xdist from sorting them again."""
    items.sort(key=lambda item: item.path.name not in SLOW_FILES)


@pytest.fixture(scope="module", autouse=True)
def _figures_are_not_rendered(request) -> Iterator[None]:
    """Figures are made but not rendered, which takes seconds per run folder, where no test looks at them.

    Tests of `tests/report` and of modules marked `pictures` get real ones, and so do all processes that tests start.
    """
    if "report" in request.path.parts or request.node.get_closest_marker("pictures"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda _, file, *, format, **__: file.write(BLANK[format]))
        yield


@pytest.fixture(autouse=True)
def _figures_are_rendered_for_marked_tests(request, monkeypatch) -> None:
    """A single test marked `pictures` gets real ones too."""
    if request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(Figure, "savefig", RENDER)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch) -> None:
    """Nothing is kept in the cache of whoever runs the tests, nor found there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "user-cache"))


@pytest.fixture(scope="session")
def images() -> Cohort:
    return drawn_digits(120, size=16, seed=1)


@pytest.fixture(scope="session")
def features() -> Cohort:
    """Patients differ from controls in the first feature and from each other in the second."""
    rng = np.random.default_rng(0)
    ill, truth = np.arange(120) % 2, rng.integers(0, 2, 120)
    inputs = rng.normal(size=(120, 6))
    inputs[:, 0] += 3 * ill
    inputs[:, 1] += ill * np.where(truth, 3, -3)
    return Cohort(inputs.astype(np.float32), ill, truth=truth, name="features")
