"""The files of a comparison: tables, figures and page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from phenogroups.data.cohort import UNKNOWN, Cohort
from phenogroups.data.study import Study
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.projection import EMBEDDED, some_rows
from phenogroups.evaluation.ranking import ALPHA, COSTS, KINDS, TITLES, summarise
from phenogroups.evaluation.scores import SCORE_NAMES
from phenogroups.report.figures import COLORS, COLUMN, GRAY, STYLE, Panel, scatter, shorten, square
from phenogroups.report.page import embedded, flat, render, save_figures
from phenogroups.report.page_data import comparison_data
from phenogroups.report.sentences import comparison_sentence
from phenogroups.report.tables import DEVIATION, OUTPUTS, latex_table, latex_text, legend, shown_columns, table_rows
from phenogroups.training.cells import Cell, Found
from phenogroups.training.run import versions

# what a method learns from: words of the legend and colour
LEARNS = {
    "patients only": ("learns from patients only", COLORS[4]),
    "patients and controls": ("learns from patients and controls", COLORS[5]),
    "upper bound": ("upper bound: learns from the truth", GRAY),
}


def write_comparison(
    folder: Path, study: Study, found: Mapping[Cell, Found], kinds: Mapping[str, str], about: Mapping[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Write all files, after earlier ones are removed; returns the cells, their summary and what failed."""
    cells = pd.DataFrame([_row(cell, result) for cell, result in found.items()])
    summary = summarise(cells, kinds)
    failures = [
        f"{cell.method}, seed {cell.seed}, failed: {result['error']}"
        for cell, result in found.items() if result["status"] == "failed"
    ]  # fmt: skip
    unit = "train/validation splits" if about["splits"] else "seeds"
    caption = (
        f"Balanced accuracies on {latex_text(study.cohort.name)}, mean$\\pm$deviation over {about['seeds']} "
        f"{unit}; {DEVIATION.replace('n - 1', '$n-1$').replace('by n', 'by $n$')}. "
        f"(*) indicates that the best method is significantly better ($p \\leq {ALPHA}$) than every "
        "other by Welch's two-sample t-test."
    )
    if len({kind for kind in kinds.values() if kind != KINDS[-1]}) > 1:
        caption += " Upper methods are trained on patients only."
    for name in OUTPUTS:
        (folder / name).unlink(missing_ok=True)
    write_whole(folder / "compare.csv", cells.to_csv(index=False))
    write_whole(folder / "summary.csv", summary.to_csv(index=False))
    write_whole(folder / "table.tex", latex_table(summary, caption))
    figures = {}
    shown = next((name for name in ("subgroup_bacc", "class_bacc") if cells[name].notna().any()), None)
    if shown is not None:
        values = {name: cells.loc[cells["method"] == name, shown].dropna().to_list() for name in summary["method"]}
        chance = 1 / study.known_subgroups if shown == "subgroup_bacc" else 0.5
        figure = comparison_figure(values, kinds, chance=chance, label=SCORE_NAMES[shown])
        figures["compare"] = figure
    whole = {
        "study": about_study(study), **about,
        "significance": "Welch's two-sample t-test, two-sided, p <= 0.05, of the best against every other method",
        "methods": [
            {**row, "settings": next(cell.settings for cell in found if cell.method == row["method"])}
            for row in _plain(summary)
        ],
        "cells": _plain(cells), "versions": versions(),
    }  # fmt: skip
    scored = study.parts(0)[1]
    rows = some_rows(len(scored), EMBEDDED)
    places = {
        cell.method: np.array(result["embedding"]) for cell, result in found.items()
        if len(result.get("embedding", ())) == len(rows)  # earlier versions kept none
    }  # fmt: skip
    if places:
        figures["embeddings"] = methods_figure(places, _panel(scored[rows]), scored.is_patient[rows])
    save_figures(figures.items(), folder)
    sentences = [comparison_sentence(study, summary, about), *legend(summary), *failures]
    settings = {cell.method: cell.settings for cell in found if cell.seed == 0}
    columns = shown_columns(summary)
    recipe = {"study": about_study(study), "settings": settings, "versions": versions()}
    page = render(
        "compare.html.j2", data=comparison_data(scored, rows, places), sentences=sentences, methods=list(places),
        title=f"Methods compared on {study.cohort.name}", columns=[TITLES[column] for column in columns],
        table=table_rows(summary, columns), figures={name: embedded(figure) for name, figure in figures.items()},
        subjects=len(rows), recipe=list(flat(recipe)),
    )  # fmt: skip
    write_whole(folder / "compare.html", page)
    write_whole(folder / "compare.json", json.dumps(whole, indent=1, allow_nan=False) + "\n")
    return cells, summary, failures


def _panel(scored: Cohort) -> Panel:
    """Colours of the embeddings: the truth where it is known, else the diagnosis."""
    if scored.truth is None or not (scored.truth != UNKNOWN).any():
        return "Diagnosis", np.where(scored.is_patient, 0, UNKNOWN), ["Patients"], [0]
    return "Truth", scored.truth, scored.truth_names, range(len(scored.truth_names))


