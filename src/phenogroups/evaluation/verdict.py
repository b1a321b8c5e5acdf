"""Warnings about a run and one verdict on its subgroups, by the rules of docs/guides/is_it_real.md."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from phenogroups.data.cohort import count_of, subgroup_letter
from phenogroups.evaluation.confounds import Followed
from phenogroups.evaluation.number import Choice
from phenogroups.evaluation.persons import Agreement
from phenogroups.methods.prediction import Prediction

Answer = Literal["convincing", "plausible", "not stable", "artefact likely", "no subgroups"]
STABLE = 0.5  # agreement of starts, halves or networks, below which subgroups are not stable
CHANCE = 0.01  # for "convincing", the greatest probability that patients without subgroups look like this
# for "convincing", halves agree by NEARLY_SAME, or by WELL_ABOVE of the way from patients without subgroups to 1
WELL_ABOVE, NEARLY_SAME = 0.5, 0.9
# limits of warnings, for held-out subjects
SMALL = 0.05  # share of the patients below which a subgroup is small
SURE, LEAST_SURE = 0.9, 0.8  # probability from which an assignment is sure, and the smallest share of sure patients
MOST_DISAGREEING = 0.1  # largest share of patients whom gate and centroids assign to different subgroups
NEAR_CHANCE = 0.1  # smallest balanced accuracy of the diagnosis above one half ...
DEVIATIONS = 2  # ... or this many standard errors, if they are more
HARDLY_TOLD = 0.65  # balanced accuracy of the diagnosis, in the search for the number of subgroups
FEWEST_HELD = 10  # held-out patients for each subgroup, below which an empty subgroup says little
UNSTABLE = {  # by the rows of `evaluation.stability`
    "starts": "other random starts find other subgroups in the same patients",
    "halves": "half of the cohort is not enough to find these subgroups again",
    "networks": "networks that start from other random weights find other subgroups",
    "gate and centroids": "the two ways to assign a new patient to a subgroup disagree",
}
OTHER_COHORT = "Look for the same subgroups in another cohort, and at outcomes that nobody trained on."


@dataclass(frozen=True)
class Verdict:
    """Whether the subgroups of a run can be believed."""

    answer: Answer  # in a word or two
    headline: str  # the same in a sentence
    why: tuple[str, ...]  # at most two sentences
    next_step: str  # what to do next, in a sentence

    def sentence(self) -> str:
        """All of it in one paragraph."""
        return " ".join([self.headline, *self.why, f"What to do next: {self.next_step}"])

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"why": list(self.why)}


def judge(
    stability: pd.DataFrame,  # of `evaluation.stability`
    choice: Choice | None,  # test of the number of subgroups; None: it was not tested
    *,
    searched: bool,  # the number was searched for; otherwise it was given, and `choice` is a test of this number
    followed: Sequence[Followed] = (),  # what the subgroups follow
    persons: Agreement | None = None,  # how often the images of a person agree
    doubts: Sequence[str] = (),  # other evidence against the subgroups, each as a sentence
    held: Sequence[int] = (),  # held-out patients of each subgroup
) -> Verdict:
    """The first rule that applies, from artefacts to convincing subgroups."""
    if searched and choice is not None and choice.subgroups == 1:
        return no_subgroups(choice)
    artefacts = [one for one in followed if one.artefact]
    if artefacts:
        return Verdict(
            "artefact likely",
            f"An artefact is likely: the subgroups follow {_joined([one.name for one in artefacts])}.",
            (artefacts[0].words,),
            f"Look at patients of each subgroup beside each other; take {artefacts[0].name} out (adjust for it, leave "
            "such images out, or bring controls who differ in it), and run again.",
        )
    if persons is not None and persons.warnings():
        return Verdict(
            "artefact likely",
            "An artefact is likely: images of the same person fall into different subgroups.",
            tuple(persons.warnings()),
            "Look at persons whose images are in different subgroups (columns group and subgroup of subgroups.csv): "
            "what differs between their images is what the subgroups describe.",
        )
    if 0 in held:
        return _not_everywhere(held)
    # gaps that were shown among held-out patients are there, though half of a small cohort may not find them
    forgiven = "halves" if choice is not None and choice.subgroups > 1 and choice.p <= CHANCE else None
    unstable = [row for _, row in stability.iterrows() if row["agreement"] < STABLE and row["what"] != forgiven]
    if unstable:
        return _not_found_again(unstable[0], choice)
    missing = _not_shown(stability, choice, doubts)
    if followed:
        missing.insert(0, followed[0].words)
        headline = f"Plausible, but the subgroups follow {_joined([one.name for one in followed])}."
        next_step = (
            f"Find out whether {followed[0].name} is part of the illness: compare patients of different subgroups in "
            "whom it is the same."
        )
    elif missing:
        headline = "Plausible, but not proven: the patients may form a continuum, or chance may have divided them."
        next_step = "Bring more patients or test the number of subgroups (--subgroups auto), before you interpret them."
        if choice is not None:
            next_step = (
                "Bring more patients, or look for the same subgroups in another cohort, before you interpret them."
            )
    else:
        halves = stability.set_index("what")["agreement"].get("halves", np.nan)
        again = (
            "" if np.isnan(halves) else f"; half of the cohort finds them again in the other half ({halves:.2f} of 1)"
        )
        return Verdict(
            "convincing",
            "Convincing: patients without subgroups would very rarely look like this.",
            (f"Patients without subgroups would look like this with a probability of at most {choice.p:.2g}{again}.",  # pyright: ignore
             "The subgroups follow nothing that was recorded; what was not recorded may still explain them."),
            OTHER_COHORT,
        )  # fmt: skip
    return Verdict("plausible", headline, tuple(missing[:2]), next_step)


def _not_everywhere(held: Sequence[int]) -> Verdict:
    """Where a subgroup has no held-out patient."""
    count = sum(held)
    if count < FEWEST_HELD * len(held):
        return Verdict(
            "not stable",
            "Not stable: too few patients were held out to see whether new patients fall into all subgroups.",
            (f"{count_of(count, 'patient')} {'was' if count == 1 else 'were'} held out, and {held.count(0)} of "
             f"{len(held)} subgroups have none of them.",),
            "Do not interpret these subgroups; bring more patients.",
        )  # fmt: skip
    return Verdict(
        "not stable",
        "Not stable: new patients do not fall into all of the subgroups.",
        (f"Of {count} patients who were held out, one subgroup has none: it exists among the training patients only.",),
        "Ask for fewer subgroups, or bring more patients.",
    )  # fmt: skip


def _not_found_again(row: pd.Series, choice: Choice | None) -> Verdict:
    """Where an agreement of `evaluation.stability` is low."""
    null = "shuffled labels" if row["what"] == "gate and centroids" else "patients without subgroups"
    chance = "" if np.isnan(row["by_chance"]) else f"; {null} would give {row['by_chance']:.2f}"
    why = [f"The agreement is {row['agreement']:.2f}, where 1 means the same subgroups{chance}."]
    if choice is not None and choice.subgroups == 1:
        why.append(f"A test whether the patients have so many subgroups at all was not passed (p {choice.p:.2g}).")
    return Verdict(
        "not stable",
        f"Not stable: {UNSTABLE[row['what']]}.",
        tuple(why),
        "Do not interpret these subgroups; bring more patients, ask for another number (--subgroups auto), or look "
        "at several runs (--runs 5).",
    )


def no_subgroups(choice: Choice) -> Verdict:
    why = [choice.reason]
    told = choice.criteria.get("diagnosis_bacc", pd.Series(dtype=float)).dropna()
    if len(told) and told.iloc[0] < HARDLY_TOLD:
        why.append(
            f"Patients are hardly told from controls at all (balanced accuracy {told.iloc[0]:.2f}, where chance is "
            "0.50), so that there is little to divide."
        )
    return Verdict(
        "no subgroups",
        "No subgroups were found among the patients.",
        tuple(why),
        "Treat the patients as one group, or bring more of them; that none was found does not show that there is none.",
    )


def _not_shown(stability: pd.DataFrame, choice: Choice | None, doubts: Sequence[str]) -> list[str]:
    """What is missing for "convincing", each as a sentence."""
    said = list(doubts)
    if choice is None:
        said.append("The number of subgroups was given and not tested: the patients may be one group.")
    elif choice.subgroups == 1:
        failed = choice.reason.removeprefix("No subgroups: ")
        said.append(f"The number of subgroups was given, and did not pass its test: {failed}")
    elif choice.p > CHANCE:
        said.append(f"Patients without subgroups would look like this with a probability of {choice.p:.2g}.")
    computed = stability[stability["what"] != "gate and centroids"].dropna(subset=["agreement"])
    if not len(computed):
        said.append("Whether the same subgroups would be found again was not computed.")
    # a cut through a continuum is found by every start again, but not by every half
    for _, row in computed[computed["what"] == "halves"].iterrows():
        well_above = row["agreement"] - row["by_chance"] >= WELL_ABOVE * (1 - row["by_chance"])
        if not well_above and row["agreement"] < NEARLY_SAME:
            said.append(
                "Half of the cohort finds the subgroups of the other half hardly better than it would in patients "
                f"without subgroups (agreement {row['agreement']:.2f} against {row['by_chance']:.2f})."
            )
    return said


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def alarms(diagnosis: np.ndarray, found: Prediction, class_bacc: float | None) -> list[str]:
    """Warnings in plain sentences; an empty list is good news."""
    ill = np.asarray(diagnosis) == 1
    if not ill.any():
        return []
    said, subgroup = [], found.subgroup[ill]
    share = np.bincount(subgroup.argmax(1), minlength=subgroup.shape[1]) / len(subgroup)
    said += [
        f"Subgroup {subgroup_letter(int(k))} holds {share[k]:.0%} of the held-out patients. So small a subgroup is "
        "often a handful of unusual images or subjects and not a kind of the disease: look at its members first."
        for k in np.flatnonzero(share < SMALL)
    ]
    sure = np.mean(subgroup.max(axis=1) >= SURE)
    # K-means has no gate: its proportions of distances are not probabilities and seldom near 1
    if found.by_centroid is not None and sure < LEAST_SURE:
        said.append(
            f"Only {sure:.0%} of {count_of(len(subgroup), 'held-out patient')} belong to their subgroup with a "
            f"probability of at least {SURE}. "
            "The others lie between the subgroups: the patients may form a continuum rather than subgroups."
        )
    if found.by_centroid is not None:
        differ = np.mean(found.by_centroid[ill].argmax(1) != subgroup.argmax(1))
        if differ > MOST_DISAGREEING:
            said.append(
                f"The two ways to assign a patient differ for {differ:.0%} of the held-out patients: by the gate (the "
                "part of the network that assigns subgroups), and by the nearest centroid (the mean of a subgroup). "
                "The subgroups do not carry over well to new patients."
            )
    if class_bacc is not None:
        error = np.sqrt(0.25 / max(ill.sum(), 1) + 0.25 / max((~ill).sum(), 1)) / 2
        if DEVIATIONS * error >= 0.5:
            said.append(
                f"Whether patients differ from controls cannot be told: {count_of(ill.sum(), 'patient')} and "
                f"{count_of((~ill).sum(), 'control')} were held out."
            )
        elif class_bacc < 0.5 + max(NEAR_CHANCE, DEVIATIONS * error):
            said.append(
                f"Held-out patients are hardly told from controls (balanced accuracy {class_bacc:.2f}, where chance is "
                "0.50). Subgroups found by contrast with controls then mean little."
            )
    return said
