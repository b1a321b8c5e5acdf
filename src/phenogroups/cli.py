"""The command line: thin sentences over the package. Heavy imports wait until a command needs them."""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from tyro.conf import Positional, arg, subcommand

if TYPE_CHECKING:
    import pandas as pd

    from phenogroups.comparison import Comparison, Step
    from phenogroups.data.cohort import Cohort
    from phenogroups.data.study import Study
    from phenogroups.data.tables import TableSpec
    from phenogroups.discovery import Discovery
    from phenogroups.evaluation.number import Choice
    from phenogroups.methods import Method
    from phenogroups.recipes import Recipe

# exit codes: written, but some subjects could not be assigned; stopped, 128 and the number of the signal as in shells
INCOMPLETE, INTERRUPTED, TERMINATED = 3, 128 + signal.SIGINT, 128 + signal.SIGTERM
# what a terminal would obey instead of showing it: escape sequences, and marks that turn text around
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

OUT = Console()
ERR = Console(stderr=True)
EPOCHS_ARE_KEPT = "Finished epochs are kept: the same command with --resume goes on."

Column = Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")]
Columns = Annotated[tuple[str, ...], arg(metavar="COLUMN ...", help_behavior_hint="")]
Words = Annotated[tuple[str, ...], arg(metavar="WORD ...", help_behavior_hint="")]


