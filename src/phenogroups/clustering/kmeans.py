"""Sinkhorn K-means: K-means whose assignments are pulled towards equal sizes (paper, Appendix C)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from phenogroups.clustering.blocks import Vectors, at_once, blocks, in_memory, spans, summed, take
from phenogroups.clustering.sinkhorn import potentials
from phenogroups.clustering.sums import ALONE, Sums

# vectors among which starts are compared, at most; the best goes on among all. At least half as many are taken: enough
# for a subgroup of one in a hundred, of which 330 are among them. Ten starts of a million would take ten times as long
SEARCHED = 2**16
# relative inertia between two starts that differ by rounding only: then the first is taken, and names the subgroups
SAME = 1e-9


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
    sums: Sums = ALONE,
) -> Clusters:
    """The best of `n_starts` K-means++ starts, by the inertia of the nearest centroid."""
    if start is not None:
        return _descend(z, start, balance, epsilon, spherical, max_iterations, sums)
    some = sampled(z, sums)
    if sums.places(len(z))[1] > len(some):
        found = sinkhorn_kmeans(
            some, n_subgroups, balance=balance, epsilon=epsilon, spherical=spherical,
            n_starts=n_starts, max_iterations=max_iterations, seed=seed,
        )  # fmt: skip
        return _descend(z, found.centroids, balance, epsilon, spherical, max_iterations, sums)
    z = in_memory(z)
    best: Clusters | None = None
    for i in range(n_starts):
        centroids, _ = kmeans_plusplus(some.cpu().numpy(), n_subgroups, random_state=seed * n_starts + i)
        centroids = torch.as_tensor(centroids, dtype=z.dtype, device=z.device)
        found = _descend(z, centroids, balance, epsilon, spherical, max_iterations, sums)
        if best is None or found.inertia < best.inertia * (1 - SAME):
            best = found
    if best is None:
        raise ValueError(f"Expected at least one start of K-means. Received: n_starts={n_starts}.")
    return best


def sampled(z: Vectors, sums: Sums = ALONE) -> Tensor:
    """As many of everybody's as starts are compared among, in their order."""
    return sums.gather(in_memory(z[sums.spaced(len(z), SEARCHED)]))


def _descend(
    z: Vectors, centroids: Tensor, balance: float, epsilon: float, spherical: bool, max_iterations: int, sums: Sums
) -> Clusters:
    parts, potential = list(spans(len(z))), None
    members = _Members(parts, len(centroids), centroids.shape[1], centroids.device)

    def nearest(centroids: Tensor, part: int) -> tuple[Vectors, Tensor]:
        block = in_memory(z[parts[part]])
        return block, first_greatest_(_nearness(block, centroids))

    def likeliest(logits: list[Tensor], potential: Tensor, part: int) -> tuple[Vectors, Tensor]:
        block = logits[part]
        return z[parts[part]], first_greatest_(block.add_(potential.to(block)[:, None]))

    norms = [] if balance == 0 else at_once(lambda rows: _squared_norms(in_memory(z[rows])), parts)
    iteration = 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        if balance == 0:
            moved = members.move(partial(nearest, centroids))
        else:
            logits, sizes = _logits(z, norms, centroids, balance, epsilon, sums)
            potential = potentials(logits, sizes, potential, sums=sums)
            moved = members.move(partial(likeliest, logits, potential))
        means, sizes, moved = members.everywhere(moved, sums)
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
            farthest = sums.gather(away[far]).topk(len(empty)).indices
            centroids[empty] = sums.gather(take(z, far))[farthest]

    def to_nearest(rows: slice) -> tuple[Tensor]:
        block = in_memory(z[rows])
        return ((_squared_norms(block) - _nearness(block, centroids).amax(0)).clamp_min(0).sum(),)

    (inertia,) = summed(at_once(to_nearest, parts), sums)
    return Clusters(centroids, inertia.item() / sums.places(len(z))[1], iteration)


