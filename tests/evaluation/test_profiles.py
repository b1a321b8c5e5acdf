"""The table for a paper: numbers as scipy and pandas have them, missing values counted, LaTeX that compiles."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2_contingency, fisher_exact, kruskal

from phenogroups.evaluation.profiles import profiles
from phenogroups.evaluation.variables import holm
from phenogroups.report.tables import profiles_latex


@pytest.fixture(scope="module")
def known():
    rng = np.random.default_rng(0)
    n = 400
    letter, ill = rng.choice(list("ABC"), n, p=[0.5, 0.3, 0.2]), np.arange(n) % 4 > 0
    covariates = pd.DataFrame(
        {
            "age": rng.normal(50, 10, n) + 4 * (letter == "A"),
            "sex": rng.choice(["F", "M"], n),
            "stage": rng.integers(1, 5, n),
            "IQ_total": np.where(rng.random(n) < 0.1, np.nan, rng.normal(100, 15, n)),
            "site": rng.choice(["R&D 1", "50% #2", "a_b"], n),
        }
    )
    return letter, ill, covariates


@pytest.fixture(scope="module")
def table(known):
    return profiles(*known)


def first(table, name):
    return table[table["variable"] == name].iloc[0]


def test_tests_and_effects_are_those_of_scipy(known, table):
    letter, ill, covariates = known
    for name in ("age", "IQ_total"):
        values = [covariates[name][ill & (letter == one)].dropna() for one in "ABC"]
        h, p = kruskal(*values)
        row = first(table, name)
        assert row["p"] == pytest.approx(p)
        assert row["size"] == pytest.approx(max((h - 2) / (sum(map(len, values)) - 3), 0))
    for name in ("sex", "stage", "site"):
        counts = pd.crosstab(letter[ill], covariates[name][ill])
        row = first(table, name)
        assert row["p"] == pytest.approx(chi2_contingency(counts, correction=False).pvalue)
        assert row["test"] == "chi-square"
    tested = table[table["p"].notna()]
    assert list(tested["variable"]) == list(covariates)
    assert tested["p_corrected"].to_numpy() == pytest.approx(holm(tested["p"].to_numpy()))


def test_cells_are_those_of_pandas(known, table):
    letter, ill, covariates = known
    ages = covariates["age"][ill & (letter == "B")]
    mean, median = table[table["variable"] == "age"]["B"]
    assert mean == f"{ages.mean():.4g} ({ages.std():.3g})"
    assert median == f"{ages.median():.4g} [{ages.quantile(0.25):.4g}, {ages.quantile(0.75):.4g}]"
    women = table[(table["variable"] == "sex") & (table["value"] == "F")].iloc[0]
    of_controls = covariates["sex"][~ill] == "F"
    assert women["controls"] == f"{of_controls.sum()} ({of_controls.mean():.0%})"
    assert [int(first(table, "subjects")[part]) for part in ("A", "B", "C", "controls")] == [
        *((ill & (letter == one)).sum() for one in "ABC"),
        100,
    ]


def test_missing_values_are_counted_in_every_part(known, table):
    letter, ill, covariates = known
    row = first(table, "IQ_total")
    lacking = covariates["IQ_total"].isna()
    assert [row[f"missing {one}"] for one in "ABC"] == [(lacking & ill & (letter == one)).sum() for one in "ABC"]
    assert row["missing controls"] == (lacking & ~ill).sum()
    assert first(table, "age")["missing A"] == 0


def test_small_counts_are_permuted_and_agree_with_fisher():
    letter = np.repeat(["A", "B"], [12, 9])
    sex = ["F"] * 10 + ["M"] * 2 + ["F"] * 3 + ["M"] * 6
    row = first(profiles(letter, np.ones(21, bool), pd.DataFrame({"sex": sex})), "sex")
    assert row["test"] == "chi-square, permuted"
    assert row["p"] == pytest.approx(fisher_exact([[10, 2], [3, 6]]).pvalue, abs=0.01)


def test_two_eyes_are_not_two_people(known):
    letter, ill, covariates = known
    twice = np.repeat(np.arange(len(ill)), 2)
    double = covariates.iloc[twice].reset_index(drop=True)
    apart = profiles(letter[twice], ill[twice], double)
    together = profiles(letter[twice], ill[twice], double, group=twice)
    for name in ("sex", "IQ_total"):
        once = first(profiles(*known), name)["p"]
        assert first(together, name)["p"] == pytest.approx(once, abs=0.02)
        assert abs(first(apart, name)["p"] - once) > 0.02
    assert first(together, "age")["test"] == "Kruskal-Wallis, permuted by group"


def test_latex_is_escaped_and_whole(table):
    text = profiles_latex(table)
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}", r"\end{table}", r"\centering"):
        assert text.count(rule) == 1
    assert r"R\&D 1" in text
    assert r"50\% \#2" in text
    assert r"a\_b" in text
    assert r"IQ\_total" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    columns = {len(re.findall(r"(?<!\\)&", line)) for line in body}
    assert columns == {10}  # of variable, value, four parts, test, effect, two p and missing
    assert not re.search(r"(?<!\\)[%#_]|(?<!\\)\$(?!<\$)(?<!<\$)", "\n".join(body))
    assert len(body) == len(table) + 1
    assert "nan" not in text.lower().replace("nant", "")
    assert text.isascii()
    assert "$<$0.001" in text


def test_no_name_is_taken_for_the_argument_of_a_row(known):
    letter, ill, covariates = known
    text = profiles_latex(profiles(letter, ill, covariates[["age"]].rename(columns={"age": "[age] > *"})))
    assert "\n{}[age] $>$ * & mean (SD)" in text


def test_latex_compiles(table, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex here")
    preamble = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    page = preamble + profiles_latex(table) + r"\end{document}"
    (tmp_path / "page.tex").write_text(page)
    subprocess.run(["pdflatex", "-halt-on-error", "page.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_odd_columns_do_not_break_the_table():
    letter, ill = np.array(["A", "AA", "Z"] * 20), np.arange(60) % 2 == 0
    odd = pd.DataFrame(
        {
            "empty": np.nan, "one": 7, "name": [f"p{i}" for i in range(60)], "none": [None] * 60,
            "lone": [1.5] + [np.nan] * 59, "flag": np.arange(60) % 4 == 0,
        }
    )  # fmt: skip
    table = profiles(letter, ill, odd)
    assert list(table.columns[2:6]) == ["A", "Z", "AA", "controls"]
    assert first(table, "empty")["test"] == "none: one subgroup or one value"
    assert first(table, "name")["value"] == "different codes"
    assert first(table, "name")["A"] == "10"
    assert "nan" not in profiles_latex(table)
    assert "controls" not in profiles(letter, np.ones(60, bool), odd)
    assert len(profiles(letter, ill, odd[[]])) == 1
