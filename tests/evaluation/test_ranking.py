"""The numbers of the paper's table, against scipy and by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from phenogroups.evaluation.ranking import (
    COSTS,
    RANKED,
    comparison_table,
    latex_table,
    latex_text,
    legend,
    summarise,
    welch,
)

BOTH, ONLY, BOUND = "patients and controls", "patients only", "upper bound"


def cells_of(**scores):
    """One row per seed; a number is the Subgroup score of a finished cell, None a failed cell."""
    rows = []
    for method, values in scores.items():
        for seed, value in enumerate(values):
            numbers = dict.fromkeys([*RANKED, *COSTS]) | {"subgroup_bacc": value, "seconds": 1.0}
            status = "failed" if value is None else "finished"
            rows.append({"method": method, "seed": seed, "status": status, **numbers})
    return pd.DataFrame(rows)


def verdict(kinds=None, **scores):
    """Who is bold, who has a star."""
    summary = summarise(cells_of(**scores), kinds or dict.fromkeys(scores, BOTH)).set_index("method")
    bold, star = (set(summary.index[summary[f"subgroup_bacc_{word}"]]) for word in ("best", "star"))
    return bold, star


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_welch_is_scipys(a, b):
    a, b = np.array(a), np.array(b)
    if min(np.ptp(a), np.ptp(b)) < 1e-6:  # scipy warns of lost precision there
        return
    np.testing.assert_allclose(welch(a, b), ttest_ind(a, b, equal_var=False).pvalue, rtol=1e-6, atol=1e-12)


def test_welch_without_spread():
    assert welch(np.array([0.5, 0.5]), np.array([0.5, 0.5, 0.5])) == 1
    assert welch(np.array([0.1, 0.1, 0.1]), np.array([0.5, 0.5, 0.5])) == 0
    assert welch(np.array([0.5]), np.array([0.5, 0.6])) is None


def test_means_and_deviations_by_hand():
    summary = summarise(cells_of(a=[0.9, 0.8, 0.7], b=[0.5, 0.6]), {"a": BOTH, "b": ONLY}).set_index("method")
    assert list(summary.index) == ["b", "a"]  # who is trained on patients only stands above
    assert summary["subgroup_bacc_mean"].to_dict() == pytest.approx({"a": 0.8, "b": 0.55})
    assert summary["subgroup_bacc_deviation"].to_dict() == pytest.approx({"a": 0.1, "b": 0.0707107})
    p = ttest_ind([0.9, 0.8, 0.7], [0.5, 0.6], equal_var=False).pvalue
    assert summary.loc["b", "subgroup_bacc_p"] == pytest.approx(p)
    assert np.isnan(summary.loc["a", "subgroup_bacc_p"])
    assert summary["class_bacc_mean"].isna().all()
    assert summary["seeds"].to_dict() == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("scores", "bold", "star"),
    [
        ({"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52], "c": [0.7, 0.71, 0.72]}, {"a"}, {"a"}),
        ({"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52], "c": [0.7, 0.91, 0.99]}, {"a"}, set()),  # not than c
        ({"a": [0.9], "b": [0.5]}, {"a"}, set()),  # one seed
        ({"a": [0.9, 0.9], "b": [0.5]}, {"a"}, set()),  # one seed of another
        ({"a": [0.9, 0.91, 0.92], "b": [None, None, 0.5]}, {"a"}, set()),  # one seed that did not fail
        ({"a": [0.9, 0.91, 0.92], "b": [None, None], "c": [0.5, 0.5]}, {"a"}, {"a"}),  # b has no numbers
        ({"a": [1.0, 1.0], "b": [0.5, 0.5]}, {"a"}, {"a"}),  # no spread
        ({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [0.5, 0.5]}, {"a", "b"}, set()),
        ({"a": [0.9001, 0.9001], "b": [0.9002, 0.9002], "c": [0.5, 0.5]}, {"a", "b"}, {"b"}),  # printed alike
        ({"a": [0.9, 0.8]}, set(), set()),  # nobody to be better than
    ],
)  # fmt: skip
def test_star(scores, bold, star):
    assert verdict(**scores) == (bold, star)


def test_an_upper_bound_is_not_ranked():
    scores = {"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52], "bound": [0.99, 0.99, 0.99]}
    assert verdict({"a": BOTH, "b": ONLY, "bound": BOUND}, **scores) == ({"a"}, {"a"})


def printed(summary):
    return [[*column.cells] for column in comparison_table(summary).columns]


def test_marks():
    cells = cells_of(deep=[0.9, 0.91], plain=[0.5, 0.51], partly=[0.6, None], broken=[None, None])
    cells.loc[cells["method"] == "deep", "class_bacc"] = [0.7, 0.8]
    kinds = {"deep": BOTH, "plain": ONLY, "partly": ONLY, "broken": ONLY}
    summary = summarise(cells, kinds)
    names, class_, subgroup, _ = printed(summary)
    assert names == ["plain", "partly (1 of 2 seeds)", "broken", "deep"]
    assert [str(text) for text in class_] == ["×", "×", "failed", "0.750±0.071"]
    assert [str(text) for text in subgroup] == ["0.505±0.007", "0.600", "failed", "0.905±0.007"]
    assert [text.style for text in subgroup] == ["", "", "", "bold"]
    assert not [sentence for sentence in legend(summary) if sentence.startswith("*")]
    assert any(sentence.startswith("×") for sentence in legend(summary))


def test_stars_are_shown_where_they_are():
    summary = summarise(cells_of(deep=[0.9, 0.91], plain=[0.5, 0.51]), {"deep": BOTH, "plain": ONLY})
    assert [str(text) for text in printed(summary)[1]] == ["0.505±0.007 ", "0.905±0.007*"]
    assert any("Welch" in sentence for sentence in legend(summary))
    assert latex_table(summary, "Caption.") == "\n".join([
        r"\begin{table}[ht!]",
        r"  \caption{Caption.}",
        r"  \label{table:comparison}",
        r"  \centering",
        r"  \begin{tabular}{lc}",
        r"  \hline",
        r"  Algorithm & Subgroup B-ACC \\",
        r"  \hline",
        r"  plain & 0.505$\pm$0.007 \\",
        r"  \hline",
        r"  deep & \textbf{0.905$\pm$0.007}* \\",
        r"  \hline",
        r"  \end{tabular}",
        r"\end{table}",
        "",
    ])  # fmt: skip


def test_nothing_but_failures():
    summary = summarise(cells_of(a=[None], b=[None]), dict.fromkeys("ab", BOTH))
    assert printed(summary) == [["a", "b"]]
    assert r"\begin{tabular}{l}" in latex_table(summary, "")


def test_latex_text():
    assert latex_text(r"a_b & 50% of {x}~^\$#") == (
        r"a\_b \& 50\% of \{x\}\textasciitilde{}\textasciicircum{}\textbackslash{}\$\#"
    )
