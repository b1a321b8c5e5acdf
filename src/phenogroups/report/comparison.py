"""The files of a comparison: tables, figures and page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import UNKNOWN, Cohort
from phenogroups.data.study import Study
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.projection import EMBEDDED, some_rows
from phenogroups.evaluation.ranking import ALPHA, COSTS, KINDS, TITLES, summarise
from phenogroups.evaluation.scores import SCORE_NAMES
from phenogroups.report.comparison_figures import comparison_figure, methods_figure
from phenogroups.report.figures import as_file
from phenogroups.report.page import comparison_page
from phenogroups.report.sentences import comparison_sentences
from phenogroups.report.tables import OUTPUTS, latex_table, latex_text, legend, shown_columns, table_rows
from phenogroups.training.cells import Cell, Found
from phenogroups.training.run import versions


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
        f"{unit}. (*) indicates that the best method is significantly better ($p \\leq {ALPHA}$) than every "
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
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            write_whole(folder / f"{name}.{kind}", as_file(figure, kind))
    sentences = [*comparison_sentences(study, summary, about), *legend(summary), *failures]
    settings = {cell.method: cell.settings for cell in found if cell.seed == 0}
    page = comparison_page(
        scored, rows, places, title=f"Methods compared on {study.cohort.name}", sentences=sentences,
        columns=[TITLES[column] for column in shown_columns(summary)], table=table_rows(summary),
        figures=figures, recipe={"study": about_study(study), "settings": settings, "versions": versions()},
    )  # fmt: skip
    write_whole(folder / "compare.html", page)
    write_whole(folder / "compare.json", json.dumps(whole, indent=1, allow_nan=False) + "\n")
    return cells, summary, failures


def _panel(scored: Cohort) -> tuple[str, np.ndarray, Sequence[str], Sequence[int]]:
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
