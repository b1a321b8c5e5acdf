"""Sinkhorn K-means: K-means whose assignments are pulled towards equal sizes (paper, Appendix C)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from phenogroups.clustering.blocks import Vectors, blocks, in_memory, spans, summed, take
from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.sinkhorn import potentials

# vectors among which starts are compared, at most; the best goes on among all. At least half as many are taken: enough
# for a subgroup of one in a hundred, of which 330 are among them. Ten starts of a million would take ten times as long
SEARCHED = 2**16
# relative inertia between two starts that end in the same clusters, of vectors in single precision. Then the first is
# taken, which gives the subgroups their order: where rounding chose, the training that follows would go another way
SAME = 1e-5


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
    return torch.softmax(-squared.clamp_min(torch.finfo(squared.dtype).tiny).log(), dim=1)


def _inverse_square_proportions_(squared: Tensor, total: float) -> Tensor:
    """The same of (subgroups, n), in place, so that a block stays in the cache; they sum to `total`. No gradients."""
    tiny = torch.finfo(squared.dtype).tiny * len(squared)  # of which all inverses have a finite sum
    inverse = squared.clamp_min_(tiny).reciprocal_()
    return inverse.mul_(total / inverse.sum(0))


def sinkhorn_kmeans(
    z: Vectors,
    n_subgroups: int,
    *,
    balance: float = 1.0,  # 1: equal sizes as published; 0: plain K-means
    epsilon: float = 0.05,
    spherical: bool = False,  # centroids stay on the unit sphere, as `z` must: the nearest is the one of least angle
    n_starts: int = 10,
    start: Tensor | None = None,  # centroids to descend from instead
    max_iterations: int = 100,
    seed: int = 0,
    comm: Communicator = LOCAL,
) -> Clusters:
    """The best of `n_starts` K-means++ starts, by the inertia of the nearest centroid."""
    if start is not None:
        return _descend(z, start, balance, epsilon, spherical, max_iterations, comm)
    some = sampled(z, comm)
    if comm.offset_and_total(len(z))[1] > len(some):
        found = sinkhorn_kmeans(
            some, n_subgroups, balance=balance, epsilon=epsilon, spherical=spherical,
            n_starts=n_starts, max_iterations=max_iterations, seed=seed,
        )  # fmt: skip
        return _descend(z, found.centroids, balance, epsilon, spherical, max_iterations, comm)
    z = in_memory(z)
    best: Clusters | None = None
    for i in range(n_starts):
        centroids, _ = kmeans_plusplus(some.cpu().numpy(), n_subgroups, random_state=seed * n_starts + i)
        centroids = torch.as_tensor(centroids, dtype=z.dtype, device=z.device)
        found = _descend(z, centroids, balance, epsilon, spherical, max_iterations, comm)
        if best is None or found.inertia < best.inertia * (1 - SAME):
            best = found
    if best is None:
        raise ValueError(f"Expected at least one start of K-means. Received: n_starts={n_starts}.")
    return best


def sampled(z: Vectors, comm: Communicator = LOCAL) -> Tensor:
    """As many of everybody's as starts are compared among, in their order."""
    return comm.gather(in_memory(z[comm.sampled_rows(len(z), SEARCHED)]))


