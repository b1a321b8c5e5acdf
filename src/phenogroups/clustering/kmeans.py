"""K-means, and Sinkhorn K-means, whose assignments are pulled towards equal sizes (paper, Appendix C)."""

import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from phenogroups.clustering.blocks import blocks, spans, summed
from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.sinkhorn import potentials

# Largest number of vectors among which starts are compared; the best is then continued with all vectors. At least half
# as many are taken, of which 330 belong to a subgroup of one in a hundred. Ten starts of a million would take ten times
# as long.
SEARCHED = 2**16
MAX_ITERATIONS = 100
# Relative difference of inertia below which two starts ended in the same clusters, in single precision. Then the first
# is kept, as the order of the subgroups must not depend on rounding.
SAME = 1e-5

Assign = Callable[[Tensor], Iterable[Tensor]]  # centroids -> labels (rows,) of each block of vectors


def squared_distances(z: Tensor, centroids: Tensor) -> Tensor:
    """(..., n, K), by one matrix product."""
    cross = z @ centroids.mT
    return (z.square().sum(-1, keepdim=True) - 2 * cross + centroids.square().sum(-1)[..., None, :]).clamp_min(0)


def inverse_square_proportions(squared: Tensor) -> Tensor:
    """Q(c=k) = d_k^-2 / sum_a d_a^-2 (paper, Sec. 3.3), finite also where a subject sits on a centroid."""
    return torch.softmax(-squared.clamp_min(torch.finfo(squared.dtype).tiny).log(), dim=1)


def _inverse_square_proportions_(squared: Tensor, total: float) -> Tensor:
    """The same of (subgroups, n), with the sum `total`; in place, so that a block stays in the cache."""
    tiny = torch.finfo(squared.dtype).tiny * len(squared)  # the sum of all inverses must be finite
    inverse = squared.clamp_min_(tiny).reciprocal_()
    return inverse.mul_(total / inverse.sum(0))


