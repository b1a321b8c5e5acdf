"""The number of subgroups: one more at a time, each step compared with surrogates that lack the additional subgroup.

A mixture with one shared covariance grows by splitting a subgroup. A step is worth believing if it describes the
subjects better than the same step does in surrogates, where the subgroups found so far are kept, the continuous
variation is kept, and nothing else is; and if a gap lies between any two of the subgroups.
This takes thousands of mixtures. They are fitted all at once, in single precision and without whitening; fit one that
is kept again by `clustering.mixture`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import gamma
from torch import Tensor

from phenogroups.clustering.gap import GRID, filled, least_gap
from phenogroups.clustering.mixture import SMALLEST

FEWEST = 10  # members below which a subgroup is a handful of outliers, even where their share is SMALLEST
RIDGE = 1e-4  # on the shared covariance, relative: single precision
FIRST_LOOK, CLIMB = 6, 60  # iterations of every start, and of the best of them
TOLERANCE = 1e-4  # nats per subject that an iteration must gain
STARTS, STARTS_OF_SURROGATES = (60, 8), (30, 5)  # of a step: in all, and at least so many for each subgroup to split
KEPT, KEPT_OF_SURROGATES = 10, 3  # starts that climb on after the first look
FINE, JITTER = 0.54, 0.3  # bandwidth of a surrogate's density, and the share of it that resampled values are moved by


@dataclass(frozen=True)
class Step:
    """From one subgroup less to `subgroups`."""

    subgroups: int
    q: Tensor  # (subjects, subgroups): posterior
    gain: float  # nats per subject by which they describe better than one subgroup less
    expected_gain: float  # mean of the surrogates
    p: float  # of such a gain in surrogates
    gap: float  # least share of two subgroups' subjects that would fill the valley between them; 0: no gap
    p_gap: float  # of such a gap in surrogates


def steps(
    z: Tensor,
    most: int,
    *,
    surrogates: int = 19,
    patience: int = 2,
    seed: int = 0,
    told: Callable[[int], None] = lambda _: None,
) -> list[Step]:
    """From 2 to at most `most` subgroups of `z` (n, D); ends after `patience` steps that surrogates make as well.

    `told` is called with the number of subgroups that a finished step has.
    """
    rng = np.random.default_rng(seed)
    z = z.float()
    q = torch.ones(1, len(z), 1)
    _, reached = climb(z[None], q, 1)
    found: list[Step] = []
    in_vain = 0
    for k in range(2, most + 1):
        level, grown = grow(z[None], q, reached, _starts(STARTS, k), KEPT, rng)
        false, labels = without_more_groups(z, q[0], surrogates, rng)
        kept = F.one_hot(labels, k - 1).float().expand(surrogates, -1, -1)
        kept, base = climb(false, kept, 1 if k == 2 else CLIMB)
        false_level, false_q = grow(false, kept, base, _starts(STARTS_OF_SURROGATES, k), KEPT_OF_SURROGATES, rng)
        gain, false_gain = (level - reached).item(), (false_level - base).numpy()
        width, false_width = gap_between(z[None], grown).item(), gap_between(false, false_q).numpy()
        found.append(
            Step(
                k, grown[0], gain, float(false_gain.mean()), upper_tail(gain, false_gain), width,
                upper_tail(width, false_width),
            )
        )  # fmt: skip
        told(k)
        in_vain = 0 if found[-1].p <= 0.01 else in_vain + 1
        if in_vain == patience:
            break
        q, reached = grown, level
    return found


def path(z: Tensor, most: int, *, seed: int = 0) -> list[Tensor]:
    """Posteriors (n, K) for K from 2 to `most`, each grown from the one before; without surrogates."""
    rng = np.random.default_rng(seed)
    z = z.float()[None]
    q = torch.ones(1, z.shape[1], 1)
    _, reached = climb(z, q, 1)
    found = []
    for k in range(2, most + 1):
        reached, q = grow(z, q, reached, _starts(STARTS, k), KEPT, rng)
        found.append(q[0])
    return found


def climb(z: Tensor, q: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """EM of tied mixtures from (mixtures, n, K) in (mixtures, n, D): posteriors, and the mean log-likelihood of each.

    The likelihood lacks the constant of a Gaussian, which every mixture of the same vectors has in common.
    """
    z = z - z.mean(1, keepdim=True)
    total = z.mT @ z / z.shape[1]
    before = torch.full((len(z),), -torch.inf)
    level = before
    for _ in range(iterations):
        means, toward, log_volume, volume_total = _maximise(z, total, q)
        offset = q.mean(1).clamp_min(TOLERANCE).log() - (means * toward.mT).sum(-1) / 2
        log_joint = z @ toward + offset[:, None]
        evidence = log_joint.logsumexp(2, keepdim=True)
        q = (log_joint - evidence).exp()
        level = evidence.mean((1, 2)) - volume_total / 2 - log_volume
        if (level - before).max() < TOLERANCE:
            break
        before = level
    return q, level


def _maximise(z: Tensor, total: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means (., K, D), within-covariance^-1 means (., D, K), log of its volume, and the trace of it^-1 total."""
    share = q.mean(1)
    means = q.mT @ z / q.sum(1).clamp_min(1e-6)[..., None]
    ridge = RIDGE * total.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(z.shape[2])
    lower = torch.linalg.cholesky(total - (means * share[..., None]).mT @ means + ridge)
    log_volume = lower.diagonal(dim1=1, dim2=2).log().sum(1)
    trace = torch.cholesky_solve(total, lower).diagonal(dim1=1, dim2=2).sum(1)
    return means, torch.cholesky_solve(means.mT, lower), log_volume, trace


