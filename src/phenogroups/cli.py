"""The command line: thin sentences over the package. Heavy imports wait until a command needs them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

OUT = Console()
ERR = Console(stderr=True)

Words = tyro.conf.UseAppendAction[tuple[str, ...]]


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
    epochs: int | None = None
    """Fewer epochs make a quicker, worse demo."""

    def run(self) -> int:
        from phenogroups.data.examples.drawn import drawn_digits
        from phenogroups.discovery import discover
        from phenogroups.evaluation.scores import score_table
        from phenogroups.methods import build_method

        with OUT.status(f"drawing {self.subjects} digits"):
            cohort = drawn_digits(self.subjects, sizes=(1 - self.share, self.share), seed=self.seed)
        settings: dict[str, Any] = {"seed": self.seed} | ({"epochs": self.epochs} if self.epochs else {})
        method = build_method("deep_ucsl", settings)
        with training_bar(method.epochs) as progress:
            found = discover(
                cohort, method, self.out, beside={"kmeans": build_method("kmeans", {"seed": self.seed})},
                progress=progress,
            )  # fmt: skip
        OUT.print(score_table(found.scores))
        _say_what_was_written(found.folder)
        return 0


@dataclass(frozen=True)
class Discover:
    """Find subgroups among the patients of a table (CSV or TSV, one row per subject) and write a run folder."""

    table: tyro.conf.Positional[Path]
    """One row per subject."""
    subgroups: int = 2
    """How many subgroups to look for."""
    out: Path = Path("phenogroups-run")
    """Run folder to write."""
    image: str | None = None
    """Column of image paths, relative to the table; without it, columns of numbers are used."""
    features: tuple[str, ...] = ()
    """Columns of numbers; by default all that have no other meaning."""
    diagnosis: str = "diagnosis"
    """Column that tells patients from controls."""
    control: tuple[str, ...] = ()
    """Words of that column that mean control (0 and control are understood)."""
    patient: tuple[str, ...] = ()
    """Words of that column that mean patient (1 and patient are understood)."""
    subject: str | None = None
    """Column that names the row."""
    group: str | None = None
    """Column of rows that must stay together, such as both eyes of one person."""
    covariates: tuple[str, ...] = ()
    """Columns such as age, sex, site."""
    truth: str | None = None
    """Column of known subgroups, for evaluation only."""
    size: tuple[int, ...] = ()
    """Resize images to this (height width)."""
    channels: int | None = None
    """1 for grey, 3 for colour."""
    intensity: str = "unit"
    """unit, minmax or standardise, per image."""
    held_out: float = 0.2
    """Share of the subjects kept apart to score on."""
    method: str = "deep_ucsl"
    seed: int = 0
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Any other setting of the method, such as epochs=20 encoder=resnet18."""

    def run(self) -> int:
        from dataclasses import asdict

        from phenogroups.data.reading import Reading
        from phenogroups.data.tables import TableSpec, read_cohort, read_table, resolve_features
        from phenogroups.discovery import discover
        from phenogroups.evaluation.scores import score_table
        from phenogroups.methods import build_method

        settings = {"n_subgroups": self.subgroups, "seed": self.seed, **_parse_settings(self.set)}
        method = build_method(self.method, settings)
        spec = TableSpec(
            diagnosis=self.diagnosis, control=self.control, patient=self.patient, image=self.image,
            features=self.features, subject=self.subject, group=self.group, covariates=self.covariates,
            truth=self.truth, reading=Reading(self.size or None, self.channels, self.intensity),  # pyright: ignore
        )  # fmt: skip
        spec = resolve_features(read_table(self.table), spec)
        with counting_bar("reading") as progress:
            cohort = read_cohort(self.table, spec, progress=progress)
        with training_bar(getattr(method, "epochs", 1)) as progress:
            found = discover(cohort, method, self.out, held_out=self.held_out, table=asdict(spec), progress=progress)
        OUT.print(score_table(found.scores))
        _say_what_was_written(found.folder)
        return 0


@dataclass(frozen=True)
class Predict:
    """Assign the subjects of a new table to the subgroups of an earlier run; needs no diagnosis."""

    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder written by discover or demo."""
    table: tyro.conf.Positional[Path]
    """One row per subject, with the columns that the run was trained on."""
    out: Path | None = None
    """CSV to write; by default the table's name with .subgroups.csv."""

    def run(self) -> int:
        from phenogroups.discovery import predict_table

        out = self.out or self.table.with_suffix(".subgroups.csv")
        with counting_bar("reading") as progress:
            rows = predict_table(self.run_folder, self.table, out, progress=progress)
        OUT.print(f"{len(rows)} subjects assigned: [bold]{out}[/bold]")
        return 0


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Discover, tyro.conf.subcommand("discover")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an error that the user can mend is one message, not a traceback."""
    command = tyro.cli(
        Command, args=arguments, prog="phenogroups",  # pyright: ignore
        description="Find disease subgroups by contrasting patients with healthy controls.",
    )  # fmt: skip
    try:
        return command.run()
    except (ValueError, FloatingPointError, OSError) as error:
        ERR.print(f"[bold red]phenogroups:[/bold red] {_escaped(error)}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        ERR.print("[bold red]phenogroups:[/bold red] stopped; nothing was written.")
        return 130


@contextmanager
def training_bar(epochs: int) -> Iterator[Callable[[dict[str, float]], None]]:
    """A bar over the epochs, with the losses and the time left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[losses]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=ERR) as bar:
        task = bar.add_task(f"epoch 0/{epochs}", total=epochs, losses="")

        def show(row: dict[str, float]) -> None:
            losses = "  ".join(f"{name} {row[name]:.3f}" for name in ("classification", "clustering") if name in row)
            losses = losses or "  ".join(f"{k} {v:.3f}" for k, v in row.items() if k != "epoch")
            epoch = min(int(row["epoch"]) + 1, epochs)
            bar.update(task, completed=row["epoch"], losses=losses, description=f"epoch {epoch}/{epochs}")

        yield show


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import Progress

    with Progress(console=ERR, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
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


def _say_what_was_written(folder: Path) -> None:
    OUT.print(f"Run folder [bold]{folder}[/bold]: open [bold]{folder / 'report.html'}[/bold] in a browser.")


def _escaped(error: BaseException) -> str:
    from rich.markup import escape

    return escape(str(error))


if __name__ == "__main__":
    sys.exit(main())
