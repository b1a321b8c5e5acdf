"""Covariates as variables, amounts or codes; permutation tests of them, and the correction for several tests.

In a permutation test, the rows of one group (such as both eyes of a person) stay together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy.stats import rankdata

Kind = Literal["amount", "codes"]
CHUNK = 2_000_000  # numbers held at once
MOST_CODES = 8  # whole numbers of so few values are codes: site 1 to 5, sex 0 or 1


@dataclass(frozen=True)
class Variable:
    """A covariate of some subjects; NaN where it is unknown."""

    name: str
    kind: Kind
    values: np.ndarray  # (n,): amounts, or positions in `levels`
    levels: tuple[str, ...] = ()  # the codes, in order

    @property
    def known(self) -> np.ndarray:
        return ~np.isnan(self.values)

    def __getitem__(self, rows: np.ndarray) -> "Variable":
        return Variable(self.name, self.kind, self.values[rows], self.levels)


def variable(name: str, column: pd.Series) -> Variable:
    """Numbers are amounts unless they are whole and of few values; words are codes; empty and infinite is unknown."""
    if is_numeric_dtype(column) and not is_bool_dtype(column):
        values = column.to_numpy(np.float64, na_value=np.nan)
        values = np.where(np.isfinite(values), values, np.nan)
        numbers = np.unique(values[~np.isnan(values)])
        if len(numbers) > MOST_CODES or (numbers % 1).any():
            return Variable(name, "amount", values)
        words, levels = column.astype(object).where(~np.isnan(values)), [f"{number:g}" for number in numbers]
        words = words.map(lambda number: f"{float(number):g}", na_action="ignore")
    else:
        words = column.astype(object).where(column.notna()).map(str, na_action="ignore").replace("", np.nan)
        there = set(words.dropna())
        ordered = column.cat.categories.map(str) if isinstance(column.dtype, pd.CategoricalDtype) else sorted(there)
        levels = [word for word in ordered if word in there]
    position = {word: float(i) for i, word in enumerate(levels)}
    return Variable(name, "codes", words.map(position, na_action="ignore").to_numpy(np.float64), tuple(levels))


def holm(p: np.ndarray) -> np.ndarray:
    """Corrected for the number of tests (Holm 1979); NaN is no test.

    At a corrected p of 0.05, at most 5 % of cohorts have any false alarm, however the tests depend on each other.
    """
    corrected, tested = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return corrected


def unit_columns(values: np.ndarray) -> np.ndarray:
    """Columns of memberships, each divided by the root of its sum."""
    return values / np.sqrt(values.sum(axis=0))


def scores_of(column: Variable) -> np.ndarray:
    """(n, codes), or (n, 1) of an amount: b of `confounds`; no value may be missing."""
    if column.kind == "codes":
        return unit_columns(one_hot(column.values))
    ranks = rankdata(column.values)
    ranks -= ranks.mean()
    return (ranks / np.linalg.norm(ranks))[:, None]


def one_hot(positions: np.ndarray) -> np.ndarray:
    """(n, positions that occur)."""
    found, positions = np.unique(positions, return_inverse=True)
    return np.eye(len(found))[positions]


def permuted_squares(
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


def permutation_p(chance: np.ndarray, found: float) -> float:
    """p of a permutation test; the arrangement that was found counts as one of the permutations."""
    return float(1 + np.sum(chance >= found - 1e-9)) / (1 + len(chance))


def blocks(member: np.ndarray) -> list[np.ndarray]:
    """Of each size of groups, their rows: (groups, size)."""
    _, member, sizes = np.unique(member, return_inverse=True, return_counts=True)
    order = np.lexsort((member, sizes[member]))
    return [order[sizes[member][order] == size].reshape(-1, size) for size in np.unique(sizes)]


def chunks(count: int, width: int) -> Iterator[slice]:
    step = max(CHUNK // max(width, 1), 1)
    return (slice(first, min(first + step, count)) for first in range(0, count, step))
