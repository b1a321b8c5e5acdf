"""The commands. Heavy imports wait until a command needs them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from tyro.conf import Positional, arg, subcommand

from phenogroups.cli.options import CohortOptions, parse_settings, parse_subgroups
from phenogroups.cli.progress import (
    ERR,
    LOG,
    OUT,
    comparing_bar,
    counted_lines,
    counting_bar,
    detail,
    embedding_words,
    note,
    say,
    searching,
    training_bar,
)

if TYPE_CHECKING:
    from phenogroups.data.cohort import Cohort
    from phenogroups.data.study import Study
    from phenogroups.evaluation.number import Choice
    from phenogroups.methods import Method
    from phenogroups.workflows.compare import Comparison
    from phenogroups.workflows.discover import Discovery


# exit codes: written, but some subjects could not be assigned; stopped, 128 and the number of the signal as in shells
INCOMPLETE, INTERRUPTED, TERMINATED = 3, 128 + signal.SIGINT, 128 + signal.SIGTERM


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
    overwrite: bool = False
    """Replace a finished run in the folder."""

    def run(self) -> None:
        from phenogroups.data.examples.drawn import drawn_digits
        from phenogroups.methods import build_method
        from phenogroups.training.run import check_writable
        from phenogroups.workflows.discover import discover

        check_writable(self.out, overwrite=self.overwrite)
        epochs = {} if self.epochs is None else {"epochs": self.epochs}
        method = build_method("deep_ucsl", {"seed": self.seed, **epochs})
        with OUT.status(f"drawing {self.subjects} digits"):
            cohort = drawn_digits(self.subjects, sizes=(1 - self.share, self.share), seed=self.seed)
        # both find the pen, which is broad or thin in everybody
        plain = {"kmeans on pixels": "kmeans", "mixture on pixels": "gaussian_mixture"}
        beside = {words: build_method(name, {"seed": self.seed}) for words, name in plain.items()}
        with training_bar(method) as progress:
            found = discover(
                cohort, method, self.out, beside=beside, progress=progress, resume=self.resume,
                overwrite=self.overwrite, command=LOG.command, note=note,
            )  # fmt: skip
        say_what_was_found(found)
        LOG.write(self.out)


@dataclass(frozen=True, kw_only=True)
class Asked(CohortOptions):
    """A cohort, and what is asked of it: how many subgroups, and how many subjects are held out."""

    subgroups: Annotated[str | None, arg(metavar="K|K:K|auto", help_behavior_hint="(default: 2, or the recipe's)")] = (
        None
    )
    """How many subgroups to look for; 2:6 or auto (the same) finds out how many there are, if any."""
    held_out: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="(default: 0.2, or the recipe's)")] = None
    """Share of the subjects kept apart to score on, where the cohort does not say who."""

    def range_of_subgroups(self) -> tuple[int, int]:
        return parse_subgroups(self.subgroups or str(self.chosen().subgroups))

    def share_held_out(self) -> float:
        return self.chosen().held_out if self.held_out is None else self.held_out


@dataclass(frozen=True, kw_only=True)
class Discover(Asked):
    """Find subgroups among the patients of a table (one row per subject), a folder or an example; write a run folder.

    For example: phenogroups discover subjects.csv --image scan --diagnosis dx --control HC --patient SZ BD
    """

    out: Path = Path("phenogroups-run")
    """Run folder to write."""
    overwrite: bool = False
    """Replace a finished run in that folder, once the new one is complete; without this, it is refused."""
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
    """Any other setting of the method, such as restarts=1 encoder=light; a wrong name lists all."""
    epochs: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: the method's)")] = None
    """Epochs of training."""
    device: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: auto)")] = None
    """Where networks compute: auto, cpu, cuda or mps."""
    threads: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: one for each core)")] = None
    """Threads that compute; the last bits of a result depend on their number."""
    verbose: bool = False
    """Print what otherwise only stands in log.txt of the run folder (settings, versions, every epoch), and where an
    error came from."""
    log_losses: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the losses to this CSV after every epoch, to be plotted while the run goes on; in the end, history.csv in
    the run folder has them and more."""
    resume: bool = False
    """Go on after the last epoch that an interrupted run of this command kept; on the same machine to the same bits."""
    workers: int = 0
    """Threads that read ahead from a cohort on disk (--cache); any number gives the same bits."""

    def run(self) -> None:
        from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings

        with keeping_embeddings(embeddings_folder(self.cache), note):
            self.find()

    def find(self) -> None:
        import shutil
        from dataclasses import asdict

        from phenogroups.methods import build_method, settings_of
        from phenogroups.training.run import check_writable, versions
        from phenogroups.workflows.discover import discover, report_none

        if self.threads is not None:
            set_threads(self.threads)
        check_writable(self.out, overwrite=self.overwrite)
        if self.log_losses is not None and self.log_losses.exists() and not (self.overwrite or self.resume):
            raise ValueError(
                f"Expected a new file for the losses. Received: {self.log_losses}, which exists. Name another "
                "(--log-losses), or replace it (--overwrite)."
            )
        chosen = self.chosen()
        name = self.method or chosen.method
        least, most = self.range_of_subgroups()
        settings = {"n_subgroups": least, "seed": self.seed, **chosen.settings_of(name), **parse_settings(self.set)}
        settings |= {"fine_tune": True} if self.fine_tune else {}
        plain = {"epochs": self.epochs, "device": self.device}
        settings |= {setting: value for setting, value in plain.items() if value is not None}
        method = build_method(name, settings)
        detail(f"Method {name}, settings {settings_of(method)}, versions {versions()}.")
        kept = [setting for setting in chosen.settings if setting not in chosen.settings_of(name)]
        left = [setting for setting in kept if setting not in settings_of(method)]
        if left:
            note(f"Settings of the recipe that {name} does not have: {', '.join(left)}.")
        if len(kept) > len(left):
            own = ", ".join(setting for setting in kept if setting not in left)
            note(f"Settings of the recipe that are a part of {name} and stay as they are: {own}.")
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
        say_encoder(method, cohort)
        choice = self.choose(cohort, method, least, most) if most > least else None
        if choice is not None and choice.subgroups == 1:
            sentences = report_none(
                cohort, method, self.out, choice, table=table, kept=self.choosing, command=LOG.command
            )
            for sentence in sentences:
                say(sentence)
            shutil.rmtree(self.choosing, ignore_errors=True)
            say(
                f"Written: {self.out}. Nothing was trained; --subgroups 2 --overwrite would cut the patients in two "
                "all the same."
            )
            LOG.write(self.out)
            return
        if choice is not None:
            say(choice.reason)
            method.set_params(n_subgroups=choice.subgroups)
        if self.runs != 1:
            method = build_method("consensus", {**consensus, "n_subgroups": method.n_subgroups, "settings": settings})
        with training_bar(method, self.log_losses) as progress:
            if self.log_losses is not None and progress is None:
                note(f"The method {name} has no epochs: {self.log_losses} is not written.")
            found = discover(
                cohort, method, self.out, held_out=self.share_held_out(), table=table, choice=choice, progress=progress,
                resume=self.resume, overwrite=self.overwrite, workers=self.workers, command=LOG.command, note=note,
            )  # fmt: skip
        if found.scores:  # of several processes, the first one's
            shutil.rmtree(self.choosing, ignore_errors=True)
            say_what_was_found(found)
            LOG.write(self.out)

    def join(self, method: "Method", *, searching: bool) -> None:
        """Start or join the other processes; all but the first are silent from then on."""
        from phenogroups.training.distributed import launch

        several = (self.devices or 1) * (self.nodes or 1) > 1
        if several:  # said before any other is started
            method.require_distributed_support()
        comm = launch(self.devices, self.nodes, getattr(method, "device", "auto"))
        OUT.quiet = ERR.quiet = comm.rank > 0
        if searching and comm.world_size > 1:
            raise ValueError(
                f"Expected one number of --subgroups in several processes. Received: {self.subgroups}. Look for the "
                "number in one process (some thousand subjects are enough), then give it."
            )

    @property
    def choosing(self) -> Path:
        """What was computed to find the number of subgroups: beside the run folder until that is written."""
        return self.out.resolve().with_name(self.out.resolve().name + ".choosing")

    def choose(self, cohort: "Cohort", method: "Method", least: int, most: int) -> "Choice":
        from phenogroups.data.embeddings import telling_of_embeddings
        from phenogroups.workflows.choose import number_of_subgroups

        with searching("looking for the number of subgroups") as told:
            count = counted_lines(embedding_words)

            def seen(done: int, total: int) -> None:
                if ERR.is_terminal:
                    told(embedding_words(done, total))
                count(done, total)

            with telling_of_embeddings(seen):
                return number_of_subgroups(cohort, method, least=least, most=most, kept=self.choosing, told=told)


