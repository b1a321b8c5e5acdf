"""Permutation tests of subgroups against a covariate, in which the rows of one group stay together."""

from collections.abc import Iterator

import numpy as np
from scipy.stats import rankdata

from phenogroups.evaluation.variables import Variable

CHUNK = 2_000_000  # numbers held at once


def unit_columns(values: np.ndarray) -> np.ndarray:
    """Columns of memberships, each divided by the root of its sum."""
    return values / np.sqrt(values.sum(axis=0))


def side(column: Variable) -> np.ndarray:
    """(n, codes), or (n, 1) of an amount: what is multiplied with the subgroups' columns; no value may be missing."""
    if column.kind == "codes":
        return unit_columns(one_hot(column.values))
    ranks = rankdata(column.values)
    ranks -= ranks.mean()
    return (ranks / np.linalg.norm(ranks))[:, None]


def one_hot(positions: np.ndarray) -> np.ndarray:
    """(n, positions that occur)."""
    found, positions = np.unique(positions, return_inverse=True)
    return np.eye(len(found))[positions]


def shuffled_squares(
    a: np.ndarray, b: np.ndarray, member: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """(count, columns of b): sum over columns of a, its rows shuffled by groups, of their squared products with b.

    A group changes places only with groups of its own size, whole and in order: any dependence inside groups is kept.
    """
    squares = np.empty((count, b.shape[1]))
    of_sizes = blocks(member)
    for some in chunks(count, len(a)):
        rows = np.empty((some.stop - some.start, len(a)), dtype=np.intp)
        for of_size in of_sizes:
            order = rng.permuted(np.tile(np.arange(len(of_size)), (len(rows), 1)), axis=1)
            rows[:, of_size.ravel()] = of_size[order].reshape(len(rows), -1)
        squares[some] = sum(np.square(column[rows] @ b) for column in a.T)
    return squares


def share_above(chance: np.ndarray, found: float) -> float:
    """p: how often chance reaches what was found, which is one of the possible arrangements itself."""
    return float(1 + np.sum(chance >= found - 1e-9)) / (1 + len(chance))


def blocks(member: np.ndarray) -> list[np.ndarray]:
    """Of each size of groups, their rows: (groups, size)."""
    _, member, sizes = np.unique(member, return_inverse=True, return_counts=True)
    order = np.lexsort((member, sizes[member]))
    return [order[sizes[member][order] == size].reshape(-1, size) for size in np.unique(sizes)]


def chunks(count: int, width: int) -> Iterator[slice]:
    step = max(CHUNK // max(width, 1), 1)
    return (slice(first, min(first + step, count)) for first in range(0, count, step))
