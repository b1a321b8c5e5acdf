"""Covariates as variables, amounts or codes, and the correction for several tests."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

Kind = Literal["amount", "codes"]
ALPHA = 0.05
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

    All tests together raise a false alarm in at most a share ALPHA of cohorts, however they depend on each other.
    """
    corrected, tested = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return corrected
