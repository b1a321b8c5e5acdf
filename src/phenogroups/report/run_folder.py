"""A run folder as the page reads it: checked, because it may come from elsewhere."""

from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from phenogroups.data.cohort import UNKNOWN, subgroup_letter
from phenogroups.data.table_files import MOST_TABLE
from phenogroups.data.untrusted import check_types, parse_json, read_limited
from phenogroups.evaluation.scores import Scores
from phenogroups.report.material import Material, require_within
from phenogroups.training.run import RunError, member, read_recipe

WORDS = ["subject", "group", "part", "diagnosis", "subgroup"]  # columns of subgroups.csv that are no numbers


@dataclass(frozen=True)
class Run:
    """A run folder, checked, as the page reads it."""

    material: Material
    subjects: pd.DataFrame  # subgroups.csv
    history: pd.DataFrame | None
    scores: dict[str, Scores]
    intervals: dict[str, dict[str, list[float]]]  # of each row of scores: low and high; none in older folders
    recipe: dict[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> "Run":
        folder = Path(folder)
        recipe = read_recipe(folder)
        try:
            told = parse_json(read_limited(member(folder, "scores.json")))
            scores = {name: Scores(**{f.name: row[f.name] for f in fields(Scores)}) for name, row in told.items()}
            spread = {name: row.get("intervals", {}) for name, row in told.items()}
            history = member(folder, "history.csv")
            run = cls(
                Material.read(folder), read_subgroups(member(folder, "subgroups.csv")),
                pd.read_csv(BytesIO(read_limited(history))) if history.is_file() else None, scores, spread, recipe,
            )  # fmt: skip
            run.check()
            return run
        except RunError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"Expected {folder} as a run wrote it. Received: {error}.") from error

    def check(self) -> None:
        """Raise where the files do not fit together."""
        check_types(self)
        if not all(len(ends) == 2 for row in self.intervals.values() for ends in row.values()):
            raise ValueError("an interval in scores.json without two ends")
        for row in self.scores.values():
            check_types(row)
        letters = {subgroup_letter(k) for k in range(self.material.n_subgroups)}
        if not {*self.subjects["subgroup"]} <= {"", *letters}:
            raise ValueError(f"subgroups beyond {', '.join(sorted(letters))} in subgroups.csv")
        for name in ("shown", "gallery", "strip_rows"):
            require_within(name, getattr(self.material, name), 0, len(self.subjects))
        # confidence, probabilities, distances and losses are drawn
        numbers = self.subjects.drop(columns=WORDS, errors="ignore")  # only cohorts with several images have a group
        for table in (numbers, self.history):
            if table is not None and not all(is_numeric_dtype(kind) for kind in table.dtypes):
                raise ValueError("words where numbers are expected")
        if "confidence" not in numbers or "undecided" not in numbers:
            raise ValueError("no column confidence or undecided in subgroups.csv")

    @property
    def held_out(self) -> pd.DataFrame:
        return self.subjects[self.subjects["part"] == "held-out"]

    @property
    def reference(self) -> str:
        """The subjects that features are compared with."""
        return "controls" if (self.subjects["diagnosis"] == "control").any() else "all patients"

    @property
    def several_runs(self) -> bool:
        """Whether runs were compared, without which nobody can be undecided."""
        return self.recipe["method"] == "consensus"

    @property
    def is_patient(self) -> np.ndarray:
        """Of each subject shown."""
        return (self.subjects["diagnosis"].to_numpy() == "patient")[self.material.shown]

    @property
    def subgroup(self) -> np.ndarray:
        """Of each subject shown; -1 for controls."""
        return self.numbers_of(self.subjects["subgroup"].iloc[self.material.shown])

    def numbers_of(self, letters: pd.Series) -> np.ndarray:
        """0 for A, 1 for B, ...; -1 where there is no subgroup."""
        number = {subgroup_letter(k): k for k in range(self.material.n_subgroups)}
        return letters.map(number).fillna(UNKNOWN).to_numpy(dtype=int)

    def sizes(self, part: str) -> list[int]:
        """Patients of each subgroup."""
        counts = self.subjects.loc[self.subjects["part"] == part, "subgroup"].value_counts()
        return [int(counts.get(subgroup_letter(k), 0)) for k in range(self.material.n_subgroups)]


def read_subgroups(path: Path) -> pd.DataFrame:
    """subgroups.csv; a subject whose name is NA is not missing."""
    content = read_limited(path, MOST_TABLE)
    columns = pd.read_csv(BytesIO(content), nrows=0).columns
    numbers: Any = {name: [""] for name in columns if name not in WORDS}
    return pd.read_csv(BytesIO(content), dtype=dict.fromkeys(WORDS, str), keep_default_na=False, na_values=numbers)  # pyright: ignore
