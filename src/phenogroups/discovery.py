"""From a cohort to a run folder: split, fit, score the held-out part, write everything down."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import Cohort, subgroup_letter
from phenogroups.data.layouts import read_layout
from phenogroups.data.tables import read_covariates, read_inputs, read_table, spec_from_json, subject_names
from phenogroups.evaluation.scores import Scores, score
from phenogroups.methods import Consensus, Method, Prediction, load, name_of, settings_of
from phenogroups.methods.consensus import AGREEING
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
    sentences: list[str]  # the findings in plain words
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
    folder, table = Path(folder), dict(table or {})
    check_writable(folder)
    cohort.require(method.n_subgroups, controls=method.needs_controls)
    train, test = cohort.split(held_out, method.seed)
    recipe = {
        "method": name_of(method),
        "settings": settings_of(method),
        "input_shape": list(cohort.input_shape),
        "cohort": {"name": cohort.name, "subjects": len(cohort), "fingerprint": cohort.fingerprint},
        "held_out": held_out,
        "table": table,
    }
    method.fit(train, progress=progress)
    seen, new = method.predict_cohort(train), method.predict_cohort(test)
    scores = {name_of(method): score(test, new)}
    for name, other in (beside or {}).items():
        scores[name] = score(test, other.fit(train).predict_cohort(test))
    subgroups = pd.concat([subgroup_table(train, seen, "train"), subgroup_table(test, new, "held-out")])
    sentences = method.caveats() + summary(method, train, test, new, next(iter(scores.values())))
    history = pd.DataFrame(getattr(getattr(method, "best_run_", method), "history_", []))  # of the run that is shown
    with new_run_folder(folder) as partial:
        write_model(partial, recipe, method.tensors())
        write_csv(partial / "subgroups.csv", subgroups)
        text = json.dumps({name: asdict(found) for name, found in scores.items()}, indent=2)
        write_whole(partial / "scores.json", text + "\n")
        features = table.get("features") or None
        shown = "What sets apart the held-out patients" if test.inputs.ndim == 2 else "Held-out patients most typical"
        figures = {
            "Where the held-out subjects lie in the learned embedding": embedding_figure(new, test, seen),
            f"{shown} of each subgroup": exemplars_figure(test, new, feature_names=features),
        }
        if len(history):
            write_csv(partial / "history.csv", history)
            figures["How training went"] = history_figure(history)
        write_report(
            partial / "report.html", title=f"Subgroups of {cohort.name}", sentences=sentences, scores=scores,
            figures=figures, recipe=recipe,
        )  # fmt: skip
    return Discovery(method, scores, subgroups, sentences, folder)


def subgroup_table(cohort: Cohort, prediction: Prediction, part: str) -> pd.DataFrame:
    """One row per subject; a control has probabilities but no subgroup."""
    columns = prediction_columns(prediction)
    columns["subgroup"] = np.where(cohort.is_patient, columns["subgroup"], "")
    columns["undecided"] = cohort.is_patient & columns["undecided"]
    diagnosis = np.where(cohort.is_patient, "patient", "control")
    return pd.DataFrame({"subject": cohort.subject, "part": part, "diagnosis": diagnosis, **columns})


def prediction_columns(prediction: Prediction) -> dict[str, np.ndarray]:
    """The surest subgroup by its letter, how sure it is, then all probabilities."""
    letters = np.array([subgroup_letter(k) for k in range(prediction.subgroup.shape[1])])
    columns = {"subgroup": letters[prediction.subgroup.argmax(axis=1)]}
    columns |= {"confidence": prediction.confidence, "undecided": prediction.undecided}
    columns |= {f"p_{letter}": p for letter, p in zip(letters, prediction.subgroup.T, strict=True)}
    return columns if prediction.diagnosis is None else {**columns, "p_patient": prediction.diagnosis}


def summary(method: Method, train: Cohort, test: Cohort, new: Prediction, scores: Scores) -> list[str]:
    """The findings in plain sentences."""
    k = new.subgroup.shape[1]
    sizes = np.bincount(new.subgroup[test.is_patient].argmax(axis=1), minlength=k)
    shares = ", ".join(f"{subgroup_letter(i)} {n / sizes.sum():.0%} ({n})" for i, n in enumerate(sizes))
    controls = f"contrasted with {(~train.is_patient).sum()} controls" if method.needs_controls else "without controls"
    said = [
        f"{k} subgroups were looked for among {train.is_patient.sum()} patients, {controls}; "
        f"{len(test)} further subjects were held out.",
        f"Among the {sizes.sum()} held-out patients: {shares}.",
    ]
    if isinstance(method, Consensus):
        said.append(consensus_sentence(method, new[test.is_patient]))
    if scores.class_bacc is not None:
        said.append(f"Held-out patients are told from controls with a balanced accuracy of {scores.class_bacc:.3f}.")
    if scores.subgroup_bacc is not None:
        used = "the method was trained on" if method.reads_truth else "were not used in training"
        said.append(f"Against the known subgroups, which {used}, balanced accuracy is {scores.subgroup_bacc:.3f}.")
    said.append(
        "The number of subgroups was given, not found: this run does not show that there are subgroups at all, "
        "nor that they are not age, sex or scanner."
    )
    return said


def consensus_sentence(method: Consensus, patients: Prediction) -> str:
    """How far the runs agreed, on the training patients and on others."""
    agreeing = (method.agreement_ >= AGREEING).sum()
    return (
        f"{agreeing} of {method.runs} runs of {method.method} agree with the consensus (adjusted Rand index of at "
        f"least {AGREEING} on the training patients); between two runs it is {method.stability_:.2f} on average, where "
        f"1 is the same subgroups and 0 is chance. Of {len(patients.subgroup)} held-out patients, "
        f"{(np.asarray(patients.agreement) == 1).sum()} are in the same subgroup in all runs and "
        f"{patients.undecided.sum()} are undecided: fewer than two thirds of the runs agree on theirs."
    )


def predict_table(
    run: str | Path,
    table: str | Path,
    out: str | Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    folder: str | Path | None = None,
    features_file: str | Path | None = None,
    cache: str | Path | None = None,
) -> pd.DataFrame:
    """Subgroups of new subjects, read as the run's own table was; also written to `out`.

    `table` may be a folder of images; `folder` is where image paths begin, by default the table's own; `features_file`
    holds the new subjects' features if those of the run came from a file; `cache` is a folder to decode images into.
    """
    if Path(out).resolve() == Path(table).resolve():
        raise RunError(f"Expected another file to write than the table itself. Received: {out}.")
    recipe = read_recipe(run)
    if not recipe.get("table"):
        raise RunError(
            f"Expected a run made from a table. Received: {run}, made from arrays. "
            f"In Python, phenogroups.load({str(run)!r}).predict_subgroup(X) assigns an array X."
        )
    method = load(run)
    spec = spec_from_json(recipe["table"])
    if (features_file is None) != (spec.features_file is None):
        came = "columns of the table" if spec.features_file is None else "a file of features (--features-file)"
        raise RunError(f"Expected inputs from {came}, as in training. Received: the other. Give what the run had.")
    if Path(table).is_dir():
        layout = read_layout(table)
        columns = {"image": spec.image or "image", "subject": spec.subject or "subject"}
        rows, home = layout.rows.rename(columns=columns), folder or layout.folder
    else:
        rows, home = read_table(table), folder or Path(table).parent
    spec = replace(spec, features_file=None if features_file is None else str(features_file))
    subject = subject_names(rows, spec)
    inputs = read_inputs(rows, spec, folder=home, shape=method.input_shape_, cache=cache, progress=progress)
    covariates = read_covariates(rows, method.covariates, subject) if method.covariates else pd.DataFrame()
    cohort = Cohort(inputs, np.zeros(len(inputs)), subject, covariates=covariates)  # nobody's diagnosis is looked at
    found = pd.DataFrame({"subject": subject, **prediction_columns(method.predict_cohort(cohort))})
    write_csv(Path(out), found)
    return found


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Nine digits, which tell any two float32 apart."""
    write_whole(path, table.to_csv(index=False, float_format="%.9g"))
