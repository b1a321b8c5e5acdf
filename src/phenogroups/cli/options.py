"""Options that several commands share: which cohort, and how its table is read."""

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from phenogroups.cli.progress import ERR, counting_bar, note, say

if TYPE_CHECKING:
    from phenogroups.data.cohort import Cohort
    from phenogroups.data.study import Study
    from phenogroups.data.tables import Table, TableSpec
    from phenogroups.recipes import Recipe


def option(metavar: str, default: str = "") -> Any:
    """How the help shows an option: the kind of its value, and in words what holds without it."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "")


Column = Annotated[str | None, option("COLUMN")]
Columns = Annotated[tuple[str, ...], option("COLUMN ...")]
Words = Annotated[tuple[str, ...], option("WORD ...")]
Sides = Annotated[tuple[int, ...], option("SIDE ...")]
Settings = Annotated[tuple[str, ...], option("NAME=VALUE ...")]
RunFolder = Annotated[Positional[Path], arg(metavar="RUN")]
ImageFolder = Annotated[Path | None, option("FOLDER", "the table's")]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read: one row per subject. Fields are those of TableSpec and Reading, and four others."""

    image: Column = None
    """Column of image paths; without it, columns of numbers are used."""
    features: Columns = ()
    """Columns of numbers; by default all that have no other meaning. Columns called age, sex, site, id, date and the
    like are learned from only if they are named here."""
    features_file: Annotated[Path | None, option("FILE")] = None
    """Instead of columns: .npy, .npz or .parquet, by subject or with one row per row of the table."""
    folder: ImageFolder = None
    """Folder that image paths are relative to; files outside of it are not read."""
    diagnosis: Annotated[str, arg(metavar="COLUMN")] = "diagnosis"
    """Column that tells patients from controls."""
    control: Words = ()
    """Words of that column that mean control (0 and control are understood)."""
    patient: Words = ()
    """Words of that column that mean patient (1 and patient are understood); the subgroups that are found are compared
    with several words, unless --truth names another column."""
    subject: Column = None
    """Column that names the row; by default the image's path, or row1, row2, ..."""
    group: Column = None
    """Column of rows that must stay together, such as both eyes of one person."""
    covariates: Columns = ()
    """Columns such as age, sex, site: not learned from."""
    truth: Column = None
    """Column of known subgroups, for evaluation only."""
    split: Column = None
    """Column whose word train means trained on; all other rows are held out."""
    size: Sides = ()
    """Resize images to this (height width, or depth height width); by default, pictures from 64 pixels a side on to
    224 224, unless another encoder than lite0 is named."""
    frame: Sides = ()
    """Then crop or pad them to this about their centre, without a change of scale."""
    channels: Annotated[int | None, option("INT", "as found")] = None
    """1 for grey, 3 for colour."""
    intensity: Annotated[
        Literal["unit", "minmax", "standardise", "imagenet"] | None,
        option("{unit,minmax,standardise,imagenet}", "unit"),
    ] = None
    """How the intensities of each image are scaled; unit: integers to 0..1, others as they are."""
    cache: Annotated[Path | None, option("FOLDER", "only from 0.5 GB on")] = None
    """Decode images once into a file in this folder and train from there, whatever the cohort's size; embeddings by a
    frozen encoder are kept there too."""
    recipe: Annotated[str | None, option("NAME")] = None
    """Settings of one of the paper's cohorts, such as odir or odir-fast, or a TOML file; other options take precedence
    over it."""

    @cached_property
    def chosen_recipe(self) -> "Recipe":
        from phenogroups.recipes import Recipe, recipe

        return Recipe() if self.recipe is None else recipe(self.recipe)

    def given(self) -> dict[str, Any]:
        """The options of this class that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(TableOptions) if getattr(self, f.name) != f.default}

    def open(self, source: Path, spec: "TableSpec | None" = None, *, resized: bool = True) -> "Table":
        """The rows of a table or folder and the meaning of its columns, or the `spec` of an earlier table.

        `resized`: whether images that suit the default encoder are read at the size that it was trained at.
        """
        from phenogroups.data.opening import open_table
        from phenogroups.data.reading import Reading
        from phenogroups.data.tables import TableSpec

        given = self.given()
        if self.features_file is not None:
            given["features_file"] = str(self.features_file)
        columns, reading = (
            {f.name: given[f.name] for f in fields(of) if f.name in given} for of in (TableSpec, Reading)
        )
        table = open_table(source, spec or columns, reading, self.chosen_recipe, folder=self.folder, resized=resized)
        for sentence in table.notes:
            note(sentence)
        return table

    def read(
        self, source: Path, spec: "TableSpec | None" = None, *, resized: bool = True
    ) -> "tuple[Cohort, TableSpec]":
        """The cohort, and the spec by which it was read."""
        from phenogroups.data.inputs import features_in_words
        from phenogroups.data.opening import read_cohort
        from phenogroups.data.stored import StoredRows

        table = self.open(source, spec, resized=resized)
        with counting_bar("reading") as progress:
            cohort = read_cohort(table, self.cache, progress)
        images = f"images of shape {cohort.input_shape}" if table.spec.image else f"{cohort.input_shape[0]} features"
        inputs = features_in_words(table.spec.features) if table.spec.features else images
        if isinstance(cohort.inputs, StoredRows):
            note(f"Decoded images are kept in {cohort.inputs.path}; delete the file when you need it no more.")
        say(f"{cohort.is_patient.sum()} patients and {(~cohort.is_patient).sum()} controls, {inputs}")
        return cohort, table.spec


@dataclass(frozen=True, kw_only=True)
class CohortOptions(TableOptions):
    """Which cohort: a table, a folder or an example."""

    cohort: Annotated[Positional[str], arg(metavar="COHORT")]
    """CSV, TSV, Parquet or Excel with one row per subject; a folder: <class>/*, BIDS, one per site, ODIR-5K, Kermany's
    X-rays or OCT; or an example: drawn, drawn_brains, mnist0 to mnist9, pneumonia."""
    data: Annotated[Path | None, option("FOLDER", "PHENOGROUPS_DATA")] = None
    """Folder of an example's public files."""
    labels: Annotated[Path | None, option("JSON")] = None
    """Known subgroups of an example, read by evaluation only."""
    subjects: Annotated[int | None, option("INT", "all")] = None
    """Number of subjects of an example to use, for a trial."""

    def example(self) -> "Study | None":
        """The example of this name; None if a table or folder is meant."""
        from phenogroups.data.cohort import CohortError
        from phenogroups.data.examples.named import EXAMPLES, example

        if self.cohort in EXAMPLES:
            given = [name for name in self.given() if name != "recipe"]
            given += ["test"] if getattr(self, "test", None) is not None else []
            recipe = self.chosen_recipe
            if given or recipe.table or recipe.reading:
                options = ", ".join(f"--{name.replace('_', '-')}" for name in given) or f"the recipe {recipe.name}"
                raise ValueError(f"Expected {options} only with a table. Received: the example {self.cohort}.")
            with ERR.status(f"reading {self.cohort}"):
                return example(self.cohort, data=self.data, labels=self.labels, subjects=self.subjects)
        given = [f"--{name}" for name in ("data", "labels", "subjects") if getattr(self, name) is not None]
        if given or not Path(self.cohort).exists():
            why = f" with {', '.join(given)}, which are for examples" if given else ", which does not exist"
            raise CohortError(
                f"Expected a folder, a table of subjects or an example cohort ({', '.join(EXAMPLES)}). "
                f"Received: {self.cohort}{why}."
            )
        return None


@dataclass(frozen=True, kw_only=True)
class SearchOptions(CohortOptions):
    """A cohort, the number of subgroups to look for and the share of subjects to hold out: of discover and check."""

    subgroups: Annotated[str | None, option("K|K:K|auto", "2, or the recipe's")] = None
    """How many subgroups to look for; 2:6 or auto (the same) finds out how many there are, if any."""
    held_out: Annotated[float | None, option("SHARE", "0.2, or the recipe's")] = None
    """Share of the subjects kept apart to score on, where the cohort does not say who."""

    def range_of_subgroups(self) -> tuple[int, int]:
        """The smallest and the largest number of subgroups; both are 3 for "3"."""
        words = self.subgroups or str(self.chosen_recipe.subgroups)
        try:
            least, _, most = "2:6".partition(":") if words == "auto" else words.partition(":")
            numbers = int(least), int(most or least)
            if 2 <= numbers[0] <= numbers[1]:
                return numbers
        except ValueError:
            pass
        raise ValueError(
            f"Expected --subgroups as a number from 2 on, a range such as 2:6, or auto. Received: {words!r}."
        )

    def share_held_out(self) -> float:
        return self.chosen_recipe.held_out if self.held_out is None else self.held_out


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Settings from NAME=VALUE pairs; a value that is not JSON is text."""
    import json

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"Expected settings as NAME=VALUE. Received: {pair!r}.")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings
