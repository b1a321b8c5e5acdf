"""Warnings about a run, judged on held-out subjects."""

import numpy as np

from phenogroups.data.cohort import subgroup_letter
from phenogroups.methods.prediction import Prediction

SMALL = 0.05  # share of the held-out patients
SURE, LEAST_SURE = 0.9, 0.8  # probability from which a patient is sure, and the share of patients who should be
MOST_DISAGREEING = 0.1  # share of the held-out patients whom gate and centroids put into different subgroups
NEAR_CHANCE = 0.1  # balanced accuracy of the diagnosis above one half, below which nothing was learned of it ...
DEVIATIONS = 2  # ... or so many of its standard errors


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
            f"Only {sure:.0%} of the held-out patients belong to their subgroup with a probability of at least {SURE}. "
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
        if class_bacc < 0.5 + max(NEAR_CHANCE, DEVIATIONS * error):
            said.append(
                f"Held-out patients are hardly told from controls (balanced accuracy {class_bacc:.2f}, where chance is "
                "0.50). Subgroups found by contrast with controls then mean little."
            )
    return said
