"""Whether chance would show such gaps between subgroups, and whether random diagnoses would.

Both tests use the scores of patients whom the discriminants were not fitted to (`held_out.HeldOut`), so that no
subgroups have to be searched for in simulated cohorts. Every pair of subgroups must pass, so the largest p of a pair
is the p of a split. The split was elected among many, so that its p is multiplied by the number of different ones
(Bonferroni).
"""

from itertools import combinations

import numpy as np
import torch
from scipy.stats import gamma
from scipy.stats import t as student
from torch import Tensor

from phenogroups.clustering.gap import gap
from phenogroups.clustering.held_out import HeldOut
from phenogroups.clustering.surrogates import single_peaked

SMALLEST_P = 0.001  # what is said at least: laws are fitted to a hundred simulations
FEWEST_CONTROLS = 10  # of two subgroups, below which all controls are compared instead


def p_gap(scores: HeldOut | None, *, different: float = 1.0, simulations: int = 99, seed: int = 0) -> float:
    """Probability of such gaps if the patients of two subgroups had a single-peaked distribution.

    A test of unimodality as Silverman's (1981): values are drawn from the density of the patients, smoothed and with
    its valleys filled.
    """
    rng = np.random.default_rng(seed)
    of_pairs = (_p_of_pair(*scores.pair(*pair), simulations, rng) for pair in _pairs(scores)) if scores else ()
    return _of_elected(max(of_pairs, default=1.0), different)


def p_shuffled(scores: HeldOut | None, *, different: float = 1.0, shuffles: int = 99, seed: int = 0) -> float:
    """Probability that patients and controls named at random differ so much in their gaps.

    By Student's law of the differences of the shuffled diagnoses.
    """
    rng = np.random.default_rng(seed)
    of_pairs = (_p_of_contrast(scores, pair, shuffles, rng) for pair in _pairs(scores)) if scores else ()
    return _of_elected(max(of_pairs, default=1.0), different)


def _of_elected(p: float, different: float) -> float:
    return float(min(max(p * different, SMALLEST_P), 1.0))


def _pairs(scores: HeldOut) -> list[tuple[int, int]]:
    return list(combinations(range(scores.patients.shape[1]), 2))


def _p_of_pair(patients: Tensor, controls: Tensor, simulations: int, rng: np.random.Generator) -> float:
    every, healthy = torch.ones_like(patients)[None], torch.ones_like(controls)[None]
    drawn = single_peaked(patients, simulations, rng)
    wider = gap(patients[None], every) - gap(controls[None], healthy)
    return upper_tail(wider.item(), gap(drawn, every.expand_as(drawn)).numpy())


def _p_of_contrast(scores: HeldOut, pair: tuple[int, int], shuffles: int, rng: np.random.Generator) -> float:
    nearest = scores.everybody.argmax(1)  # labels of patients do not enter: controls have none
    is_patient = torch.arange(len(nearest)) < len(scores.labels)
    among = (nearest == pair[0]) | (nearest == pair[1])
    if (among & ~is_patient).sum() < FEWEST_CONTROLS:
        among |= ~is_patient
    diagnosis = np.tile(is_patient[among].numpy(), (1 + shuffles, 1))
    diagnosis[1:] = rng.permuted(diagnosis[1:], axis=1)
    values = scores.scores[among][..., pair[0]] - scores.scores[among][..., pair[1]]
    patients = torch.as_tensor(diagnosis).to(values)
    gaps = [gap(_about_mean(values, scores.part[among], side), side) for side in (patients, 1 - patients)]
    wider = (gaps[0] - gaps[1]).numpy()  # among patients, by the true diagnosis first
    truly, shuffled = wider[0], wider[1:]
    spread = max(shuffled.std(ddof=1) * np.sqrt(1 + 1 / shuffles), 1e-12)
    return float(student.sf((truly - shuffled.mean()) / spread, shuffles - 1))


def _about_mean(values: Tensor, part: Tensor, weight: Tensor) -> Tensor:
    """(batch, n): of values (n, parts) those of the part of each, about the weighted mean by the same discriminants.

    So that no side looks like several groups because several discriminants scored it.
    """
    means = weight @ values / weight.sum(1, keepdim=True).clamp_min(1e-12)
    return values[torch.arange(len(part)), part] - means[:, part]


def upper_tail(value: float, simulated: np.ndarray) -> float:
    """The share of simulations that would reach `value`, by a gamma law with their mean and deviation."""
    mean, deviation = simulated.mean(), simulated.std(ddof=1)
    if mean <= 0 or deviation == 0:
        return 1.0 if value <= simulated.max() else 1 / (len(simulated) + 1)
    return float(gamma.sf(value, (mean / deviation) ** 2, scale=deviation**2 / mean))
