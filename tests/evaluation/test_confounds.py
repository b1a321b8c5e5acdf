"""Associations agree with scipy where scipy has them, p holds its promise, and warnings are given when due."""

import time

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, chi2_contingency, false_discovery_control, kruskal, kstest
from scipy.stats.contingency import association

from phenogroups.evaluation import confounds
from phenogroups.evaluation.confounds import associations, untested, warnings
from phenogroups.evaluation.variables import holm, variable


@pytest.fixture
def draw():
    """Subgroups, diagnosis and covariates that have nothing to do with each other."""

    def drawn(n=200, k=2, seed=0):
        rng = np.random.default_rng(seed)
        table = {"age": rng.normal(50, 10, n), "sex": rng.choice(["F", "M"], n), "site": rng.choice(list("ABC"), n)}
        return np.eye(k)[rng.integers(0, k, n)], np.arange(n) % 2, pd.DataFrame(table)

    return drawn


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(confounds, "PERMUTATIONS", 399)
    monkeypatch.setattr(confounds, "RESAMPLES", 400)


def row(table, covariate, among="patients"):
    return table.set_index(["covariate", "among"]).loc[(covariate, among)]


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("effect", [0.0, 0.5])
def test_p_and_effect_agree_with_scipy(draw, k, effect):
    q, ill, covariates = draw(600, k, seed=1)
    letter = q.argmax(1)
    covariates["age"] += 10 * effect * (letter == 0)
    follows = np.random.default_rng(2).random(600) < effect / 2
    covariates["site"] = np.where(follows, np.array(list("ABCA"))[letter], covariates["site"])
    found = associations(q, ill, covariates)
    for among, who in (("patients", ill == 1), ("controls", ill == 0)):
        ages = [covariates["age"][who & (letter == j)] for j in range(k)]
        h, p = kruskal(*ages)
        n = who.sum()
        amount = row(found, "age", among)
        assert amount["p"] == pytest.approx(p, abs=0.02)
        epsilon = (h - k + 1) / (n - k)  # epsilon squared of ranks
        assert amount["value"] == pytest.approx(np.sqrt(max(epsilon, 0)), abs=0.01)
        counts = pd.crosstab(letter[who], covariates["site"][who]).to_numpy()
        codes = row(found, "site", among)
        assert codes["p"] == pytest.approx(chi2_contingency(counts).pvalue, abs=0.02)
        plain, chance = association(counts, correction=False) ** 2, (k - 1) * 2 / (n - 1)
        m = min(k - 1, 2)
        assert codes["value"] == pytest.approx(np.sqrt(max(plain * m - chance, 0) / (m - chance)), abs=0.01)
    if effect:
        assert (found.loc[found["covariate"] != "sex", "p"] < 0.05).all()


def test_soft_memberships_of_controls_count_as_the_table_they_are_expected_to_make(draw):
    q, ill, covariates = draw(400, 3)
    soft = np.random.default_rng(1).dirichlet([0.5] * 3, 400)
    value = row(associations(soft, ill, covariates), "site", "controls")["value"]
    who = ill == 0
    copies = np.array([np.random.default_rng(seed).multinomial(1, p) for seed in range(40) for p in soft[who]])
    site = np.tile(covariates["site"][who], 40)
    counts = np.array([[copies[site == code, k].sum() for code in "ABC"] for k in range(3)])
    assert value == pytest.approx(association(counts), abs=0.05)
    faint = 1 / 3 + 1e-3 * (soft - 1 / 3)
    faint[:, 0] += 1e-2 * (covariates["site"] == "A")
    faint /= faint.sum(1, keepdims=True)
    table = associations(np.where(who[:, None], faint, q), ill, covariates)
    site = row(table, "site", "controls")
    assert site["p_corrected"] < 0.01  # it does follow the site
    assert site["value"] < 0.05  # but hardly leans to any subgroup
    assert warnings(table) == []


def test_names_of_subgroups_and_codes_and_order_of_rows_do_not_matter(draw):
    q, ill, covariates = draw(300, 3)
    covariates["age"] += 6 * q[:, 0]
    found = associations(q, ill, covariates)
    renamed = covariates.assign(
        site=covariates["site"].map({"A": "z", "B": "y", "C": "x"}), age=np.exp(covariates["age"] / 10)
    )
    order = np.random.default_rng(0).permutation(300)
    other = associations(q[order][:, [2, 0, 1]], ill[order], renamed.iloc[order])
    for column in ("value", "low", "high", "p"):
        assert other[column].to_numpy() == pytest.approx(found[column].to_numpy(), abs=0.03)


