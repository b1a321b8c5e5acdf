"""A table of subjects: its rows, and which column means what."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd

from phenogroups.data.cohort import CohortError
from phenogroups.data.reading import Reading
from phenogroups.data.untrusted import check_types, shortened


@dataclass(frozen=True)
class TableSpec:
    """Which column means what; part of the recipe, so that prediction reads new tables in the same way."""

    diagnosis: str = "diagnosis"
    control: tuple[str, ...] = ()  # words of the diagnosis column that mean control
    patient: tuple[str, ...] = ()  # words that mean patient
    image: str | None = None  # column of file paths, relative to the table
    features: tuple[str, ...] = ()  # numeric columns; without image and features: every numeric column left over
    features_file: str | None = None  # instead: a NumPy or Parquet file, by subject or one row per row of the table
    subject: str | None = None  # unique name of the row; None: the image's path, or the row number
    group: str | None = None  # rows that belong together, such as both eyes of one person
    covariates: tuple[str, ...] = ()
    truth: str | None = None  # known subgroup, read by evaluation only
    split: str | None = None  # column whose word "train" means trained on, any other held out
    reading: Reading = field(default_factory=Reading)

    @property
    def reads_images(self) -> bool:
        return self.image is not None and self.features_file is None


@dataclass(frozen=True)
class Table:
    """Rows of text with their spec; no image and no feature is read yet."""

    rows: pd.DataFrame
    spec: TableSpec
    folder: Path | None = None  # where image paths begin; None: a frame made in Python, whose paths may lie anywhere
    name: str = "table"
    notes: tuple[str, ...] = ()  # assumptions and left-out rows, in sentences


def spec_from_json(stored: Mapping[str, Any]) -> TableSpec:
    """The inverse of `dataclasses.asdict` and JSON; fields that an older version did not write have their defaults."""
    try:
        reading = Reading(**_known(stored["reading"], Reading))
        spec = TableSpec(**{**_known(stored, TableSpec), "reading": reading})
        check_types(reading)
        check_types(spec)
        return spec
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CohortError(f"Expected a recipe that says how its table is read. Received: {error}.") from error


def _known(stored: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Fields of this version. An unknown field of a newer version must be empty, since it may change the reading."""
    known = {f.name for f in fields(kind)}
    unknown = [name for name, value in stored.items() if name not in known and value not in (None, "", [], False)]
    if unknown:
        names = shortened(", ".join(map(str, unknown)), quoted=False)
        raise ValueError(f"{names}, which this version does not know; use the version that wrote it")
    return {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items() if name in known}