def kmeans(
    z: Tensor,
    n_subgroups: int,
    *,
    n_starts: int = 10,
    start: Tensor | None = None,  # centroids to start from instead, where all vectors are in this process
    seed: int = 0,
    comm: Communicator = LOCAL,
) -> Tensor:
    """Centroids (subgroups, dims) of the best of `n_starts` K-means++ starts.

    By scikit-learn where all vectors are in this process; the sums of several processes are all-reduced.
    """
    if comm.world_size > 1:
        return _best_of_starts(z, n_subgroups, nearest, n_starts, seed, comm)
    some = sampled(z)
    found = KMeans(
        n_subgroups, init="k-means++" if start is None else start.numpy(force=True),
        n_init=n_starts if start is None else 1, max_iter=MAX_ITERATIONS, tol=0, random_state=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # where there are fewer different vectors than subgroups
        centroids = torch.as_tensor(found.fit(some.numpy(force=True)).cluster_centers_).to(z)
    return centroids if len(some) == len(z) else lloyd(z, centroids, nearest(z))[0]


def spherical_kmeans(z: Tensor, n_subgroups: int, *, seed: int = 0, comm: Communicator = LOCAL) -> Tensor:
    """Centroids of length one of vectors of length one: the nearest centroid is the one at the least angle."""
    return _best_of_starts(z, n_subgroups, nearest, 10, seed, comm, normalise=True)


def sinkhorn_kmeans(
    z: Tensor, n_subgroups: int, *, epsilon: float = 0.05, n_starts: int = 10, seed: int = 0, comm: Communicator = LOCAL
) -> Tensor:
    """Centroids (subgroups, dims) of the best of `n_starts` K-means++ starts, with subgroups of equal sizes."""

    def assignment(z: Tensor, comm: Communicator) -> Assign:
        return equal_sizes(z, epsilon, comm)

    return _best_of_starts(z, n_subgroups, assignment, n_starts, seed, comm)


def nearest(z: Tensor, comm: Communicator = LOCAL) -> Assign:
    """Assignment to the nearest centroid."""
    return lambda centroids: (first_greatest_(_nearness(block, centroids)) for _, block in blocks(z))


def equal_sizes(z: Tensor, epsilon: float, comm: Communicator = LOCAL) -> Assign:
    """Assignment to subgroups of equal sizes; each call starts from the potentials of the previous one."""
    norms = [_squared_norms(block) for _, block in blocks(z)]
    potential: Tensor | None = None

    def assign(centroids: Tensor) -> Iterable[Tensor]:
        nonlocal potential
        k, from_origin, logits = len(centroids), centroids.square().sum(1)[:, None], []
        for (_, block), norm in zip(blocks(z), norms, strict=True):
            squared = (norm + from_origin).addmm_(centroids, block.mT, alpha=-2)
            logits.append(_inverse_square_proportions_(squared, 1 / epsilon))
        potential = potentials(logits, torch.full((k,), 1 / k), potential, comm=comm)
        for block in logits:
            yield first_greatest_(block.add_(potential.to(block)[:, None]))

    return assign


def sampled(z: Tensor, comm: Communicator = LOCAL) -> Tensor:
    """The vectors of all processes among which starts are compared, in their order."""
    return comm.sample(z, SEARCHED)


def _best_of_starts(
    z: Tensor, n_subgroups: int, assignment: Callable[[Tensor, Communicator], Assign], n_starts: int, seed: int,
    comm: Communicator, *, normalise: bool = False,
) -> Tensor:  # fmt: skip
    """Centroids of the least inertia. Starts are compared among a sample if there are more vectors than `SEARCHED`."""
    some = sampled(z, comm)
    is_all = comm.offset_and_total(len(z))[1] == len(some)
    searched, among = (z, comm) if is_all else (some, LOCAL)
    rng = np.random.RandomState(seed)  # as scikit-learn's K-means draws its starts
    found = []
    for _ in range(n_starts):
        start, _ = kmeans_plusplus(some.numpy(force=True), n_subgroups, random_state=rng)
        start = torch.as_tensor(start).to(z)
        found.append(lloyd(searched, start, assignment(searched, among), among, normalise=normalise))
    least = min(inertia for _, inertia in found)
    centroids = next(centroids for centroids, inertia in found if inertia * (1 - SAME) <= least)
    return centroids if is_all else lloyd(z, centroids, assignment(z, comm), comm, normalise=normalise)[0]


def lloyd(
    z: Tensor, centroids: Tensor, assign: Assign, comm: Communicator = LOCAL, *, normalise: bool = False,
    max_iterations: int = MAX_ITERATIONS,
) -> tuple[Tensor, float]:  # fmt: skip
    """Centroids after assigning and averaging by turns until no label changes, and their inertia.

    The inertia is the mean squared distance to the nearest centroid, whatever the assignment.
    """
    members = _Members(len(z), len(centroids), centroids.shape[1], centroids.device)
    for _ in range(max_iterations):
        members.moved = 0
        for rows, labels in zip(spans(len(z)), assign(centroids), strict=True):
            members.move(rows, z[rows], labels)
        means, sizes, moved = members.everywhere(comm)
        if not moved:
            break
        before, centroids = centroids, means.to(centroids)
        if normalise:  # in each iteration: means of different lengths would move the borders between subgroups
            centroids = torch.nn.functional.normalize(centroids, dim=1)
        empty = torch.nonzero(sizes == 0).flatten()
        if len(empty):  # an empty subgroup starts again at the vector that is farthest from its own centroid
            own = [squared_distances(block, before).gather(1, members.labels[rows, None]) for rows, block in blocks(z)]
            away = torch.cat(own).flatten()
            far = away.topk(min(len(empty), len(away))).indices  # in this process
            farthest = comm.gather(away[far]).topk(len(empty)).indices
            centroids[empty] = comm.gather(z[far])[farthest]
    of_blocks = (
        (_squared_norms(block) - _nearness(block, centroids).amax(0)).clamp_min(0).sum() for _, block in blocks(z)
    )
    (inertia,) = summed(((each,) for each in of_blocks), comm)
    return centroids, inertia.item() / comm.offset_and_total(len(z))[1]


class _Members:
    """Labels, sums and sizes of subgroups; a change of labels costs as much as the number of vectors that move."""

    def __init__(self, count: int, k: int, dims: int, device: torch.device) -> None:
        self.labels = torch.full((count,), -1, device=device)
        self.totals = torch.zeros(k, dims, dtype=torch.float64)
        self.sizes = torch.zeros(k, dtype=torch.float64)
        self.moved = 0  # number of vectors since it was set to zero
        self._subgroups = torch.arange(k, device=device)[:, None]

    def move(self, rows: slice, z: Tensor, labels: Tensor) -> None:
        """Give the vectors `z` of these rows new labels."""
        before = self.labels[rows]
        who = torch.nonzero(labels != before).flatten()
        if not len(who):
            return
        if 2 * len(who) < len(labels):
            some, now, was = z[who], labels[who], before[who]
        else:  # vectors that stay are added and subtracted, which is faster than selecting the others
            some, now, was = z, labels, before
        # in double precision: rounding errors would add up over the iterations
        joined = (self._subgroups == now).double() - (self._subgroups == was).double()
        totals, sizes = summed([(joined @ some.double(), joined.sum(1))])
        self.totals += totals
        self.sizes += sizes
        self.moved += len(who)
        self.labels[rows] = labels

    def everywhere(self, comm: Communicator) -> tuple[Tensor, Tensor, int]:
        """Means and sizes over all processes, and how many moved: K x D and K numbers are all-reduced."""
        totals, sizes, moved = summed([(self.totals, self.sizes, torch.tensor([self.moved]))], comm)
        return totals / sizes.clamp_min(1)[:, None], sizes, int(moved)


def group_means(z: Tensor, labels: Tensor, groups: int, comm: Communicator = LOCAL) -> tuple[Tensor, Tensor]:
    """Mean vectors (groups, dims), zeros for an empty group, and sizes (groups,)."""
    members = _Members(len(z), groups, z.shape[1], labels.device)
    for rows in spans(len(z)):
        members.move(rows, z[rows], labels[rows])
    return members.everywhere(comm)[:2]


def distance_ratio(z: Tensor, subgroup: Tensor, n_subgroups: int, comm: Communicator = LOCAL) -> float | None:
    """Distance from the mean of the controls to the farthest subgroup, over that to the nearest (paper, Fig. UMAP).

    `subgroup` is -1 for controls; empty subgroups do not count. None where there are no controls or fewer than two
    subgroups, or where the mean of one is that of the controls.
    """
    means, sizes = group_means(z, torch.where(subgroup < 0, n_subgroups, subgroup), n_subgroups + 1, comm)
    away = (means[:-1] - means[-1]).norm(dim=1)[sizes[:-1] > 0]
    if sizes[-1] == 0 or len(away) < 2 or away.min() == 0:
        return None
    return (away.max() / away.min()).item()


def first_greatest_(values: Tensor) -> Tensor:
    """(n,): argmax over the first axis of (subgroups, n), whose values it overwrites; three times as fast as `max`."""
    last_first = torch.arange(len(values), 0, -1, dtype=values.dtype, device=values.device)[:, None]
    return len(values) - values.eq_(values.amax(0)).mul_(last_first).amax(0).long()


def _nearness(z: Tensor, centroids: Tensor) -> Tensor:
    """(subgroups, n): negative squared distances, without the part that is the same for all centroids."""
    return (2 * centroids @ z.mT).sub_(centroids.square().sum(1)[:, None])


def _squared_norms(z: Tensor) -> Tensor:
    return torch.linalg.vector_norm(z, dim=1).square_()
