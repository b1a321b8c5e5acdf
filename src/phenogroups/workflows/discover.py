"""From a cohort to a run folder: split, fit, score the held-out part, write the run folder."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.clustering.adjust import covariate
from phenogroups.data.batches import reading_ahead
from phenogroups.data.cohort import Cohort, subgroup_letter
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.diagnostics import Diagnostics, diagnostics
from phenogroups.evaluation.number import Choice
from phenogroups.evaluation.scores import Scores, intervals, score
from phenogroups.evaluation.verdict import Verdict, no_subgroups
from phenogroups.methods import Method, Prediction, name_of, settings_of
from phenogroups.methods.base import predict_together
from phenogroups.report.material import Evidence, gather
from phenogroups.report.page import write_page, write_page_of_none
from phenogroups.report.sentences import (
    choice_sentences,
    confound_sentences,
    diagnostics_sentences,
    stability_sentences,
    summary,
)
from phenogroups.report.tables import profiles_latex
from phenogroups.training.checkpoint import FORMAT as CHECKPOINT_FORMAT
from phenogroups.training.checkpoint import Checkpoint, resume_folder
from phenogroups.training.em import Progress
from phenogroups.training.run import (
    CHOICE,
    FORMAT,
    RECIPE,
    check_writable,
    new_run_folder,
    versions,
    write_csv,
    write_model,
)
from phenogroups.workflows.choose import sample_vectors
from phenogroups.workflows.predict import prediction_columns
from phenogroups.workflows.weigh import weigh


@dataclass(frozen=True)
class Discovery:
    """The result of `discover`; its folder holds the same.

    Parameters
    ----------
    method
        The fitted method.
    scores
        Scores on the held-out subjects, by name of the method.
    diagnostics
        The paper's diagnostics on the same subjects.
    subgroups
        One row per subject.
    confounds
        Association of the subgroups with each covariate and with properties of the images; None without any.
    profiles
        What is usual in each subgroup; None without covariates.
    known
        Number of held-out patients by subgroup found (rows) and by known subgroup or word of the diagnosis (columns);
        None where neither is known.
    sentences
        The findings in words: first the verdict, then all warnings, then the descriptions.
    folder
        The run folder.
    verdict
        Whether the subgroups can be believed, why, and what to do next.
    stability
        Agreement of the subgroups with those of other runs, beside the agreement expected without subgroups.
    """

    method: Method
    scores: dict[str, Scores]
    diagnostics: dict[str, Diagnostics]
    subgroups: pd.DataFrame
    confounds: pd.DataFrame | None
    profiles: pd.DataFrame | None
    known: pd.DataFrame | None
    sentences: list[str]
    folder: Path
    verdict: Verdict | None = None
    stability: pd.DataFrame | None = None


def discover(
    cohort: Cohort,
    method: Method,
    folder: str | Path,
    *,
    held_out: float = 0.2,
    table: Mapping[str, Any] | None = None,
    beside: Mapping[str, Method] | None = None,
    choice: Choice | None = None,
    progress: Progress | None = None,
    resume: bool = False,
    overwrite: bool = False,
    workers: int = 0,
    command: str | None = None,
    note: Callable[[str], None] = lambda _: None,
    step: Callable[[str], None] = lambda _: None,
) -> Discovery:
    """Find subgroups, evaluate them on held-out subjects and write a run folder with a report.

    Parameters
    ----------
    cohort
        The subjects.
    method
        The method, not yet fitted.
    folder
        Run folder to write.
    held_out
        Share of the subjects that are not trained on, where the cohort does not say who.
    table
        How the table of the cohort was read (the fields of `TableSpec`), so that `predict` reads new ones alike.
    beside
        Other methods, by name, whose scores are reported beside those of `method`.
    choice
        Result of `number_of_subgroups`, if it chose the number.
    progress
        Called with a dict several times in every epoch: `epoch` and the mean of each loss so far.
    resume
        Whether to continue an interrupted run with the same settings after its last finished epoch.
    overwrite
        Whether to replace a finished run in the folder, once the new one is complete; otherwise it is refused.
    workers
        Number of threads that read a cohort on disk ahead.
    command
        The command line of this run, for the report.
    note
        Called with a message when a run is resumed.
    step
        Called with a sentence about each step after training.

    Returns
    -------
    Discovery
        The result. Of several processes (`launch`), only the first writes files and returns more than the method.

    Examples
    --------
    >>> from phenogroups import DeepUCSL, discover, drawn_table
    >>> found = discover(drawn_table(80), DeepUCSL(epochs=2, steps=2), "run")
    >>> len(found.subgroups), (found.folder / "report.html").exists()
    (80, True)
    """
    folder, table = Path(folder), dict(table or {})
    check_writable(folder, overwrite=overwrite)
    cohort.require(method.n_subgroups, controls=method.needs_controls)
    recipe = _recipe(cohort, method, held_out, table, command)  # whose checksums of all inputs the parts keep
    train, test = cohort.split(held_out, method.seed)
    checkpoint = Checkpoint()
    if method.comm.rank == 0:  # of several processes, only the first writes and reads checkpoints
        checkpoint = Checkpoint(resume_folder(folder), _identity(recipe, method, train), resume, note)
    with reading_ahead(workers), checkpoint:
        own = method.fit_predict_cohort(train, progress=progress, checkpoint=checkpoint)
        trained, held = predict_together(method, train, own), predict_together(method, test)
        if trained is None or held is None:
            return Discovery(method, {}, {}, pd.DataFrame(), None, None, None, [], folder)
        predictions = {name_of(method): held}
        predictions |= {name: other.fit(train).predict_cohort(test) for name, other in (beside or {}).items()}
        return write_run(folder, method, (train, trained), (test, predictions), recipe, choice=choice, step=step)


def write_run(
    folder: Path,
    method: Method,
    trained: tuple[Cohort, Prediction],
    held_out: tuple[Cohort, dict[str, Prediction]],
    recipe: Mapping[str, Any],
    *,
    choice: Choice | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> Discovery:
    """Evaluate a fitted method and write its run folder.

    The first prediction of the held-out subjects is the method's own; others are shown beside it.
    """
    (train, seen), (test, predictions) = trained, held_out
    new = next(iter(predictions.values()))
    scores = {name: score(test, prediction) for name, prediction in predictions.items()}
    diagnosed = {name: diagnostics(test.diagnosis, prediction) for name, prediction in predictions.items()}
    own_scores = next(iter(scores.values()))
    step("Testing the subgroups: whether they are found again, and what they follow.")
    weighed = weigh(method, trained, (test, new), own_scores.class_bacc, choice)
    verdict, persons = weighed.verdict, weighed.persons
    answer = [] if choice is None else choice_sentences(choice)
    findings = summary(method, train, test, new, own_scores, tested=weighed.tested, searched=choice is not None)
    findings["sure"] += stability_sentences(weighed.stability)
    findings["specific"] = diagnostics_sentences(
        next(iter(diagnosed.values())), by_design=method.makes_controls_uniform
    )
    findings["associated"] = confound_sentences(weighed.confounds)
    if persons is not None and not persons.warnings():
        findings["who"].append(persons.sentence())
    warned = [words for words in weighed.warnings if words not in verdict.why]  # those are part of the verdict
    evidence = Evidence(
        tuple(warned), weighed.confounds, weighed.profiles, None if choice is None else choice.criteria,
        " ".join(answer) or None, verdict.as_json(), weighed.stability, tuple(weighed.followed),
    )  # fmt: skip
    step("Drawing the report.")
    material = gather(
        method, train, test, seen, new, title=f"Subgroups of {train.name}", sentences=findings,
        feature_names=recipe["table"].get("features") or None, evidence=evidence,
    )  # fmt: skip
    tables = [subgroup_table(train, seen, "train", method), subgroup_table(test, new, "held-out", method)]
    subgroups = pd.concat(tables, ignore_index=True)
    group = np.concatenate([train.group, test.group])
    if len(np.unique(group)) < len(group):  # otherwise it says no more than the subject
        subgroups.insert(1, "group", group)
    history = pd.DataFrame(
        getattr(getattr(method, "best_run_", method), "history_", [])
    )  # of a consensus, its best run
    frames = {
        "subgroups": subgroups, "stability": weighed.stability, "confounds": weighed.confounds,
        "profiles": weighed.profiles, "history": history if len(history) else None,
    }  # fmt: skip
    with new_run_folder(folder) as partial:
        write_model(partial, recipe, method.state())
        for name, frame in frames.items():
            if frame is not None:
                write_csv(partial / f"{name}.csv", frame)
        spread = {name: {"intervals": intervals(test, each, method.seed)} for name, each in predictions.items()}
        by_method = {name: asdict(scores[name]) | asdict(diagnosed[name]) | spread[name] for name in scores}
        write_json(partial / "scores.json", by_method)
        write_json(partial / "verdict.json", verdict.as_json())
        if weighed.profiles is not None:
            write_whole(partial / "profiles.tex", profiles_latex(weighed.profiles))
        if choice is not None:
            write_choice(partial, choice)
        material.write(partial)
        write_page(partial)  # from the folder, as `phenogroups report` does
    known = None
    if material.confusion is not None:
        letters = [subgroup_letter(k) for k in range(method.n_subgroups)]
        known = pd.DataFrame(material.confusion, letters, material.truth_names)
    sentences = [verdict.sentence(), *warned, *answer, *chain.from_iterable(findings.values())]
    return Discovery(
        method, scores, diagnosed, subgroups, weighed.confounds, weighed.profiles, known, sentences, folder, verdict,
        weighed.stability,
    )  # fmt: skip


def _recipe(
    cohort: Cohort, method: Method, held_out: float, table: dict[str, Any], command: str | None
) -> dict[str, Any]:
    return {
        "method": name_of(method),
        "settings": settings_of(method),
        "input_shape": list(cohort.input_shape),
        "cohort": {"name": cohort.name, "subjects": len(cohort), "fingerprint": cohort.fingerprint},
        "held_out": held_out,
        "table": table,
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "command": command,
    }


def _identity(recipe: Mapping[str, Any], method: Method, train: Cohort) -> dict[str, Any]:
    """All that the bits of a trained method depend on, except machine and threads."""
    adjusted_for = pd.DataFrame({name: covariate(train, name) for name in method.covariates}, index=range(len(train)))
    trained_on = "\x1f".join(train.subject.astype(str)) + adjusted_for.to_csv()
    return {
        **{name: recipe[name] for name in ("method", "settings", "held_out")},
        "cohort": recipe["cohort"]["fingerprint"],
        "trained_on": sha256(trained_on.encode()).hexdigest(),
        "versions": versions(),
        "format": CHECKPOINT_FORMAT,
    }


def report_none(
    cohort: Cohort,
    method: Method,
    folder: str | Path,
    choice: Choice,
    *,
    table: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
    command: str | None = None,
) -> list[str]:
    """Write a run folder without a model that says why no subgroups were found; returns its sentences.

    `cache_dir` is the folder of intermediate results of `number_of_subgroups`, whose embeddings are shown.
    """
    verdict = no_subgroups(choice)
    sentences = [verdict.sentence(), *choice_sentences(choice)[1:]]
    recipe = {"format": FORMAT, **_recipe(cohort, method, 0.0, dict(table or {}), command), "versions": versions()}
    rows, vectors = sample_vectors(cohort, method, cache_dir)
    with new_run_folder(folder) as partial:
        write_choice(partial, choice)
        write_json(partial / "verdict.json", verdict.as_json())
        write_json(partial / RECIPE, recipe)
        write_page_of_none(
            partial, cohort[rows], vectors, title=f"No subgroups of {cohort.name}", sentences=sentences,
            criteria=choice.criteria, recipe=recipe, feature_names=recipe["table"].get("features") or None,
            verdict=verdict.as_json(),
        )  # fmt: skip
    return sentences


def write_choice(folder: Path, choice: Choice) -> None:
    write_csv(folder / "criteria.csv", choice.criteria)
    answer = {"subgroups": choice.subgroups, "reason": choice.reason, "p": choice.p, "p_shuffled": choice.p_shuffled}
    write_json(folder / CHOICE, answer)


def write_json(path: Path, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def subgroup_table(cohort: Cohort, prediction: Prediction, part: str, method: Method) -> pd.DataFrame:
    """One row per subject; a control has probabilities but no subgroup."""
    columns = prediction_columns(prediction, method)
    columns["subgroup"] = np.where(cohort.is_patient, columns["subgroup"], "")
    columns["undecided"] = cohort.is_patient & columns["undecided"]
    diagnosis = np.where(cohort.is_patient, "patient", "control")
    return pd.DataFrame({"subject": cohort.subject, "part": part, "diagnosis": diagnosis, **columns})
