"""Whether the same subgroups are found again: from other starts, in half of the cohort, and by another assignment.

Each agreement is an adjusted Rand index (1: the same subgroups, 0: as if assigned at random) beside its null: the same
procedure on surrogate patients who vary as the patients do along every principal axis, but have no subgroups
(`clustering.surrogates`). Every start cuts a continuum at the same place, so that the null is often far above 0.
"""

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import adjusted_rand_score

from phenogroups.clustering.surrogates import without_groups
from phenogroups.data.cohort import Cohort
from phenogroups.methods.base import Assign, Method
from phenogroups.methods.consensus import Consensus
from phenogroups.methods.prediction import Prediction

MOST = 250  # patients, and controls, in whom subgroups are looked for again, at most
SURROGATES = 2
FEWEST = 10  # smallest number of patients, and of controls, in each half for each subgroup
NAMES = {
    "starts": "other random starts find the same subgroups in the same patients",
    "halves": "half of the cohort alone finds the same subgroups in the other half",
    "networks": "networks that start from other random weights find the same subgroups",
    "gate and centroids": "the two ways to assign a held-out patient agree: by the gate (the part of the network that "
    "assigns subgroups), and by the nearest centroid (the mean of a subgroup)",
}


def stability(method: Method, train: Cohort, seen: Prediction, test: Cohort, new: Prediction) -> pd.DataFrame:
    """One row per kind of agreement: what, agreement, by_chance, n (patients) and meaning; NaN where not computed."""
    rows = _again(method, train, seen)
    if isinstance(method, Consensus):
        chance = rows["starts"][1] if "starts" in rows else np.nan
        rows["starts"] = method.stability_, chance, int(train.is_patient.sum())
    elif "halves" not in rows and hasattr(method, "agreement_"):
        rows["networks"] = float(method.agreement_), np.nan, int(train.is_patient.sum())  # pyright: ignore
    if new.by_centroid is not None:
        ill = test.is_patient
        gate, centroid = new.subgroup[ill].argmax(1), new.by_centroid[ill].argmax(1)
        shuffled = np.random.default_rng(method.seed).permutation(centroid)
        by_chance = float(adjusted_rand_score(gate, shuffled))
        rows["gate and centroids"] = float(adjusted_rand_score(gate, centroid)), by_chance, int(ill.sum())
    table = []
    for what in NAMES:
        if what in rows or what in ("starts", "halves"):
            agreement, chance, n = rows.get(what, (np.nan, np.nan, 0))
            table.append({"what": what, "agreement": agreement, "by_chance": chance, "n": n, "meaning": NAMES[what]})
    return pd.DataFrame(table)


def some_of_each(cohort: Cohort, most: int, seed: int) -> np.ndarray:
    """A random sample of rows: at most `most` patients and `most` controls."""
    rng = np.random.default_rng(seed)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(cohort.diagnosis == y))[:most] for y in (0, 1)]))


def enough_for_halves(cohort: Cohort, n_subgroups: int) -> bool:
    """Whether half of the patients and half of the controls are enough for this number of subgroups."""
    return np.bincount(cohort.diagnosis, minlength=2).min() >= 2 * FEWEST * n_subgroups


def _again(method: Method, train: Cohort, seen: Prediction) -> dict[str, tuple[float, float, int]]:
    """Agreement of starts and of halves, their nulls, and the number of patients; empty where it takes a training."""
    rng = np.random.default_rng(method.seed)
    rows = some_of_each(train, MOST, method.seed)
    some, ill = train[rows], train.is_patient[rows]
    x = method.vectors(some) if enough_for_halves(some, method.n_subgroups) else None
    if x is None:
        return {}
    patients, controls = x[ill], x[~ill]
    half = rng.permutation(len(patients)) % 2, rng.permutation(len(controls)) % 2
    own = seen.subgroup[rows][ill].argmax(1)

    def find(p: np.ndarray, c: np.ndarray, seed: int) -> Assign | None:
        return method.refit(np.concatenate([p, c]), np.repeat([1, 0], [len(p), len(c)]), seed)

    another = find(patients, controls, method.seed + 1)
    if another is None:
        return {}

    def by_half(p: np.ndarray, labels: np.ndarray, side: int) -> float:
        """Agreement of the labels of one half with those that a model of the other half gives to it."""
        found, unseen = find(p[half[0] == side], controls[half[1] == side], method.seed), half[0] != side
        return float(adjusted_rand_score(labels[unseen], found(p[unseen])))  # pyright: ignore[reportOptionalCall]

    surrogates = without_groups(torch.as_tensor(patients).float(), SURROGATES, np.random.default_rng(method.seed))
    null: dict[str, list[float]] = {"starts": [], "halves": []}
    for surrogate in surrogates.numpy():
        labels, other = (find(surrogate, controls, method.seed + i)(surrogate) for i in (0, 1))  # pyright: ignore
        null["starts"].append(float(adjusted_rand_score(labels, other)))
        null["halves"].append(by_half(surrogate, labels, 0))
    return {
        "starts": (float(adjusted_rand_score(own, another(patients))), float(np.mean(null["starts"])), len(patients)),
        "halves": (
            float(np.mean([by_half(patients, own, side) for side in (0, 1)])),
            float(np.mean(null["halves"])),
            len(patients),
        ),
    }
