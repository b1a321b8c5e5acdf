"""Sinkhorn K-means: K-means whose assignments are pulled towards equal sizes (paper, Appendix C)."""

from dataclasses import dataclass

import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from phenogroups.clustering.sinkhorn import sinkhorn


@dataclass(frozen=True)
class Clusters:
    centroids: Tensor  # (subgroups, dims)
    inertia: float  # mean squared distance to the nearest centroid
    iterations: int  # of the start that was kept


def squared_distances(z: Tensor, centroids: Tensor) -> Tensor:
    """(..., n, K), by one matrix product."""
    cross = z @ centroids.mT
    return (z.square().sum(-1, keepdim=True) - 2 * cross + centroids.square().sum(-1)[..., None, :]).clamp_min(0)


def inverse_square_proportions(squared: Tensor) -> Tensor:
    """Q(c=k) = d_k^-2 / sum_a d_a^-2 (paper, Sec. 3.3), finite also where a subject sits on a centroid."""
    tiny = torch.finfo(squared.dtype).tiny
    return torch.softmax(-squared.clamp_min(tiny).log(), dim=1)


def sinkhorn_kmeans(
    z: Tensor,
    n_subgroups: int,
    *,
    balance: float = 1.0,  # 1: equal sizes as published; 0: plain K-means
    epsilon: float = 0.05,
    spherical: bool = False,  # centroids stay on the unit sphere, as `z` must: the nearest is the one of least angle
    n_starts: int = 10,
    start: Tensor | None = None,  # centroids to descend from instead
    max_iterations: int = 100,
    seed: int = 0,
) -> Clusters:
    """The best of `n_starts` K-means++ starts, by the inertia of the nearest centroid."""
    if start is not None:
        return _descend(z, start, balance, epsilon, spherical, max_iterations)
    best: Clusters | None = None
    for i in range(n_starts):
        centroids, _ = kmeans_plusplus(z.cpu().numpy(), n_subgroups, random_state=seed * n_starts + i)
        centroids = torch.as_tensor(centroids, dtype=z.dtype, device=z.device)
        found = _descend(z, centroids, balance, epsilon, spherical, max_iterations)
        if best is None or found.inertia < best.inertia:
            best = found
    if best is None:
        raise ValueError(f"Expected at least one start of K-means. Received: n_starts={n_starts}.")
    return best


def _descend(
    z: Tensor, centroids: Tensor, balance: float, epsilon: float, spherical: bool, max_iterations: int
) -> Clusters:
    labels = None
    iteration = 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        squared = squared_distances(z, centroids)
        previous, labels = labels, balanced_labels(squared, balance, epsilon)
        if previous is not None and torch.equal(previous, labels):
            break
        member = torch.nn.functional.one_hot(labels, len(centroids)).to(z)
        sizes = member.sum(0)
        centroids = member.T @ z / sizes.clamp_min(1)[:, None]
        if spherical:  # in each round: means of different length would move the borders between subgroups
            centroids = torch.nn.functional.normalize(centroids, dim=1)
        if (sizes == 0).any():  # an empty subgroup starts again at the subjects farthest from their own centroid
            empty = torch.nonzero(sizes == 0).flatten()
            far = squared.gather(1, labels[:, None]).flatten().topk(len(empty)).indices
            centroids[empty] = z[far]
    inertia = squared_distances(z, centroids).min(dim=1).values.mean().item()
    return Clusters(centroids, inertia, iteration)


def balanced_labels(squared: Tensor, balance: float, epsilon: float) -> Tensor:
    """Nearest centroid, after Sinkhorn has moved the sizes a share `balance` of the way to equal ones."""
    nearest = squared.argmin(dim=1)
    if balance == 0:
        return nearest
    k = squared.shape[1]
    own = torch.bincount(nearest, minlength=k).to(squared) / len(squared)
    sizes = balance / k + (1 - balance) * own
    return sinkhorn(inverse_square_proportions(squared), epsilon, sizes).argmax(dim=1)
