"""Matching of subgroups, whose numbers are arbitrary, between two clusterings (paper, Appendix B)."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.kmeans import group_means

SURENESS = 10  # a patient with probabilities of 0.6 and 0.4 counts 98% for the first subgroup, of 0.5 half for each
TIE_BREAKERS = 1e-2, 1e-3  # weights of expected sizes and of places in the cohort, where sizes are (nearly) equal


def largest_first(q: Tensor, comm: Communicator = LOCAL) -> np.ndarray:
    """(K,): which subgroup of the posteriors `q` (patients, K) comes first, second, ...: that of most patients first.

    Rounding may move a patient who is between two subgroups, so such a patient counts for both in part. Of equal sizes
    the greater sum of probabilities comes first, then the subgroup of the earlier patients of the cohort. These three
    are one smooth score, which moves as little as the probabilities do: rounding can swap only what is equal within it.
    """
    q = q.double().cpu()
    before, _ = comm.offset_and_total(len(q))
    place = torch.arange(before, before + len(q))[:, None] + 1
    sizes = (SURENESS * q.log()).softmax(1)
    by_sum, by_place = TIE_BREAKERS
    score = comm.all_reduce((sizes + by_sum * q + by_place * q / place).sum(0))
    return np.argsort(-score.numpy(), kind="stable")


def match_centroids(previous: Tensor, current: Tensor) -> Tensor:
    """The permutation `order` (K,) such that `current[order[k]]` is the subgroup that was `previous[k]`."""
    if previous.shape != current.shape or previous.ndim != 2:
        raise ValueError(
            "Expected previous and current centroids of one shape (subgroups, dimensions). "
            f"Received: {tuple(previous.shape)} and {tuple(current.shape)}. Match subgroups of equal number only."
        )
    difference = previous.detach().cpu().double()[:, None] - current.detach().cpu().double()[None]  # (K, K, d)
    cost = difference.square().sum(dim=2)
    if not cost.isfinite().all():
        raise ValueError(
            "Expected finite centroids. Received NaN or infinite values. "
            "Look for an empty subgroup or a diverged network (a lower learning rate helps)."
        )
    # The paper sharpens a similarity by Sinkhorn until each row has one winner, a bijection only in the limit;
    # the Hungarian algorithm solves that limit, the assignment problem itself, and always ends in a permutation.
    _, order = linear_sum_assignment(cost.numpy())
    return torch.as_tensor(order, dtype=torch.long, device=current.device)


def match_members(before: Tensor, z: Tensor, centroids: Tensor, comm: Communicator = LOCAL) -> Tensor:
    """The permutation `order` (K,) such that `centroids[order[k]]` lies where the earlier members of k are now.

    `before` (n,) are the earlier labels. Training moves all embeddings, so earlier centroids cannot be compared.
    """
    return match_centroids(group_means(z, before, len(centroids), comm)[0], centroids)


def adjusted_rand(a: Tensor, b: Tensor, n_subgroups: int, comm: Communicator = LOCAL) -> float:
    """Adjusted Rand index (Hubert & Arabie 1985) of two splits (n,) of subjects who may be spread over processes."""
    one_hot = torch.nn.functional.one_hot
    table = comm.all_reduce(one_hot(a, n_subgroups).double().T @ one_hot(b, n_subgroups).double())
    return _adjusted_rand(table).item()


def adjusted_rand_matrix(splits: Tensor, n_subgroups: int) -> Tensor:
    """(splits, splits): the adjusted Rand index of any two of them (splits, n)."""
    count = len(splits)
    members = torch.nn.functional.one_hot(splits.T, n_subgroups).double().flatten(1)  # (n, splits * K)
    tables = (members.T @ members).view(count, n_subgroups, count, n_subgroups).transpose(1, 2)
    return _adjusted_rand(tables)


def _adjusted_rand(tables: Tensor) -> Tensor:
    """Of contingency tables (..., K, K)."""

    def pairs(counts: Tensor) -> Tensor:
        return (counts * (counts - 1) / 2).flatten(tables.ndim - 2).sum(-1)

    both, in_a, in_b = (pairs(counts) for counts in (tables, tables.sum(-1), tables.sum(-2)))
    expected = in_a * in_b / pairs(tables.sum((-1, -2))[..., None]).clamp_min(1)
    highest = (in_a + in_b) / 2
    return torch.where(highest == expected, 1.0, (both - expected) / (highest - expected))


def match_labels(predicted: np.ndarray, truth: np.ndarray, n_subgroups: int) -> np.ndarray:
    """The truth of each predicted subgroup (n_subgroups,) that makes balanced accuracy highest.

    Truth classes are 0 to the highest one seen; negative (unknown) truth is left out. No class is given twice:
    with as many classes as subgroups the mapping is a permutation, with fewer the subgroups left over map to -1.
    """
    predicted, truth = np.asarray(predicted, dtype=np.int64), np.asarray(truth, dtype=np.int64)
    if predicted.shape != truth.shape or predicted.ndim != 1:
        raise ValueError(
            "Expected one predicted subgroup and one truth per subject. "
            f"Received: shapes {predicted.shape} and {truth.shape}. Give two vectors of equal length."
        )
    if predicted.size and not 0 <= predicted.min() <= predicted.max() < n_subgroups:
        raise ValueError(
            f"Expected predicted subgroups 0 to {n_subgroups - 1}. "
            f"Received: {predicted.min()} to {predicted.max()}. Leave controls out, or raise n_subgroups."
        )
    predicted, truth = predicted[truth >= 0], truth[truth >= 0]
    table = np.zeros((n_subgroups, truth.max(initial=-1) + 1))
    np.add.at(table, (predicted, truth), 1)
    # columns in shares of their class, so that their sum over matched pairs is the sum of recalls
    recall = table / np.maximum(table.sum(axis=0), 1)
    # where recalls tie (all patients in one subgroup), the larger overlap wins and not the smaller id
    gain = recall + 1e-9 * table / max(len(truth), 1)
    mapping = np.full(n_subgroups, -1)
    rows, columns = linear_sum_assignment(gain, maximize=True)
    mapping[rows] = columns
    return mapping