def _descend(
    z: Vectors,
    centroids: Tensor,
    balance: float,
    epsilon: float,
    spherical: bool,
    max_iterations: int,
    comm: Communicator,
) -> Clusters:
    members = _Members(len(z), len(centroids), centroids.shape[1], centroids.device)
    potential = None
    norms = [] if balance == 0 else [_squared_norms(block) for _, block in blocks(z)]
    iteration = 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        members.moved = 0
        if balance == 0:
            for rows, block in blocks(z):
                members.move(rows, block, first_greatest_(_nearness(block, centroids)))
        else:
            logits, sizes = _logits(z, norms, centroids, balance, epsilon, comm)
            potential = potentials(logits, sizes, potential, comm=comm)
            for rows, block in zip(spans(len(z)), logits, strict=True):
                members.move(rows, z[rows], first_greatest_(block.add_(potential.to(block)[:, None])))
        means, sizes, moved = members.everywhere(comm)
        if not moved:
            break
        before, centroids = centroids, means.to(centroids)
        if spherical:  # in each round: means of different length would move the borders between subgroups
            centroids = torch.nn.functional.normalize(centroids, dim=1)
        empty = torch.nonzero(sizes == 0).flatten()
        if len(empty):  # starts again at the subjects farthest from their own centroid
            own = [squared_distances(block, before).gather(1, members.labels[rows, None]) for rows, block in blocks(z)]
            away = torch.cat(own).flatten()
            far = away.topk(min(len(empty), len(away))).indices  # here; they are compared with those elsewhere
            farthest = comm.gather(away[far]).topk(len(empty)).indices
            centroids[empty] = comm.gather(take(z, far))[farthest]
    of_blocks = (
        (_squared_norms(block) - _nearness(block, centroids).amax(0)).clamp_min(0).sum() for _, block in blocks(z)
    )
    (inertia,) = summed(((each,) for each in of_blocks), comm)
    return Clusters(centroids, inertia.item() / comm.offset_and_total(len(z))[1], iteration)


class _Members:
    """Who belongs where, and the sums of their vectors; only those who move are added and taken away again."""

    def __init__(self, count: int, k: int, dims: int, device: torch.device) -> None:
        self.labels = torch.full((count,), -1, device=device)
        self.totals = torch.zeros(k, dims, dtype=torch.float64)
        self.sizes = torch.zeros(k, dtype=torch.float64)
        self.moved = 0  # since somebody set it to zero
        self._subgroups = torch.arange(k, device=device)[:, None]

    def move(self, rows: slice, z: Vectors, labels: Tensor) -> None:
        """The vectors `z` of these rows belong there from now on."""
        before = self.labels[rows]
        who = torch.nonzero(labels != before).flatten()
        if not len(who):
            return
        if 2 * len(who) < len(labels):
            some, now, was = take(z, who), labels[who], before[who]
        else:  # who stays is added and taken away at once
            some, now, was = in_memory(z), labels, before
        # in double precision: what is added and taken away again, round after round, must leave no rest
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


def group_means(z: Vectors, labels: Tensor, groups: int, comm: Communicator = LOCAL) -> tuple[Tensor, Tensor]:
    """Mean vector (groups, dims) of each, zeros if nobody has this label; and their sizes (groups,)."""
    members = _Members(len(z), groups, z.shape[1], labels.device)
    for rows in spans(len(z)):
        members.move(rows, z[rows], labels[rows])
    return members.everywhere(comm)[:2]


def _logits(
    z: Vectors, norms: Iterable[Tensor], centroids: Tensor, balance: float, epsilon: float, comm: Communicator
) -> tuple[list[Tensor], Tensor]:
    """Proportions / epsilon in blocks (subgroups, rows), and the sizes: a share `balance` of the way to equal ones."""
    found, k, from_origin = [], len(centroids), centroids.square().sum(1)[:, None]
    own = torch.zeros(k, dtype=torch.float64)
    for (_, block), norm in zip(blocks(z), norms, strict=True):
        squared = (norm + from_origin).addmm_(centroids, block.mT, alpha=-2)
        if balance < 1:
            own += torch.bincount(first_greatest_(-squared), minlength=k).cpu()
        found.append(_inverse_square_proportions_(squared, 1 / epsilon))
    if balance < 1:
        own, count = summed([(own, torch.tensor(len(z)))], comm)
        own = own / count
    return found, balance / k + (1 - balance) * own


def first_greatest_(values: Tensor) -> Tensor:
    """(n,): which of (subgroups, n) is greatest; overwrites them. The indices of `max` take three times as long."""
    last_first = torch.arange(len(values), 0, -1, dtype=values.dtype, device=values.device)[:, None]
    return len(values) - values.eq_(values.amax(0)).mul_(last_first).amax(0).long()


def _nearness(z: Tensor, centroids: Tensor) -> Tensor:
    """(subgroups, n): negative squared distances, without the part that is the same for all centroids."""
    return (2 * centroids @ z.mT).sub_(centroids.square().sum(1)[:, None])


def _squared_norms(z: Tensor) -> Tensor:
    return torch.linalg.vector_norm(z, dim=1).square_()
