"""The first split of the patients of a table: many candidates, one of them elected without any known subgroup.

A table is given, also one of embeddings that a pretrained encoder made, so its first split decides what is found. No
single space, clusterer or criterion is right everywhere (docs/deep_ucsl.md), hence the candidates of `candidates.py`.

Two criteria decide. One is the gap: how much wider a valley lies between the subgroups among patients than among
controls. The other is agreement: how much of a split is found again in the other spaces. What depends on the space is
an accident of it. If some split shows gaps, the largest product of both wins, with the mean gap of all pairs of
subgroups: the narrowest alone would be noise of one pair. If none does, subgroups overlap or the patients form a
continuum: agreement alone decides, and what all candidates agree on, started from the elected one, takes its place.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

from phenogroups.clustering.blocks import blocks, stacked
from phenogroups.clustering.candidates import Axes, Space, clusterers, spaces
from phenogroups.clustering.held_out import GAP, Discriminants, HeldOut, Judge, Judgement
from phenogroups.clustering.matching import adjusted_rand, adjusted_rand_matrix, match_labels

SEARCHED = 3000  # patients, and as many controls, among whom candidates are compared
JUDGED = 50  # principal axes of everybody, as given and standardised, in which candidates are judged
# of these, the elected split is tested in so many: noise on more axes than few patients can tell hides any gap
PATIENTS_PER_TESTED_AXIS, FEWEST_TESTED = 12, 8
SMALL = 0.05  # share of the patients below which a subgroup must be far better supported than any larger split
FAR_BETTER = 3.0  # times as wide a gap
POWER = 4  # of the agreement, by which splits count in the consensus


@dataclass(frozen=True)
class Candidate:
    space: Space
    clusterer: str
    labels: Tensor  # (patients,)


@dataclass(frozen=True)
class FirstSplit:
    judgement: Judgement  # of the elected candidate, as the next two
    agreement: float  # with the other spaces, from 0 to 1
    different: float  # how many different splits it was elected among; splits that agree count together
    elected: Candidate
    labels: Tensor  # (patients,): those of the elected; if none has a gap, what all candidates agree on
    discriminants: Discriminants  # of these labels

    def posterior(self, patients: Tensor) -> Tensor:
        """(patients, subgroups), in their precision; also of patients who were not searched."""
        return stacked((self.discriminants.posterior(block) for _, block in blocks(patients)), len(patients))


def first_split(patients: Tensor, controls: Tensor, n_subgroups: int, *, seed: int = 0) -> FirstSplit:
    """The elected candidate; of large cohorts, `SEARCHED` patients and controls are enough."""
    patients, controls = patients.cpu().double(), controls.cpu().double()
    judge = Judge(patients, controls, n_subgroups, seed, JUDGED)
    found = [
        Candidate(space, clusterer, labels)
        for space in spaces(patients, controls, Axes.of(patients, controls))
        for clusterer, split in clusterers(space(patients).float(), n_subgroups, seed, searched=space.searched).items()
        for labels in split()
    ]
    judged = [judge(each.labels) for each in found]
    alike, names = similarity([each.labels for each in found]), np.array([each.space.name for each in found])
    agreed = agreement(alike, names)
    winner = elect(judged, agreed)
    labels = found[winner].labels
    if _large(judged).any() and not supported(judged, agreed).any():
        labels = consensus([each.labels for each in found], weights(judged, agreed, names), labels)
    different = float((1 / alike.clip(min=0).sum(axis=1)).sum())  # n equal splits count 1 / n each
    return FirstSplit(
        judged[winner], float(agreed[winner]), different, found[winner], labels, judge.discriminants(labels)
    )


def held_out_scores(split: FirstSplit, patients: Tensor, controls: Tensor, *, seed: int = 0) -> HeldOut | None:
    """Scores of patients and controls by subgroups that were searched for without them.

    For each tenth of the subjects, the elected clusterer splits the other patients anew, in its space made of the other
    subjects. It is not enough to leave the tenth out of the discriminants: subgroups of all patients are chosen for a
    valley that these patients happen to have, and controls do not. None where such a split is not found again.
    """
    patients, controls = patients.cpu().double(), controls.cpu().double()
    axes = min(max(len(patients) // PATIENTS_PER_TESTED_AXIS, FEWEST_TESTED), JUDGED)
    whitened, elected, k = Axes.of(patients, controls), split.elected, split.discriminants.weights.shape[1]

    def labelled(ill: Tensor, healthy: Tensor) -> Tensor | None:
        some, others, wanted = patients[ill], controls[healthy], elected.labels[ill]
        space = next((each for each in spaces(some, others, whitened) if each.name == elected.space.name), None)
        if space is None:  # the features of fewer subjects have fewer axes
            return None
        split_again = clusterers(space(some).float(), k, seed, searched=elected.space.searched).get(elected.clusterer)
        if split_again is None:  # too few patients for a graph
            return None
        best = max(split_again(), key=lambda labels: adjusted_rand(labels, wanted, k))
        return torch.as_tensor(match_labels(best.numpy(), wanted.numpy(), k))[best]

    return Judge(patients, controls, k, seed, axes).held_out(labelled)


def elect(judged: list[Judgement], agreed: np.ndarray) -> int:
    """Position of the winner among splits, given how much of each is found again in other spaces."""
    gaps, large = np.array([each.mean_gap for each in judged]), _large(judged)
    if not large.any():
        return int(np.argmax([each.smallest for each in judged]))
    with_gap = supported(judged, agreed)
    if with_gap.any():
        return int(np.where(with_gap | large, gaps * agreed, -np.inf).argmax())
    return int(np.where(large, agreed, -np.inf).argmax())


def supported(judged: list[Judgement], agreed: np.ndarray) -> np.ndarray:
    """(splits,): whether there is a gap that other spaces show too, and a far wider one for a small subgroup."""
    gaps, large = np.array([each.mean_gap for each in judged]), _large(judged)
    widest = gaps[large].max() if large.any() else np.inf
    with_gap = np.array([each.has_gap for each in judged]) & (gaps * agreed >= GAP)
    return with_gap & (large | (gaps >= FAR_BETTER * widest))


def _large(judged: list[Judgement]) -> np.ndarray:
    return np.array([each.smallest >= SMALL for each in judged])


def weights(judged: list[Judgement], agreed: np.ndarray, names: np.ndarray) -> np.ndarray:
    """(splits,): how much each counts in the consensus: all spaces alike, and in each what others find again most."""
    each = np.where(_large(judged), agreed**POWER, 0.0)
    of_space = np.array([each[names == name].sum() for name in names])
    return each / np.maximum(of_space, 1e-12)


def consensus(splits: list[Tensor], weight: np.ndarray, start: Tensor) -> Tensor:
    """Labels by K-means of the patients' memberships in all splits (Topchy et al. 2005), started from one of them.

    Where subgroups overlap, every split has errors of its own. `start`, if subgroups of the consensus become small.
    """
    k = int(start.max()) + 1
    members = torch.cat([w**0.5 * F.one_hot(labels).double() for labels, w in zip(splits, weight, strict=True)], dim=1)
    centroids = torch.stack([members[start == i].mean(0) for i in range(k)])
    found = KMeans(k, init=centroids.numpy(), n_init=1).fit_predict(members.numpy())
    return torch.as_tensor(found).long() if np.bincount(found, minlength=k).min() >= SMALL * len(start) else start


def similarity(labels: list[Tensor]) -> np.ndarray:
    """(splits, splits): adjusted Rand indices of all pairs."""
    alike = adjusted_rand_matrix(torch.stack(labels), 1 + max(int(split.max()) for split in labels)).numpy()
    np.fill_diagonal(alike, 1.0)
    return alike


def agreement(alike: np.ndarray, spaces: np.ndarray) -> np.ndarray:
    """(splits,): the mean, over the other spaces, of the largest similarity with a split found there; at least 0.

    1 where there is one space only.
    """
    best = np.stack([alike[:, spaces == space].max(axis=1) for space in np.unique(spaces)], axis=1)
    others = best.shape[1] - 1
    return np.maximum((best.sum(axis=1) - 1) / others, 0.0) if others else np.ones(len(alike))
