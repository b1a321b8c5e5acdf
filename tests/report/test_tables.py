"""Tables as they are printed."""

from cells import BOTH, ONLY, cells_of
from phenogroups.evaluation.ranking import summarise
from phenogroups.evaluation.scores import Scores
from phenogroups.report.tables import comparison_table, latex_table, latex_text, legend, score_table


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