class _Members:
    """Who belongs where, and the sums of their vectors; only those who move are added and taken away again."""

    def __init__(self, parts: list[slice], k: int, dims: int, device: torch.device) -> None:
        self.labels = torch.full((parts[-1].stop,), -1, device=device)
        self.sums = torch.zeros(k, dims, dtype=torch.float64)
        self.sizes = torch.zeros(k, dtype=torch.float64)
        self._parts = parts
        self._subgroups = torch.arange(k, device=device)[:, None]

    def move(self, chosen: Callable[[int], tuple[Vectors, Tensor]]) -> int:
        """Everybody belongs from now on where `chosen` says: vectors and labels of a part. How many are new there."""
        sums, sizes, moved = summed(
            at_once(lambda part: self._change(self._parts[part], *chosen(part)), range(len(self._parts)))
        )
        self.sums += sums
        self.sizes += sizes
        return int(moved)

    def _change(self, rows: slice, z: Vectors, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = self.labels[rows]
        who = torch.nonzero(labels != before).flatten()
        if 2 * len(who) < len(labels):
            some, now, was = take(z, who), labels[who], before[who]
        else:  # who stays is added and taken away at once
            some, now, was = in_memory(z), labels, before
        # in double precision: then it hardly matters how subjects are cut into blocks, and over processes
        joined = (self._subgroups == now).double() - (self._subgroups == was).double()
        self.labels[rows] = labels
        return joined @ some.double(), joined.sum(1), torch.tensor(len(who))

    def everywhere(self, moved: int, sums: Sums) -> tuple[Tensor, Tensor, int]:
        """Means and sizes of everybody's, and how many moved: K x D and K numbers are all that processes tell."""
        totals, sizes, all_moved = summed([(self.sums, self.sizes, torch.tensor([moved]))], sums)
        return totals / sizes.clamp_min(1)[:, None], sizes, int(all_moved)


def group_means(z: Vectors, labels: Tensor, groups: int, sums: Sums = ALONE) -> tuple[Tensor, Tensor]:
    """Mean vector (groups, dims) of each, zeros if nobody has this label; and their sizes (groups,)."""
    parts = list(spans(len(z)))
    members = _Members(parts, groups, z.shape[1], labels.device)
    moved = members.move(lambda part: (z[parts[part]], labels[parts[part]]))
    return members.everywhere(moved, sums)[:2]


def _logits(
    z: Vectors, norms: list[Tensor], centroids: Tensor, balance: float, epsilon: float, sums: Sums
) -> tuple[list[Tensor], Tensor]:
    """Proportions / epsilon in blocks (subgroups, rows), and the sizes: a share `balance` of the way to equal ones."""
    k, from_origin = len(centroids), centroids.square().sum(1)[:, None]

    def of_block(part: tuple[slice, Tensor]) -> tuple[Tensor, Tensor]:
        rows, norm = part
        squared = (norm + from_origin).addmm_(centroids, in_memory(z[rows]).mT, alpha=-2)
        own = torch.bincount(first_greatest_(-squared), minlength=k) if balance < 1 else torch.zeros(k)
        return _inverse_square_proportions_(squared, 1 / epsilon), own

    found = at_once(of_block, zip(spans(len(z)), norms, strict=True))
    if balance == 1:
        return [logits for logits, _ in found], torch.full((k,), 1 / k, dtype=torch.float64)
    own, count = summed([(each, torch.tensor(len(logits.mT))) for logits, each in found], sums)
    return [logits for logits, _ in found], balance / k + (1 - balance) * own / count


def first_greatest_(values: Tensor) -> Tensor:
    """(n,): which of (subgroups, n) is greatest; overwrites them. The indices of `max` take three times as long."""
    last_first = torch.arange(len(values), 0, -1, dtype=values.dtype, device=values.device)[:, None]
    return len(values) - values.eq_(values.amax(0)).mul_(last_first).amax(0).long()


def _nearness(z: Tensor, centroids: Tensor) -> Tensor:
    """(subgroups, n): negative squared distances, without the part that is the same for all centroids."""
    return (2 * centroids @ z.mT).sub_(centroids.square().sum(1)[:, None])


def _squared_norms(z: Tensor) -> Tensor:
    return torch.linalg.vector_norm(z, dim=1).square_()
