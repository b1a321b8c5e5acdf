"""Tables as they are printed."""

import numpy as np
import pandas as pd

from cells import BOTH, ONLY, cells_of
from phenogroups.evaluation.number import decide
from phenogroups.evaluation.ranking import summarise
from phenogroups.evaluation.scores import Scores
from phenogroups.report.tables import (
    association_rows,
    comparison_table,
    criteria_rows,
    latex_table,
    latex_text,
    legend,
    score_table,
)


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


def test_score_table_shows_what_is_defined():
    table = score_table({"held out": Scores(class_bacc=0.91234), "train": Scores(class_bacc=1.0, ari=0.5)})
    assert [column.header for column in table.columns] == ["", "Class B-ACC", "ARI"]
    assert list(table.columns[1].cells) == ["0.912", "1.000"]
    assert list(table.columns[2].cells) == ["–", "0.500"]


def test_the_tests_shown_are_those_that_decide():
    rng = np.random.default_rng(0)
    criteria = pd.DataFrame(
        {
            "subgroups": range(2, 42), "gap": rng.choice([0.02, 0.03, 0.1], 40), "apart": rng.uniform(3, 8, 40),
            "p_gap": rng.choice([0.001, 0.01, 0.02], 40), "p_shuffled": rng.choice([0.001, 0.01, 0.02], 40),
        }
    )  # fmt: skip
    decided = decide(criteria).criteria
    shown = criteria_rows(decided)
    assert 3 < decided["passes"].sum() < 37
    for row, passes in zip(shown["rows"], decided["passes"], strict=True):
        assert row[-1] == ("yes" if passes else "no")
        assert all(cell.endswith("passes") for cell in row[1:-1]) == passes
    assert criteria_rows(criteria) is None  # of a criteria table without an answer
    assert criteria_rows(None) is None


def test_a_covariate_has_one_row_for_patients_and_controls():
    columns = ["covariate", "source", "among", "effect", "value", "low", "high", "p", "p_corrected", "test"]
    rows = [
        ["pen", "covariate", "patients", "Cramer's V", 0.5, 0.4, 0.6, 0.0001, 0.0002, "chi-square"],
        ["pen", "covariate", "controls", "Cramer's V", 0.0, 0.0, 0.1, 0.5, 1.0, "chi-square"],
        ["brightness", "image", "patients", "eta of ranks", None, None, None, None, None, "not tested: one value"],
    ]
    found = association_rows(pd.DataFrame(rows, columns=columns))
    assert found["rows"] == [
        ["pen", "covariate", "Cramer's V", "0.50 (0.40 to 0.60)", "<0.001", "0.00 (0.00 to 0.10)", "1.000"],
        ["brightness", "image", "eta of ranks", "not tested: one value", "–", "–", "–"],
    ]
    assert len(found["columns"]) == len(found["words"]) == 7
    without = association_rows(pd.DataFrame(rows, columns=columns).drop(columns="source"))
    assert "Source" not in without["columns"]
    assert len(without["rows"][0]) == len(without["columns"]) == 6
