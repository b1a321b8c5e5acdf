"""A Gaussian mixture with one shared covariance: subgroups are shifts of one cloud (tied-covariance EM)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from phenogroups.clustering.kmeans import sinkhorn_kmeans, squared_distances
from phenogroups.clustering.sums import ALONE, Sums

SAME = 1e-9  # nats between two that differ by rounding only: then the first start is taken, and names the subgroups
JITTER = 1e-6  # relative ridge on the covariance: a constant direction must not become infinitely informative


@dataclass(frozen=True)
class TiedMixture:
    means: Tensor  # (subgroups, dims), in whitened coordinates
    log_sizes: Tensor  # (subgroups,)
    whitening: Tensor  # (dims, dims): z @ whitening has unit covariance inside every subgroup
    log_likelihood: float  # mean per subject

    def log_posterior(self, z: Tensor) -> Tensor:
        return torch.log_softmax(self.log_sizes - squared_distances(z @ self.whitening, self.means) / 2, dim=1)


def tied_mixture(
    z: Tensor,
    n_subgroups: int,
    *,
    start: Tensor | None = None,
    n_starts: int = 10,
    max_iterations: int = 200,
    tolerance: float = 1e-5,  # nats per subject that an iteration must gain
    seed: int = 0,
    sums: Sums = ALONE,
) -> TiedMixture:
    """EM from given responsibilities (n, K), or the most likely of several K-means starts."""
    if start is not None:
        starts = start[None]
    else:
        seeds = range(seed * n_starts, (seed + 1) * n_starts)
        starts = torch.stack([kmeans_start(z, n_subgroups, seed=each, sums=sums) for each in seeds])
    fits = tied_mixtures(z, starts, max_iterations=max_iterations, tolerance=tolerance, sums=sums)
    best = max(fit.log_likelihood for fit in fits)
    return next(fit for fit in fits if fit.log_likelihood >= best - SAME)


def kmeans_start(z: Tensor, n_subgroups: int, *, seed: int = 0, sums: Sums = ALONE) -> Tensor:
    """Responsibilities (n, K) of zero and one."""
    clusters = sinkhorn_kmeans(z, n_subgroups, balance=0, n_starts=1, seed=seed, sums=sums)
    labels = squared_distances(z, clusters.centroids).argmin(dim=1)
    return torch.nn.functional.one_hot(labels, n_subgroups).double()


def tied_mixtures(
    z: Tensor, starts: Tensor, *, max_iterations: int = 200, tolerance: float = 1e-5, sums: Sums = ALONE
) -> list[TiedMixture]:
    """EM from every one of several starts (starts, n, K), all at once; `z` (n, D) is shared or one for each start.

    Done in double precision: sums over a cohort; the result is cast back by who uses it.
    """
    z, q = z.double().expand(len(starts), *z.shape[-2:]), starts.double()
    _, count = sums.places(z.shape[1])
    center = sums(z.sum(1, keepdim=True)) / count
    total = sums((z - center).mT @ (z - center)) / count
    fits: list[TiedMixture | None] = [None] * len(starts)
    climbing = torch.arange(len(starts))
    reached = torch.full((len(starts),), -torch.inf, dtype=z.dtype, device=z.device)
    for iteration in range(max_iterations + 1):
        means, log_sizes, whitening, log_joint, log_volume = _maximise(z, center, total, q, count, sums)
        evidence = log_joint.logsumexp(2, keepdim=True)
        likelihood = sums(evidence.sum((1, 2))) / count - log_volume
        done = (likelihood - reached < tolerance) | (iteration == max_iterations)
        for i in torch.nonzero(done).flatten().tolist():
            fits[climbing[i]] = TiedMixture(means[i], log_sizes[i], whitening[i], likelihood[i].item())
        if done.all():
            break
        on = ~done
        q, reached = (log_joint - evidence).exp(), likelihood
        if done.any():
            climbing, z, q, center, total, reached = (t[on] for t in (climbing, z, q, center, total, reached))
    return [fit for fit in fits if fit is not None]


def _maximise(
    z: Tensor, center: Tensor, total: Tensor, q: Tensor, count: int, sums: Sums
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Shared covariance = total covariance minus that of the means: one pass over the subjects, not K."""
    reached = sums(torch.cat([q.mT @ z, q.sum(1)[..., None]], dim=2))  # K x D and K: all that is told to others
    share = reached[..., -1] / count
    means = reached[..., :-1] / reached[..., -1:].clamp_min(1e-10)
    shift = means - center
    within = total - (shift * share[..., None]).mT @ shift
    ridge = JITTER * total.diagonal(dim1=1, dim2=2).mean(1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
    values, vectors = torch.linalg.eigh(within)
    variances = values.clamp_min(0) + ridge
    whitening = vectors / variances.sqrt()[:, None]
    sizes = share.clamp_min(1 / (10 * count))
    log_sizes = (sizes / sizes.sum(1, keepdim=True)).log()
    means = means @ whitening
    log_joint = log_sizes[:, None] - squared_distances(z @ whitening, means) / 2
    log_volume = variances.log().sum(1) / 2 + z.shape[2] / 2 * torch.log(z.new_tensor(2 * torch.pi))
    return means, log_sizes, whitening, log_joint, log_volume
