"""A Gaussian mixture with one shared covariance: subgroups are shifts of one cloud (tied-covariance EM)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from phenogroups.clustering.blocks import ROWS, spans, stacked, summed
from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.kmeans import kmeans, sampled, squared_distances

SMALLEST = 0.02  # share of the subjects below which a subgroup is a handful of outliers
JITTER = 1e-6  # relative ridge on the covariance: a constant direction must not become infinitely informative
FEWEST_ROWS = 2**11  # of a block, however many starts there are
SAME = 1e-4  # nats between two that end in the same mixture, as EM stops a little before; the first is taken


@dataclass(frozen=True)
class TiedMixture:
    means: Tensor  # (subgroups, dims), in whitened coordinates
    log_sizes: Tensor  # (subgroups,)
    whitening: Tensor  # (dims, dims): z @ whitening has unit covariance inside every subgroup
    log_likelihood: float  # mean per subject

    def log_posterior(self, z: Tensor) -> Tensor:
        return torch.log_softmax(self.log_sizes - squared_distances(z @ self.whitening, self.means) / 2, dim=1)

    def posterior(self, z: Tensor) -> Tensor:
        """(n, subgroups), in the precision of `z`; made in double."""
        return stacked((self.log_posterior(z[rows].double()).exp().to(z) for rows in spans(len(z))), len(z))


def tied_mixture(
    z: Tensor,
    n_subgroups: int,
    *,
    start: Tensor | None = None,
    n_starts: int = 10,
    max_iterations: int = 200,
    tolerance: float = 1e-5,  # nats per subject that an iteration must gain
    seed: int = 0,
    comm: Communicator = LOCAL,
) -> TiedMixture:
    """EM from given responsibilities (n, K), or the most likely of several K-means starts."""
    if start is None:
        some = sampled(z, comm)
        if comm.offset_and_total(len(z))[1] > len(some):  # as K-means does
            start = tied_mixture(some, n_subgroups, n_starts=n_starts, seed=seed).posterior(z)
    if start is not None:
        starts = start[None]
    else:
        seeds = range(seed * n_starts, (seed + 1) * n_starts)
        starts = torch.stack([kmeans_start(z, n_subgroups, seed=each, comm=comm) for each in seeds])
    fits = tied_mixtures(z, starts, max_iterations=max_iterations, tolerance=tolerance, comm=comm)
    best = max(fit.log_likelihood for fit in fits)
    return next(fit for fit in fits if fit.log_likelihood >= best - SAME)


def kmeans_start(z: Tensor, n_subgroups: int, *, seed: int = 0, comm: Communicator = LOCAL) -> Tensor:
    """Responsibilities (n, K) of zero and one."""
    centroids = kmeans(z, n_subgroups, n_starts=1, seed=seed, comm=comm)
    labels = squared_distances(z, centroids).argmin(dim=1)
    return torch.nn.functional.one_hot(labels, n_subgroups).double()


def tied_mixtures(
    z: Tensor, starts: Tensor, *, max_iterations: int = 200, tolerance: float = 1e-5, comm: Communicator = LOCAL
) -> list[TiedMixture]:
    """EM from every one of several starts (starts, n, K), all at once; `z` (n, D) is shared or one for each start.

    Computed in double precision, as sums over a cohort need it, and in blocks of subjects, so that memory does not
    grow with their number.
    """
    _, count = comm.offset_and_total(z.shape[-2])
    (center,) = summed(((z[..., rows, :].double().sum(-2, keepdim=True),) for rows in spans(z.shape[-2])), comm)
    center = (center / count).to(z.device)
    copies = len(center) if z.ndim == 3 else 1
    (total,) = summed(((away.mT @ away,) for _, away in _centred(z, center, copies)), comm)
    total = total / count
    least = JITTER * total.diagonal(dim1=1, dim2=2).mean(1, keepdim=True).clamp_min(torch.finfo(total.dtype).tiny)
    ridge = least[..., None] * torch.eye(total.shape[2], dtype=total.dtype)
    climbing = torch.arange(len(starts))
    given = ((starts[:, rows].double(), away) for rows, away in _centred(z, center, len(starts)))
    # only K and K x D numbers are all-reduced
    mass, weighted = summed(((q.sum(1), q.mT @ away) for q, away in given), comm)
    fits: list[TiedMixture | None] = [None] * len(starts)
    reached = torch.full((len(starts),), -torch.inf, dtype=torch.float64)
    for iteration in range(max_iterations + 1):
        found = _maximise(total, ridge, mass, weighted, count)
        # the next M-step needs sums of the posteriors only: they are taken in the same pass
        expected = (_expect(away, found) for _, away in _centred(z, center, len(climbing)))
        evidence, mass, weighted = summed(expected, comm)
        likelihood = evidence / count - found.log_volume
        done = (likelihood - reached < tolerance) | (iteration == max_iterations)
        means = (found.shift + center.cpu()) @ found.whitening
        for i in torch.nonzero(done).flatten().tolist():
            mean, log_size, whitening = (t[i].to(z.device) for t in (means, found.log_sizes, found.whitening))
            fits[climbing[i]] = TiedMixture(mean, log_size, whitening, likelihood[i].item())
        if done.all():
            break
        reached = likelihood
        if done.any():
            climbing, mass, weighted, reached = (t[~done] for t in (climbing, mass, weighted, reached))
            if z.ndim == 3:
                z, center, total, ridge = z[~done], center[~done], total[~done], ridge[~done]
    return [fit for fit in fits if fit is not None]


def _centred(z: Tensor, center: Tensor, starts: int) -> Iterator[tuple[slice, Tensor]]:
    """Blocks (starts, rows, D) in double precision."""
    for rows in spans(z.shape[-2], max(ROWS // starts, FEWEST_ROWS)):
        yield rows, (z[..., rows, :].double() - center).expand(starts, -1, -1)


class _Maximum(NamedTuple):
    """Of all starts (S); vectors are centred."""

    shift: Tensor  # (S, K, D): means
    log_sizes: Tensor  # (S, K)
    whitening: Tensor  # (S, D, D)
    toward: Tensor  # (S, D, K): z @ toward + offset is log p(z, c), up to what all c have in common
    offset: Tensor  # (S, 1, K)
    log_volume: Tensor  # (S,): what all c have in common, on average


def _maximise(total: Tensor, ridge: Tensor, mass: Tensor, weighted: Tensor, count: int) -> _Maximum:
    """Shared covariance = total covariance minus that of the means: no pass over the subjects."""
    share = mass / count
    shift = weighted / mass.clamp_min(1e-10)[..., None]
    within = total - (shift * share[..., None]).mT @ shift
    root = torch.linalg.cholesky(within + ridge)
    whitening = torch.linalg.solve_triangular(root.mT, torch.eye(root.shape[2], dtype=root.dtype), upper=True)
    sizes = share.clamp_min(1 / (10 * count))
    log_sizes = (sizes / sizes.sum(1, keepdim=True)).log()
    whitened = shift @ whitening
    offset = log_sizes - whitened.square().sum(2) / 2
    # the mean of |z @ whitening|^2 needs no pass over the subjects: it is a sum of variances
    spread = (whitening * (total @ whitening)).sum((1, 2))
    log_volume = (spread + total.shape[2] * math.log(2 * math.pi)) / 2 + root.diagonal(dim1=1, dim2=2).log().sum(1)
    return _Maximum(shift, log_sizes, whitening, whitening @ whitened.mT, offset[:, None], log_volume)


def _expect(away: Tensor, found: _Maximum) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over these subjects: of the log-evidence (S,), the posteriors (S, K), and the vectors by them (S, K, D)."""
    log_joint = (away @ found.toward.to(away)).add_(found.offset.to(away))
    evidence = log_joint.logsumexp(2, keepdim=True)
    q = log_joint.sub_(evidence).exp_()
    return evidence.sum((1, 2)), q.sum(1), q.mT @ away
