from dataclasses import replace

import numpy as np
import pytest

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.scores import score
from phenogroups.methods import METHODS, Classifier, SupervisedSubgroups
from phenogroups.workflows.discover import discover

QUICK = {"epochs": 2, "steps": 5}


def test_known_subgroups_are_learned_and_recognised_in_others():
    train, test = drawn_digits(400, size=16, seed=4).split(0.3, seed=0)
    method = SupervisedSubgroups(epochs=4, steps=15).fit(train)
    found = method.predict_cohort(test)
    assert score(test, found, mapping=np.array([0, 1])).subgroup_bacc > 0.85  # its ids are those of the truth
    assert found.diagnosis is None


def test_the_truth_is_refused_where_it_is_missing(features):
    with pytest.raises(CohortError, match=r"Expected a cohort with truth.*Fit Cohort"):
        SupervisedSubgroups().fit(replace(features, truth=None))
    with pytest.raises(CohortError, match="Expected a cohort with truth"):
        SupervisedSubgroups().fit(features.inputs, features.diagnosis)


@pytest.mark.parametrize(("truth", "asked", "known"), [([0, 1], 3, 2), ([0, 0], 2, 1), ([-1, -1], 2, 0)])
def test_as_many_subgroups_must_be_asked_for_as_are_known(features, truth, asked, known):
    cohort = replace(features, truth=np.tile(np.repeat(truth, 2), 30), truth_names=())
    with pytest.raises(CohortError, match=f"Expected {asked} known subgroups.*Received: {known} among"):
        SupervisedSubgroups(n_subgroups=asked).fit(cohort)


def test_patients_of_unknown_truth_are_left_out(features):
    truth, inputs = features.truth.copy(), features.inputs.copy()
    truth[:20] = -1
    inputs[:20] += 9
    plain, other = (
        SupervisedSubgroups(**QUICK).fit(Cohort(x, features.diagnosis, truth=truth)) for x in (features.inputs, inputs)
    )
    np.testing.assert_array_equal(plain.transform(features), other.transform(features))


def test_a_gap_in_the_numbers_of_the_truth_is_none_in_those_of_subgroups(features):
    cohort = replace(features, truth=2 * features.truth, truth_names=())
    plain, other = (SupervisedSubgroups(**QUICK).fit(c) for c in (features, cohort))
    np.testing.assert_array_equal(plain.labels_, other.labels_)


def test_it_alone_reads_the_truth_and_says_so():
    assert [name for name, make in METHODS.items() if make().reads_truth] == ["supervised_upper_bound"]
    assert "not found" in SupervisedSubgroups().caveats()[0]


def test_its_run_says_that_it_was_told_the_truth(features, tmp_path):
    told = discover(features, SupervisedSubgroups(**QUICK), tmp_path / "told").sentences
    found = discover(features, Classifier(**QUICK), tmp_path / "found").sentences
    assert any("which the method was trained on" in sentence for sentence in told)
    assert any("which were not used in training" in sentence for sentence in found)
    assert any("without controls" in sentence for sentence in told)
    assert any("contrasted with 48 controls" in sentence for sentence in found)


def test_another_truth_is_another_result(features):
    other = replace(features, truth=1 - np.abs(features.truth))
    plain, swapped = (SupervisedSubgroups(**QUICK).fit(c) for c in (features, other))
    patients = features.is_patient
    assert (plain.labels_[patients] != swapped.labels_[patients]).mean() > 0.8
