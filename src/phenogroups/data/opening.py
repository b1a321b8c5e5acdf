"""The one door for data: a table, a folder or a frame becomes a cohort, always read in the same way."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from phenogroups.data.cache import Progress
from phenogroups.data.cohort import Cohort
from phenogroups.data.columns import read_columns
from phenogroups.data.inputs import image_paths, read_inputs, resolve_features, resolve_size
from phenogroups.data.layouts import read_layout
from phenogroups.data.properties import file_properties
from phenogroups.data.reading import PRETRAINED_SIDE, Reading
from phenogroups.data.selection import Labels, Selection
from phenogroups.data.table_files import read_table
from phenogroups.data.tables import Table, TableSpec

Source = str | Path | pd.DataFrame
RESIZED = (
    f"Images are resized to {PRETRAINED_SIDE} x {PRETRAINED_SIDE}, at which the encoder lite0 was trained "
    "(--size for another)."
)


@dataclass(frozen=True)
class TableRecipe:
    """The part of a recipe that is about the table; options that are given beside it take precedence."""

    table: Mapping[str, Any] = field(default_factory=dict)  # fields of TableSpec
    rows: Selection = field(default_factory=Selection)
    reading: Mapping[str, Any] = field(default_factory=dict)  # fields of Reading

    def spec(self, known: TableSpec, columns: Mapping[str, Any], reading: Mapping[str, Any]) -> TableSpec:
        """The spec of a folder's layout, overridden by this recipe, overridden by `columns` and `reading`."""
        return replace(known, **{**self.table, **columns}, reading=Reading(**{**self.reading, **reading}))


def open_cohort(
    source: Source, columns: Mapping[str, Any] | TableSpec | None = None, reading: Mapping[str, Any] | None = None,
    recipe: TableRecipe | None = None, cache: str | Path | None = None, *, folder: str | Path | None = None,
    resized: bool = True,
) -> Cohort:  # fmt: skip
    """The cohort of a table with one row per subject, of a folder or of a frame.

    Parameters are those of `open_table`; with a folder `cache`, images are decoded into a file there.
    """
    return read_cohort(open_table(source, columns, reading, recipe, folder=folder, resized=resized), cache)


def open_table(
    source: Source, columns: Mapping[str, Any] | TableSpec | None = None, reading: Mapping[str, Any] | None = None,
    recipe: TableRecipe | None = None, *, folder: str | Path | None = None, resized: bool = True,
) -> Table:  # fmt: skip
    """Rows and the meaning of their columns; no image and no feature is read yet.

    `columns` are fields of TableSpec and `reading` fields of Reading; both override the `recipe`, which overrides the
    layout of a folder. The TableSpec of an earlier table is used as it is. Image paths are relative to `folder`, by
    default the table's own. `resized`: images that suit the default encoder are read at its size.
    """
    table = _open_rows(source, folder, "eye" if recipe is None else recipe.rows.labels)
    if isinstance(columns, TableSpec):
        own = table.spec  # a folder's columns take the names that the earlier table had
        names = {own.image: columns.image, own.subject: columns.subject}
        rows = table.rows.rename(columns={now: then for now, then in names.items() if now and then})
        return replace(table, rows=rows, spec=resolve_features(rows, columns))
    columns, recipe = dict(columns or {}), recipe or TableRecipe()
    if columns.get("features_file") is not None:
        if columns.get("image") is not None:
            raise ValueError("Expected --image or --features-file. Received both. Say which is to be learned from.")
        columns["image"] = None
    rows, spec = recipe.rows(table.rows, recipe.spec(table.spec, columns, reading or {}))
    notes = table.notes
    words = {*rows[spec.diagnosis].str.strip()} if spec.diagnosis in rows.columns else set()
    of_patients = [word for word in spec.patient if word in words]
    if spec.truth is None and len(of_patients) > 1:  # for evaluation only, like the names of class folders
        spec = replace(spec, truth=spec.diagnosis)
        notes = (*notes, f"Subgroups will be compared with the patients' words ({', '.join(of_patients)}).")
    table = replace(table, rows=rows, spec=resolve_features(rows, spec), notes=notes)
    if resized and (spec := resolve_size(table)) != table.spec:
        table = replace(table, spec=spec, notes=(*table.notes, RESIZED))
    return table


def read_cohort(table: Table, cache: str | Path | None = None, progress: Progress | None = None) -> Cohort:
    """Read the cohort that the table describes; raises if anything is wrong with it."""
    columns = read_columns(table.rows, table.spec)
    inputs = read_inputs(table, cache=cache, progress=progress)
    files = pd.DataFrame() if inputs.ndim == 2 else file_properties(image_paths(table))
    return Cohort(inputs, **columns, name=table.name, files=files)


def _open_rows(source: Source, folder: str | Path | None, labels: Labels) -> Table:
    if isinstance(source, pd.DataFrame):
        return Table(read_table(source), TableSpec(), None if folder is None else Path(folder))
    path = Path(source)
    if path.is_dir():
        return replace(read_layout(path, labels), name=path.resolve().stem)
    return Table(read_table(path), TableSpec(), Path(folder or path.parent), path.resolve().stem)
