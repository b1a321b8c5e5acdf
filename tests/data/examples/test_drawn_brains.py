"""The drawn brains hold what they promise: lesions in patients, nuisances in everybody."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp
from sklearn.cluster import KMeans
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import cross_val_predict

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.drawn_brains import AXES, TRUTH_NAMES, drawn_brains


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return drawn_brains(240, size=16)


def radius(size: int) -> np.ndarray:
    """Of every voxel, in units in which the surface of a brain of size 1 is at 1."""
    axis = (2 * np.arange(size) + 1) / size - 1
    return np.sqrt(
        sum((along / half) ** 2 for along, half in zip(np.meshgrid(axis, axis, axis, indexing="ij"), AXES, strict=True))
    )


def test_volumes_are_brains_on_black(cohort: Cohort) -> None:
    assert cohort.inputs.shape == (240, 1, 16, 16, 16)
    assert cohort.inputs.dtype == np.float32
    assert cohort.inputs.min() == 0
    outside, inside = (cohort.inputs[:, 0, where].mean() for where in (radius(16) > 1.25, radius(16) < 0.9))
    assert outside < 0.05
    assert inside > 0.6
    assert cohort.name == "drawn-brains"


def test_a_seed_decides_every_bit() -> None:
    one, again, other = (drawn_brains(40, size=16, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert one.covariates.equals(again.covariates)


def test_sizes_are_kept_and_controls_have_no_subgroup() -> None:
    cohort = drawn_brains(100, sizes=(0.3, 0.7), patients=0.4, size=16)
    assert np.bincount(cohort.truth[cohort.is_patient]).tolist() == [12, 28]
    assert set(cohort.truth[~cohort.is_patient]) == {-1}
    assert cohort.truth_names == TRUTH_NAMES


def test_lesions_lie_where_the_truth_says() -> None:
    """The same seed draws the same people, ill in one way, in the other, or healthy."""
    healthy = drawn_brains(60, size=16, patients=0)
    core, deep, rim = radius(16) < 0.35, radius(16) < 0.5, (radius(16) > 0.75) & (radius(16) < 1.1)
    for sizes, inside, outside, sign in (((1, 0), deep, rim, -1), ((0, 1), rim, core, 1)):
        ill = drawn_brains(60, size=16, sizes=sizes, patients=1)
        assert ill.covariates.equals(healthy.covariates)
        gained = sign * (ill.inputs - healthy.inputs)[:, 0]
        assert (gained[:, inside].max(axis=1) > 0.03).all()  # everybody has lesions
        assert gained[:, inside].mean() > 5 * abs(gained[:, outside].mean())


def test_nuisances_are_alike_in_patients_and_controls(cohort: Cohort) -> None:
    about = cohort.covariates
    assert set(about.columns) == {"age", "sex", "site"}
    for values in (about["age"], about["sex"].cat.codes, about["site"].cat.codes):
        assert ks_2samp(values[cohort.is_patient], values[~cohort.is_patient]).pvalue > 0.01
    controls = cohort[~cohort.is_patient]
    flat = controls.inputs.reshape(len(controls), -1)
    old, deep = controls.covariates["age"] > 50, (radius(16) < 0.5).ravel()
    assert flat[old][:, deep].mean() < flat[~old][:, deep].mean() - 0.03  # wider ventricles
    site = controls.covariates["site"].cat.codes
    seen = cross_val_predict(RidgeClassifier(), flat, site)
    assert balanced_accuracy_score(site, seen) > 0.6
    same = drawn_brains(240, size=16, site_effect=0)[~cohort.is_patient]  # the same seed: the same people
    pd.testing.assert_frame_equal(same.covariates, controls.covariates)
    seen = cross_val_predict(RidgeClassifier(), same.inputs.reshape(len(same), -1), site)
    assert balanced_accuracy_score(site, seen) < 0.55


def test_plain_clusters_are_not_the_subgroups(cohort: Cohort) -> None:
    ill = cohort.patients
    found = KMeans(2, n_init=10, random_state=0).fit_predict(ill.inputs.reshape(len(ill), -1))
    right = balanced_accuracy_score(ill.truth, found)
    assert max(right, 1 - right) < 0.65


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sizes": (0.5, 0.2)}, "Expected as sizes the shares of 1 or 2 patterns"),
        ({"sizes": (0.3, 0.3, 0.4)}, "Expected as sizes"),
        ({"size": 8}, "size of at least 16 voxels. Received: n=20, size=8"),
        ({"patients": 2}, "Expected patients between 0 and 1. Received: 2"),
    ],
)
def test_mistakes_are_named(wrong: dict, words: str) -> None:
    with pytest.raises(CohortError, match=words):
        drawn_brains(20, **wrong)
