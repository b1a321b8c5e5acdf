"""What a comparison of methods says: means, deviations, and which differences are more than luck (paper, tables)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from scipy.stats import ttest_ind_from_stats

from phenogroups.evaluation.scores import SCORE_NAMES

KINDS = ("patients only", "patients and controls", "upper bound")  # what a method learns from; the last: the truth

RANKED = ("class_bacc", "subgroup_bacc", "overall_bacc", "ari")  # the greater, the better
COSTS = {"seconds": "Seconds", "peak_memory_mb": "Peak MB"}
TITLES = {**{column: SCORE_NAMES[column] for column in RANKED}, **COSTS}
ALPHA = 0.05
NO_HEAD, FAILED = "×", "failed"


def summarise(cells: pd.DataFrame, kinds: Mapping[str, str]) -> pd.DataFrame:
    """One row per method, those of a kind together: of each column mean, deviation (n - 1), and against the best p.

    `cells` has method, status (finished or failed) and the columns in TITLES; upper bounds are not ranked.
    """
    finished = cells[cells["status"] == "finished"]
    order = sorted(kinds, key=lambda method: KINDS.index(kinds[method]))
    rows: dict[str, dict[str, Any]] = {}
    for method in order:
        of_method = cells["method"] == method
        failed = int((of_method & (cells["status"] == "failed")).sum())
        rows[method] = {"kind": kinds[method], "seeds": int(of_method.sum()) - failed, "failed": failed}
    for column in TITLES:
        values = {method: _numbers(finished.loc[finished["method"] == method, column]) for method in order}
        fair = {method: found for method, found in values.items() if kinds[method] != KINDS[-1] and len(found)}
        verdicts = _ranked(fair) if column in RANKED else {}
        for method, found in values.items():
            rows[method][f"{column}_mean"] = float(found.mean()) if len(found) else None
            rows[method][f"{column}_deviation"] = _deviation(found)
            if column in RANKED:
                verdict = verdicts.get(method, {"p": None, "best": False, "star": False})
                rows[method] |= {f"{column}_{word}": value for word, value in verdict.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").reset_index()


def welch(a: np.ndarray, b: np.ndarray) -> float | None:
    """p of the two-sided two-sample t-test with unequal variances (Welch); None where either has fewer than two."""
    if min(len(a), len(b)) < 2:
        return None
    of_a, of_b = _deviation(a), _deviation(b)
    if of_a == of_b == 0:  # without any spread the smallest difference is no chance
        return float(a.mean() == b.mean())
    return float(ttest_ind_from_stats(a.mean(), of_a, len(a), b.mean(), of_b, len(b), equal_var=False).pvalue)


def _ranked(values: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Who is best (all whose mean is printed alike), p of the others against it, and whether it beats every other."""
    if len(values) < 2:
        return {}
    means = {method: float(found.mean()) for method, found in values.items()}
    top = max(means, key=lambda method: means[method])
    p = {method: welch(values[top], found) for method, found in values.items() if method != top}
    star = all(value is not None and value <= ALPHA for value in p.values())
    printed = {method: f"{mean:.3f}" for method, mean in means.items()}
    return {
        method: {"p": p.get(method), "best": printed[method] == printed[top], "star": star and method == top}
        for method in values
    }


def _numbers(column: pd.Series) -> np.ndarray:
    return column.dropna().to_numpy(dtype=np.float64)


def _deviation(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1)) if np.ptp(values) else 0.0  # not the rounding of the mean


def shown_columns(summary: pd.DataFrame) -> list[str]:
    """The columns that at least one method has numbers in."""
    return [column for column in TITLES if summary[f"{column}_mean"].notna().any()]