def _row(cell: Cell, found: Mapping[str, Any]) -> dict[str, Any]:
    numbers: dict[str, Any] = dict.fromkeys([*SCORE_NAMES, *TITLES])
    if found["status"] == "finished":
        numbers |= {**found["scores"], **{name: found[name] for name in COSTS}}
    words = {"error": found.get("error", ""), "caveats": " ".join(found.get("caveats", [])), "cell": cell.file}
    return {"method": cell.method, "seed": cell.seed, "status": found["status"], **numbers, **words}


def _plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON, with None for missing numbers."""
    return [{key: None if pd.isna(value) else value for key, value in row.items()} for row in table.to_dict("records")]


def about_study(study: Study) -> dict[str, Any]:
    def about(cohort: Cohort | None) -> dict[str, Any] | None:
        if cohort is None:
            return None
        ill = int(cohort.is_patient.sum())
        return {"name": cohort.name, "patients": ill, "controls": len(cohort) - ill, "fingerprint": cohort.fingerprint}

    parts = {name: about(getattr(study, name)) for name in ("cohort", "test", "diagnosis_test")}
    return {**parts, "held_out": study.held_out, "known_subgroups": study.known_subgroups}


@rc_context(STYLE)
def comparison_figure(
    values: Mapping[str, Sequence[float]],  # method -> one score per seed; who has none is left out
    kinds: Mapping[str, str],  # method -> what it learns from, a key of LEARNS
    *,
    chance: float,  # score of whoever guesses
    label: str,
) -> Figure:
    """One bar per method, the best on top: the mean over seeds, its deviation, and every seed as a dot."""
    known = {name: np.asarray(scores, dtype=float) for name, scores in values.items() if len(scores)}
    if not known:
        raise ValueError("Expected scores of at least one method. Received: none. Leave this figure out.")
    names = sorted(known, key=lambda name: -known[name].mean())
    present = [kind for kind in LEARNS if any(kinds[name] == kind for name in names)]
    figure = Figure(figsize=(COLUMN, 0.17 * len(names) + 0.55 + 0.14 * (len(present) + 1)), layout="constrained")
    ax = figure.subplots()
    handles = []
    for kind in present:
        words, color = LEARNS[kind]
        rows = [i for i, name in enumerate(names) if kinds[name] == kind]
        means = [known[names[i]].mean() for i in rows]
        handles.append(ax.barh(rows, means, height=0.7, color=color, label=words))
    for i, name in enumerate(names):
        scores, mean = known[name], known[name].mean()
        spread = scores.std(ddof=1) if len(scores) > 1 else 0.0
        # dots of equal height would hide each other
        places = i + np.linspace(-0.22, 0.22, len(scores)) if len(scores) > 1 else [i]
        dots = {"marker": "o", "markersize": 2.2, "markeredgecolor": "#FFFFFF", "markeredgewidth": 0.3}
        ax.plot(scores, places, color="#333333", linestyle="none", zorder=4, clip_on=False, **dots)
        if len(scores) > 1:
            ax.errorbar(mean, i, xerr=spread, color="#000000", linewidth=0.8, capsize=1.5, capthick=0.8, zorder=3)
        text = f"{mean:.3f}" + (f" ± {spread:.3f}" if len(scores) > 1 else "")
        ax.annotate(
            text, (1, i), (5, 0), ("axes fraction", "data"), "offset points", va="center", annotation_clip=False
        )
    handles.append(ax.axvline(chance, color="#333333", linestyle="--", linewidth=0.8, label=f"chance ({chance:.2f})"))
    ax.set(xlim=(0, 1.0), ylim=(len(names) - 0.5, -0.5), xlabel=label)
    ax.set_yticks(range(len(names)), [shorten(name) for name in names])
    ax.tick_params(axis="y", length=0)
    figure.legend(handles=handles, loc="outside lower center", ncols=1, fontsize=7, labelspacing=0.2)
    figure.set_label(
        f"Bars of {label} by method: " + ", ".join(f"{name} {known[name].mean():.3f}" for name in names) + "."
    )
    return figure


@rc_context(STYLE)
def methods_figure(
    points: Mapping[str, np.ndarray],  # method -> (n, 2): where it puts the same subjects
    panel: Panel,
    is_patient: np.ndarray,
) -> Figure:
    """The same subjects in the embedding of each method, coloured by what is known of them."""
    per_row = min(len(points), 3)
    n_rows, side = -(-len(points) // per_row), COLUMN / per_row
    figure = Figure(figsize=(COLUMN, (side + 0.15) * n_rows + 0.35), layout="constrained")
    grid = figure.subplots(n_rows, per_row, squeeze=False)
    for ax in grid.flat:
        ax.set_axis_off()
    handles: list[Any] = []
    title, labels, names, styles = panel
    for ax, (method, where) in zip(grid.flat, points.items(), strict=False):
        handles = scatter(ax, where, labels, is_patient, names, styles, area=2, legend=False)
        ax.set_title(shorten(method, 24), fontsize=7)
        ax.set_axis_on()
        ax.spines[:].set_visible(True)
        square(ax, where)
    look = {"fontsize": 6, "markerscale": 2, "columnspacing": 0.8, "handletextpad": 0.1}
    figure.legend(handles=handles, loc="outside upper center", ncols=3, **look)
    figure.set_label(
        f"The same {len(is_patient)} subjects in the embeddings of {', '.join(points)}, coloured by {title.lower()}."
    )
    return figure