@dataclass(frozen=True)
class Demo:
    """Draw a cohort of digits, find the two ways of writing a seven, and write a run folder with a report."""

    out: Path = Path("phenogroups-demo")
    """Run folder to write."""
    subjects: int = 6000
    """Digits to draw, half of them sevens."""
    share: float = 0.5
    """Share of the sevens that have a crossbar."""
    seed: int = 0
    """Same seed, same digits and same result."""
    epochs: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: the method's)")] = None
    """Fewer epochs make a quicker, worse demo."""
    resume: bool = False
    """Go on after the last epoch of an interrupted demo; on the same machine, to the same bits."""

    def run(self) -> None:
        from phenogroups.data.examples.drawn import drawn_digits
        from phenogroups.discovery import discover
        from phenogroups.methods import build_method
        from phenogroups.training.run import check_writable

        check_writable(self.out)
        method = build_method(
            "deep_ucsl", {"seed": self.seed} | ({} if self.epochs is None else {"epochs": self.epochs})
        )
        with OUT.status(f"drawing {self.subjects} digits"):
            cohort = drawn_digits(self.subjects, sizes=(1 - self.share, self.share), seed=self.seed)
        # both find the pen, which is broad or thin in everybody
        plain = {"kmeans on pixels": "kmeans", "mixture on pixels": "gaussian_mixture"}
        beside = {words: build_method(name, {"seed": self.seed}) for words, name in plain.items()}
        with training_bar(method) as progress:
            found = discover(cohort, method, self.out, beside=beside, progress=progress, resume=self.resume, note=aside)
        say_what_was_found(found)


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """How a table is read: one row per subject."""

    image: Column = None
    """Column of image paths; without it, columns of numbers are used."""
    features: Columns = ()
    """Columns of numbers; by default all that have no other meaning."""
    features_file: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Instead of columns: .npy, .npz or .parquet, by subject or with one row per row of the table."""
    folder: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: the table's)")] = None
    """Where image paths begin, and which they must not leave."""
    diagnosis: Annotated[str, arg(metavar="COLUMN")] = "diagnosis"
    """Column that tells patients from controls."""
    control: Words = ()
    """Words of that column that mean control (0 and control are understood)."""
    patient: Words = ()
    """Words of that column that mean patient (1 and patient are understood)."""
    subject: Column = None
    """Column that names the row; by default row1, row2, ..."""
    group: Column = None
    """Column of rows that must stay together, such as both eyes of one person."""
    covariates: Columns = ()
    """Columns such as age, sex, site: not learned from."""
    truth: Column = None
    """Column of known subgroups, for evaluation only."""
    split: Column = None
    """Column whose word train means trained on; all other rows are held out."""
    size: Annotated[tuple[int, ...], arg(metavar="SIDE ...", help_behavior_hint="")] = ()
    """Resize images to this (height width, or depth height width); by default, pictures from 64 pixels a side on to
    224 224, unless another encoder than lite0 is named."""
    frame: Annotated[tuple[int, ...], arg(metavar="SIDE ...", help_behavior_hint="")] = ()
    """Then crop or pad them to this about their centre, without a change of scale."""
    channels: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: as found)")] = None
    """1 for grey, 3 for colour."""
    intensity: Annotated[
        Literal["unit", "minmax", "standardise", "imagenet"] | None,
        arg(metavar="{unit,minmax,standardise,imagenet}", help_behavior_hint="(default: unit)"),
    ] = None
    """What is done to the numbers of each image; unit: integers to 0..1, others as they are."""
    cache: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: only from 0.5 GB on)")] = None
    """Decode images once into a file in this folder and train from there, whatever the cohort's size; what a frozen
    encoder makes of images is kept there too."""
    recipe: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Settings of one of the paper's cohorts, such as odir or odir-fast, or a TOML file; other options win over it."""

    def chosen(self) -> "Recipe":
        from phenogroups.recipes import Recipe, recipe

        return Recipe() if self.recipe is None else recipe(self.recipe)

    def prepare(
        self, table: Path, spec: "TableSpec | None" = None, *, resized: bool = True
    ) -> "tuple[pd.DataFrame, Path, TableSpec]":
        """The rows of a table or of a folder, where their images lie, and which column means what.

        `resized`: pictures that suit the default encoder are read at the size that it was trained at.
        """
        from phenogroups.data.layouts import open_table
        from phenogroups.data.reading import Reading
        from phenogroups.data.tables import resolve_features, resolve_size

        if self.image is not None and self.features_file is not None:
            raise ValueError("Expected --image or --features-file. Received both. Say which is to be learned from.")
        found = open_table(table, self.folder)
        for note in found.notes:
            say(note, ERR)
        if spec is not None:
            return found.rows, found.folder, spec
        given = {f.name: getattr(self, f.name) for f in fields(TableColumns) if getattr(self, f.name) != f.default}
        columns = {name: value for name, value in given.items() if name in vars(found.spec)}
        columns |= {} if self.features_file is None else {"features_file": str(self.features_file), "image": None}
        chosen = self.chosen()
        reading = {name: given[name] for name in vars(Reading()) if name in given}
        rows, spec = chosen.rows(found.rows, chosen.spec(found.spec, columns, reading))
        spec = resolve_features(rows, spec)
        if resized and (spec_of_size := resolve_size(rows, spec, found.folder)) != spec:
            spec = spec_of_size
            say("Images are resized to 224 x 224, at which the encoder lite0 was trained (--size for another).", ERR)
        return rows, found.folder, spec

    def read(self, table: Path, spec: "TableSpec | None" = None, *, resized: bool = True) -> "tuple[Cohort, TableSpec]":
        """The cohort and how it was read, its feature columns named; a `spec` given is that of an earlier table."""
        from phenogroups.data.stored import StoredRows
        from phenogroups.data.tables import read_cohort

        rows, home, spec = self.prepare(table, spec, resized=resized)
        with counting_bar("reading") as progress:
            cohort = read_cohort(
                rows, spec, folder=home, name=table.resolve().stem, cache=self.cache, progress=progress
            )
        images = f"images of shape {cohort.input_shape}" if spec.image else f"{cohort.input_shape[0]} features"
        seen = f"features {', '.join(spec.features)}" if spec.features else images
        if isinstance(cohort.inputs, StoredRows):
            say(f"decoded images are kept in {cohort.inputs.path}; delete it when you need them no more", ERR)
        say(f"{cohort.is_patient.sum()} patients and {(~cohort.is_patient).sum()} controls, {seen}")
        return cohort, spec