def comparison_table(summary: pd.DataFrame) -> Table:
    """The paper's table for the terminal; the best of a column is bold, with a star if it beats every other method."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    columns = shown_columns(summary)
    for column in columns:
        table.add_column(TITLES[column].replace(" ", "\n"), justify="right", no_wrap=True)
    for _, of_kind in summary.groupby("kind", sort=False):
        for i, row in enumerate(of_kind.to_dict("records")):
            cells = [Text(_shown(row, column) + star, style) for column, star, style in _marks(summary, row, columns)]
            table.add_row(_named(row), *cells, end_section=i == len(of_kind) - 1)
    return table


def table_rows(summary: pd.DataFrame) -> list[tuple[str, str, list[tuple[str, bool]]]]:
    """The same for a page: kind, name, and of each shown column the text and whether it is the best."""
    columns, rows = shown_columns(summary), []
    for row in summary.to_dict("records"):
        marks = _marks(summary, row, columns)
        cells = [(_shown(row, column) + star.strip(), bool(style)) for column, star, style in marks]
        rows.append((str(row["kind"]), _named(row), cells))
    return rows


def latex_table(summary: pd.DataFrame, caption: str, label: str = "table:comparison") -> str:
    """The same as LaTeX, as the paper sets it: scores only, kinds of methods between lines."""
    columns = [column for column in shown_columns(summary) if column in RANKED]
    lines = [
        r"\begin{table}[ht!]", rf"  \caption{{{caption}}}", rf"  \label{{{label}}}", r"  \centering",
        rf"  \begin{{tabular}}{{l{'c' * len(columns)}}}", r"  \hline",
        "  " + " & ".join(["Algorithm", *(TITLES[column] for column in columns)]) + r" \\",
    ]  # fmt: skip
    for kind, of_kind in summary.groupby("kind", sort=False):
        lines.append(r"  \hline")
        for row in of_kind.to_dict("records"):
            name = latex_text(_named(row)) + " (upper bound)" * (kind == "upper bound")
            cells = []
            for column, star, style in _marks(summary, row, columns):
                text = _shown(row, column).replace("±", r"$\pm$").replace(NO_HEAD, r"$\times$")
                cells.append((rf"\textbf{{{text}}}" if style else text) + star.strip())
            lines.append("  " + " & ".join([name, *cells]) + r" \\")
    return "\n".join([*lines, r"  \hline", r"  \end{tabular}", r"\end{table}", ""])


def latex_text(text: str) -> str:
    """Words as LaTeX prints them."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def _named(row: Mapping[str, Any]) -> str:
    """The method, with how many seeds it finished if not all."""
    partly = row["failed"] and row["seeds"]
    return row["method"] + (f" ({row['seeds']} of {row['seeds'] + row['failed']} seeds)" if partly else "")


def _marks(summary: pd.DataFrame, row: Mapping[str, Any], columns: list[str]) -> Iterator[tuple[str, str, str]]:
    """Of each column: the star or the room it takes beside the others, and the style of the best."""
    for column in columns:
        if column in COSTS:
            yield column, "", ""
            continue
        star = "*" if row[f"{column}_star"] else " " if summary[f"{column}_star"].any() else ""
        yield column, star, "bold" if row[f"{column}_best"] else ""


def _shown(row: Mapping[str, Any], column: str) -> str:
    """mean±deviation, a cross where the method has no such answer, or that it failed."""
    mean, deviation = row[f"{column}_mean"], row[f"{column}_deviation"]
    if pd.isna(mean):
        return NO_HEAD if row["seeds"] else FAILED
    if column in COSTS:
        return f"{mean:.1f}" if column == "seconds" else f"{mean:.0f}"
    return f"{mean:.3f}" + ("" if pd.isna(deviation) else f"±{deviation:.3f}")


def legend(summary: pd.DataFrame) -> list[str]:
    """What the marks in the table mean, of those that are in it."""
    ranked = [column for column in shown_columns(summary) if column in RANKED]
    several = (summary["seeds"] > 1).any()
    said = [
        "Mean±deviation over seeds; bold: the best mean." if several else "At most one seed: no deviation, no test."
    ]
    if any(summary[f"{column}_star"].any() for column in ranked):
        said.append(f"*: better than every other method by Welch's t-test, p <= {ALPHA}; upper bounds not counted.")
    if any(summary.loc[summary["seeds"] > 0, f"{column}_mean"].isna().any() for column in ranked):
        said.append(f"{NO_HEAD}: no such answer, as of a method without a diagnosis head.")
    return said
