"""Subgroups as Gaussian clouds in a few dimensions: each of its own shape (a full mixture), or all alike (K-means)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from phenogroups.clustering.kmeans import kmeans, squared_distances
from phenogroups.clustering.mixture import kmeans_start

RIDGE = 1e-3  # of each covariance, relative to that of all: a cloud must not shrink to a point or to a line
LEAST_VARIANCE = 1e-6  # where all subjects are the same


@dataclass(frozen=True)
class Gaussians:
    means: Tensor  # (subgroups, dims)
    whitening: Tensor  # (subgroups, dims, dims): (z - mean) @ whitening has unit covariance inside the subgroup
    log_heights: Tensor  # (subgroups,): log of size times density at the mean, up to a constant

    def log_joint(self, z: Tensor) -> Tensor:
        """(n, subgroups): log p(z, c), up to a constant."""
        away = (z - self.means[:, None]) @ self.whitening
        return self.log_heights - away.square().sum(2).T / 2

    def posterior(self, z: Tensor) -> Tensor:
        """(n, subgroups): p(c | z)."""
        return self.log_joint(z).softmax(1)


def gaussian_mixture(z: Tensor, q: Tensor) -> Gaussians:
    """EM of a mixture with full covariances, from responsibilities `q` (n, K)."""
    found = _climb(z, q)
    sizes = torch.bincount(found.posterior(z).argmax(1), minlength=q.shape[1])
    if (sizes == 0).any():  # an empty subgroup: start again from K-means
        found = _climb(z, kmeans_start(z, q.shape[1]))
    return found


def equal_clouds(z: Tensor, q: Tensor) -> Gaussians:
    """K-means from the centroids of `q` (n, K), as spherical Gaussians of equal size, which give soft posteriors."""
    centroids = kmeans(z, q.shape[1], start=_means(z, q))
    nearest = squared_distances(z, centroids).min(1).values.mean()
    deviation = (nearest / z.shape[1]).clamp_min(LEAST_VARIANCE).sqrt()
    whitening = torch.eye(z.shape[1], dtype=z.dtype).expand(len(centroids), -1, -1) / deviation
    return Gaussians(centroids, whitening, torch.zeros_like(centroids[:, 0]))


def _climb(z: Tensor, q: Tensor, max_iterations: int = 100, tolerance: float = 1e-4) -> Gaussians:
    """EM until an iteration gains less than `tolerance` nats per subject."""
    ridge = RIDGE * z.var(0, correction=0).mean() + LEAST_VARIANCE
    found, reached = _maximise(z, q, ridge), -torch.inf
    for _ in range(max_iterations):
        log_joint = found.log_joint(z)
        evidence = log_joint.logsumexp(1, keepdim=True)
        likelihood = evidence.mean().item()
        if likelihood - reached < tolerance:
            break
        found, reached = _maximise(z, (log_joint - evidence).exp(), ridge), likelihood
    return found


def _maximise(z: Tensor, q: Tensor, ridge: Tensor) -> Gaussians:
    means = _means(z, q)
    away = z - means[:, None]
    covariance = (away * q.T[..., None]).mT @ away / _mass(q)[:, None, None]
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    root = torch.linalg.cholesky(covariance + ridge * eye)
    whitening = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False).mT
    log_volume = root.diagonal(dim1=1, dim2=2).log().sum(1)
    return Gaussians(means, whitening, (_mass(q) / len(q)).log() - log_volume)


def _means(z: Tensor, q: Tensor) -> Tensor:
    return q.T @ z / _mass(q)[:, None]


def _mass(q: Tensor) -> Tensor:
    return q.sum(0).clamp_min(torch.finfo(q.dtype).eps)
