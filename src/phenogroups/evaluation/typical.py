"""What is typical of a subgroup: exemplars, the difference of mean images, and features."""

from collections.abc import Iterator

import numpy as np

from phenogroups.data.batches import NUMBERS_AT_ONCE
from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.saliency import some_patients
from phenogroups.evaluation.verdict import SURE
from phenogroups.methods.prediction import Prediction

AVERAGED = 2000  # patients whose mean image is taken, at most
EXEMPLARS, BORDERLINE = 12, 6  # of each subgroup, at most: whole rows of six, three or two pictures


def exemplars(new: Prediction, found: np.ndarray, means: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the most typical and of the borderline members of subgroup k; and whether each is borderline.

    Typical members are nearest to the mean among the half with the higher probabilities (more than half of a small
    subgroup). Borderline members have the lowest probabilities, below `SURE` and below those of the typical ones.
    """
    members = np.flatnonzero(found == k)
    sure = np.round(new.subgroup[members, k], 2)  # two digits, as shown on the page
    surer = max(len(members) // 2, min(EXEMPLARS, len(members) - BORDERLINE), 1)
    among = np.flatnonzero(sure >= np.sort(sure)[::-1][:surer].min(initial=1))
    distance = np.linalg.norm(new.embedding[members[among]] - means[k], axis=1)
    typical = among[np.argsort(distance, kind="stable")][:EXEMPLARS]
    least = np.argsort(new.subgroup[members, k], kind="stable")[:BORDERLINE]
    borderline = least[sure[least] < min(sure[typical].min(initial=1), SURE)]
    return members[np.concatenate([typical, borderline])], np.repeat([False, True], [len(typical), len(borderline)])


def mean_maps(maps: list[np.ndarray], of_subgroup: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All maps, and their mean in each subgroup."""
    if not maps:
        return np.zeros((0, 1, 1), np.float16), np.zeros((k, 1, 1), np.float16)
    every = np.stack(maps).astype(np.float32)
    nothing = np.zeros_like(every[0])
    means = [every[of_subgroup == i].mean(axis=0) if (of_subgroup == i).any() else nothing for i in range(k)]
    return every.astype(np.float16), np.stack(means).astype(np.float16)


def mean_differences(train: Cohort, subgroup: np.ndarray, k: int) -> np.ndarray:
    """(k, ...) without channels: the mean image of a subgroup's patients less that of all other patients."""
    rows = some_patients(train, AVERAGED)
    sums, counts = np.zeros((k, *train.input_shape[1:])), np.bincount(subgroup[rows], minlength=k)
    first = 0
    for block in read_blocks(train, rows):
        flat = block.mean(axis=1, dtype=np.float64)
        for i in range(k):
            sums[i] += flat[subgroup[rows[first : first + len(block)]] == i].sum(axis=0)
        first += len(block)
    others, so_many = sums.sum(axis=0), counts.sum()
    own = [sums[i] / max(counts[i], 1) for i in range(k)]
    rest = [(others - sums[i]) / max(so_many - counts[i], 1) for i in range(k)]
    return np.stack([a - b if 0 < n < so_many else 0 * a for a, b, n in zip(own, rest, counts, strict=True)])


def control_scale(train: Cohort) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each feature among the controls; without controls, among all patients."""
    inputs = np.asarray(train.inputs, dtype=np.float64)
    reference = inputs if train.is_patient.all() else inputs[~train.is_patient]
    # a feature that is constant among controls (a lesion that none has) is scaled by its spread in all subjects
    scale = np.where(np.ptp(reference, axis=0) > 0, reference.std(axis=0), inputs.std(axis=0))
    scale[np.ptp(inputs, axis=0) == 0] = np.inf  # a constant feature deviates by 0
    return reference.mean(axis=0), scale


def deviations(cohort: Cohort, rows: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return ((np.asarray(cohort.inputs[rows], dtype=np.float64) - scale[0]) / scale[1]).astype(np.float32)


def mean_deviations(train: Cohort, members: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    rows = np.flatnonzero(members)
    return deviations(train, rows, scale).mean(axis=0) if len(rows) else np.zeros(train.inputs.shape[1], np.float32)


def most_different(means: np.ndarray, most: int) -> np.ndarray:
    """Positions of the features on which the subgroups differ most, in descending order."""
    spread = np.ptp(means, axis=0) if len(means) > 1 else np.abs(means[0])
    return np.argsort(-spread, kind="stable")[:most]


def read_blocks(cohort: Cohort, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Inputs of these rows in blocks of bounded memory."""
    size = max(NUMBERS_AT_ONCE // int(np.prod(cohort.input_shape)), 1)
    for first in range(0, len(rows), size):
        yield np.asarray(cohort.inputs[rows[first : first + size]])