def test_false_alarms_in_a_hundred_cohorts_without_effect_are_at_most_five(draw, quick):
    tables = [associations(*draw(160, 2 + seed % 3, seed)) for seed in range(100)]
    assert sum(bool(warnings(table)) for table in tables) <= 5
    p = np.concatenate([table.loc[table["covariate"] == "age", "p"] for table in tables])
    assert kstest(p, "uniform").pvalue > 0.01


def test_a_planted_site_effect_is_found_and_said(draw):
    q, ill, covariates = draw()
    at_a = q[:, 0] == 1
    covariates["site"] = np.where((ill == 1) & ~at_a, "B", "A")
    (said,) = warnings(associations(q, ill, covariates))
    assert said.startswith("Subgroups follow site (Cramer's V 1.00, 95 % interval 1.00 to 1.00")
    assert "They may be site and not disease." in said
    assert "Controls cannot tell the two apart (all have the value A)." in said
    covariates["site"] = np.where(at_a, "A", "B")
    (said,) = warnings(associations(q, ill, covariates))
    assert "Controls, who have no subgroups, are divided by it too" in said


def test_what_may_be_part_of_the_illness_is_said_otherwise(draw):
    q, ill, covariates = draw()
    covariates["symptoms"] = q[:, 0] * ill + np.random.default_rng(0).normal(0, 0.1, len(ill))
    covariates["age_at_scan"] = covariates["symptoms"]
    symptoms, age = warnings(associations(q, ill, covariates))
    assert "a finding if symptoms is part of the illness" in symptoms
    assert "They may be age_at_scan and not disease." in age


def test_a_gate_that_parts_only_controls_is_said(draw):
    q, ill, covariates = draw()
    covariates["age"] += 40 * q[:, 0] * (ill == 0)
    (said,) = warnings(associations(q, ill, covariates))
    assert said.startswith("Among controls, who have no subgroups, the gate follows age")


def test_a_negligible_effect_in_many_subjects_is_no_alarm(draw, quick):
    q, ill, covariates = draw(20_000)
    covariates["age"] += 1.2 * q[:, 0]
    table = associations(q, ill, covariates[["age"]])
    age = row(table, "age")
    assert age["p_corrected"] <= 0.01
    assert 0.03 < age["value"] < 0.1
    assert warnings(table) == []


def test_repeated_rows_of_one_group_do_not_multiply_the_evidence(quick):
    alarms, p = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        people = np.repeat(np.arange(60), rng.integers(1, 6, 60))  # of one to five rows each, all alike
        letter, age = rng.integers(0, 2, 60)[people], rng.normal(size=60)[people]
        ill = np.ones(len(people), int)
        table = pd.DataFrame({"age": age})
        alarms.append(row(associations(np.eye(2)[letter], ill, table), "age")["p"] <= 0.05)
        p.append(row(associations(np.eye(2)[letter], ill, table, group=people, seed=seed), "age")["p"])
    assert np.mean(alarms) > 0.15  # as if every row were a person
    assert binomtest(sum(np.array(p) <= 0.05), 100, 0.05, alternative="greater").pvalue > 0.001  # 0.054 of 1,500
    assert kstest(p, "uniform").pvalue > 0.01


def test_the_interval_holds_the_true_effect(quick):
    """Two codes follow two subgroups with a true V of 0.3, or not at all."""
    for true in (0.0, 0.3):
        inside = []
        for seed in range(60):
            rng = np.random.default_rng(seed)
            person = np.repeat(np.arange(150), 2)  # two eyes
            letter = rng.integers(0, 2, 150)
            code = np.where(rng.random(150) < (1 + true) / 2, letter, 1 - letter)
            table = pd.DataFrame({"site": code[person].astype(str)})
            found = row(associations(np.eye(2)[letter[person]], np.ones(300, int), table, person, seed), "site")
            inside.append(found["low"] <= true <= found["high"])
            assert found["low"] <= found["value"] <= found["high"]
        assert np.mean(inside) >= 0.88


