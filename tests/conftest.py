"""Shared by all tests."""

import gc
import os

# threads that sleep between operations instead of spinning: several times faster when cores are shared
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # two workers, two cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

if TYPE_CHECKING:  # imported by the fixtures: the workers wait for a process that reads this file and runs no test
    from phenogroups.data.cohort import Cohort

# the longest files, longest first: whatever is given out last, one worker ends alone with it
SLOW_FILES = (
    "test_tutorials.py", "test_distributed.py", "test_examples.py", "test_contract.py", "test_resume.py",
    "test_determinism.py", "test_first_split.py", "test_readme.py", "test_cli.py", "test_frozen_encoder.py",
    "test_sklearn.py", "test_browser.py", "test_compare.py", "test_choose.py", "test_discover.py", "test_docs_site.py",
    "test_docs_data.py", "test_reference.py", "test_deep_ucsl.py", "test_consensus.py", "test_ids.py", "test_page.py",
)  # fmt: skip
ORDER = {name: place for place, name in enumerate(SLOW_FILES)}

BLANK = {"svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "png": b""}  # pictures that nobody looks at
with io.BytesIO() as file:
    Image.new("RGB", (8, 8)).save(file, "png")
    BLANK["png"] = file.getvalue()
SAVE = "matplotlib.figure.Figure.savefig"


def pytest_collection() -> None:
    """While all tests and what they test are imported, the garbage collector finds nothing."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first; `make test` keeps xdist from sorting them again."""
    items.sort(key=lambda item: ORDER.get(item.path.name, len(ORDER)))


def pytest_collection_finish() -> None:
    """What is imported stays: the garbage collector need not visit it again and again."""
    gc.enable()
    gc.freeze()


def leave_figures_blank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SAVE, lambda _, file, *, format, **__: file.write(BLANK[format]))


@pytest.fixture(scope="session")
def render() -> Callable[..., None]:
    """What really saves a figure."""
    from matplotlib.figure import Figure

    return Figure.savefig


@pytest.fixture(scope="module", autouse=True)
def _figures_are_not_rendered(request, render) -> Iterator[None]:
    """Figures are made but not rendered, which takes seconds per run folder, where no test looks at them.

    Tests of `tests/report` and of modules marked `pictures` get real ones, and so do all processes that tests start.
    """
    if "report" in request.path.parts or request.node.get_closest_marker("pictures"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        leave_figures_blank(patch)
        yield


@pytest.fixture(autouse=True)
def _figures_are_rendered_for_marked_tests(request, monkeypatch, render) -> None:
    """A single test marked `pictures` gets real ones too."""
    if request.node.get_closest_marker("pictures"):
        monkeypatch.setattr(SAVE, render)


REMEMBERED: dict[Any, Any] = {}


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def call(*arguments: Any, **named: Any) -> Any:
        values = [*arguments, *sorted(named.items())]
        parts = [(v.shape, v.dtype, v.numpy().tobytes()) if isinstance(v, torch.Tensor) else v for v in values]
        key = (function.__name__, *parts)
        if key not in REMEMBERED:
            REMEMBERED[key] = function(*arguments, **named)
        return REMEMBERED[key]

    return call


def remember_searches(patch: pytest.MonkeyPatch) -> None:
    from phenogroups.methods import deep_ucsl, election
    from phenogroups.workflows import weigh

    for module in (deep_ucsl, election, weigh):
        patch.setattr(module, "first_split", remembered(module.first_split))


@pytest.fixture(scope="module", autouse=True)
def _searches_are_remembered(request) -> Iterator[None]:
    """The search for the first subgroups of a table is made once for the same subjects, number and seed.

    It is a function of its arguments, most of the time of a fit of a table and half of that of a run. Modules marked
    `anew` compare one search with another: there, all are made.
    """
    if request.node.get_closest_marker("anew"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        remember_searches(patch)
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch) -> None:
    """Nothing is kept in the cache of whoever runs the tests, nor found there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "user-cache"))


@pytest.fixture(scope="session")
def images() -> "Cohort":
    from phenogroups.data.examples.drawn import drawn_digits

    return drawn_digits(120, size=16, seed=1)


@pytest.fixture(scope="session")
def features() -> "Cohort":
    """Patients differ from controls in the first feature and from each other in the second."""
    import numpy as np

    from phenogroups.data.cohort import Cohort

    rng = np.random.default_rng(0)
    ill, truth = np.arange(120) % 2, rng.integers(0, 2, 120)
    inputs = rng.normal(size=(120, 6))
    inputs[:, 0] += 3 * ill
    inputs[:, 1] += ill * np.where(truth, 3, -3)
    return Cohort(inputs.astype(np.float32), ill, truth=truth, name="features")
