import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phenogroups.data.cohort import Cohort, CohortError


def cohort(n=20, **given):
    return Cohort(np.random.default_rng(0).normal(size=(n, 3)), np.arange(n) % 2, **given)


def test_completes_what_is_not_given():
    made = cohort(12)
    assert made.subject[0] == "s00"
    assert (made.group == made.subject).all()
    assert made.truth is None


def test_truth_of_controls_is_not_kept():
    made = cohort(truth=np.ones(20, dtype=int))
    assert set(made.truth[made.is_patient]) == {1}
    assert set(made.truth[~made.is_patient]) == {-1}


def test_rows_keep_everything_together():
    made = cohort(covariates=pd.DataFrame({"age": range(20)}), truth=np.arange(20))
    some = made[[3, 5]]
    assert list(some.subject) == ["s03", "s05"]
    assert list(some.covariates["age"]) == [3, 5]
    assert list(some.truth) == [3, 5]
    np.testing.assert_array_equal(some.inputs, made.inputs[[3, 5]])


@settings(max_examples=50, deadline=None)
@given(
    groups=st.lists(st.integers(0, 15), min_size=30, max_size=60), held_out=st.floats(0.2, 0.5), seed=st.integers(0, 99)
)
def test_a_split_never_separates_a_group(groups, held_out, seed):
    diagnosis = np.arange(len(groups)) % 2
    made = Cohort(np.zeros((len(groups), 2)), diagnosis, group=np.array(groups))
    try:
        train, test = made.split(held_out, seed)
    except CohortError:
        # too few groups to have patients and controls on both sides
        assert min(len(set(made.group[made.diagnosis == kind])) for kind in (0, 1)) < 4
        return
    assert not set(train.group) & set(test.group)
    for part in (train, test):
        assert set(part.diagnosis) == {0, 1}
    assert len(train) + len(test) == len(made)


def test_one_big_group_does_not_prevent_a_split():
    made = Cohort(np.zeros((60, 2)), np.arange(60) % 2, group=np.array([*[0] * 40, *np.arange(20) // 4 + 1]))
    for seed in range(20):
        train, test = made.split(0.2, seed)
        assert set(train.diagnosis) == set(test.diagnosis) == {0, 1}


def test_a_split_is_stratified_and_seeded():
    made = Cohort(np.zeros((1000, 2)), (np.arange(1000) < 300).astype(int), group=np.arange(1000) // 2)
    train, test = made.split(0.2, seed=3)
    assert abs(len(test) - 200) <= 4
    assert abs(test.is_patient.mean() - 0.3) < 0.02
    assert list(made.split(0.2, seed=3)[1].subject) == list(test.subject)
    assert list(made.split(0.2, seed=4)[1].subject) != list(test.subject)
    assert len(train) == 1000 - len(test)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"diagnosis": [0, 1, 2]}, ["0 (control) or 1 (patient)", "2", "s2", "Drop or recode"]),
        ({"diagnosis": [0, 1]}, ["3 values of diagnosis", "2"]),
        ({"subject": ["a", "a", "b"]}, ["every subject id once", "2 rows (a, a)", "group column"]),
        ({"inputs": np.array([[1.0], [np.nan], [2.0]])}, ["NaN", "1 row (s1)"]),
        ({"inputs": np.zeros((3, 2, 2))}, ["shape (3, 2, 2)"]),
        ({"inputs": np.array([["a"], ["b"], ["c"]])}, ["Expected numbers"]),
        ({"inputs": [[1], [2], [None]]}, ["Expected numbers", "object"]),
        ({"inputs": np.zeros((0, 2)), "diagnosis": []}, ["at least one subject"]),
    ],
)
def test_bad_input_gets_one_clear_message(given, words):
    with pytest.raises(CohortError) as error:
        Cohort(**{"inputs": np.zeros((3, 2)), "diagnosis": [0, 1, 1], **given})
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("diagnosis", "words"),
    [([1, 1, 1], "all patients"), ([0, 0, 0], "all controls"), ([0, 0, 1], "1 patients for 2 subgroups")],
)
def test_a_cohort_without_a_question_is_refused(diagnosis, words):
    with pytest.raises(CohortError, match=words):
        Cohort(np.zeros((3, 2)), diagnosis).require(2)


def test_a_split_needs_both_classes_on_both_sides():
    made = cohort(20, group=np.where(np.arange(20) % 2, "one family", np.arange(20)))
    with pytest.raises(CohortError, match="10 patients in 1 groups"):
        made.split()


def test_fingerprint_follows_the_content():
    assert cohort().fingerprint == cohort().fingerprint
    assert cohort().fingerprint != cohort()[::-1].fingerprint
