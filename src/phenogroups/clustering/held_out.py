"""Gaps between subgroups, on linear discriminants that were fitted to other patients."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phenogroups.clustering.candidates import deviation, principal_axes
from phenogroups.clustering.gap import gap

WITHIN_SHRINKAGE = 0.2  # of the covariance within subgroups, towards that of all patients
# From where on there are gaps: the share of two subgroups' patients that would fill the valley between them, in all and
# of the smaller subgroup. Patients without subgroups reached 0.04 of all and 0.05 of the smaller (50 to 500 patients)
GAP, GAP_OF_SMALLER = 0.025, 0.14
FEWEST_OF_SUBGROUP = 2  # patients of a subgroup to fit a discriminant to
PARTS = 10  # of the subjects, where a split is tested

Labelled = Callable[[Tensor, Tensor], Tensor | None]  # masks of patients and controls -> labels of these patients


@dataclass(frozen=True)
class Judgement:
    """Gaps between subgroups: how much wider they are among patients than among controls."""

    gap: float  # the narrowest, as a share of the patients of two subgroups
    of_smaller: float  # the narrowest, as a share of the smaller of two subgroups
    smallest: float  # share of the smallest subgroup
    mean_gap: float  # of all pairs of subgroups
    mean_of_smaller: float  # the same, as shares of the smaller
    pair_size: int = 0  # patients of the two subgroups of which the smaller has the least gap

    @property
    def has_gap(self) -> bool:
        """Whether there are gaps between the subgroups, or a continuum was cut.

        Of several subgroups, two may resemble each other: then the narrowest gap may be narrower, if others are wide.
        """
        of_smaller = np.sqrt(max(self.of_smaller, 0.0) * max(self.mean_of_smaller, 0.0))
        return self.gap >= GAP and bool(of_smaller >= GAP_OF_SMALLER)


@dataclass(frozen=True)
class HeldOut:
    """Scores by linear discriminants that were fitted to other patients.

    The difference of two columns tells these two subgroups apart, and is 0 in the middle between them. Subjects are
    scored in parts, each by discriminants of its own, by which controls of different parts lie elsewhere. This would
    look like several groups, so that controls are centred part by part before their gaps are measured.
    """

    scores: Tensor  # (patients and controls, parts, subgroups): of everybody by the discriminants of all parts
    part: Tensor  # (patients and controls,): whose discriminants were not fitted to this subject
    labels: Tensor  # (patients,)

    @property
    def everybody(self) -> Tensor:
        """(patients and controls, subgroups): by discriminants that were not fitted to the subject."""
        return self.scores[torch.arange(len(self.part)), self.part]

    @property
    def patients(self) -> Tensor:
        return self.everybody[: len(self.labels)]

    @property
    def controls(self) -> Tensor:
        """(controls, subgroups): about their mean."""
        first = len(self.labels)
        return self.everybody[first:] - self.scores[first:].mean(0)[self.part[first:]]

    def pair(self, a: int, b: int) -> tuple[Tensor, Tensor]:
        """The patients of two subgroups, and all controls, on the discriminant of the two."""
        among, controls = self.patients[(self.labels == a) | (self.labels == b)], self.controls
        return among[:, a] - among[:, b], controls[:, a] - controls[:, b]


@dataclass(frozen=True)
class Discriminants:
    center: Tensor  # (features,)
    weights: Tensor  # (features, subgroups)
    offset: Tensor  # (subgroups,)

    def posterior(self, x: Tensor) -> Tensor:
        """(n, subgroups), in the precision of `x`."""
        center, weights, offset = (each.to(x.device) for each in vars(self).values())
        return ((x.double() - center) @ weights + offset).softmax(1).to(x)


class Judge:
    """Judges splits of the patients in one space: principal axes of everybody, as given and standardised."""

    def __init__(self, patients: Tensor, controls: Tensor, n_subgroups: int, seed: int, axes: int) -> None:
        everybody = torch.cat([patients, controls])
        each = deviation(everybody)
        parts = [principal_axes(everybody, scale, axes)[1] for scale in (torch.ones_like(each), 1 / each)]
        basis = torch.cat(parts, dim=1)
        self.k, self.seed, self.center = n_subgroups, seed, patients.mean(0)
        x, y = (patients - self.center) @ basis, (controls - self.center) @ basis
        values, vectors = torch.linalg.eigh(torch.atleast_2d(torch.cov(x.T)))
        loud = values > 1e-8 * values.max()
        whitening = vectors[:, loud] / values[loud].sqrt()
        self.patients, self.controls, self.basis = x @ whitening, y @ whitening, basis @ whitening
        self.half = self._part(self.patients, 2)

    def __call__(self, labels: Tensor) -> Judgement:
        """By either half of the patients, and all controls, scored by discriminants of the other half."""
        scored = [self._half(labels, self.half == i) for i in range(2)]
        return judgement(scored, labels, self.k)

    def discriminants(self, labels: Tensor) -> Discriminants:
        """Of all patients, for any vectors of the same features."""
        toward, offset = self._discriminants(self.patients, labels)
        log_sizes = torch.bincount(labels, minlength=self.k).clamp_min(1).double().log()
        return Discriminants(self.center, self.basis @ toward, offset + log_sizes)

    def held_out(self, labelled: Labelled) -> HeldOut | None:
        """All patients and controls, each scored without the subjects of the part that they belong to.

        `labelled` splits the remaining patients anew, so that whoever is scored has no influence on the subgroups.
        None where a subgroup is too small for discriminants.
        """
        ill, healthy = (self._part(x, PARTS) for x in (self.patients, self.controls))
        scores = []
        for i in range(PARTS):
            labels = labelled(ill != i, healthy != i)
            found = None if labels is None else self._scored(labels, ill != i)
            if found is None:
                return None
            scores.append(found)
        by_part, part = torch.stack(scores, dim=1), torch.cat([ill, healthy])
        own = by_part[torch.arange(len(ill)), ill]
        return HeldOut(by_part, part, own.argmax(1))

    def _part(self, x: Tensor, parts: int) -> Tensor:
        return torch.as_tensor(np.random.default_rng(self.seed).permutation(len(x)) % parts)

    def _half(self, labels: Tensor, half: Tensor) -> HeldOut | None:
        scores = self._scored(labels[~half], ~half)
        if scores is None:
            return None
        some = torch.cat([half, torch.ones(len(self.controls), dtype=torch.bool)])
        return HeldOut(scores[some][:, None], torch.zeros(int(some.sum()), dtype=torch.long), labels[half])

    def _scored(self, labels: Tensor, fitted: Tensor) -> Tensor | None:
        """(patients and controls, subgroups): everybody by discriminants of some patients (mask), who have the labels.

        None where a subgroup is too small.
        """
        if torch.bincount(labels, minlength=self.k).min() < FEWEST_OF_SUBGROUP:
            return None
        toward, offset = self._discriminants(self.patients[fitted], labels)
        return torch.cat([self.patients, self.controls]) @ toward + offset

    def _discriminants(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Linear discriminants (axes, subgroups), and what centres them (subgroups,) between the subgroups."""
        one_hot = F.one_hot(labels, self.k).double()
        means = one_hot.T @ x / one_hot.sum(0).clamp_min(1)[:, None]
        away = x - means[labels]
        within = (1 - WITHIN_SHRINKAGE) * away.T @ away / len(x) + WITHIN_SHRINKAGE * torch.eye(x.shape[1]).double()
        toward = torch.linalg.solve(within, means.T)
        return toward, -(means.T * toward).sum(0) / 2


