"""How many subgroups: the rule, what covariates take out, and drawn tables with known answers."""

import numpy as np
import pandas as pd
import pytest

from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.evaluation.number import choose, decide, unexplained

PASSING = {"gap": 0.2, "apart": 5.0, "p_gap": 0.001, "p_shuffled": 0.001}


def criteria(*rows):
    return pd.DataFrame([{"subgroups": k, **PASSING, **row} for k, row in enumerate(rows, start=2)])


def test_the_largest_number_that_passes_is_chosen():
    found = decide(criteria({}, {}, {"gap": 0.0}))
    assert found.subgroups == 3
    assert found.reason.startswith("3 subgroups: ")
    assert "with 4, no gap lies between them, or only one that controls show as well" in found.reason
    assert found.criteria["passes"].tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("failing", "word"),
    [
        ({"p_gap": 0.02}, "by chance"),
        ({"gap": 0.02}, "no gap"),
        ({"apart": 3.4}, "no gap"),
        ({"p_shuffled": 0.02}, "at random"),
    ],
)
def test_each_test_alone_is_enough_to_find_none(failing, word):
    found = decide(criteria(failing, failing))
    assert found.subgroups == 1
    assert found.reason.startswith("No subgroups: with 2, ")
    assert word in found.reason


def test_the_largest_of_several_numbers_has_to_be_surer_than_one_that_was_given():
    assert decide(criteria({"p_gap": 0.008})).subgroups == 2
    assert decide(criteria({}, {"p_gap": 0.008})).subgroups == 2
    assert decide(criteria({"p_gap": 0.008}, {})).subgroups == 3


def test_a_number_beyond_one_that_passes_has_to_be_surer():
    assert decide(criteria({}, {"p_gap": 0.003})).subgroups == 2
    assert decide(criteria({"gap": 0.0}, {"p_gap": 0.003})).subgroups == 3
    assert decide(criteria({"p_gap": 0.004}, {"p_gap": 0.001})).subgroups == 3


def test_the_narrowest_of_several_gaps_may_be_narrower_than_a_single_one():
    assert decide(criteria({"apart": 3.7}, {"apart": 3.7})).subgroups == 3
    assert decide(criteria({"apart": 3.7}, {"apart": 3.4})).subgroups == 1


def test_random_diagnoses_have_the_same_chance_with_each_pair_of_subgroups():
    assert decide(criteria({"p_shuffled": 0.002})).subgroups == 1
    assert decide(criteria({}, {"p_shuffled": 0.0025})).subgroups == 3
    assert decide(criteria({}, {"p_shuffled": 0.0035})).subgroups == 2


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_that_controls_have_too_are_none_of_the_disease(groups):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8))
    x[np.arange(600), np.arange(600) % groups] += 9
    diagnosis = rng.permutation(np.arange(600) < 300).astype(int)
    covariates = pd.DataFrame(index=range(600))
    found = choose([x], diagnosis, covariates, most=3)
    assert found.subgroups == 1
    assert found.criteria["p_shuffled"].min() > 0.01
    ill = np.arange(600) < 300
    x[~ill] = rng.normal(size=(300, 8)) + 9 * (np.arange(8) < groups) / groups  # the patients alone have the groups
    assert choose([x], ill.astype(int), covariates, most=3).subgroups == groups


def test_fewer_than_asked_for_is_none():
    assert decide(criteria({}, {"gap": 0.0}), least=3).subgroups == 1


def test_p_pays_for_every_number_tried():
    assert decide(criteria({"p_gap": 0.02}, {"p_gap": 0.3})).p == pytest.approx(0.04)


@pytest.mark.parametrize("seed", range(3))
def test_covariates_that_explain_nothing_do_not_fill_the_gap_between_subgroups(seed):
    rng = np.random.default_rng(seed)
    ill, group = np.arange(240) < 120, rng.integers(0, 2, 240)
    x = rng.normal(size=(240, 1)) + 8 * (group * ill)[:, None]
    sites = rng.choice([f"site {i}" for i in range(6)], 240)
    covariates = pd.DataFrame({"age": rng.uniform(20, 80, 240), "iq": rng.normal(100, 15, 240), "site": sites})
    left = unexplained(x, ill, covariates)
    within = [left[ill & (group == k)].std() for k in (0, 1)]
    assert max(within) < 1.25  # 1 without covariates; about 1.5 if patients alone are regressed on them


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
    found = choose([cohort.inputs], cohort.diagnosis, cohort.covariates, most=4)
    assert found.subgroups == max(subgroups, 1), found.reason
    assert 0 < found.p_shuffled <= 1
    if subgroups < 2:
        assert found.p > 0.01
    wanted = {"silhouette", "davies_bouldin", "bic", "x_means", "dec_ratio", "diagnosis_bacc", "agreement"}
    assert wanted <= {*found.criteria.columns}
