"""How many subgroups: the rule, what covariates take out, and drawn tables with known answers."""

import numpy as np
import pandas as pd
import pytest
import torch

from phenogroups.clustering.structure import path
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.evaluation.number import choose, decide, of_the_disease, stability, unexplained

PASSING = {"gain": 0.5, "p_gain": 0.001, "gap": 0.2, "p_gap": 0.001, "stability": 0.9}


def criteria(*rows):
    return pd.DataFrame([{"subgroups": k, **PASSING, **row} for k, row in enumerate(rows, start=2)])


def test_the_largest_number_that_passes_is_chosen():
    found = decide(criteria({}, {}, {"gap": 0.0}))
    assert found.subgroups == 3
    assert found.reason.startswith("3 subgroups: ")
    assert "with 4, no gap lies between some of them" in found.reason
    assert found.criteria["passes"].tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("failing", "word"),
    [({"p_gain": 0.02}, "chance"), ({"gap": 0.02}, "no gap"), ({"stability": 0.5}, "put them elsewhere")],
)
def test_each_test_alone_is_enough_to_find_none(failing, word):
    found = decide(criteria(failing, {**failing, "gain": 0.1}))
    assert found.subgroups == 1
    assert found.reason.startswith("No subgroups: with 2, ")
    assert word in found.reason


def test_a_step_that_adds_little_is_not_taken():
    assert decide(criteria({}, {"gain": 0.24})).subgroups == 2
    assert decide(criteria({}, {"gain": 0.26})).subgroups == 3


def test_gaps_far_narrower_than_with_fewer_are_not_taken():
    found = decide(criteria({"gap": 0.4}, {"gap": 0.13}))
    assert found.subgroups == 2
    assert "with 3, the gaps are far narrower than with fewer" in found.reason
    assert decide(criteria({"gap": 0.4}, {"gap": 0.14})).subgroups == 3
    assert decide(criteria({"gap": 0.1}, {"gap": 0.4})).subgroups == 3


def test_groups_that_controls_have_too_are_none_of_the_disease():
    found = of_the_disease(decide(criteria({}, {})), 0.02)
    assert (found.subgroups, found.p_shuffled) == (1, 0.02)
    assert found.reason.startswith("No subgroups of the disease: the patients fall into 3 groups")
    assert of_the_disease(decide(criteria({}, {})), 0.01).subgroups == 3


def test_a_shuffled_diagnosis_is_given_no_subgroups_though_everybody_has_groups():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8))
    x[:, 0] += 9 * (np.arange(600) % 2)
    diagnosis = rng.permutation(np.arange(600) < 300).astype(int)
    found = choose([x], diagnosis, pd.DataFrame(index=range(600)), most=3, surrogates=9)
    assert found.criteria["passes"][0]
    assert found.subgroups == 1
    assert found.reason.startswith("No subgroups of the disease")
    ill = np.arange(600) < 300  # the same groups, of the patients only
    x[~ill, 0] = rng.normal(4.5, 1, 300)  # as ill on average: the axis of severity is removed
    assert choose([x], ill.astype(int), pd.DataFrame(index=range(600)), most=3, surrogates=9).subgroups == 2


def test_fewer_than_asked_for_is_none():
    assert decide(criteria({}, {"gap": 0.0}), least=3).subgroups == 1


def test_p_needs_both_gain_and_gap_and_pays_for_every_number_tried():
    found = decide(criteria({"p_gain": 0.02, "p_gap": 0.001}, {"p_gain": 0.001, "p_gap": 0.3}))
    assert found.p == pytest.approx(0.04)


def test_shared_covariates_are_taken_out_curves_included_and_symptoms_are_not():
    rng = np.random.default_rng(0)
    ill = np.arange(400) < 200
    age, site, noise = rng.uniform(20, 80, 400), rng.choice(["A", "B"], 400), rng.normal(size=(400, 3))
    symptom = np.where(ill, rng.normal(size=400), np.nan)
    x = np.zeros((400, 3))
    x[:, 0] = ((age - 50) / 10) ** 2 * np.where(ill, 1, -2)  # another curve in controls
    x[:, 1] = 5 * (site == "B")
    x[ill, 2] = 5 * symptom[ill]
    covariates = pd.DataFrame({"age": age, "site": site, "symptom": symptom, "name": [f"s{i}" for i in range(400)]})
    left = unexplained(x + 0.1 * noise, ill, covariates)
    for side in (ill, ~ill):
        assert left[side, 0].std() < 0.3
        assert left[side, 1].std() < 0.3
    assert np.corrcoef(left[ill, 2], symptom[ill])[0, 1] > 0.99
    np.testing.assert_array_equal(unexplained(x, ill, pd.DataFrame(index=range(400))), x)


@pytest.mark.parametrize(("subgroups", "sizes"), [(0, None), (1, None), (2, (0.2, 0.8)), (3, None)])
def test_drawn_tables_have_as_many_as_were_drawn(subgroups, sizes):
    cohort = drawn_table(600, 12, subgroups, sizes=sizes, separation=7, seed=3)
    found = choose([cohort.inputs], cohort.diagnosis, cohort.covariates, most=4, surrogates=9)
    assert found.subgroups == max(subgroups, 1), found.reason
    assert 0 < found.p_shuffled <= 1
    if subgroups < 2:
        assert found.p > 0.01
    wanted = {"silhouette", "davies_bouldin", "bic", "x_means", "dec_ratio", "diagnosis_bacc", "stability"}
    assert wanted <= {*found.criteria.columns}


def test_stability_is_agreement_about_patients_that_a_run_has_not_seen():
    rng = np.random.default_rng(0)
    plain = torch.as_tensor(rng.normal(size=(200, 4)))
    apart = plain.clone()
    apart[:100, 0] += 9
    planted = (np.arange(200) < 100).astype(int)
    assert stability(lambda _: apart, [planted])[0] > 0.95
    assert stability(lambda _: apart, [rng.permutation(planted)])[0] < 0.2
    assert stability(lambda _: plain, [path(plain, 2)[0].argmax(1).numpy()])[0] < 0.85
