"""Subgroups that anybody would see are found by every method that looks for what sets patients apart."""

import numpy as np
import pytest

from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.scores import score
from phenogroups.methods import METHODS

FINDERS = {
    "gaussian_mixture": {},
    "foundation": {},
    "autoencoder": {"epochs": 4, "steps": 20},
    "vae": {"epochs": 4, "steps": 20},
    "scan": {"epochs": 6, "steps": 20},
    "supervised_upper_bound": {"epochs": 2, "steps": 15},
}


@pytest.fixture(scope="module")
def stripes() -> Cohort:
    """Patients have horizontal or vertical stripes, controls none."""
    rng = np.random.default_rng(0)
    ill, truth = np.arange(200) % 2, rng.integers(0, 2, 200)
    wave = np.sin(np.arange(16) * np.pi / 2)
    pattern = np.where(truth[:, None, None, None], wave[:, None], wave[None, :])
    inputs = ill[:, None, None, None] * pattern + rng.normal(0, 0.3, (200, 1, 16, 16))
    return Cohort(inputs.astype(np.float32), ill, truth=truth)


@pytest.fixture(scope="module")
def table() -> Cohort:
    """Four of six features set the patients apart, each in its own unit."""
    rng = np.random.default_rng(0)
    ill, truth = np.arange(300) % 2, rng.integers(0, 2, 300)
    inputs = rng.normal(size=(300, 6))
    inputs[:, 0] += 3 * ill
    inputs[:, 1:5] += (ill * np.where(truth, 2, -2))[:, None]
    return Cohort((inputs * [1, 1000, 1, 0.01, 1, 1e5]).astype(np.float32), ill, truth=truth)


CASES = [
    (name, kind) for name in FINDERS for kind in ("stripes", "table") if METHODS[name]().takes_images or kind == "table"
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_an_easy_split_is_found(name, kind, request):
    method, cohort = METHODS[name](**FINDERS[name]), request.getfixturevalue(kind)
    found = score(cohort, method.fit(cohort).predict_cohort(cohort))
    assert found.subgroup_bacc > 0.9
    assert found.class_bacc is None or found.class_bacc > 0.9
