"""Shared by all tests."""

import os

# threads that sleep between operations instead of spinning: several times faster when cores are shared
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # two workers, two cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits

# few tests that take long: xdist would give them out last, and one worker would end alone with them
SLOW_FILES = {
    "test_examples.py", "test_distributed.py", "test_resume.py", "test_determinism.py", "test_docs_data.py",
    "test_cli.py",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first; `make test` keeps xdist from sorting them again."""
    items.sort(key=lambda item: item.path.name not in SLOW_FILES)


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