@dataclass(frozen=True, kw_only=True)
class Who(TableColumns):
    """Whom a command is about: a table, a folder or an example cohort."""

    cohort: Annotated[Positional[str], arg(metavar="COHORT")]
    """CSV, TSV or Parquet with one row per subject; a folder: <class>/*, BIDS, one per site, ODIR-5K, Kermany's X-rays
    or OCT; or an example: drawn, drawn_brains, mnist0 to mnist9, pneumonia."""
    data: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: PHENOGROUPS_DATA)")] = None
    """Folder of an example's public files."""
    labels: Annotated[Path | None, arg(metavar="JSON", help_behavior_hint="")] = None
    """Known subgroups of an example, read by evaluation only."""
    subjects: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: all)")] = None
    """So many of an example, for a trial."""

    def example(self) -> "Study | None":
        """The example of this name; None if a table or folder is meant."""
        from phenogroups.data.cohort import CohortError
        from phenogroups.data.examples.named import EXAMPLES, example

        if self.cohort in EXAMPLES:
            given = [f.name for f in fields(TableColumns) if getattr(self, f.name) != f.default and f.name != "recipe"]
            given += ["test"] if getattr(self, "test", None) is not None else []
            chosen = self.chosen()
            if given or chosen.table or chosen.reading:
                options = ", ".join(f"--{name.replace('_', '-')}" for name in given) or f"the recipe {chosen.name}"
                raise ValueError(f"Expected {options} only with a table. Received: the example {self.cohort}.")
            with ERR.status(f"reading {self.cohort}"):
                return example(self.cohort, data=self.data, labels=self.labels, subjects=self.subjects)
        given = [f"--{name}" for name in ("data", "labels", "subjects") if getattr(self, name) is not None]
        if given or not Path(self.cohort).exists():
            missing = ", which does not exist" if not given else f" with {', '.join(given)}, which are for examples"
            raise CohortError(
                f"Expected a folder, a table of subjects or an example cohort ({', '.join(EXAMPLES)}). "
                f"Received: {self.cohort}{missing}."
            )
        return None