def judgement(scored: list[HeldOut | None], labels: Tensor, n_subgroups: int) -> Judgement:
    """The gaps of the worst pair of subgroups and of all pairs, in the mean of all scores."""
    size = torch.bincount(labels, minlength=n_subgroups)
    parts = [part for part in scored if part is not None]
    if len(parts) < len(scored):
        return Judgement(0.0, 0.0, 0.0, 0.0, 0.0)
    gaps = {
        pair: sum(_gap(ill) - _gap(healthy) for ill, healthy in (part.pair(*pair) for part in parts)) / len(parts)
        for pair in combinations(range(n_subgroups), 2)
    }
    smaller = {(a, b): float(min(size[a], size[b]) / (size[a] + size[b])) for a, b in gaps}
    of_smaller = {pair: gaps[pair] / (2 * smaller[pair]) for pair in gaps}
    nearest = min(of_smaller, key=of_smaller.__getitem__)
    mean_gap, mean_of_smaller = (float(np.mean(list(each.values()))) for each in (gaps, of_smaller))
    smallest, pair_size = float(size.min() / len(labels)), int(size[list(nearest)].sum())
    return Judgement(min(gaps.values()), of_smaller[nearest], smallest, mean_gap, mean_of_smaller, pair_size)


def _gap(values: Tensor) -> float:
    return gap(values[None], torch.ones_like(values)[None]).item()
