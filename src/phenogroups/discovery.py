"""From a cohort to a run folder: split, fit, score the held-out part, write everything down."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.batches import reading_ahead
from phenogroups.data.cohort import Cohort, subgroup_letter
from phenogroups.evaluation.alarms import SURE, alarms
from phenogroups.evaluation.confounds import associations, untested, warnings
from phenogroups.evaluation.diagnostics import Diagnostics, diagnostics
from phenogroups.evaluation.number import Choice
from phenogroups.evaluation.profiles import profiles, to_latex
from phenogroups.evaluation.scores import Scores, score
from phenogroups.methods import Consensus, Method, Prediction, name_of, settings_of
from phenogroups.methods.base import predict_together
from phenogroups.methods.consensus import AGREEING
from phenogroups.prediction import prediction_columns
from phenogroups.report.material import Evidence, gather
from phenogroups.report.page import write_page, write_page_of_none
from phenogroups.training.checkpoint import FORMAT as KEPT_FORMAT
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
    write_whole,
)


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
        Association of the subgroups with each covariate; None without covariates.
    profiles
        What is usual in each subgroup; None without covariates.
    sentences
        The findings in plain words.
    folder
        The run folder.
    """

    method: Method
    scores: dict[str, Scores]
    diagnostics: dict[str, Diagnostics]
    subgroups: pd.DataFrame
    confounds: pd.DataFrame | None
    profiles: pd.DataFrame | None
    sentences: list[str]
    folder: Path


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
    workers: int = 0,
    note: Callable[[str], None] = lambda _: None,
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
        How the table of the cohort was read, so that `predict` reads new ones in the same way.
    beside
        Other methods whose scores are reported beside this one's, by the words that name them.
    choice
        Result of `number_of_subgroups`, if it chose the number.
    progress
        Called with a dict after every epoch.
    resume
        Whether to continue an interrupted run with the same settings after its last finished epoch.
    workers
        Number of threads that read a cohort on disk ahead.
    note
        Called with a sentence when a run is resumed.

    Returns
    -------
    Discovery
        What was found. Of several processes (`launch`) only the first writes and returns more than the method.

    Examples
    --------
    >>> from phenogroups import DeepUCSL, discover, drawn_table
    >>> found = discover(drawn_table(120), DeepUCSL(epochs=2, steps=2), "run")
    >>> len(found.subgroups), (found.folder / "report.html").exists()
    (120, True)
    """
    folder, table = Path(folder), dict(table or {})
    check_writable(folder)
    cohort.require(method.n_subgroups, controls=method.needs_controls)
    train, test = cohort.split(held_out, method.seed)
    recipe = _recipe(cohort, method, held_out, table)
    kept = Checkpoint(resume_folder(folder), _identity(recipe, method, train), resume, note)
    if method.sums.world > 1:  # each knows its own part, and some may have kept an epoch more than others
        if resume:
            raise ValueError("Expected to go on (--resume) in one process. Received: several, which keep no epochs.")
        kept = Checkpoint()
    with reading_ahead(workers), kept as checkpoint:
        method.fit(train, progress=progress, checkpoint=checkpoint)
        seen, new = predict_together(method, train), predict_together(method, test)
        if seen is None or new is None:
            return Discovery(method, {}, {}, pd.DataFrame(), None, None, [], folder)
        found = {name_of(method): new}
        found |= {name: other.fit(train).predict_cohort(test) for name, other in (beside or {}).items()}
        return write_run(folder, method, (train, seen), (test, found), recipe, choice=choice)


def write_run(
    folder: Path,
    method: Method,
    trained: tuple[Cohort, Prediction],
    held_out: tuple[Cohort, dict[str, Prediction]],
    recipe: Mapping[str, Any],
    *,
    choice: Choice | None = None,
) -> Discovery:
    """The run folder of a fitted method: everything that is known of it, and the page that says so.

    Of those held out, the first prediction is the method's own, others stand beside it.
    """
    (train, seen), (test, found) = trained, held_out
    new = next(iter(found.values()))
    scores = {name: score(test, prediction) for name, prediction in found.items()}
    diagnosed = {name: diagnostics(test.diagnosis, prediction) for name, prediction in found.items()}
    confounds, profiled, said = trust((train, test), (seen, new), method.seed)
    alarmed = [] if confounds is None else warnings(confounds)
    alarmed += alarms(test.diagnosis, new, next(iter(scores.values())).class_bacc)
    evidence = Evidence(tuple(alarmed), confounds, profiled)
    if choice is not None:
        evidence = replace(evidence, criteria=choice.criteria, choice=" ".join(choice_sentences(choice)))
    tables = [subgroup_table(train, seen, "train", method), subgroup_table(test, new, "held-out", method)]
    subgroups = pd.concat(tables, ignore_index=True)
    findings = summary(method, train, test, new, next(iter(scores.values())), chosen=evidence.choice is not None)
    findings["specific"] = diagnostics_sentences(next(iter(diagnosed.values())))
    findings["associated"] = said
    material = gather(
        method, train, test, seen, new, title=f"Subgroups of {train.name}", sentences=findings,
        feature_names=recipe["table"].get("features") or None, evidence=evidence,
    )  # fmt: skip
    history = pd.DataFrame(getattr(getattr(method, "best_run_", method), "history_", []))  # of the run that is shown
    with new_run_folder(folder) as partial:
        write_model(partial, recipe, method.state())
        write_csv(partial / "subgroups.csv", subgroups)
        numbers = {name: asdict(scores[name]) | asdict(diagnosed[name]) for name in scores}
        write_whole(partial / "scores.json", json.dumps(numbers, indent=2) + "\n")
        if confounds is not None and profiled is not None:
            write_csv(partial / "confounds.csv", confounds)
            write_csv(partial / "profiles.csv", profiled)
            write_whole(partial / "profiles.tex", to_latex(profiled))
        if choice is not None:
            write_choice(partial, choice)
        if len(history):
            write_csv(partial / "history.csv", history)
        material.write(partial)
        write_page(partial)  # from the folder, as `phenogroups report` makes it again
    answer = [] if choice is None else choice_sentences(choice)
    sentences = [*alarmed, *answer, *(sentence for answers in findings.values() for sentence in answers)]
    return Discovery(method, scores, diagnosed, subgroups, confounds, profiled, sentences, folder)


def _recipe(cohort: Cohort, method: Method, held_out: float, table: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": name_of(method),
        "settings": settings_of(method),
        "input_shape": list(cohort.input_shape),
        "cohort": {"name": cohort.name, "subjects": len(cohort), "fingerprint": cohort.fingerprint},
        "held_out": held_out,
        "table": table,
    }


def _identity(recipe: Mapping[str, Any], method: Method, train: Cohort) -> dict[str, Any]:
    """All that the bits of a trained method depend on, but for machine and threads."""
    trained_on = "\x1f".join(train.subject.astype(str)) + train.covariates[list(method.covariates)].to_csv()
    return {
        **{name: recipe[name] for name in ("method", "settings", "held_out")},
        "cohort": recipe["cohort"]["fingerprint"],
        "trained_on": sha256(trained_on.encode()).hexdigest(),
        "versions": versions(),
        "format": KEPT_FORMAT,
    }


def report_none(
    cohort: Cohort, method: Method, folder: str | Path, choice: Choice, *, table: Mapping[str, Any] | None = None
) -> list[str]:
    """A run folder that says why no subgroups were found, and holds no model; the sentences it says."""
    sentences = choice_sentences(choice)
    recipe = {"format": FORMAT, **_recipe(cohort, method, 0.0, dict(table or {})), "versions": versions()}
    with new_run_folder(folder) as partial:
        write_choice(partial, choice)
        write_whole(partial / RECIPE, json.dumps(recipe, indent=2) + "\n")
        write_page_of_none(
            partial, title=f"No subgroups of {cohort.name}", sentences=sentences, criteria=choice.criteria,
            recipe=recipe,
        )  # fmt: skip
    return sentences


def write_choice(folder: Path, choice: Choice) -> None:
    write_csv(folder / "criteria.csv", choice.criteria)
    answer = {"subgroups": choice.subgroups, "reason": choice.reason, "p": choice.p, "p_shuffled": choice.p_shuffled}
    write_whole(folder / CHOICE, json.dumps(answer, indent=2) + "\n")


def choice_sentences(choice: Choice) -> list[str]:
    """The number and how sure it is."""
    said = [choice.reason, f"That patients without any groups would look as structured: p {choice.p:.2g}."]
    if choice.subgroups > 1:
        said.append(
            "That subgroups are as specific to the patients where diagnoses are shuffled: "
            f"p {choice.p_shuffled:.2g} (19 shuffles; 0.05 is the least they can say)."
        )
    return said


def trust(
    cohorts: tuple[Cohort, ...], predictions: tuple[Prediction, ...], seed: int
) -> tuple[pd.DataFrame | None, pd.DataFrame | None, list[str]]:
    """Confounds and profiles of all subjects, trained on or not: the held-out alone are few. And what is left to say.

    Subgroups are found without covariates, so that those trained on follow them no more by chance than others do.
    """
    covariates = pd.concat([cohort.covariates for cohort in cohorts], ignore_index=True)
    if covariates.shape[1] == 0:
        return None, None, ["Age, sex or scanner may explain the subgroups: no covariates were given to compare with."]
    diagnosis, group = (np.concatenate([getattr(c, what) for c in cohorts]) for what in ("diagnosis", "group"))
    subgroup = np.concatenate([prediction.subgroup for prediction in predictions])
    found = associations(subgroup, diagnosis, covariates, group, seed)
    letters = np.array([subgroup_letter(k) for k in subgroup.argmax(axis=1)])
    said = untested(found)
    if not warnings(found):
        tested = found.loc[(found["among"] == "patients") & found["p"].notna(), "covariate"]
        seen = f"not seen to follow {', '.join(tested)}" if len(tested) else "compared with no covariate"
        said.insert(0, f"Subgroups were {seen}; what was not recorded may still explain them.")
    return found, profiles(letters, diagnosis == 1, covariates, group, seed), said


def subgroup_table(cohort: Cohort, prediction: Prediction, part: str, method: Method) -> pd.DataFrame:
    """One row per subject; a control has probabilities but no subgroup."""
    columns = prediction_columns(prediction, method)
    columns["subgroup"] = np.where(cohort.is_patient, columns["subgroup"], "")
    columns["undecided"] = cohort.is_patient & columns["undecided"]
    diagnosis = np.where(cohort.is_patient, "patient", "control")
    return pd.DataFrame({"subject": cohort.subject, "part": part, "diagnosis": diagnosis, **columns})


def summary(
    method: Method, train: Cohort, test: Cohort, new: Prediction, scores: Scores, *, chosen: bool = False
) -> dict[str, list[str]]:
    """The findings in plain sentences, by the question they answer; `chosen`: how many subgroups was looked for."""
    k = new.subgroup.shape[1]
    ill = test.is_patient
    sizes = np.bincount(new.subgroup[ill].argmax(axis=1), minlength=k)
    shares = ", ".join(f"{subgroup_letter(i)} {n / sizes.sum():.0%} ({n})" for i, n in enumerate(sizes))
    controls = f"contrasted with {(~train.is_patient).sum()} controls" if method.needs_controls else "without controls"
    if method.covariates and not method.needs_controls:
        adjusted = ", ".join(method.covariates)
        controls = (
            f"adjusted for {adjusted} as seen in {(~train.is_patient).sum()} controls, but not contrasted with them"
        )
    sure = np.sum(new.subgroup[ill].max(axis=1) >= SURE)
    said: dict[str, list[str]] = {
        "asked": [
            f"{k} subgroups were looked for among {train.is_patient.sum()} patients, {controls}; "
            f"{len(test)} further subjects were held out."
        ],
        "sure": [
            *method.caveats(),
            *method.remarks(),
            f"Of {ill.sum()} held-out patients, {sure} ({sure / ill.sum():.0%}) belong to their subgroup with a "
            f"probability of at least {SURE}.",
        ],
        "who": [f"Among the {sizes.sum()} held-out patients: {shares}."],
        "apart": ["This method does not tell patients from controls."],
    }
    if isinstance(method, Consensus):
        said["sure"].insert(0, consensus_sentence(method, new[ill]))
    if not chosen:
        said["sure"].append(
            "The number of subgroups was given, not found: this run does not show that there are subgroups at all."
        )
    if scores.class_bacc is not None and new.diagnosis is not None:
        called = new.diagnosis > 0.5
        said["apart"] = [
            f"Held-out patients are told from controls with a balanced accuracy of {scores.class_bacc:.3f}: "
            f"{np.sum(called & ill)} of {ill.sum()} patients and {np.sum(~called & ~ill)} of {np.sum(~ill)} controls "
            "are called what they are."
        ]
    if scores.subgroup_bacc is not None:
        used = "the method was trained on" if method.reads_truth else "were not used in training"
        said["who"].append(
            f"Against the known subgroups, which {used}, balanced accuracy is {scores.subgroup_bacc:.3f}."
        )
    return said


def diagnostics_sentences(found: Diagnostics) -> list[str]:
    """The paper's diagnostics, each with what it should be; those that the method has."""
    said = {
        "distance_ratio": "controls are {:.2f} times as far from the farthest subgroup as from the nearest (1: "
        "from all alike)",
        "gate_entropy_controls": "subgroup probabilities of controls have an entropy of {:.2f} (1: undecided, 0: sure)",
        "expert_specialisation": "experts tell their own subgroup from controls better than other experts do by {:.3f} "
        "of balanced accuracy (0: any would do)",
    }
    known = {name: value for name, value in asdict(found).items() if value is not None}
    numbers = [words.format(known[name]) for name, words in said.items() if name in known]
    return [f"Whether the subgroups are of the disease, on held-out subjects: {'; '.join(numbers)}."] if numbers else []


def consensus_sentence(method: Consensus, patients: Prediction) -> str:
    """How far the runs agreed, on the training patients and on others."""
    agreeing = (method.agreement_ >= AGREEING).sum()
    return (
        f"{agreeing} of {method.runs} runs of {name_of(method.run(0))} agree with the consensus (adjusted Rand index "
        f"of at least {AGREEING} on the training patients); between two runs it is {method.stability_:.2f} on average, "
        f"where 1 is the same subgroups and 0 is chance. Of {len(patients.subgroup)} held-out patients, "
        f"{(np.asarray(patients.agreement) == 1).sum()} are in the same subgroup in all runs and "
        f"{patients.undecided.sum()} are undecided: fewer than two thirds of the runs agree on theirs."
    )