def test_what_cannot_be_tested_is_said_and_does_not_crash(draw):
    q, ill, covariates = draw()
    covariates = covariates.assign(
        id=[f"person-{i}" for i in range(200)], country="CH", dose=2.5, empty=np.nan, word=["x"] + 199 * [None],
        rare=["B"] + 199 * ["A"], score=np.where(np.arange(200) < 30, np.nan, np.arange(200) % 17),
    )  # fmt: skip
    covariates.loc[0, "age"] = np.inf
    table = associations(q, ill, covariates)
    assert len(table) == 2 * covariates.shape[1]
    assert list(table["covariate"].unique()) == list(covariates)
    not_tested = table[table["test"].str.startswith("not tested")]
    assert set(not_tested["covariate"]) == {"id", "country", "dose", "empty", "word"} | {"rare"}
    assert set(not_tested.loc[not_tested["covariate"] == "rare", "among"]) == {"patients"}  # where all are A
    assert not_tested[["value", "low", "high", "p", "p_corrected"]].isna().all(axis=None)
    assert row(table, "score")["missing"] == 15
    assert row(table, "age", "controls")["missing"] == 1
    assert table.loc[table["p"].notna(), "p_corrected"].between(0, 1).all()
    (said,) = untested(table)
    assert "id (they are names, of which none is shared by 5 subjects)" in said
    assert "country (all have the value CH)" in said
    assert "dose (all have the value 2.5)" in said
    assert "empty (known of 0 subjects, fewer than 20)" in said
    assert untested(associations(q, ill, covariates[["sex"]])) == []


def test_one_subgroup_no_controls_no_covariates_and_few_groups(draw):
    q, ill, covariates = draw()
    one = associations(np.eye(2)[np.zeros(200, int)], ill, covariates)
    assert (one["test"] == "not tested: all are in one subgroup").all()
    alone = associations(q, np.ones(200, int), covariates)
    assert (alone.loc[alone["among"] == "controls", "test"] == "not tested: known of 0 subjects, fewer than 20").all()
    assert warnings(associations(q, ill, covariates[[]])) == []
    few = associations(q, ill, covariates, group=np.arange(200) // 50)
    assert (few["test"] == "not tested: there are too few groups of equal size to shuffle").all()
    with pytest.raises(ValueError, match="200, 200 and 3 rows"):
        associations(q, ill, covariates[:3])


def test_holm_is_the_step_down_of_its_definition():
    p = np.random.default_rng(0).random(12) ** 3
    p[4] = np.nan
    found, tests = holm(p), np.sort(p[~np.isnan(p)])
    for value, corrected in zip(p, found, strict=True):
        earlier = [(len(tests) - i) * q for i, q in enumerate(tests) if q <= value]
        assert np.isnan(corrected) if np.isnan(value) else corrected == pytest.approx(min(max(earlier), 1))
    assert (found[~np.isnan(p)] >= false_discovery_control(p[~np.isnan(p)]) - 1e-12).all()


@pytest.mark.parametrize(
    ("column", "kind", "levels"),
    [
        (pd.Series([1, 2, 2, 3]), "codes", ("1", "2", "3")),
        (pd.Series([1.0, 2.0, np.nan]), "codes", ("1", "2")),
        (pd.Series([0.5, 1.0]), "amount", ()),
        (pd.Series(range(9)), "amount", ()),
        (pd.Series([True, False]), "codes", ("False", "True")),
        (pd.Series(["b", "a", "", None]), "codes", ("a", "b")),
        (pd.Categorical(["lo", "hi"], categories=["lo", "mid", "hi"]), "codes", ("lo", "hi")),
        (pd.Series([1, None, 2], dtype="Int64"), "codes", ("1", "2")),
        (pd.to_datetime(pd.Series(["2020-01-01", None])), "codes", ("2020-01-01 00:00:00",)),
    ],
)
def test_amounts_and_codes_are_told_apart(column, kind, levels):
    found = variable("x", pd.Series(column))
    assert (found.kind, found.levels) == (kind, levels)
    assert (found.known == pd.Series(column).replace("", None).notna()).all()


def test_a_thousand_subjects_take_about_a_second(draw):
    q, ill, covariates = draw(2000, 3)
    began = time.process_time()
    associations(q, ill, covariates)
    assert time.process_time() - began < 5  # measured: about 1, on a busy core


def test_an_amount_that_hardly_anybody_has_gives_finite_numbers():
    """As near-white pixels of drawn brains: in many resamples nobody has any."""
    rng = np.random.default_rng(0)
    subgroup = 0.1 + 0.8 * np.eye(2)[rng.integers(0, 2, 42)]
    amount = np.zeros(42)
    amount[[3, 24]] = 0.001, 0.002  # a patient and a control
    table = associations(subgroup, np.arange(42) % 2, pd.DataFrame({"near_white": amount}))
    numbers = table[["value", "low", "high"]].to_numpy(float)
    assert ((numbers >= 0) & (numbers <= 1)).all()
