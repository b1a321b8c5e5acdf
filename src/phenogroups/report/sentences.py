"""What a run or a comparison found, in plain sentences."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import Cohort, subgroup_letter
from phenogroups.data.study import Study
from phenogroups.evaluation.alarms import SURE
from phenogroups.evaluation.confounds import untested, warnings
from phenogroups.evaluation.diagnostics import Diagnostics
from phenogroups.evaluation.number import Choice
from phenogroups.evaluation.scores import Scores
from phenogroups.methods import Consensus, Method, Prediction, name_of
from phenogroups.methods.consensus import AGREEING


def choice_sentences(choice: Choice) -> list[str]:
    """The chosen number of subgroups and its p-values."""
    said = [choice.reason, f"That patients without any groups would look as structured: p {choice.p:.2g}."]
    if choice.subgroups > 1:
        said.append(
            "That subgroups are as specific to the patients where diagnoses are shuffled: "
            f"p {choice.p_shuffled:.2g} (19 shuffles; 0.05 is the least they can say)."
        )
    return said


def summary(
    method: Method, train: Cohort, test: Cohort, new: Prediction, scores: Scores, *, chosen: bool = False
) -> dict[str, list[str]]:
    """The findings in plain sentences, by question; `chosen`: the number of subgroups was searched for."""
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


def confound_sentences(confounds: pd.DataFrame | None) -> list[str]:
    """Which covariates the subgroups do not follow, and which could not be tested; warnings are said elsewhere."""
    if confounds is None:
        return ["Age, sex or scanner may explain the subgroups: no covariates were given to compare with."]
    said = untested(confounds)
    if not warnings(confounds):
        tested = confounds.loc[(confounds["among"] == "patients") & confounds["p"].notna(), "covariate"]
        seen = f"not seen to follow {', '.join(tested)}" if len(tested) else "compared with no covariate"
        said.insert(0, f"Subgroups were {seen}; what was not recorded may still explain them.")
    return said


def diagnostics_sentences(found: Diagnostics) -> list[str]:
    """The paper's diagnostics, as far as the method has them, each with its meaning."""
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


def comparison_sentences(study: Study, summary: pd.DataFrame, about: Mapping[str, Any]) -> list[str]:
    """Who was trained on and scored; then what the marks of the table mean."""
    trained, scored, _ = study.parts(0)
    unit = "train/validation splits" if about["splits"] else "seeds"
    return [
        f"{len(summary)} methods were trained on {len(trained)} subjects of {study.cohort.name} and scored on "
        f"{len(scored)} others, over {about['seeds']} {unit}; {about['subgroups']} subgroups were looked for."
    ]