def grow(
    z: Tensor, q: Tensor, reached: Tensor, starts: int, kept: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """The likeliest mixtures of one subgroup more than `q` (batch, n, K) has, from splits of each of its subgroups.

    Where every split leaves a subgroup too small to be one, the likelihood is what was `reached` before.
    """
    batch, n, dims = z.shape
    each = torch.arange(batch)[:, None]
    smallest = max(SMALLEST, FEWEST / n)

    def repeated(times: int) -> Tensor:
        return z[:, None].expand(batch, times, n, dims).reshape(batch * times, n, dims)

    def climbed(start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        q, level = climb(repeated(start.shape[1]), start.flatten(0, 1), iterations)
        q, level = q.view(start.shape), level.view(start.shape[:2])
        return q, torch.where(q.mean(2).amin(2) >= smallest, level, -torch.inf)

    q, level = climbed(split_at_random(z, q, starts, rng), FIRST_LOOK)
    best = level.topk(min(kept, level.shape[1]), 1).indices
    q, level = climbed(q[each, best], CLIMB)
    # of local optima that describe about equally well, the one with the wider gap
    apart = gap_between(repeated(q.shape[1]), q.flatten(0, 1)).view(level.shape)
    winner = (level + apart).argmax(1)
    level = level[each[:, 0], winner]
    return torch.where(level.isinf(), reached, level), q[each[:, 0], winner]


def split_at_random(z: Tensor, q: Tensor, starts: int, rng: np.random.Generator) -> Tensor:
    """(batch, starts * K, n, K + 1): every subgroup cut somewhere along random directions of one to three axes.

    On all axes at a time, the split of the largest variance would be found every time.
    """
    batch, _, dims = z.shape
    scaled = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True).clamp_min(1e-12)
    found = []
    for k in range(q.shape[2]):
        axes = rng.random((batch, starts, dims)).argsort(2) < rng.integers(1, 4, (batch, starts, 1))
        along = scaled @ torch.as_tensor(rng.normal(size=axes.shape) * axes).to(z).mT  # (batch, n, starts)
        order = along.argsort(1)
        below = q[..., k : k + 1].expand_as(along).gather(1, order).cumsum(1)
        rank = torch.empty_like(below).scatter_(1, order, below / below[:, -1:].clamp_min(1e-9))
        above = rank > torch.as_tensor(rng.uniform(0.2, 0.8, (batch, 1, starts))).to(z)
        above = above.permute(0, 2, 1)[..., None] * q[:, None, :, k : k + 1]
        split = torch.cat([q[:, None].expand(-1, starts, -1, -1), above], dim=3)
        split[..., k : k + 1] -= above
        found.append(split)
    return torch.cat(found, 1)


def without_more_groups(z: Tensor, q: Tensor, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Surrogates (count, n, D) that have the subgroups of `q` (n, K) and no others, and the labels in them.

    Residuals from the subgroup means are resampled along each principal axis separately, from their own distribution
    made unimodal and symmetric. So variances and tails are kept, a uniform distribution stays uniform, and further
    groups disappear. Skewness disappears too: a skewed continuum and a small
    subgroup at its end are the same data, and `Step.gap` is what tells them apart.
    """
    labels = q.argmax(1)
    member = F.one_hot(labels, q.shape[1]).to(z)
    means = member.T @ z / member.sum(0).clamp_min(1)[:, None]
    rest = z - means[labels]
    _, _, axes = torch.linalg.svd(rest, full_matrices=False)
    drawn = [_single_peaked(values, count, rng) for values in (rest @ axes.T).T]
    return torch.stack(drawn, dim=2) @ axes + means[labels], labels


def _single_peaked(values: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """(count, n): values resampled, more often in a valley of their density, and on either side of the middle."""
    n, spread = len(values), values.std().clamp_min(1e-12)
    width = FINE * spread * n**-0.2
    at = torch.linspace(float(values.min() - 3 * width), float(values.max() + 3 * width), GRID)
    density = torch.exp(-(((at[:, None] - values) / width) ** 2) / 2).sum(1)
    weight = np.interp(values.numpy(), at.numpy(), (filled(density[None])[0] / density.clamp_min(1e-9)).numpy())
    drawn = values[torch.as_tensor(rng.choice(n, (count, n), p=weight / weight.sum()))]
    drawn = drawn + JITTER * width * torch.as_tensor(rng.normal(size=(count, n))).to(values)
    middle = drawn.median(1, keepdim=True).values
    drawn = (drawn - middle) * torch.as_tensor(rng.choice([-1.0, 1.0], (count, n))).to(values)
    drawn = drawn - drawn.mean(1, keepdim=True)
    return drawn / drawn.std(1, keepdim=True).clamp_min(1e-12) * spread


def gap_between(z: Tensor, q: Tensor) -> Tensor:
    """(batch,): the narrowest gap between two subgroups of `q` (batch, n, K) on their linear discriminants."""
    z = z - z.mean(1, keepdim=True)
    _, toward, _, _ = _maximise(z, z.mT @ z / z.shape[1], q)
    return least_gap(z @ toward, q)


def upper_tail(value: float, surrogates: np.ndarray) -> float:
    """The share of surrogates that would reach `value`, by a gamma law with their mean and deviation.

    The ranks of nineteen surrogates could not give a p below 0.05. The fitted law is not trusted below 0.001.
    """
    mean, deviation = surrogates.mean(), surrogates.std(ddof=1)
    if mean <= 0 or deviation == 0:
        return 1.0 if value <= surrogates.max() else 1 / (len(surrogates) + 1)
    p = gamma.sf(value, (mean / deviation) ** 2, scale=deviation**2 / mean)
    return float(max(p, 0.001))


def _starts(wanted: tuple[int, int], subgroups: int) -> int:
    """For each subgroup that may be split."""
    in_all, at_least = wanted
    return max(at_least, in_all // (subgroups - 1))
