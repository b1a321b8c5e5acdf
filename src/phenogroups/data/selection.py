"""Which rows of a table are studied, which labels they have and which are held out: the [rows] of a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd

from phenogroups.data.cohort import CohortError
from phenogroups.data.tables import TableSpec

Labels = Literal["eye", "patient"]
Words = Mapping[str, list[str]]  # of a column
HELD_OUT = "held_out_by_recipe"  # a column made here


@dataclass(frozen=True)
class Selection:
    """Applied in this order; by default all rows are studied, and the table says which are held out."""

    labels: Labels = "eye"  # of ODIR-5K: those of each eye, or those of the patient for both (`layouts.odir`)
    same: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # words of a column -> word that replaces them
    leave_out: Words = field(default_factory=dict)  # rows with these words in a column
    hold_out: Words = field(default_factory=dict)  # rows with these words in a column are scored, all others trained on
    drop_tested: bool = False  # from training: groups that are also held out
    most_per_group: int | None = None  # rows of a group that are trained on
    most: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # rows with a word in a column, trained on

    def __call__(self, rows: pd.DataFrame, spec: TableSpec) -> tuple[pd.DataFrame, TableSpec]:
        """The rows that are studied, in their order, and a spec whose split column says which are held out."""
        if self == Selection():
            return rows, spec
        for column, words in self.same.items():
            rows = rows.assign(**{column: _column(rows, column).replace(dict(words))})
        rows = rows[~_among(rows, self.leave_out)]
        if self.hold_out:
            out = _among(rows, self.hold_out)
            rows = rows.assign(**{HELD_OUT: out.map({True: "test", False: "train"})})
            spec = replace(spec, split=HELD_OUT)
        held_out = pd.Series(False, index=rows.index)
        if spec.split is not None:
            held_out = _column(rows, spec.split).str.lower() != "train"
            if held_out.all() or not held_out.any():  # only one part is left: a share of it is held out later
                held_out[:], spec = False, replace(spec, split=None)
        studied = pd.Series(True, index=rows.index)
        group = None if spec.group is None else _column(rows, spec.group)
        if self.drop_tested and group is not None:
            studied &= held_out | ~group.isin(group[held_out])
        if self.most_per_group is not None and group is not None:
            place = group[studied & ~held_out].groupby(group).cumcount()
            studied[place.index[place >= self.most_per_group]] = False
        for column, limits in self.most.items():
            words = _column(rows, column)
            for word, most in limits.items():
                chosen = rows.index[(words == word) & studied & ~held_out]
                studied[chosen[most:]] = False
        if not studied.any():
            raise CohortError("Expected rows to study. Received: none; the recipe leaves out all. Change its [rows].")
        return rows[studied].reset_index(drop=True), spec


def _among(rows: pd.DataFrame, words: Words) -> pd.Series:
    """Which rows have one of the words in any of the columns."""
    found = pd.Series(False, index=rows.index)
    for column, listed in words.items():
        found |= _column(rows, column).isin(listed)
    return found


def _column(rows: pd.DataFrame, name: str) -> pd.Series:
    if name not in rows.columns:
        raise CohortError(
            f"Expected the column {name!r}, which the recipe names. Received: {', '.join(map(repr, rows.columns))}."
        )
    return rows[name].str.strip()
