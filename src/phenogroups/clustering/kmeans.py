"""Sinkhorn K-means: K-means whose assignments are pulled towards equal sizes (paper, Appendix C)."""

from dataclasses import dataclass

import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.clustering.sums import ALONE, Sums

SAME = 1e-9
STARTED = 2**16  # subjects among whom K-means++ chooses its starts, at most


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
    sums: Sums = ALONE,
) -> Clusters:
    """The best of `n_starts` K-means++ starts, by the inertia of the nearest centroid."""
    if start is not None:
        return _descend(z, start, balance, epsilon, spherical, max_iterations, sums)
    some = sums.sample(z, STARTED).cpu().numpy()
    best: Clusters | None = None
    for i in range(n_starts):
        centroids, _ = kmeans_plusplus(some, n_subgroups, random_state=seed * n_starts + i)
        centroids = torch.as_tensor(centroids, dtype=z.dtype, device=z.device)
        found = _descend(z, centroids, balance, epsilon, spherical, max_iterations, sums)
        # starts that end alike differ by rounding only: then the first is taken, and names the subgroups
        if best is None or found.inertia < best.inertia * (1 - SAME):
            best = found
    if best is None:
        raise ValueError(f"Expected at least one start of K-means. Received: n_starts={n_starts}.")
    return best


def _descend(
    z: Tensor, centroids: Tensor, balance: float, epsilon: float, spherical: bool, max_iterations: int, sums: Sums
) -> Clusters:
    labels = None
    iteration = 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        squared = squared_distances(z, centroids)
        previous, labels = labels, balanced_labels(squared, balance, epsilon, sums)
        if previous is not None and not sums((previous != labels).sum()):
            break
        means, sizes = sums.member_means(torch.nn.functional.one_hot(labels, len(centroids)), z)
        centroids = means.to(z)
        if spherical:  # in each round: means of different length would move the borders between subgroups
            centroids = torch.nn.functional.normalize(centroids, dim=1)
        if (sizes == 0).any():  # an empty subgroup starts again at the subjects farthest from their own centroid
            empty = torch.nonzero(sizes == 0).flatten()
            away = squared.gather(1, labels[:, None]).flatten()
            far = away.topk(min(len(empty), len(away))).indices  # here; they are compared with those elsewhere
            farthest = sums.gather(away[far]).topk(len(empty)).indices
            centroids[empty] = sums.gather(z[far])[farthest]
    inertia = sums.mean(squared_distances(z, centroids).min(dim=1).values).item()
    return Clusters(centroids, inertia, iteration)


def balanced_labels(squared: Tensor, balance: float, epsilon: float, sums: Sums = ALONE) -> Tensor:
    """Nearest centroid, after Sinkhorn has moved the sizes a share `balance` of the way to equal ones."""
    nearest = squared.argmin(dim=1)
    if balance == 0:
        return nearest
    k = squared.shape[1]
    own = sums.mean(torch.nn.functional.one_hot(nearest, k))
    sizes = balance / k + (1 - balance) * own
    return sinkhorn(inverse_square_proportions(squared), epsilon, sizes, sums=sums).argmax(dim=1)