@dataclass(frozen=True, kw_only=True)
class Discover(Who):
    """Find subgroups among the patients of a table (one row per subject), a folder or an example; write a run folder.

    For example: phenogroups discover subjects.csv --image scan --diagnosis dx --control HC --patient SZ BD
    """

    subgroups: Annotated[str | None, arg(metavar="K|K:K|auto", help_behavior_hint="(default: 2, or the recipe's)")] = (
        None
    )
    """How many subgroups to look for; 2:6 or auto (the same) finds out how many there are, if any."""
    out: Path = Path("phenogroups-run")
    """Run folder to write."""
    held_out: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="(default: 0.2, or the recipe's)")] = None
    """Share of the subjects kept apart to score on, where the cohort does not say who."""
    method: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: deep_ucsl, or the recipe's)")] = (
        None
    )
    """How subgroups are found; a wrong name lists all."""
    runs: int = 1
    """So many runs with seeds of their own; what they agree on is reported, and who is undecided."""
    seed: int = 0
    """Same seed, same result."""
    devices: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 1, or as torchrun says)")] = None
    """Processes that train together on each machine: one for each GPU, or several on one processor."""
    nodes: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 1, or as torchrun says)")] = None
    """Machines that train together, each started with this command (docs/scale.md)."""
    fine_tune: bool = False
    """Let an encoder with weights learn too, once the subgroups are found; kept only if that helps the diagnosis."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Any other setting of the method, such as epochs=20 encoder=light; a wrong name lists all."""
    resume: bool = False
    """Go on after the last epoch that an interrupted run of this command kept; on the same machine to the same bits."""
    workers: int = 0
    """Threads that read ahead from a cohort on disk (--cache); any number gives the same bits."""

    def run(self) -> None:
        from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings

        with keeping_embeddings(embeddings_folder(self.cache), aside):
            self.find()

    def find(self) -> None:
        import shutil
        from dataclasses import asdict

        from phenogroups.discovery import discover, report_none
        from phenogroups.methods import build_method
        from phenogroups.training.run import check_writable

        check_writable(self.out)
        chosen = self.chosen()
        name = self.method or chosen.method
        least, most = parse_subgroups(self.subgroups or str(chosen.subgroups))
        settings = {"n_subgroups": least, "seed": self.seed, **chosen.settings_of(name), **parse_settings(self.set)}
        settings |= {"fine_tune": True} if self.fine_tune else {}
        method = build_method(name, settings)
        left = [setting for setting in chosen.settings if setting not in chosen.settings_of(name)]
        if left:
            say(f"Settings of the recipe that {name} does not have: {', '.join(left)}.", ERR)
        consensus = {"method": name, "runs": self.runs, "seed": settings.pop("seed")}
        settings.pop("n_subgroups")
        if self.runs != 1:  # a wrong setting is said before anything is read
            build_method("consensus", {**consensus, "settings": settings})
        self.join(method, searching=most > least)
        study, table = self.example(), None
        if study is not None:
            cohort = study.joined
        else:
            cohort, spec = self.read(Path(self.cohort), resized=method.by_lite0)
            table = asdict(spec)
        say_who_sees(method, cohort)
        choice = self.choose(cohort, method, least, most) if most > least else None
        if choice is not None and choice.subgroups == 1:
            for sentence in report_none(cohort, method, self.out, choice, table=table):
                say(sentence)
            shutil.rmtree(self.choosing, ignore_errors=True)
            say(f"Written: {self.out}. Nothing was trained; --subgroups 2 would cut the patients in two all the same.")
            return
        if choice is not None:
            say(choice.reason)
            method.set_params(n_subgroups=choice.subgroups)
        if self.runs != 1:
            method = build_method("consensus", {**consensus, "n_subgroups": method.n_subgroups, "settings": settings})
        held_out = chosen.held_out if self.held_out is None else self.held_out
        with training_bar(method) as progress:
            found = discover(
                cohort, method, self.out, held_out=held_out, table=table, choice=choice, progress=progress,
                resume=self.resume, workers=self.workers, note=aside,
            )  # fmt: skip
        if found.scores:  # of several processes, the first one's
            shutil.rmtree(self.choosing, ignore_errors=True)
            say_what_was_found(found)

    def join(self, method: "Method", *, searching: bool) -> None:
        """Start or join the other processes; all but the first are silent from then on."""
        from phenogroups.training.em import launch

        several = (self.devices or 1) * (self.nodes or 1) > 1
        if several:  # said before any other is started
            method.require_shares()
        ranks = launch(self.devices, self.nodes, getattr(method, "device", "auto"))
        OUT.quiet = ERR.quiet = ranks.rank > 0
        if searching and ranks.world > 1:
            raise ValueError(
                f"Expected one number of --subgroups in several processes. Received: {self.subgroups}. Look for the "
                "number in one process (some thousand subjects are enough), then give it."
            )

    @property
    def choosing(self) -> Path:
        """What was computed to find the number of subgroups: beside the run folder until that is written."""
        return self.out.resolve().with_name(self.out.resolve().name + ".choosing")

    def choose(self, cohort: "Cohort", method: "Method", least: int, most: int) -> "Choice":
        from phenogroups.choosing import number_of_subgroups
        from phenogroups.data.embeddings import telling_of_embeddings

        def seen(done: int, total: int) -> None:
            status.update(f"looking for the number of subgroups: {embedding_words(done, total)}")

        with ERR.status("looking for the number of subgroups") as status, telling_of_embeddings(seen):
            return number_of_subgroups(
                cohort, method, least=least, most=most, kept=self.choosing,
                told=lambda what: status.update(f"looking for the number of subgroups: {what}"),
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Compare(Who):
    """Run several methods over several seeds on one cohort and print the paper's table; go on where it was stopped.

    For example: phenogroups compare drawn --methods deep_ucsl simclr kmeans --seeds 3
    """

    methods: Annotated[tuple[str, ...], arg(metavar="METHOD ...")]
    """Methods by name, or all; a wrong name lists them."""
    seeds: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 3)")] = None
    """How many: 0, 1, 2, ... Each holds out another part of the cohort, the same for all methods."""
    splits: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """Instead of seeds: so many divisions into training and validation part, as in the paper's psychiatry table."""
    held_out: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="(default: 0.2; of splits 0.1)")] = None
    """Share of the subjects not trained on, and scored where there is no test cohort."""
    test: Annotated[Path | None, arg(metavar="TABLE", help_behavior_hint="")] = None
    """Other people to score on, in a table with the same columns; all of the cohort is then trained on."""
    subgroups: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: as many as are known, or 2)")] = (
        None
    )
    """How many subgroups to look for."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Settings of all methods that have them, or of one: epochs=20 simclr.temperature=0.5; a wrong name lists all."""
    fine_tune: bool = False
    """Let encoders with weights learn too, once subgroups are found; kept only where that helps the diagnosis."""
    out: Path = Path("phenogroups-compare")
    """Folder to write, or to go on with."""
    isolated: bool = True
    """A process of its own for each cell, which measures its memory and survives its crash."""

    def run(self) -> int:
        with ERR.status("starting"):
            from phenogroups.comparison import build_methods, check_folder, compare
            from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings

        chosen = self.chosen()
        subgroups = self.subgroups or (None if self.recipe is None else chosen.subgroups)
        settings = {**chosen.settings, **parse_settings(self.set), **({"fine_tune": True} if self.fine_tune else {})}
        built = build_methods(self.methods, settings, subgroups or 2)  # a wrong one is said before anything is read
        check_folder(self.out)
        cohort, test = self.who(resized=any(method.by_lite0 for method in built.values()))
        try:
            with comparing_bar() as progress, keeping_embeddings(embeddings_folder(self.cache), aside):
                found = compare(
                    cohort, self.methods, self.out, seeds=self.seeds, splits=self.splits, n_subgroups=subgroups,
                    settings=settings, test=test, held_out=self.held_out, isolated=self.isolated, progress=progress,
                    note=lambda text: say(text, ERR),
                )  # fmt: skip
        except KeyboardInterrupt as stop:
            say(f"phenogroups: stopped; finished cells are kept in {self.out}, the same command goes on.", ERR)
            return code_of(stop)
        say_what_was_compared(found)
        return 1 if found.failures else 0

    def who(self, *, resized: bool) -> "tuple[Cohort | Study, Cohort | None]":
        """The cohort or example asked for, and the test cohort if there is one."""
        study = self.example()
        if study is not None:
            return study, None
        cohort, spec = self.read(Path(self.cohort), resized=resized)
        if self.test is None:
            return cohort, None
        test, _ = self.read(self.test, spec)
        both = sorted({*cohort.group} & {*test.group}) if spec.group or spec.subject else []  # else rows have no names
        if both:
            raise ValueError(
                f"Expected other people in the test table. Received: {', '.join(both[:5])} in both tables "
                f"({len(both)} in all). Drop them from one."
            )
        return cohort, test


