"""Commands that train nothing: check, predict, report, open and methods."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from phenogroups.cli.options import ImageFolder, RunFolder, SearchOptions, option
from phenogroups.cli.progress import counting_bar, note, say

INCOMPLETE = 3  # exit code: written, but some subjects could not be assigned


@dataclass(frozen=True, kw_only=True)
class Check(SearchOptions):
    """Read a cohort once, describe it, warn of what is unusual, say whether training should start (exit code 1: no).

    The result depends on the number of subgroups and the held-out share: give it the options of discover.

    For example: phenogroups check subjects.csv --image scan --diagnosis dx --control HC --patient SZ BD
    """

    def run(self) -> int:
        from phenogroups.data.cohort import CohortError
        from phenogroups.data.quality import Findings, check_cohort, check_table

        _, most = self.range_of_subgroups()
        try:
            study = self.example()
            if study is not None:
                found = check_cohort(study.cohort, subgroups=most, held_out=self.share_held_out())
            else:
                table = self.open(Path(self.cohort))
                with counting_bar("reading") as progress:
                    found = check_table(table, subgroups=most, held_out=self.share_held_out(), progress=progress)
        except CohortError as error:  # nothing else could be checked
            found = Findings(problems=[str(error)])
        for kind, sentences in (("", found.facts), ("Warning: ", found.warnings), ("Problem: ", found.problems)):
            for sentence in sentences:
                say(f"{kind}{sentence}")
        say(found.verdict)
        return 0 if found.may_start else 1


@dataclass(frozen=True)
class Predict:
    """Assign the subjects of a new table to the subgroups of an earlier run; needs no diagnosis.

    A file that cannot be read affects its row only: it is named, the others are assigned, and the exit code is 3. A
    subject who is probably not a patient, or unlike all training subjects, has probabilities and a remark instead of a
    subgroup.
    """

    run_folder: RunFolder
    """Folder written by discover."""
    table: Annotated[Positional[Path], arg(metavar="TABLE")]
    """One row per subject, with the columns that the run was trained on; or a folder of images."""
    folder: ImageFolder = None
    """Folder that image paths are relative to; files outside of it are not read."""
    subject: Annotated[str | None, option("COLUMN", "as in training")] = None
    """Column that names the row."""
    features_file: Annotated[Path | None, option("FILE")] = None
    """Features of the new subjects, if those of the run came from a file."""
    cache: Annotated[Path | None, option("FOLDER")] = None
    """Decode images once into a file in this folder, for the next model too; without it, they are read one block at a
    time."""
    out: Annotated[Path | None, option("PATH", "TABLE with .subgroups.csv")] = None
    """CSV to write."""

    def run(self) -> int:
        from phenogroups.workflows.predict import predict_table

        table = self.table.resolve() if self.table.is_dir() else self.table  # a folder may be called "."
        out = self.out or table.with_suffix(".subgroups.csv")
        with counting_bar("predicting") as progress:
            found = predict_table(
                self.run_folder, self.table, out, progress, folder=self.folder, subject=self.subject,
                features_file=self.features_file, cache=self.cache, note=note,
            )  # fmt: skip
        say(str(found))
        if found.broken:
            note(f"{found.broken} subjects could not be assigned; the column problem says why.")
        return INCOMPLETE if found.broken else 0


@dataclass(frozen=True)
class Report:
    """Make the page of an earlier run again, from its folder alone; with --figures also its pictures for a paper."""

    run_folder: RunFolder
    """Folder written by discover."""
    figures: Annotated[Path | None, option("FOLDER")] = None
    """Also write every figure as PNG and SVG into this folder."""
    pdf: Annotated[Path | None, option("FILE")] = None
    """Also print the page into this file, on A4; needs chromium or another browser of its kind."""

    def run(self) -> None:
        if not self.run_folder.is_dir():  # before modules that take seconds to import
            raise ValueError(
                f"Expected a run folder, as discover writes it. Received: {self.run_folder}, which does not exist."
            )
        if self.pdf is not None:  # raises where no browser is found, before anything is written
            from phenogroups.report.printing import find_chromium, print_page

            chromium = find_chromium()
        from phenogroups.report.page import write_figures, write_page
        from phenogroups.training.run import PAGE, found_none

        if found_none(self.run_folder):
            page = self.run_folder / PAGE
            say(f"{page} stays as it is: a run that found no subgroups keeps its page, and not what it was made of.")
        else:
            page = write_page(self.run_folder)
            say(f"Written: {page}.")
        if self.pdf is not None:
            print_page(chromium, page, self.pdf)
            say(f"Written: {self.pdf}.")
        if self.figures is not None:
            say(f"Written: {len(write_figures(self.run_folder, self.figures))} files in {self.figures}.")


@dataclass(frozen=True)
class Open:
    """Show the report of an earlier run, or the page of a comparison, in the browser."""

    run_folder: RunFolder
    """Folder written by discover, demo or compare."""

    def run(self) -> None:
        import webbrowser

        names = ("report.html", "compare.html")
        page = next((self.run_folder / name for name in names if (self.run_folder / name).is_file()), None)
        if page is None:
            raise ValueError(
                f"Expected a folder with {' or '.join(names)}, as discover and compare write it. "
                f"Received: {self.run_folder}. phenogroups report RUN makes the page of a run again."
            )
        page = page.resolve()
        try:
            is_shown = webbrowser.open(page.as_uri())
        except webbrowser.Error:
            is_shown = False
        say(f"Opened: {page}." if is_shown else f"No browser was found on this machine. The page is {page}.")


@dataclass(frozen=True)
class Methods:
    """List the methods, or say what one of them does: its paper, its settings, their limits and defaults."""

    name: Annotated[Positional[str | None], option("METHOD", "list all")] = None
    """Name of a method."""

    def run(self) -> None:
        from phenogroups.methods import METHODS
        from phenogroups.methods.documentation import describe, one_line

        if self.name is not None:
            say(describe(self.name))
            return
        width = max(map(len, METHODS)) + 2
        for name in METHODS:
            say(f"{name:{width}}{one_line(name)}")