@dataclass(frozen=True, kw_only=True)
class Compare(CohortOptions):
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
            from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings
            from phenogroups.workflows.compare import build_methods, check_folder, compare

        chosen = self.chosen()
        subgroups = self.subgroups or (None if self.recipe is None else chosen.subgroups)
        settings = {**parse_settings(self.set), **({"fine_tune": True} if self.fine_tune else {})}
        # a wrong one is said before anything is read
        built = build_methods(self.methods, settings, subgroups or 2, chosen)
        check_folder(self.out)
        cohort, test = self.who(resized=any(method.by_lite0 for method in built.values()))
        try:
            with comparing_bar() as progress, keeping_embeddings(embeddings_folder(self.cache), note):
                found = compare(
                    cohort, self.methods, self.out, seeds=self.seeds, splits=self.splits, n_subgroups=subgroups,
                    settings=settings, recipe=chosen, test=test, held_out=self.held_out, isolated=self.isolated,
                    progress=progress, note=note,
                )  # fmt: skip
        except KeyboardInterrupt as stop:
            note(f"phenogroups: stopped; finished cells are kept in {self.out}, the same command goes on.")
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
class Check(Asked):
    """Read a cohort once, say what is in it and what is odd, and whether training should start (exit code 1: no).

    It judges by what discover would be asked for: give it the same options.

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
                table, held_out = self.open(Path(self.cohort)), self.share_held_out()
                with counting_bar("reading") as progress:
                    found = check_table(table, subgroups=most, held_out=held_out, progress=progress)
        except CohortError as error:  # so wrong that nothing else could be looked at
            found = Findings(problems=[str(error)])
        for kind, sentences in (("", found.facts), ("Warning: ", found.warnings), ("Problem: ", found.problems)):
            for sentence in sentences:
                say(f"{kind}{sentence}")
        say(found.verdict)
        return 0 if found.may_start else 1


@dataclass(frozen=True)
class Predict:
    """Assign the subjects of a new table to the subgroups of an earlier run; needs no diagnosis.

    A file that cannot be read costs its row only: it is named, the others are assigned, and the exit code is 3. Who is
    probably not a patient, or unlike all training subjects, has probabilities and a remark instead of a subgroup.
    """

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder written by discover."""
    table: Annotated[Positional[Path], arg(metavar="TABLE")]
    """One row per subject, with the columns that the run was trained on; or a folder of images."""
    folder: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: the table's)")] = None
    """Where image paths begin, and which they must not leave."""
    subject: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="(default: as in training)")] = None
    """Column that names the row."""
    features_file: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Features of the new subjects, if those of the run came from a file."""
    cache: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Decode images once into a file in this folder, for the next model too; without it, they are read as they go."""
    out: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: TABLE with .subgroups.csv)")] = None
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

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder written by discover."""
    figures: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Also write every figure as PNG and SVG into this folder."""
    pdf: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also print the page into this file, on A4; needs chromium or another browser of its kind."""

    def run(self) -> None:
        if not self.run_folder.is_dir():  # said at once: what makes pages takes seconds to import
            raise ValueError(
                f"Expected a run folder, as discover writes it. Received: {self.run_folder}, which does not exist."
            )
        if self.pdf is not None:  # a missing browser is said before anything is made
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

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
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
    | Annotated[Open, subcommand("open")]
    | Annotated[Check, subcommand("check")]
    | Annotated[Methods, subcommand("methods")]
)


def set_threads(count: int) -> None:
    import torch

    if count < 1:
        raise ValueError(f"Expected --threads of at least 1. Received: {count}.")
    torch.set_num_threads(count)


def say_encoder(method: "Method", cohort: "Cohort") -> None:
    """Which encoder looks at images, and whether it learns."""
    from phenogroups.methods import Consensus
    from phenogroups.networks.encoders import has_weights

    method = method.run(0) if isinstance(method, Consensus) else method
    if cohort.inputs.ndim == 2 or not hasattr(method, "encoder_for"):
        return
    name, weights = method.encoder_for(cohort.inputs), getattr(method, "weights", None)  # pyright: ignore
    if has_weights(name, weights):
        learns = "which are fine-tuned" if getattr(method, "fine_tune", False) else "which stay as they are"
        note(f"Images are seen by the encoder {name} with weights learned elsewhere, {learns}.")
    else:
        note(f"Images are seen by the encoder {name}, from random weights.")


def say_what_was_found(found: "Discovery") -> None:
    from phenogroups.report.tables import known_table, score_table

    for sentence in found.sentences:  # the verdict and all warnings before any figure
        say(sentence)
    table = score_table(found.scores)
    table.title = "Scores on the held-out subjects"
    OUT.print(table)
    if found.known is not None:
        table = known_table(found.known)
        table.title = "Held-out patients by subgroup found and by what is known of them"
        OUT.print(table)
    say(f"Written: {found.folder}. Open {found.folder / 'report.html'} in a browser.")


def say_what_was_compared(found: "Comparison") -> None:
    from phenogroups.report.tables import comparison_table, legend

    Console(width=500).print(comparison_table(found.summary))  # a narrow terminal folds lines, and loses no number
    for sentence in legend(found.summary):
        say(sentence)
    for failure in found.failures:
        say(failure)
    run_now = f"{found.ran} of {len(found.cells)} cells were run now"
    say(f"Written: {found.folder} ({run_now}). Open {found.folder / 'compare.html'} in a browser.")


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C: background processes of scripts ignore SIGINT."""


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within this context, SIGTERM stops a command as Ctrl-C does: files stay complete."""

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
