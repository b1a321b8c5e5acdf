"""Scores against scikit-learn, brute force and worked examples."""

from dataclasses import asdict, replace
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, balanced_accuracy_score

from phenogroups.clustering.matching import match_labels
from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.scores import SCORE_NAMES, Scores, intervals, score


def make(truth, predicted, called=None, *, controls=0, n_subgroups=None, embedding=None):
    """Patients with these truths and predicted subgroups, then controls; `called` is p(patient) of all."""
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    count = len(truth) + controls
    n_subgroups = n_subgroups or predicted.max() + 1
    cohort = Cohort(
        inputs=np.zeros((count, 1), dtype=np.float32),
        diagnosis=np.repeat([1, 0], [len(truth), controls]),
        truth=np.concatenate([truth, np.full(controls, -1)]),
    )
    prediction = SimpleNamespace(
        subgroup=np.eye(n_subgroups)[np.concatenate([predicted, np.zeros(controls, dtype=int)])],
        diagnosis=None if called is None else np.asarray(called, dtype=float),
        embedding=np.random.default_rng(0).normal(size=(count, 3)) if embedding is None else embedding,
        by_centroid=None,
    )
    return cohort, prediction


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 4), st.data())
def test_subgroup_scores_are_those_of_scikit_learn_under_the_best_permutation(n_subgroups, data):
    ids = st.integers(0, n_subgroups - 1)
    predicted = data.draw(st.lists(ids, min_size=n_subgroups, max_size=25))
    truth = [k if k < n_subgroups else data.draw(ids) for k in range(len(predicted))]  # every class exists
    scores = score(*make(truth, predicted, n_subgroups=n_subgroups))
    relabelled = [np.asarray(order)[predicted] for order in permutations(range(n_subgroups))]
    assert scores.subgroup_bacc == pytest.approx(max(balanced_accuracy_score(truth, labels) for labels in relabelled))
    assert scores.ari == pytest.approx(adjusted_rand_score(truth, predicted))
    assert scores.ami == pytest.approx(adjusted_mutual_info_score(truth, predicted))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=30))
def test_class_score_is_that_of_scikit_learn(subjects):
    diagnosis, called = np.array([(1, 0.9), (0, 0.9), *subjects]).T
    order = np.argsort(-diagnosis, kind="stable")
    patients = int(diagnosis.sum())
    cohort, prediction = make([0] * patients, [0] * patients, called[order], controls=len(called) - patients)
    expected = balanced_accuracy_score(diagnosis, called > 0.5)
    assert score(cohort, prediction).class_bacc == pytest.approx(expected)


def test_overall_score_worked_by_hand():
    cohort, prediction = make(
        truth=[0, 0, 0, 1, 1, -1],
        predicted=[0, 0, 1, 1, 1, 1],
        called=[0.9, 0.2, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.8],
        controls=3,
    )
    scores = score(cohort, prediction)
    # TP: patients 0, 3, 4. FN: patient 1. FP: patient 2 (wrong subgroup) and control 8. TN: controls 6, 7.
    assert scores.overall_bacc == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert scores.subgroup_bacc == pytest.approx((2 / 3 + 2 / 2) / 2)
    assert scores.class_bacc == pytest.approx((4 / 6 + 2 / 3) / 2)  # the patient of unknown truth counts here


def test_overall_score_when_no_patient_is_in_the_right_subgroup():
    cohort, prediction = make([0, 1], [0, 1], [0.9] * 2 + [0.1] * 2, controls=2)
    assert score(cohort, prediction).overall_bacc == 1
    # neither found nor missed: TP + FN = 0 counts as none found, and two false positives stand beside two negatives
    assert score(cohort, prediction, mapping=np.array([1, 0])).overall_bacc == pytest.approx((0 + 2 / 4) / 2)


@pytest.mark.parametrize("n_subgroups", [2, 3, 5])
@pytest.mark.parametrize("chosen", [0, 1])  # which one takes all must not matter
def test_collapse_scores_one_over_k(n_subgroups, chosen):
    truth = np.repeat(np.arange(n_subgroups), np.arange(1, n_subgroups + 1))
    called = np.ones(len(truth) + 1)
    scores = score(*make(truth, np.full(len(truth), chosen), called, controls=1, n_subgroups=n_subgroups))
    assert scores.overall_bacc == pytest.approx(1 / 2)  # TP: the largest class; TN: none
    assert scores.subgroup_bacc == pytest.approx(1 / n_subgroups)
    assert scores.ari == scores.ami == pytest.approx(0)
    assert scores.silhouette is None


def test_two_of_three_subgroups_merged_score_two_thirds():
    scores = score(*make([0, 0, 1, 1, 2, 2], [0, 0, 2, 2, 2, 2]))
    assert scores.subgroup_bacc == pytest.approx(2 / 3)


@given(st.permutations(range(4)), st.integers(0, 1000))
def test_relabelling_changes_nothing(order, seed):
    rng = np.random.default_rng(seed)
    truth, predicted = rng.integers(4, size=(2, 30))
    called = rng.uniform(size=40)
    before = score(*make(truth, predicted, called, controls=10, n_subgroups=4))
    after = score(*make(truth, np.asarray(order)[predicted], called, controls=10, n_subgroups=4))
    # two matchings of equal balanced accuracy and accuracy may differ in which patients are right: Overall sees it
    assert {**asdict(after), "overall_bacc": 0} == pytest.approx({**asdict(before), "overall_bacc": 0})


