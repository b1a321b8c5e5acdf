"""The first split of the patients of a table: many candidates, one of them elected without any known subgroup.

A table is given, also one of embeddings that a pretrained encoder made, so its first split decides what is found. No
single space, clusterer or criterion is right everywhere (docs/deep_ucsl.md), hence candidates from several:

- Units of healthy variation: the principal axes of everybody, whitened by the covariance of the controls, in which a
  distance says how unusual a difference would be among controls. The covariance is shrunk towards that of everybody or
  of the patients and not towards a multiple of the identity, so that it follows any change of scale or rotation of the
  features.
- Standardised features without the axis from controls to patients.

In each, cuts into equal parts and spectral clustering of the graph of nearest neighbours, which finds parts of any size
and shape; in some of them also K-means and local optima of mixtures.

Two criteria decide. One is the gap: how much wider a valley lies between the subgroups among patients than among
controls. The other is agreement: how much of a split is found again in the other spaces. What depends on the space is
an accident of it. If some split shows a gap, the largest product of both wins; if none does, subgroups overlap or the
patients form a continuum, and agreement alone decides.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import SpectralClustering
from torch import Tensor

from phenogroups.clustering.blocks import blocks, stacked
from phenogroups.clustering.contrast import local_optima
from phenogroups.clustering.gap import gap
from phenogroups.clustering.kmeans import kmeans, sinkhorn_kmeans, squared_distances
from phenogroups.clustering.matching import adjusted_rand_matrix
from phenogroups.clustering.mixture import TiedMixture, kmeans_start, tied_mixture, tied_mixtures

SEARCHED = 3000  # patients, and as many controls, among whom candidates are compared
WHOLE = 100  # features up to which no axis is left out before whitening, if there are enough subjects
SUBJECTS_PER_AXIS = 4
CONTROLS_PER_AXIS = 16  # among the principal axes of everybody that are whitened where there are more features, ...
FEWEST_AXES, MOST_AXES, MORE = 20, 50, 1.5  # ... so many of them, and so many times as many in other spaces
LEADING = (5, 10)  # principal axes of everybody that are whitened besides all of them, where there are fewer features
PATIENT_AXES = (10, 20)  # of these, the axes along which patients vary most
SHRINKAGE = 0.3  # of the controls' covariance
JUDGED = 50  # principal axes of everybody, as given and standardised, in which candidates are judged
# of these, the elected split is tested in so many: noise on more axes than few patients can tell hides any gap
PATIENTS_PER_TESTED_AXIS, FEWEST_TESTED = 12, 8
WITHIN_SHRINKAGE = 0.2  # of the covariance within subgroups, towards that of all patients
SMALL = 0.05  # share of the patients below which a subgroup must be far better supported than any larger split
FAR_BETTER = 3.0  # times as wide a gap
# From where on a gap is one: the share of two subgroups' patients that would fill the valley between them, in all and
# of the smaller subgroup. Patients without subgroups reached 0.04 of all and 0.05 of the smaller (50 to 500 patients)
GAP, GAP_OF_SMALLER = 0.025, 0.14
PARTS, TESTED_PARTS = 2, 10  # of the patients, each scored by discriminants of the others: in the election and the test
STARTS, OPTIMA = 4, 12  # of K-means, and of mixtures that begin on a few axes, in each space
NEIGHBOURS, FEW_NEIGHBOURS, FEW = 40, 20, 300  # of each patient in the graph, and of each where patients are few
FEWEST = 10  # patients of whom a graph is made
FEWEST_OF_SUBGROUP = 2  # patients of a subgroup to fit a discriminant to


@dataclass(frozen=True)
class Judgement:
    gap: float  # how much wider the narrowest gap between two subgroups is among patients than among controls
    of_smaller: float  # the same as a share of the smaller of the two subgroups
    smallest: float  # share of the smallest subgroup

    @property
    def has_gap(self) -> bool:
        """Whether there is a gap between the subgroups, or a continuum was cut."""
        return self.gap >= GAP and self.of_smaller >= GAP_OF_SMALLER


@dataclass(frozen=True)
class HeldOut:
    """Scores by linear discriminants that were fitted to other patients.

    The difference of two columns tells these two subgroups apart.
    """

    patients: Tensor  # (patients, subgroups): scores
    labels: Tensor  # (patients,)
    controls: Tensor  # (controls, subgroups): scores

    def pair(self, a: int, b: int) -> tuple[Tensor, Tensor]:
        """The patients of two subgroups, and all controls, on the discriminant of the two."""
        among = self.patients[(self.labels == a) | (self.labels == b)]
        return among[:, a] - among[:, b], self.controls[:, a] - self.controls[:, b]


@dataclass(frozen=True)
class FirstSplit:
    judgement: Judgement
    agreement: float  # with the other spaces, from 0 to 1
    different: float  # how many different splits it was elected among; splits that agree count together
    labels: Tensor  # (patients,)
    tested: Judgement  # of the elected split, in as many axes as the patients can tell
    held_out: HeldOut | None  # in these axes; None where a subgroup is too small
    space: "_Space"
    mixture: TiedMixture  # in that space, of the labels that were elected

    def posterior(self, patients: Tensor) -> Tensor:
        """(patients, subgroups), in their precision; also of patients who were not searched."""
        parts = (self.mixture.posterior(self.space(block.double())).to(block) for _, block in blocks(patients))
        return stacked(parts, len(patients))


def first_split(patients: Tensor, controls: Tensor, n_subgroups: int, *, seed: int = 0) -> FirstSplit:
    """The elected candidate; of large cohorts, `SEARCHED` patients and controls are enough."""
    patients, controls = patients.cpu().double(), controls.cpu().double()
    judge = _Judge(patients, controls, n_subgroups, seed, JUDGED)
    found = [
        (space, number, labels)
        for number, space in enumerate(_spaces(patients, controls))
        for labels in _clusterings(space(patients).float(), n_subgroups, space, seed)
    ]
    judged = [judge(labels) for *_, labels in found]
    alike = similarity([labels for *_, labels in found])
    agreed = agreement(alike, np.array([number for _, number, _ in found]))
    winner = elect(judged, agreed)
    space, _, labels = found[winner]
    mixture = tied_mixture(
        space(patients), n_subgroups, start=F.one_hot(labels, n_subgroups).double(), max_iterations=0
    )
    axes = min(max(len(patients) // PATIENTS_PER_TESTED_AXIS, FEWEST_TESTED), JUDGED)
    test = _Judge(patients, controls, n_subgroups, seed, axes)
    held_out = test.held_out(labels)
    different = float((1 / alike.clip(min=0).sum(axis=1)).sum())  # n equal splits count 1 / n each
    return FirstSplit(
        judged[winner],
        float(agreed[winner]),
        different,
        labels,
        judgement([held_out], labels, n_subgroups),
        held_out,
        space,
        mixture,
    )


def elect(judged: list[Judgement], agreed: np.ndarray) -> int:
    """Position of the winner among splits, given how much of each is found again in other spaces."""
    gaps = np.array([each.gap for each in judged])
    large = np.array([each.smallest >= SMALL for each in judged])
    if not large.any():
        return int(np.argmax([each.smallest for each in judged]))
    found_again = gaps * agreed
    supported = np.array([each.has_gap for each in judged]) & (found_again >= GAP)
    supported &= large | (gaps >= FAR_BETTER * gaps[large].max())
    if supported.any():
        return int(np.where(supported | large, found_again, -np.inf).argmax())
    return int(np.where(large, agreed, -np.inf).argmax())


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


@dataclass(frozen=True)
class _Space:
    center: Tensor  # (features,)
    basis: Tensor  # (features, axes)
    searched: bool  # whether gaps are looked for here

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.center.to(x.device)) @ self.basis.to(x.device)


def _spaces(patients: Tensor, controls: Tensor) -> Iterator[_Space]:
    everybody = torch.cat([patients, controls])
    deviation = _deviation(everybody)
    features = everybody.shape[1]
    whole = features <= min(WHOLE, len(everybody) // SUBJECTS_PER_AXIS)
    # with all axes, whitening undoes any scale: the same space from the features as given and standardised
    bases = [1 / deviation] if whole else [torch.ones_like(deviation), 1 / deviation]
    fewer = min(max(len(controls) // CONTROLS_PER_AXIS, FEWEST_AXES), MOST_AXES)
    # whitening all axes of features that say much the same makes their noise as loud as what they say
    counts = (*(c for c in LEADING if c < features), features) if whole else (fewer, round(MORE * fewer))
    for scale in bases:
        center, axes = principal_axes(everybody, scale, max(counts))
        for count in counts:
            for target in (everybody, patients):
                seen = ((x - center) @ axes[:, :count] for x in (controls, target))
                whitened = axes[:, :count] @ healthy_units(*seen)
                _, main = principal_axes((patients - center) @ whitened, None, max(PATIENT_AXES))
                for most in PATIENT_AXES:
                    last = most == max(PATIENT_AXES)
                    if last or most < main.shape[1]:
                        yield _Space(center, whitened @ main[:, :most], last and count >= axes.shape[1])
    # standardised by the patients, without severity: the first thing that varies among patients is how ill they are
    scale = 1 / _deviation(patients)
    toward = F.normalize((patients.mean(0) - controls.mean(0)) * scale, dim=0)
    without = torch.diag(scale) - torch.outer(scale * toward, toward)
    _, axes = principal_axes(patients @ without, None, max(PATIENT_AXES))
    yield _Space(patients.mean(0), without @ axes, True)


def healthy_units(controls: Tensor, target: Tensor) -> Tensor:
    """(axes, axes): whitening by the covariance of the controls, shrunk towards that of others."""
    within = torch.cov(target.T)
    if len(controls) > 1:  # one control has no covariance
        within = (1 - SHRINKAGE) * torch.cov(controls.T) + SHRINKAGE * within
    values, vectors = torch.linalg.eigh(torch.atleast_2d(within))
    return vectors / values.clamp_min(1e-9 * values.max().clamp_min(1e-30)).sqrt()


def principal_axes(x: Tensor, scale: Tensor | None, most: int) -> tuple[Tensor, Tensor]:
    """Centre (features,), and the leading axes (features, axes) that `scale` is part of; silent axes are left out."""
    center = x.mean(0)
    scale = torch.ones_like(center) if scale is None else scale
    away = (x - center) * scale
    values, vectors = torch.linalg.eigh(away.T @ away)
    loud = int((values > 1e-10 * values.max().clamp_min(1e-30)).sum())
    return center, scale[:, None] * vectors.flip(1)[:, : max(min(most, loud), 1)]


def _clusterings(z: Tensor, k: int, space: _Space, seed: int) -> Iterator[Tensor]:
    """Labels of the patients."""
    yield squared_distances(z, sinkhorn_kmeans(z, k, n_starts=STARTS, seed=seed)).argmin(1)
    if space.searched:
        yield squared_distances(z, kmeans(z, k, n_starts=STARTS, seed=seed)).argmin(1)
    if len(z) >= FEWEST:
        yield neighbour_clusters(z, k, seed)
    if not space.searched:
        return
    starts = torch.stack([kmeans_start(z, k, seed=seed * STARTS + i) for i in range(STARTS)])
    likeliest = max(tied_mixtures(z, starts), key=lambda fit: fit.log_likelihood)
    for mixture in [likeliest, *local_optima(z, k, n_starts=OPTIMA, seed=seed)]:
        yield mixture.log_posterior(z.double()).argmax(1)


def neighbour_clusters(z: Tensor, k: int, seed: int) -> Tensor:
    """Labels by spectral clustering of the graph of nearest neighbours (Ng et al. 2001, Damle et al. 2019)."""
    count = min(NEIGHBOURS if len(z) >= FEW else FEW_NEIGHBOURS, len(z) // 2)
    clusterer = SpectralClustering(
        k, affinity="nearest_neighbors", n_neighbors=count, assign_labels="cluster_qr", random_state=seed,
        eigen_solver="lobpcg",  # of 3,000 patients 15 times as fast as ARPACK, with the same labels
    )  # fmt: skip
    with warnings.catch_warnings():
        # a graph in several parts is an answer as well: the parts; nor do labels need eigenvectors to the last digit
        warnings.simplefilter("ignore", UserWarning)
        return torch.as_tensor(clusterer.fit_predict(z.numpy())).long()


class _Judge:
    """What all candidates are compared by: linear discriminants of some of the patients, applied to the others."""

    def __init__(self, patients: Tensor, controls: Tensor, n_subgroups: int, seed: int, axes: int) -> None:
        everybody = torch.cat([patients, controls])
        deviation = _deviation(everybody)
        parts = [principal_axes(everybody, scale, axes)[1] for scale in (torch.ones_like(deviation), 1 / deviation)]
        basis = torch.cat(parts, dim=1)
        x, y = (patients - patients.mean(0)) @ basis, (controls - patients.mean(0)) @ basis
        values, vectors = torch.linalg.eigh(torch.atleast_2d(torch.cov(x.T)))
        loud = values > 1e-8 * values.max()
        whitening = vectors[:, loud] / values[loud].sqrt()
        self.patients, self.controls, self.k = x @ whitening, y @ whitening, n_subgroups
        self.seed = seed

    def __call__(self, labels: Tensor) -> Judgement:
        """By either half of the patients, and all controls, scored by discriminants of the other half."""
        half = self._part(self.patients, PARTS)
        every_control = torch.ones(len(self.controls), dtype=torch.bool)
        return judgement([self._scored(labels, half == i, every_control) for i in range(PARTS)], labels, self.k)

    def held_out(self, labels: Tensor) -> HeldOut | None:
        """All patients and controls, each scored without the patients of the part that they belong to.

        Discriminants of nine tenths are steadier than those of halves, and the scores of all parts are tested together.
        None where a subgroup is too small for discriminants.
        """
        ill, healthy = (self._part(x, TESTED_PARTS) for x in (self.patients, self.controls))
        parts = [self._scored(labels, ill == i, healthy == i) for i in range(TESTED_PARTS)]
        if any(part is None for part in parts):
            return None
        return HeldOut(*(torch.cat([getattr(part, each.name) for part in parts]) for each in fields(HeldOut)))

    def _part(self, x: Tensor, parts: int) -> Tensor:
        return torch.as_tensor(np.random.default_rng(self.seed).permutation(len(x)) % parts)

    def _scored(self, labels: Tensor, patients: Tensor, controls: Tensor) -> HeldOut | None:
        """These patients and controls (masks), scored by discriminants of all other patients."""
        if torch.bincount(labels[~patients], minlength=self.k).min() < FEWEST_OF_SUBGROUP:
            return None
        toward, offset = self._discriminants(self.patients[~patients], labels[~patients])
        scores = [x[mask] @ toward + offset for x, mask in ((self.patients, patients), (self.controls, controls))]
        return HeldOut(scores[0], labels[patients], scores[1])

    def _discriminants(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Linear discriminants (axes, subgroups), and what centres them (subgroups,) between the subgroups."""
        one_hot = F.one_hot(labels, self.k).double()
        means = one_hot.T @ x / one_hot.sum(0)[:, None]
        away = x - means[labels]
        within = (1 - WITHIN_SHRINKAGE) * away.T @ away / len(x) + WITHIN_SHRINKAGE * torch.eye(x.shape[1]).double()
        toward = torch.linalg.solve(within, means.T)
        return toward, -(means.T * toward).sum(0) / 2


def judgement(scored: list[HeldOut | None], labels: Tensor, n_subgroups: int) -> Judgement:
    """The gaps of the worst pair of subgroups, in the mean of all scores."""
    size = torch.bincount(labels, minlength=n_subgroups)
    parts = [part for part in scored if part is not None]
    if len(parts) < len(scored):
        return Judgement(0.0, 0.0, 0.0)
    gaps = {
        pair: sum(_gap(ill) - _gap(healthy) for ill, healthy in (part.pair(*pair) for part in parts)) / len(parts)
        for pair in combinations(range(n_subgroups), 2)
    }
    smaller = {(a, b): float(min(size[a], size[b]) / (size[a] + size[b])) for a, b in gaps}
    of_smaller = min(gaps[pair] / (2 * smaller[pair]) for pair in gaps)
    return Judgement(min(gaps.values()), of_smaller, float(size.min() / len(labels)))


def _gap(values: Tensor) -> float:
    return gap(values[None], torch.ones_like(values)[None]).item()


def _deviation(x: Tensor) -> Tensor:
    deviation = x.std(0)
    return torch.where(deviation > 1e-12 * x.abs().amax(0).clamp_min(1e-30), deviation, torch.ones_like(deviation))
