"""The drawn table holds what it promises: subgroups that a line can tell apart, under variation that hides them."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from phenogroups.data.cohort import CohortError
from phenogroups.data.examples.drawn_table import drawn_table


def agreement(yes: np.ndarray, cluster: np.ndarray) -> float:
    score = balanced_accuracy_score(yes, cluster)
    return max(score, 1 - score)


def test_shapes_and_covariates():
    cohort = drawn_table(500, 12, patients=0.3)
    assert cohort.inputs.shape == (500, 12)
    assert cohort.inputs.dtype == np.float32
    assert cohort.diagnosis.sum() == 150
    assert list(cohort.covariates) == ["age", "sex", "site"]
    assert cohort.covariates["site"].value_counts().min() > 200
    assert (cohort.truth[~cohort.is_patient] == -1).all()
    assert 40 < cohort.diagnosis[:200].sum() < 80


def test_a_seed_decides_every_bit():
    one, again, other = (drawn_table(subgroups=3, site_effect=2, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert one.covariates.equals(again.covariates)
    assert (one.truth == again.truth).all()


@pytest.mark.parametrize(
    ("subgroups", "sizes", "expected"),
    [(2, None, [150, 150]), (3, (0.6, 0.3, 0.1), [180, 90, 30]), (5, None, [60] * 5), (1, None, [300])],
)
def test_sizes_are_kept_exactly(subgroups, sizes, expected):
    cohort = drawn_table(subgroups=subgroups, sizes=sizes)
    assert np.bincount(cohort.truth[cohort.is_patient]).tolist() == expected


@pytest.mark.parametrize("subgroups", [2, 3, 5])
def test_subgroups_are_equally_far_from_each_other_and_equally_ill(subgroups):
    cohort = drawn_table(40_000, subgroups=subgroups, separation=3, shared=0)
    means = np.array([cohort.inputs[cohort.truth == k].mean(0) for k in range(subgroups)])
    assert pdist(means) == pytest.approx(3, abs=0.1)
    away = np.linalg.norm(means - cohort.inputs[~cohort.is_patient].mean(0), axis=1)
    assert np.ptp(away) < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_k_means_finds_age_although_a_line_tells_the_subgroups_apart(seed):
    patients = drawn_table(seed=seed).patients
    cluster = KMeans(2, n_init=1, random_state=0).fit_predict(patients.inputs)
    age = patients.covariates["age"]
    assert agreement(patients.truth == 1, cluster) < 0.6
    assert agreement(age > age.median(), cluster) > 0.85
    half = np.arange(len(patients)) % 2 == 0
    line = LogisticRegression().fit(patients.inputs[half], patients.truth[half])
    assert line.score(patients.inputs[~half], patients.truth[~half]) > 0.9


def test_covariates_are_alike_in_patients_controls_and_subgroups():
    cohort = drawn_table(4000)
    table = cohort.covariates.assign(site=cohort.covariates["site"] == "B", sex=cohort.covariates["sex"] == "F")
    for ones, others in ((cohort.is_patient, ~cohort.is_patient), (cohort.truth == 1, cohort.truth == 0)):
        gap = (table[ones].mean() - table[others].mean()).abs() / table.astype(float).std()
        assert (gap < 0.15).all(), gap


def test_without_subgroups_patients_spread_as_widely_and_have_no_truth():
    none, two = drawn_table(20_000, subgroups=0, shared=0), drawn_table(20_000, shared=0)
    assert none.truth is None
    spread = [np.linalg.eigvalsh(np.cov(cohort.patients.inputs.T))[-1] for cohort in (none, two)]
    assert spread == pytest.approx([5, 5], rel=0.05)  # of the noise, 1, and of separation / 2, squared
    one = drawn_table(20_000, subgroups=1, shared=0)
    assert np.linalg.eigvalsh(np.cov(one.patients.inputs.T))[-1] == pytest.approx(2, rel=0.05)  # severity and noise


def test_a_site_effect_parts_patients_by_site_and_no_control_was_seen_at_the_other():
    plain, shifted = drawn_table(subgroups=1), drawn_table(subgroups=1, site_effect=5)
    at_b = (shifted.covariates["site"] == "B").to_numpy()
    assert not at_b[~shifted.is_patient].any()
    assert at_b[shifted.is_patient].mean() == pytest.approx(0.5, abs=0.1)
    moved = np.linalg.norm(shifted.inputs - plain.inputs, axis=1)
    assert moved[at_b] == pytest.approx(5, abs=1e-4)
    assert (moved[~at_b] == 0).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"subgroups": 6}, "0 to 5 subgroups"),
        ({"sizes": (0.5, 0.6)}, "adding up to 1"),
        ({"sizes": (1.0,)}, "shares of 2 subgroups"),
        ({"features": 5}, "at least 6 features"),
        ({"patients": 1.5}, "patients as their share"),
        ({"separation": -1}, "separation of at least 0"),
    ],
)
def test_what_cannot_be_drawn_is_named(wrong, message):
    with pytest.raises(CohortError, match=message):
        drawn_table(**wrong)