@dataclass(frozen=True, kw_only=True)
class Check(Who):
    """Read a cohort once, say what is in it and what is odd, and whether training should start (exit code 1: no).

    For example: phenogroups check subjects.csv --image scan --diagnosis dx --control HC --patient SZ BD
    """

    def run(self) -> int:
        from phenogroups.data.checking import Findings, check_cohort, check_table
        from phenogroups.data.cohort import CohortError

        try:
            study = self.example()
            if study is not None:
                found = check_cohort(study.cohort)
            else:
                rows, home, spec = self.prepare(Path(self.cohort))
                with counting_bar("reading") as progress:
                    found = check_table(rows, spec, folder=home, progress=progress)
        except CohortError as error:  # so wrong that nothing else could be looked at
            found = Findings(problems=[str(error)])
        for fact in found.facts:
            say(fact)
        for warning in found.warnings:
            say(f"Warning: {warning}")
        for problem in found.problems:
            say(f"Problem: {problem}")
        say(found.verdict)
        return 0 if found.may_start else 1


@dataclass(frozen=True)
class Predict:
    """Assign the subjects of a new table to the subgroups of an earlier run; needs no diagnosis.

    A file that cannot be read costs its row only: it is named, the others are assigned, and the exit code is 3.
    """

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder written by discover."""
    table: Annotated[Positional[Path], arg(metavar="TABLE")]
    """One row per subject, with the columns that the run was trained on; or a folder of images."""
    folder: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: the table's)")] = None
    """Where image paths begin, and which they must not leave."""
    features_file: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Features of the new subjects, if those of the run came from a file."""
    cache: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Decode images once into a file in this folder, for the next model too; without it, they are read as they go."""
    out: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: TABLE with .subgroups.csv)")] = None
    """CSV to write."""

    def run(self) -> int:
        from phenogroups.prediction import predict_table

        table = self.table.resolve() if self.table.is_dir() else self.table  # a folder may be called "."
        out = self.out or table.with_suffix(".subgroups.csv")
        with counting_bar("predicting") as progress:
            found = predict_table(
                self.run_folder, self.table, out, progress, folder=self.folder, features_file=self.features_file,
                cache=self.cache, note=lambda text: say(text, ERR),
            )  # fmt: skip
        say(str(found))
        if found.broken:
            more = f", of which {len(found.named)} are named above" if found.broken > len(found.named) else ""
            say(f"{found.broken} subjects have no subgroup{more}; the column problem says why.", ERR)
        return INCOMPLETE if found.broken else 0


@dataclass(frozen=True)
class Report:
    """Make the page of an earlier run again, from its folder alone; with --figures also its pictures for a paper."""

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder written by discover."""
    figures: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Also write every figure as PNG and SVG into this folder."""

    def run(self) -> None:
        from phenogroups.report.page import write_figures, write_page

        say(f"Written: {write_page(self.run_folder)}.")
        if self.figures is not None:
            say(f"Written: {len(write_figures(self.run_folder, self.figures))} files in {self.figures}.")


@dataclass(frozen=True)
class Methods:
    """List the methods, or say what one of them does: its paper, its settings, their limits and defaults."""

    name: Annotated[Positional[str | None], arg(metavar="METHOD", help_behavior_hint="(default: list all)")] = None
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


Command = (
    Annotated[Demo, subcommand("demo")]
    | Annotated[Discover, subcommand("discover")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Predict, subcommand("predict")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Check, subcommand("check")]
    | Annotated[Methods, subcommand("methods")]
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an error that the user can mend is one message, not a traceback."""
    # threads that sleep between operations instead of spinning: several times faster where cores are shared, and read
    # only once, when torch is first imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        from phenogroups import __version__

        print(f"phenogroups {__version__}")
        return 0
    command: Any = tyro.cli(
        Command,  # pyright: ignore[reportArgumentType]
        args=arguments,
        prog="phenogroups",
        description="Find disease subgroups by contrasting patients with healthy controls . Version: --version.",
    )
    try:
        with stopped_by_sigterm():
            return command.run() or 0
    except (ValueError, FloatingPointError, OSError) as error:
        who, ERR.quiet = "phenogroups, another process" if ERR.quiet else "phenogroups", False
        by_the_disk = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        kept = f" {EPOCHS_ARE_KEPT}" if by_the_disk and has_epochs(command) else ""
        say(f"{who}: {error}{kept}", ERR)
        return 2
    except KeyboardInterrupt as stop:
        kept = "nothing was written"
        if getattr(command, "cache", None):
            kept += ", but what was decoded: the same command goes on"
        say(f"phenogroups: stopped; {EPOCHS_ARE_KEPT if has_epochs(command) else f'{kept}.'}", ERR)
        return code_of(stop)


