"""From a cohort to a run folder: split, fit, score the held-out part, write everything down."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import Cohort
from phenogroups.data.tables import read_inputs, read_table, spec_from_json, subject_names
from phenogroups.evaluation.scores import Scores, score
from phenogroups.methods import Method, Prediction, load, name_of, settings_of
from phenogroups.report.figures import embedding_figure, exemplars_figure, history_figure
from phenogroups.report.page import write_report
from phenogroups.training.em import Progress
from phenogroups.training.run import RunError, check_writable, new_run_folder, read_recipe, write_model, write_whole


@dataclass(frozen=True)
class Discovery:
    """What a run found; the same things stand in its folder."""

    method: Method
    scores: dict[str, Scores]  # of the held-out part
    subgroups: pd.DataFrame  # one row per subject
    folder: Path


def discover(
    cohort: Cohort,
    method: Method,
    folder: str | Path,
    *,
    held_out: float = 0.2,
    table: Mapping[str, Any] | None = None,
    beside: Mapping[str, Method] | None = None,
    progress: Progress | None = None,
) -> Discovery:
    """Find subgroups, see how they hold on subjects that were not trained on, and write the run folder.

    `table` says how the cohort's table was read, so that `predict` reads new ones alike; `beside` are methods whose
    scores stand next to this one's.
    """
    folder = Path(folder)
    check_writable(folder)
    cohort.require(method.n_subgroups, controls=method.needs_controls)
    train, test = cohort.split(held_out, method.seed)
    train.require(method.n_subgroups, controls=method.needs_controls)
    method.fit(train, progress=progress)
    seen, new = method.predict_cohort(train), method.predict_cohort(test)
    scores = {name_of(method): score(test, new)}
    for name, other in (beside or {}).items():
        scores[name] = score(test, other.fit(train).predict_cohort(test))
    subgroups = pd.concat([subgroup_table(train, seen, "train"), subgroup_table(test, new, "held-out")])
    recipe = {
        "method": name_of(method),
        "settings": settings_of(method),
        "input_shape": list(cohort.input_shape),
        "cohort": {"name": cohort.name, "subjects": len(cohort), "fingerprint": cohort.fingerprint},
        "held_out": held_out,
        "table": dict(table or {}),
    }
    history = pd.DataFrame(getattr(method, "history_", []))
    with new_run_folder(folder) as partial:
        write_model(partial, recipe, method.tensors())
        subgroups.to_csv(partial / "subgroups.csv", index=False, float_format="%.6g")
        history.to_csv(partial / "history.csv", index=False, float_format="%.6g")
        text = json.dumps({name: asdict(found) for name, found in scores.items()}, indent=2)
        (partial / "scores.json").write_text(text + "\n", encoding="utf-8")
        figures = {
            "Where the held-out subjects lie in the learned embedding": embedding_figure(new, test, seen),
            "Held-out patients most typical of each subgroup": exemplars_figure(test, new),
        }
        if len(history):
            figures["How training went"] = history_figure(history)
        write_report(
            partial / "report.html", title=f"Subgroups of {cohort.name}", sentences=summary(train, test, new, scores),
            scores=scores, figures=figures, recipe=recipe,
        )  # fmt: skip
    return Discovery(method, scores, subgroups, folder)


def subgroup_table(cohort: Cohort, prediction: Prediction, part: str) -> pd.DataFrame:
    """One row per subject; a control has probabilities but no subgroup."""
    letters = np.array(list(ascii_uppercase[: prediction.subgroup.shape[1]]))
    columns = {
        "subject": cohort.subject,
        "part": part,
        "diagnosis": np.where(cohort.is_patient, "patient", "control"),
        "subgroup": np.where(cohort.is_patient, letters[prediction.subgroup.argmax(axis=1)], ""),
        **probability_columns(prediction),
    }
    return pd.DataFrame(columns)


def probability_columns(prediction: Prediction) -> dict[str, np.ndarray]:
    columns = {f"p_{ascii_uppercase[k]}": p for k, p in enumerate(prediction.subgroup.T)}
    if prediction.diagnosis is not None:
        columns["p_patient"] = prediction.diagnosis
    return columns


def summary(train: Cohort, test: Cohort, new: Prediction, scores: Mapping[str, Scores]) -> list[str]:
    """The findings in plain sentences."""
    k = new.subgroup.shape[1]
    sizes = np.bincount(new.subgroup[test.is_patient].argmax(axis=1), minlength=k)
    shares = ", ".join(f"{ascii_uppercase[i]} {n / sizes.sum():.0%} ({n})" for i, n in enumerate(sizes))
    own = next(iter(scores.values()))
    said = [
        f"{k} subgroups were looked for among {train.is_patient.sum()} patients, contrasted with "
        f"{(~train.is_patient).sum()} controls; {len(test)} further subjects were held out.",
        f"Among the {sizes.sum()} held-out patients: {shares}.",
    ]
    if own.class_bacc is not None:
        said.append(f"Held-out patients are told from controls with a balanced accuracy of {own.class_bacc:.3f}.")
    if own.subgroup_bacc is not None:
        said.append(
            f"Against the known subgroups, which were not used in training, balanced accuracy is {own.subgroup_bacc:.3f}."
        )
    said.append(
        "The number of subgroups was given, not found: this run does not show that there are subgroups at all, "
        "nor that they are not age, sex or scanner."
    )
    return said


def predict_table(
    run: str | Path,
    table: str | Path,
    out: str | Path,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Subgroups of new subjects, read as the run's own table was; also written to `out`."""
    recipe = read_recipe(run)
    if not recipe.get("table"):
        raise RunError(
            f"Expected a run made from a table. Received: {run}, made from arrays. "
            "Use phenogroups.load(run).predict_subgroup(X) in Python."
        )
    method = load(run)
    spec = spec_from_json(recipe["table"])
    rows = read_table(table)
    subject = subject_names(rows, spec)
    prediction = method.predict_cohort(read_inputs(table, spec, progress=progress))
    letters = np.array(list(ascii_uppercase[: prediction.subgroup.shape[1]]))
    found = pd.DataFrame(
        {
            "subject": subject,
            "subgroup": letters[prediction.subgroup.argmax(axis=1)],
            **probability_columns(prediction),
        }
    )
    write_whole(Path(out), found.to_csv(index=False, float_format="%.6g"))
    return found
