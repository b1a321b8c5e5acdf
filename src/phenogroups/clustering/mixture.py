"""A Gaussian mixture with one shared covariance: subgroups are shifts of one cloud (tied-covariance EM)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from phenogroups.clustering.kmeans import sinkhorn_kmeans, squared_distances

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
) -> TiedMixture:
    """EM from given responsibilities (n, K), or the most likely of several K-means starts."""
    z = z.double()  # sums over a cohort; the result is cast back by who uses it
    if start is not None:
        return _climb(z, start.double(), max_iterations, tolerance)
    fits = []
    for attempt in range(n_starts):
        clusters = sinkhorn_kmeans(z, n_subgroups, balance=0, n_starts=1, seed=seed * n_starts + attempt)
        labels = squared_distances(z, clusters.centroids).argmin(dim=1)
        fits.append(_climb(z, torch.nn.functional.one_hot(labels, n_subgroups).double(), max_iterations, tolerance))
    return max(fits, key=lambda fit: fit.log_likelihood)


def _climb(z: Tensor, beliefs: Tensor, max_iterations: int, tolerance: float) -> TiedMixture:
    center = z.mean(0)
    total = (z - center).T @ (z - center) / len(z)
    fit = _maximise(z, center, total, beliefs)
    for _ in range(max_iterations):
        previous = fit.log_likelihood
        fit = _maximise(z, center, total, fit.log_posterior(z).exp())
        if fit.log_likelihood - previous < tolerance:
            break
    return fit


def _maximise(z: Tensor, center: Tensor, total: Tensor, beliefs: Tensor) -> TiedMixture:
    """Shared covariance = total covariance minus that of the means: one pass over the subjects, not K."""
    sizes = beliefs.mean(0).clamp_min(1 / (10 * len(z)))
    means = (beliefs.T @ z) / (beliefs.sum(0).clamp_min(1e-10))[:, None]
    shift = means - center
    within = total - (shift.T * beliefs.mean(0)) @ shift
    ridge = JITTER * total.diagonal().mean().clamp_min(torch.finfo(z.dtype).tiny)
    values, vectors = torch.linalg.eigh(within)
    whitening = vectors / (values.clamp_min(0) + ridge).sqrt()
    log_sizes = (sizes / sizes.sum()).log()
    log_joint = log_sizes - squared_distances(z @ whitening, means @ whitening) / 2
    log_volume = (values.clamp_min(0) + ridge).log().sum() / 2 + z.shape[1] / 2 * torch.log(z.new_tensor(2 * torch.pi))
    likelihood = log_joint.logsumexp(1).mean() - log_volume
    return TiedMixture(means @ whitening, log_sizes, whitening, likelihood.item())