class Terminated(KeyboardInterrupt):
    """As Ctrl-C, which is ignored by whatever a script or some runners start in the background."""


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within, SIGTERM stops a command as Ctrl-C does: files are left whole, and it says what is kept."""

    def stop(*_: object) -> None:
        raise Terminated

    is_main = threading.current_thread() is threading.main_thread()  # only there can signals be handled
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def code_of(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED


def has_epochs(command: Any) -> bool:
    """Whether what a command trained before it was interrupted is kept."""
    if "phenogroups.training.checkpoint" not in sys.modules:  # nothing was trained, and an import now takes seconds
        return False
    from phenogroups.training.checkpoint import is_kept

    return hasattr(command, "resume") and is_kept(command.out)


def aside(text: str) -> None:
    say(text, ERR)


def say(text: str, where: Console = OUT) -> None:
    """As it is: a path or a message is neither markup nor to be broken into lines, and moves no cursor."""
    text = OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    where.print(text, markup=False, highlight=False, soft_wrap=True)


def say_who_sees(method: "Method", cohort: "Cohort") -> None:
    """Which encoder looks at images, and whether it learns."""
    from phenogroups.methods import Consensus
    from phenogroups.networks.encoders import has_weights

    method = method.run(0) if isinstance(method, Consensus) else method
    if cohort.inputs.ndim == 2 or not hasattr(method, "encoder_for"):
        return
    name, weights = method.encoder_for(cohort.inputs), getattr(method, "weights", None)  # pyright: ignore
    if has_weights(name, weights):
        learns = "which are fine-tuned" if getattr(method, "fine_tune", False) else "which stay as they are"
        say(f"Images are seen by the encoder {name} with weights learned elsewhere, {learns}.", ERR)
    else:
        say(f"Images are seen by the encoder {name}, from random weights.", ERR)


def say_what_was_found(found: "Discovery") -> None:
    from phenogroups.evaluation.scores import score_table

    table = score_table(found.scores)
    table.title = "Scores on the held-out subjects"
    OUT.print(table)
    for sentence in found.sentences:
        say(sentence)
    say(f"Written: {found.folder}. Open {found.folder / 'report.html'} in a browser.")


def say_what_was_compared(found: "Comparison") -> None:
    from phenogroups.evaluation.ranking import comparison_table, legend

    Console(width=500).print(comparison_table(found.summary))  # a narrow terminal folds lines, and loses no number
    for sentence in legend(found.summary):
        say(sentence)
    for failure in found.failures:
        say(failure)
    run_now = f"{found.ran} of {len(found.cells)} cells were run now"
    say(f"Written: {found.folder} ({run_now}). Open {found.folder / 'compare.html'} in a browser.")


@contextmanager
def comparing_bar() -> Iterator[Callable[["Step"], None]]:
    """A line that says which cell is at work, how far it is and how long all will take; finished cells stay above."""
    from datetime import timedelta

    from rich.progress import BarColumn, Progress, SpinnerColumn

    columns = (SpinnerColumn(), "{task.description}", BarColumn(20), "{task.fields[left]}")
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task("starting", total=None, left="")

        def show(step: "Step") -> None:
            if step.doing in ("finished", "failed"):
                say(str(step), ERR)
                return
            if step.doing == "begins" and not ERR.is_terminal:
                say(str(step), ERR)
            done = step.cell - 1 + step.epoch / (step.epochs or 1)
            left = "" if step.left is None else f"{timedelta(seconds=round(step.left))} left"
            bar.update(task, description=str(step), completed=done, total=step.cells, left=left)

        yield show


@contextmanager
def training_bar(method: "Method") -> Iterator[Callable[[dict[str, float]], None] | None]:
    """A bar over the epochs, with the losses and the time left; before it, one over the images that are embedded.

    None is told of epochs if the method has none.
    """
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    from phenogroups.data.embeddings import telling_of_embeddings

    epochs = getattr(method, "passes", None)
    columns = ("{task.description}", BarColumn(), "{task.fields[losses]}", TimeRemainingColumn(), "left")
    with Progress(*columns, console=ERR) as bar:
        looking = bar.add_task("", losses="", visible=False)
        task = bar.add_task(f"epoch 1/{epochs}", total=epochs, losses="", visible=epochs is not None)

        def show(row: dict[str, float]) -> None:
            losses = "  ".join(f"{name} {value:.3f}" for name, value in row.items() if name not in ("epoch", "run"))
            run = f"run {row['run']}, " if "run" in row else ""
            epoch = min(int(row["epoch"]) + 1, epochs or 1)
            bar.update(task, completed=row["epoch"], losses=losses, description=f"{run}epoch {epoch}/{epochs}")

        def seen(done: int, total: int) -> None:
            words = embedding_words(done, total)
            bar.update(looking, completed=done, total=total, description=words, visible=done < total)

        with telling_of_embeddings(seen):
            yield show if epochs is not None else None


def embedding_words(done: int, total: int) -> str:
    return f"embedding images {done:,} of {total:,}"


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import Progress

    with Progress(console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def parse_subgroups(words: str) -> tuple[int, int]:
    """The least and the greatest number that was asked for: 3 is 3 and 3."""
    try:
        least, _, most = "2:6".partition(":") if words == "auto" else words.partition(":")
        numbers = int(least), int(most or least)
        if 2 <= numbers[0] <= numbers[1]:
            return numbers
    except ValueError:
        pass
    raise ValueError(f"Expected --subgroups as a number from 2 on, a range such as 2:6, or auto. Received: {words!r}.")


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """name=value pairs, the values as JSON where they are, as words otherwise."""
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


if __name__ == "__main__":
    sys.exit(main())
