"""Tables for the terminal, for the page and for LaTeX."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from phenogroups.data.cohort import subgroup_letter
from phenogroups.evaluation.number import tests
from phenogroups.evaluation.ranking import ALPHA, COSTS, RANKED, TITLES
from phenogroups.evaluation.scores import SCORE_NAMES, Scores

# the files of a comparison
DEVIATION = "the deviation is that of a sample (divided by n - 1); the paper's tables divide by n"
OUTPUTS = ("compare.csv", "summary.csv", "compare.json", "table.tex", "compare.png", "compare.svg")
OUTPUTS += ("compare.html", "embeddings.png", "embeddings.svg")
NO_HEAD, FAILED = "×", "failed"
STABILITY = ("Is this true?", "Agreement", "By chance", "Patients")  # columns on the page
CRITERIA = {  # columns of criteria.csv in plain words
    "gap": "how empty the space between two subgroups is (0: no gap) beyond that among controls, for the two that "
    "are least separate; a share of the patients of both",
    "gap_of_smaller": "the same as a share of the smaller of the two subgroups",
    "apart": "how many standard deviations two normal distributions with such a gap lie apart (2 to 3: hardly a gap)",
    "p_gap": "probability of such a gap in patients without groups",
    "p_shuffled": "probability of such a gap if patients had been named at random",
    "agreement": "how well other ways of looking at the data find the same subgroups (1: the same, 0: chance)",
    "smallest": "share of the patients in the smallest subgroup",
    "silhouette": "how far apart the subgroups lie, from -1 to 1; high is good",
    "davies_bouldin": "spread within subgroups compared with the distance between them; low is good",
    "bic": "Bayesian information criterion of the mixture; low is good",
    "x_means": "the number of subgroups that X-means would change this number to",
    "dec_ratio": "loss of Deep Embedded Clustering on training patients compared with others; a sharp fall says that "
    "the number is too large",
    "diagnosis_bacc": "balanced accuracy of the diagnosis with one classifier for each subgroup; high is good",
    "passes": "whether the number passes all tests",
}
CAPTION = (
    "Subgroups of patients, and controls beside them. The tests compare the subgroups; p is corrected for the number "
    "of tests by Holm's method."
)


def score_table(rows: dict[str, Scores]) -> Table:
    """One row per name for the terminal; a score that is None in all rows gets no column."""
    columns = defined(rows)
    table = _terminal_table("", [SCORE_NAMES[column] for column in columns])
    for name, scores in rows.items():
        table.add_row(name, *(format_score(getattr(scores, column)) for column in columns))
    return table


def known_table(known: pd.DataFrame) -> Table:
    """Patients by subgroup found (rows) and by what is known of them (columns), for the terminal."""
    table = _terminal_table("subgroup", [Text(str(name)) for name in known.columns])  # never markup
    for letter, counts in known.iterrows():
        table.add_row(str(letter), *map(str, counts))
    return table


def _terminal_table(first: str, others: Iterable[str | Text]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for name in others:  # short words stay whole
        table.add_column(name, justify="right", min_width=min(max(map(len, str(name).split()), default=1), 12))
    return table


def defined(rows: dict[str, Scores]) -> list[str]:
    """The scores that at least one row has."""
    return [name for name in SCORE_NAMES if any(getattr(scores, name) is not None for scores in rows.values())]


def format_score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def page_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], words: Sequence[bool] = ()) -> dict[str, Any]:
    """A table for the page; `words` are the columns of text."""
    return {"columns": list(columns), "rows": rows, "words": list(words) or [False] * len(columns)}


def score_rows(scores: dict[str, Scores], intervals: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Scores for the page, with their intervals where they have one."""
    columns, rows = defined(scores), []
    for name, row in scores.items():
        values = {column: getattr(row, column) for column in columns}
        ends = {c: " ({:.3f} to {:.3f})".format(*pair) for c, pair in intervals.get(name, {}).items()}
        rows.append([name, *(format_score(v) + ("" if v is None else ends.get(c, "")) for c, v in values.items())])
    return page_table(["Scores", *(SCORE_NAMES[column] for column in columns)], rows)


