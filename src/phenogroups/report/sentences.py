"""What a run or a comparison found, in plain sentences."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.clustering.adjust import column_name
from phenogroups.data.cohort import Cohort, count_of, subgroup_letter
from phenogroups.data.properties import plain_name
from phenogroups.data.study import Study
from phenogroups.evaluation.confounds import followed, untested
from phenogroups.evaluation.diagnostics import Diagnostics
from phenogroups.evaluation.number import Choice
from phenogroups.evaluation.scores import Scores
from phenogroups.evaluation.verdict import SURE
from phenogroups.methods import Consensus, Method, Prediction, name_of
from phenogroups.methods.consensus import AGREEING

NEARER, UNDECIDED, SPECIALISED = 1.5, 0.8, 0.02  # from where on diagnostics are said to be good or doubtful


def choice_sentences(choice: Choice) -> list[str]:
    """The chosen number of subgroups and its p-values."""
    said = [
        choice.reason,
        f"Patients without subgroups would look at least as clearly grouped with a probability of {choice.p:.2g}.",
    ]
    if choice.subgroups > 1:
        said.append(
            "If the diagnosis is shuffled among all subjects, groups that divide the patients so much more clearly "
            f"than the controls appear with a probability of {choice.p_shuffled:.2g}."
        )
    return said


def stability_sentences(table: pd.DataFrame) -> list[str]:
    """How far the same subgroups are found again, and what was not computed."""
    said = [
        f"{row['meaning'][0].upper()}{row['meaning'][1:]}: {row['agreement']:.2f}"
        + ("." if np.isnan(row["by_chance"]) else f" ({row['by_chance']:.2f}).")
        for _, row in table.dropna(subset=["agreement"]).iterrows()
    ]
    again = (
        "Are the same subgroups found again? Agreement is 1 for the same subgroups; in brackets, what it would be in "
        "patients without subgroups (for the gate and centroids: of shuffled labels)."
    )
    missing = ", and whether ".join(table.loc[table["agreement"].isna(), "meaning"])
    return ([" ".join([again, *said])] if said else []) + ([f"Not computed: whether {missing}."] if missing else [])


def summary(
    method: Method,
    train: Cohort,
    test: Cohort,
    new: Prediction,
    scores: Scores,
    *,
    tested: Choice | None = None,
    searched: bool = False,
) -> dict[str, list[str]]:
    """The findings in plain sentences, by question.

    `searched`: the number of subgroups was searched for; otherwise it was given, and `tested` is a test of this number
    alone, if there was one.
    """
    k = new.subgroup.shape[1]
    ill = test.is_patient
    sizes = np.bincount(new.subgroup[ill].argmax(axis=1), minlength=k)
    shares = ", ".join(f"{subgroup_letter(i)} {n / sizes.sum():.0%} ({n})" for i, n in enumerate(sizes))
    controls = f"contrasted with {(~train.is_patient).sum()} controls" if method.needs_controls else "without controls"
    one_run = method.run(0) if isinstance(method, Consensus) else method
    adjusted = ", ".join(map(column_name, getattr(one_run, "adjust", ())))
    if adjusted and not method.needs_controls:
        controls = (
            f"adjusted for {adjusted} as seen in {(~train.is_patient).sum()} controls, but not contrasted with them"
        )
    sure = np.sum(new.subgroup[ill].max(axis=1) >= SURE)
    said: dict[str, list[str]] = {
        "asked": [
            f"{k} subgroups were looked for among {_patients(train)}, {controls}; "
            f"{len(test)} further subjects were held out."
        ],
        "sure": [
            *method.remarks(),
            f"Of {count_of(ill.sum(), 'held-out patient')}, {sure} ({sure / ill.sum():.0%}) belong to their subgroup "
            f"with a probability of at least {SURE}.",
        ],
        "who": [f"Of {count_of(sizes.sum(), 'held-out patient')}: {shares}."],
        "apart": ["This method does not tell patients from controls."],
    }
    if isinstance(method, Consensus):
        said["sure"].insert(0, consensus_sentence(method, new[ill]))
    if not searched:
        of_test = "it was not tested whether there are subgroups at all"
        if tested is not None:
            passed = "passed" if tested.subgroups > 1 else "did not pass"
            of_test = (
                f"it {passed} a test whether the patients have so many subgroups (p {tested.p:.2g}), and no other "
                "number was tried"
            )
        said["sure"].append(f"The number of subgroups was given, not looked for: {of_test}.")
    if scores.class_bacc is not None and new.diagnosis is not None:
        called = new.diagnosis > 0.5
        said["apart"] = [
            f"Held-out patients are distinguished from controls with a balanced accuracy of {scores.class_bacc:.3f}: "
            f"{np.sum(called & ill)} of {ill.sum()} patients and {np.sum(~called & ~ill)} of {np.sum(~ill)} controls "
            "are recognised as such."
        ]
    if scores.subgroup_bacc is not None:
        used = "the method was trained on" if method.reads_truth else "were not used in training"
        said["who"].append(
            f"Against the known subgroups, which {used}, balanced accuracy is {scores.subgroup_bacc:.3f}."
        )
    return said


def _patients(cohort: Cohort) -> str:
    """How many, and of how many images or rows if a patient has several."""
    rows, persons = int(cohort.is_patient.sum()), len(np.unique(cohort.group[cohort.is_patient]))
    what = "row" if len(cohort.input_shape) == 1 else "image"
    return count_of(rows, "patient") if persons == rows else f"{count_of(rows, what)} of {count_of(persons, 'patient')}"


def confound_sentences(confounds: pd.DataFrame | None) -> list[str]:
    """What the subgroups do not follow, and what could not be tested; warnings are said elsewhere."""
    if confounds is None or not (confounds["source"] == "covariate").any():
        said = ["Age, sex or scanner may explain the subgroups: no covariates were given to compare with."]
    else:
        said = untested(confounds)
    if confounds is not None:
        follows = {one.source for one in followed(confounds)}
        tested = confounds.loc[(confounds["among"] == "patients") & confounds["p"].notna(), ["covariate", "source"]]
        for source, what in (("covariate", ""), ("image", " of their images")):
            names = tested.loc[tested["source"] == source, "covariate"]
            names = names if source == "covariate" else names.map(plain_name)
            if len(names) and source not in follows:
                said.insert(0, f"Subgroups were not seen to follow {', '.join(names)}{what}.")
    return [*said, "What was not recorded may still explain the subgroups."]


def diagnostics_sentences(found: Diagnostics, *, by_design: bool = False) -> list[str]:
    """The paper's diagnostics on held-out subjects, as far as the method has them, each in plain words.

    `by_design`: who is recognised as a control has equal probabilities of all subgroups, whatever the gate says.
    """
    said = []
    ratio, entropy, own = found.distance_ratio, found.gate_entropy_controls, found.expert_specialisation
    if ratio is not None:
        said.append(
            f"Controls are about equally far from all subgroups (the farthest is {ratio:.2f} times as far "
            "as the nearest)."
            if ratio < NEARER
            else f"One subgroup lies nearer to the controls than another (which is {ratio:.2f} times as far): it may "
            "consist of the mildly ill."
        )
    if entropy is not None and by_design:
        said.append(
            "Who is recognised as a control has about equal probabilities of all subgroups, by the design of the "
            f"method (normalised entropy of the controls {entropy:.2f}, where 1 is equal)."
        )
    elif entropy is not None:
        said.append(
            "Controls are left undecided between the subgroups, as they should be: their probabilities are nearly "
            f"equal (normalised entropy {entropy:.2f}, where 1 is equal)."
            if entropy >= UNDECIDED
            else "Controls are assigned to subgroups too, although they have none: part of what distinguishes the "
            f"subgroups exists in healthy people (normalised entropy {entropy:.2f}, where 1 is undecided)."
        )
    error = found.specialisation_error
    if own is not None and own > SPECIALISED and (error is None or own <= 2 * error):
        said.append(
            "Too few patients were held out to tell whether each subgroup differs from controls in its own way (gain "
            f"of its own classifier, its expert, in balanced accuracy: {own:+.3f}"
            + (")." if error is None else f", standard error {error:.3f}).")
        )
    elif own is not None:
        said.append(
            "Each subgroup differs from controls in its own way: the classifier of a subgroup (its expert) "
            f"distinguishes it from controls better than those of other subgroups do (balanced accuracy {own:+.3f})."
            if own > SPECIALISED
            else "All subgroups differ from controls in much the same way: the classifier of a subgroup (its expert) "
            f"hardly does better on it than the classifiers of other subgroups (balanced accuracy {own:+.3f})."
        )
    return said


def consensus_sentence(method: Consensus, patients: Prediction) -> str:
    """How far the runs agreed, on the training patients and on others."""
    agreeing = (method.agreement_ >= AGREEING).sum()
    return (
        f"{agreeing} of {method.runs} runs of {name_of(method.run(0))} agree with the consensus (adjusted Rand index "
        f"of at least {AGREEING} on the training patients); between two runs it is {method.stability_:.2f} on average, "
        f"where 1 is the same subgroups and 0 is that of random labels. Of {len(patients.subgroup)} held-out patients, "
        f"{(np.asarray(patients.agreement) == 1).sum()} are in the same subgroup in all runs and "
        f"{patients.undecided.sum()} are undecided: fewer than two thirds of the runs agree on theirs."
    )


def comparison_sentence(study: Study, summary: pd.DataFrame, about: Mapping[str, Any]) -> str:
    """Who was trained on and who was scored."""
    trained, scored, _ = study.parts(0)
    unit = "train/validation splits" if about["splits"] else "seeds"
    return (
        f"{len(summary)} methods were trained on {len(trained)} subjects of {study.cohort.name} and scored on "
        f"{len(scored)} others, over {about['seeds']} {unit}; {about['subgroups']} subgroups were looked for."
    )