def test_a_single_known_subgroup_cannot_be_scored():
    scores = score(*make([0, 0, 0, 0], [1, 1, 1, 1], [0.9] * 4 + [0.1], controls=1))
    assert scores.subgroup_bacc is None  # a constant answer would be perfect
    assert scores.overall_bacc is None
    assert scores.class_bacc == 1


def test_more_truths_than_subgroups():
    assert score(*make([0, 1, 2], [0, 1, 1])).subgroup_bacc == pytest.approx(2 / 3)


def test_mapping_learned_on_train_is_kept():
    mapping = match_labels(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), 2)
    cohort, prediction = make([0, 0, 1, 1], [0, 0, 1, 1])
    assert score(cohort, prediction).subgroup_bacc == 1
    assert score(cohort, prediction, mapping=mapping).subgroup_bacc == 0
    with pytest.raises(ValueError, match="one truth for each of 2 subgroups"):
        score(cohort, prediction, mapping=np.array([0, 1, 2]))


def test_centroid_reading():
    cohort, prediction = make([0, 0, 1, 1], [0, 1, 1, 0])
    with pytest.raises(ValueError, match="use reading='gate'"):
        score(cohort, prediction, reading="centroid")
    prediction.by_centroid = np.eye(2)[[1, 1, 0, 0]]
    assert score(cohort, prediction, reading="centroid").subgroup_bacc == 1
    assert score(cohort, prediction).subgroup_bacc == 0.5


def test_what_is_undefined_is_none():
    cohort, prediction = make([0, 1, 1], [0, 1, 1], [0.9] * 3)
    assert score(cohort, prediction).class_bacc is None  # no controls
    assert score(cohort, prediction).overall_bacc is None
    cohort, prediction = make([-1, -1, -1], [0, 1, 1], controls=2)
    scores = score(cohort, prediction)
    assert scores == Scores(silhouette=scores.silhouette)
    cohort, prediction = make([], np.array([], dtype=int), [0.1] * 2, controls=2, n_subgroups=2)
    assert score(cohort, prediction) == Scores()


def test_silhouette_is_of_patients_only_and_affordable():
    rng = np.random.default_rng(0)
    predicted = np.repeat([0, 1], 2500)
    embedding = np.concatenate([predicted[:, None] * 10 + rng.normal(size=(5000, 2)), np.full((500, 2), 1e6)])
    cohort, prediction = make(np.full(5000, -1), predicted, controls=500, embedding=embedding)
    first = score(cohort, prediction).silhouette
    assert 0.8 < first < 1
    assert score(cohort, prediction).silhouette == first


def test_a_prediction_of_other_subjects_is_refused():
    cohort, prediction = make([0, 1, 1], [0, 1, 1])
    with pytest.raises(ValueError, match=r"each of 2 subjects\. Received: 3"):
        score(cohort[:2], prediction)


def test_an_interval_is_that_of_scores_of_subjects_drawn_again():
    """Against a direct loop that scores drawn subjects by scikit-learn."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 60)
    predicted = np.where(rng.random(60) < 0.8, truth, 1 - truth)
    called = np.concatenate([rng.random(60) < 0.9, rng.random(40) < 0.3]).astype(float)
    cohort, prediction = make(truth, predicted, called, controls=40)
    found = intervals(cohort, prediction)
    assert set(found) == set(SCORE_NAMES)
    draws = rng.integers(0, 100, (2000, 100))
    ill = cohort.is_patient
    expected = {
        "class_bacc": [balanced_accuracy_score(ill[rows], called[rows] > 0.5) for rows in draws],
        "subgroup_bacc": [
            balanced_accuracy_score(truth[rows[rows < 60]], predicted[rows[rows < 60]]) for rows in draws
        ],
        "ari": [adjusted_rand_score(truth[rows[rows < 60]], predicted[rows[rows < 60]]) for rows in draws],
    }
    for name, values in expected.items():
        assert found[name] == pytest.approx(np.percentile(values, [2.5, 97.5]), abs=0.03), name
        assert found[name][0] < getattr(score(cohort, prediction), name) < found[name][1]


def test_an_interval_draws_whole_groups():
    """Four images of each person are no more evidence than one."""
    rng = np.random.default_rng(0)
    truth, persons = np.repeat(np.arange(60) % 2, 4), np.repeat(np.arange(60), 4)
    predicted = np.repeat(np.where(rng.random(60) < 0.8, truth[::4], 1 - truth[::4]), 4)
    cohort, prediction = make(truth, predicted)
    alone = intervals(cohort, prediction)["subgroup_bacc"]
    together = intervals(replace(cohort, group=persons), prediction)["subgroup_bacc"]
    assert np.ptp(together) == pytest.approx(2 * np.ptp(alone), rel=0.25)


def test_what_cannot_be_scored_has_no_interval():
    cohort, prediction = make([0, 1, 0, 1], [0, 1, 0, 1])
    assert "class_bacc" not in intervals(cohort, prediction)  # no diagnosis head, no controls