def known_rows(counts: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Patients by subgroup found (rows) and by what is known of them (columns), with the share of each column."""
    share = counts / np.maximum(counts.sum(axis=0), 1)
    cells = [[f"{n} ({part:.0%})" for n, part in zip(*row, strict=True)] for row in zip(counts, share, strict=True)]
    rows = [[subgroup_letter(k), *row, str(counts[k].sum())] for k, row in enumerate(cells)]
    return page_table(["Subgroup found", *names, "all"], rows)


def criteria_rows(criteria: pd.DataFrame | None) -> dict[str, Any] | None:
    """What each number of subgroups had to pass, with the threshold of each test; None where it was not computed."""
    if criteria is None or not {"subgroups", "gap", "apart", "p_gap", "p_shuffled", "passes"} <= {*criteria.columns}:
        return None
    asked = tests(criteria)
    rows = []
    for i, row in enumerate(criteria.to_dict("records")):
        cells = [
            f"{test.unit.format(test.values.iloc[i])}: {'passes' if test.passes.iloc[i] else 'fails'}" for test in asked
        ]
        rows.append([str(row["subgroups"]), *cells, "yes" if row["passes"] else "no"])
    columns = ["Subgroups", *(test.asked for test in asked), "Passes all"]
    return page_table(columns, rows, [True] * len(columns))


def criteria_words(criteria: pd.DataFrame | None) -> list[tuple[str, str]]:
    """The columns of the criteria that occur, each in plain words."""
    there = [] if criteria is None else list(criteria.columns)
    return [(name.replace("_", " "), words) for name, words in CRITERIA.items() if name in there]


def stability_rows(stability: pd.DataFrame | None) -> dict[str, Any] | None:
    """How far the same subgroups are found again; "not computed" where it takes a training."""
    if stability is None:
        return None
    shown = stability[["meaning", "agreement", "by_chance", "n"]].to_numpy(object)
    rows = [
        [words[0].upper() + words[1:], *("not computed" if pd.isna(x) else f"{x:.2f}" for x in numbers), str(n)]
        for words, *numbers, n in shown
    ]
    return page_table(STABILITY, rows, [True, False, False, False])


def association_rows(confounds: pd.DataFrame | None) -> dict[str, Any] | None:
    """One row per covariate: how strongly subgroups follow it among patients and, as a check, among controls."""
    needed = {"covariate", "among", "effect", "value", "low", "high", "p", "p_corrected", "test"}
    if confounds is None or not needed <= {*confounds.columns}:
        return None
    whom, rows = ("patients", "controls"), []
    for name, of_one in confounds.groupby("covariate", sort=False):
        cells = {str(one["among"]): _association(one) for one in of_one.to_dict("records")}
        source = [str(of_one["source"].iloc[0])] if "source" in of_one else []
        found = [cell for among in whom for cell in cells.get(among, ("–", "–"))]
        rows.append([str(name), *source, str(of_one["effect"].iloc[0]), *found])
    columns = ["Covariate", *(["Source"] if "source" in confounds else []), "Measure"]
    words = [True] * len(columns)
    columns += [title for among in whom for title in (f"Among {among} (95% interval)", "Corrected p")]
    return page_table(columns, rows, [*words, True, False, True, False])


def _association(one: Mapping[Any, Any]) -> tuple[str, str]:
    """Strength with its interval and corrected p, or why there is none."""
    if pd.isna(one["p"]):
        return str(one["test"]), "–"
    return f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})", _p(one["p_corrected"])


def shown_columns(summary: pd.DataFrame) -> list[str]:
    """The columns that at least one method has numbers in."""
    return [column for column in TITLES if summary[f"{column}_mean"].notna().any()]


def comparison_table(summary: pd.DataFrame) -> Table:
    """The paper's table for the terminal; the best of a column is bold, with a star if it beats every other method."""
    columns = shown_columns(summary)
    table = _terminal_table("", [TITLES[column].replace(" ", "\n") for column in columns])
    rows = table_rows(summary, columns)
    for (kind, name, cells), (following, *_) in zip(rows, [*rows[1:], ("",)], strict=True):
        shown = [Text(text + star, "bold" if is_best else "") for text, star, is_best in cells]
        table.add_row(name, *shown, end_section=kind != following)
    return table


def table_rows(summary: pd.DataFrame, columns: Sequence[str]) -> list[tuple[str, str, list[tuple[str, str, bool]]]]:
    """Kind, name and cells of each method; a cell is its text, a star (or an equally wide blank), and if it is best."""
    rows = []
    for row in summary.to_dict("records"):
        cells = []
        for column in columns:
            is_ranked = column in RANKED
            star = "*" if is_ranked and row[f"{column}_star"] else ""
            blank = " " * bool(is_ranked and summary[f"{column}_star"].any())
            cells.append((_shown(row, column), star or blank, bool(is_ranked and row[f"{column}_best"])))
        partly = f" ({row['seeds']} of {row['seeds'] + row['failed']} seeds)" if row["failed"] and row["seeds"] else ""
        rows.append((str(row["kind"]), row["method"] + partly, cells))
    return rows


def latex_table(summary: pd.DataFrame, caption: str, label: str = "table:comparison") -> str:
    """The same as LaTeX, as the paper sets it: scores only, kinds of methods between lines."""
    columns = [column for column in shown_columns(summary) if column in RANKED]
    lines = [
        r"\begin{table}[ht!]", rf"  \caption{{{caption}}}", rf"  \label{{{label}}}", r"  \centering",
        rf"  \begin{{tabular}}{{l{'c' * len(columns)}}}", r"  \hline",
        "  " + " & ".join(["Algorithm", *(TITLES[column] for column in columns)]) + r" \\",
    ]  # fmt: skip
    before = None
    for kind, name, cells in table_rows(summary, columns):
        lines += [r"  \hline"] * (kind != before)
        before, shown = kind, [latex_text(name) + " (upper bound)" * (kind == "upper bound")]
        for text, star, is_best in cells:
            text = text.replace("±", r"$\pm$").replace(NO_HEAD, r"$\times$")
            shown.append((rf"\textbf{{{text}}}" if is_best else text) + star.strip())
        lines.append("  " + " & ".join(shown) + r" \\")
    return "\n".join([*lines, r"  \hline", r"  \end{tabular}", r"\end{table}", ""])


def latex_text(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def _shown(row: Mapping[str, Any], column: str) -> str:
    """mean±deviation; a cross where the method has no such output; or "failed"."""
    mean, deviation = row[f"{column}_mean"], row[f"{column}_deviation"]
    if pd.isna(mean):
        return NO_HEAD if row["seeds"] else FAILED
    if column in COSTS:
        return f"{mean:.1f}" if column == "seconds" else f"{mean:.0f}"
    return f"{mean:.3f}" + ("" if pd.isna(deviation) else f"±{deviation:.3f}")


def legend(summary: pd.DataFrame) -> list[str]:
    """The meaning of the marks that occur in the table."""
    ranked = [column for column in shown_columns(summary) if column in RANKED]
    several = (summary["seeds"] > 1).any()
    said = ["At most one seed: no deviation, no test."]
    if several:
        said = [f"Mean±deviation over seeds; bold: the best mean. {DEVIATION[0].upper()}{DEVIATION[1:]}."]
    if any(summary[f"{column}_star"].any() for column in ranked):
        said.append(f"*: better than every other method by Welch's t-test, p <= {ALPHA}; upper bounds not counted.")
    if any(summary.loc[summary["seeds"] > 0, f"{column}_mean"].isna().any() for column in ranked):
        said.append(f"{NO_HEAD}: the method does not predict this (it has no diagnosis head, for example).")
    return said


def profiles_latex(table: pd.DataFrame, caption: str = CAPTION, label: str = "table:profiles") -> str:
    """`profiles` as a table of LaTeX, whose preamble must have booktabs; caption and label are taken as they are."""
    parts = [column.removeprefix("missing ") for column in table.columns if column.startswith("missing ")]
    counts = table[[f"missing {part}" for part in parts]].to_numpy()
    shown = pd.DataFrame(
        {
            "": table["variable"].where(table["variable"] != table["variable"].shift(), ""),
            "value": table["value"],
            **{part: table[part] for part in parts},
            "test": table["test"],
            "effect": (table["effect"] + table["size"].map(" {:.2f}".format)).where(table["effect"] != "", ""),
            "p": table["p"].map(_p),
            "corrected p": table["p_corrected"].map(_p),
            "missing": ["" if pd.isna(row).any() else " / ".join(map(str, row)) for row in counts],
        }
    ).replace("–", "--")
    text = shown.astype(str).to_latex(index=False, escape=True, caption=caption, label=label, position="ht!")
    text = re.sub("[<>]", r"$\g<0>$", text)  # which old fonts print otherwise
    text = re.sub(r"(?m)^([\[*])", r"{}\1", text)  # which after a row's end would be its argument
    return text.replace(r"\begin{tabular}", "\\centering\n\\begin{tabular}")


def _p(value: float) -> str:
    return "" if np.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"
