"""The command line: thin sentences over the package. Heavy imports wait until a command needs them."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from tyro.conf import Positional, arg, subcommand

if TYPE_CHECKING:
    from phenogroups.discovery import Discovery
    from phenogroups.methods import Method

OUT = Console()
ERR = Console(stderr=True)

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
        beside = {"kmeans on pixels": build_method("kmeans", {"seed": self.seed})}
        with training_bar(method) as progress:
            found = discover(cohort, method, self.out, beside=beside, progress=progress)
        say_what_was_found(found)


@dataclass(frozen=True)
class Discover:
    """Find subgroups among the patients of a table (CSV or TSV, one row per subject) and write a run folder.

    For example: phenogroups discover subjects.csv --image scan --diagnosis dx --control HC --patient SZ BD
    """

    table: Annotated[Positional[Path], arg(metavar="TABLE")]
    """One row per subject."""
    subgroups: int = 2
    """How many subgroups to look for."""
    out: Path = Path("phenogroups-run")
    """Run folder to write."""
    image: Column = None
    """Column of image paths, relative to the table; without it, columns of numbers are used."""
    features: Columns = ()
    """Columns of numbers; by default all that have no other meaning."""
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
    size: Annotated[tuple[int, ...], arg(metavar="SIDE ...", help_behavior_hint="")] = ()
    """Resize images to this (height width, or depth height width)."""
    channels: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: as found)")] = None
    """1 for grey, 3 for colour."""
    intensity: Literal["unit", "minmax", "standardise"] = "unit"
    """What is done to the numbers of each image; unit: integers to 0..1, others as they are."""
    held_out: float = 0.2
    """Share of the subjects kept apart to score on."""
    method: str = "deep_ucsl"
    """How subgroups are found; a wrong name lists all."""
    seed: int = 0
    """Same seed, same result."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Any other setting of the method, such as epochs=20 encoder=resnet18; a wrong name lists all."""

    def run(self) -> None:
        from dataclasses import asdict

        from phenogroups.data.reading import Reading
        from phenogroups.data.tables import TableSpec, read_cohort, read_table, resolve_features
        from phenogroups.discovery import discover
        from phenogroups.methods import build_method
        from phenogroups.training.run import check_writable

        check_writable(self.out)
        method = build_method(
            self.method, {"n_subgroups": self.subgroups, "seed": self.seed, **parse_settings(self.set)}
        )
        spec = TableSpec(
            diagnosis=self.diagnosis, control=self.control, patient=self.patient, image=self.image,
            features=self.features, subject=self.subject, group=self.group, covariates=self.covariates,
            truth=self.truth, reading=Reading(self.size or None, self.channels, self.intensity),
        )  # fmt: skip
        spec = resolve_features(read_table(self.table), spec)
        with counting_bar("reading") as progress:
            cohort = read_cohort(self.table, spec, progress=progress)
        seen = f"features {', '.join(spec.features)}" if spec.features else f"images of shape {cohort.input_shape}"
        say(f"{cohort.is_patient.sum()} patients and {(~cohort.is_patient).sum()} controls, {seen}")
        with training_bar(method) as progress:
            found = discover(cohort, method, self.out, held_out=self.held_out, table=asdict(spec), progress=progress)
        say_what_was_found(found)


@dataclass(frozen=True)
class Predict:
    """Assign the subjects of a new table to the subgroups of an earlier run; needs no diagnosis."""

    run_folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder written by discover."""
    table: Annotated[Positional[Path], arg(metavar="TABLE")]
    """One row per subject, with the columns that the run was trained on."""
    out: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: TABLE with .subgroups.csv)")] = None
    """CSV to write."""

    def run(self) -> None:
        from phenogroups.discovery import predict_table

        out = self.out or self.table.with_suffix(".subgroups.csv")
        with counting_bar("reading") as progress:
            rows = predict_table(self.run_folder, self.table, out, progress=progress)
        sizes = ", ".join(f"{letter} {n}" for letter, n in rows["subgroup"].value_counts().sort_index().items())
        say(f"{len(rows)} subjects assigned ({sizes}): {out}")


Command = (
    Annotated[Demo, subcommand("demo")]
    | Annotated[Discover, subcommand("discover")]
    | Annotated[Predict, subcommand("predict")]
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an error that the user can mend is one message, not a traceback."""
    # threads that sleep between operations instead of spinning: several times faster where cores are shared, and read
    # only once, when torch is first imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    command: Any = tyro.cli(
        Command,  # pyright: ignore[reportArgumentType]
        args=arguments,
        prog="phenogroups",
        description="Find disease subgroups by contrasting patients with healthy controls.",
    )
    try:
        command.run()
    except (ValueError, FloatingPointError, OSError) as error:
        say(f"phenogroups: {error}", ERR)
        return 2
    except KeyboardInterrupt:
        say("phenogroups: stopped; nothing was written.", ERR)
        return 130
    return 0


def say(text: str, where: Console = OUT) -> None:
    """As it is: a path or a message is neither markup nor to be broken into lines."""
    where.print(text, markup=False, highlight=False, soft_wrap=True)


def say_what_was_found(found: "Discovery") -> None:
    from phenogroups.evaluation.scores import score_table

    table = score_table(found.scores)
    table.title = "Scores on the held-out subjects"
    OUT.print(table)
    for sentence in found.sentences:
        say(sentence)
    say(f"Written: {found.folder}. Open {found.folder / 'report.html'} in a browser.")


@contextmanager
def training_bar(method: "Method") -> Iterator[Callable[[dict[str, float]], None] | None]:
    """A bar over the epochs, with the losses and the time left; none for a method that has no epochs."""
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    epochs = getattr(method, "passes", None)
    if epochs is None:
        yield None
        return
    columns = ("{task.description}", BarColumn(), "{task.fields[losses]}", TimeRemainingColumn(), "left")
    with Progress(*columns, console=ERR) as bar:
        task = bar.add_task(f"epoch 1/{epochs}", total=epochs, losses="")

        def show(row: dict[str, float]) -> None:
            losses = "  ".join(f"{name} {value:.3f}" for name, value in row.items() if name != "epoch")
            epoch = min(int(row["epoch"]) + 1, epochs)
            bar.update(task, completed=row["epoch"], losses=losses, description=f"epoch {epoch}/{epochs}")

        yield show


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import Progress

    with Progress(console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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
