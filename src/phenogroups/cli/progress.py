"""What the terminal shows while a command runs: messages and progress bars.

Where the output is redirected, progress is printed as lines instead of bars.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from phenogroups.methods import Method
    from phenogroups.workflows.run_cells import Step

# control characters that a terminal would obey instead of showing them: escape sequences, and marks of text direction
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
EVERY = 100  # images read, or embedded, between two lines where the output is redirected
NO_LOSSES = ("epoch", "run", "last")  # entries of a row of progress that are no losses

OUT = Console()
ERR = Console(stderr=True)


@dataclass
class Log:
    """All messages of the command so far, for the log file of a run folder."""

    lines: list[str] = field(default_factory=list)
    verbose: bool = False  # whether details are printed too
    has_begun: bool = False  # whether anything was computed that a log could explain
    command: str = ""  # as the user typed it

    def write(self, folder: Path) -> None:
        """Write into the folder of a finished run, and delete the log of an earlier attempt that failed."""
        beside(folder).unlink(missing_ok=True)
        self._write(folder / "log.txt")

    def write_beside(self, folder: Path) -> None:
        """Write beside the folder that a failed or interrupted run would have written."""
        with suppress(OSError, ValueError):  # a full disk may be why it failed
            beside(folder).parent.mkdir(parents=True, exist_ok=True)
            self._write(beside(folder))
            note(f"What it said and did until then is in {beside(folder)}.")

    def _write(self, path: Path) -> None:
        from phenogroups.data.writing import write_whole

        write_whole(path, "\n".join(self.lines) + "\n")


def beside(folder: Path) -> Path:
    """The log file of a run that was not finished."""
    return folder.resolve().with_name(f"{folder.resolve().name}.log.txt")


LOG = Log()


def note(text: str) -> None:
    say(text, ERR)


def detail(text: str, *, shown: bool = False) -> None:
    """A line of the log file, which is printed only if it is asked for."""
    say(text, ERR if shown or LOG.verbose else None)


def say(text: str, where: Console | None = OUT) -> None:
    """Print text without markup, without line breaks and without control characters."""
    text = CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], text)
    LOG.lines.append(f"{now()}  {text}")
    if where is not None:
        where.print(text, markup=False, highlight=False, soft_wrap=True)


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


class Clock:
    """Estimates the time left from the share of the work that is done."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def left(self, done: float, total: float) -> str:
        return time_left((time.monotonic() - self.began) * (total / done - 1)) if done else ""


def time_left(seconds: float) -> str:
    return f"{timedelta(seconds=round(seconds))} left"


@contextmanager
def comparing_bar() -> Iterator[Callable[["Step"], None]]:
    """The running cell, its progress and the time left, in one line below the finished cells.

    Where the output is redirected, a line for each cell that begins or ends.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn

    columns = (SpinnerColumn(), "{task.description}", BarColumn(20), "{task.fields[left]}")
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task("starting", total=None, left="")

        def show(step: "Step") -> None:
            left = "" if step.left is None else time_left(step.left)
            if step.doing in ("finished", "failed"):
                note(str(step))
                return
            if step.doing == "begins" and not ERR.is_terminal:
                note(f"{step}  {left}".rstrip())
            bar.update(task, description=str(step), completed=step.cell - 1 + step.share, total=step.cells, left=left)

        yield show


@contextmanager
def training_bar(
    method: "Method", losses_file: Path | None = None
) -> Iterator[Callable[[dict[str, float]], None] | None]:
    """A bar over the epochs, with the losses and the time left; above it, one over the images that are embedded.

    Where the output is redirected, a line for each epoch and for every hundred images. Yields None where the method has
    no epochs. `losses_file` is written anew, as CSV, after every epoch.
    """
    import pandas as pd
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    from phenogroups.data.embeddings import embedding_progress
    from phenogroups.training.run import write_csv

    rows: list[dict[str, Any]] = []
    LOG.has_begun = True
    epochs, clock, ended = getattr(method, "passes", None), Clock(), 0.0
    columns = ("{task.description}", BarColumn(), "{task.fields[losses]}", TimeRemainingColumn(), "left")
    with Progress(*columns, console=ERR, disable=not ERR.is_terminal) as bar:
        embedding = bar.add_task("", losses="", visible=False)
        task = bar.add_task("training", total=epochs, losses="", visible=epochs is not None)

        def show(row: dict[str, float]) -> None:
            nonlocal ended
            losses = "  ".join(f"{name} {value:.3f}" for name, value in row.items() if name not in NO_LOSSES)
            words = method.epoch_in_words(row["epoch"], row.get("last"))  # pyright: ignore[reportAttributeAccessIssue]
            epochs = method.passes  # pyright: ignore[reportAttributeAccessIssue], fewer than before `fit` for tables
            bar.update(task, completed=row["epoch"], total=epochs, losses=losses, description=words)
            if row["epoch"] > ended and row["epoch"] % 1 == 0:
                ended = row["epoch"]
                line = "  ".join(filter(None, (words, losses, clock.left(row["epoch"], epochs))))
                detail(line, shown=not ERR.is_terminal)
                if losses_file is not None:
                    rows.append({"time": now(), "training": words, **row})
                    write_csv(losses_file, pd.DataFrame(rows).drop(columns=["epoch", "last"], errors="ignore"))

        def show_images(done: int, total: int, words: str) -> None:
            bar.update(embedding, completed=done, total=total, description=words, visible=done < total)

        with embedding_progress(counter("embedding images", show_images)):
            yield show if epochs is not None else None


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over rows; where the output is redirected, a line for every hundred."""
    from rich.progress import Progress

    with Progress(console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield counter(what, lambda done, total, _: bar.update(task, completed=done, total=total))


@contextmanager
def searching(what: str) -> Iterator[Callable[[str], None]]:
    """The step of a search beside a spinner; where the output is redirected, a line for each step."""
    from phenogroups.data.embeddings import embedding_progress

    LOG.has_begun = True
    if not ERR.is_terminal:
        note(what)
    with ERR.status(what) as status:

        def show(step: str) -> None:
            status.update(f"{what}: {step}")
            if not ERR.is_terminal:
                note(f"{what}: {step}")

        show_images = counter("embedding images", lambda _, __, words: status.update(f"{what}: {words}"))
        with embedding_progress(show_images):
            yield show


def counter(what: str, show: Callable[[int, int, str], Any]) -> Callable[[int, int], None]:
    """A callback for counts: calls `show` with the number done, the total and both in words.

    Where the output is redirected, prints a line with the time left for every hundred.
    """
    clock, printed = Clock(), 0

    def count(done: int, total: int) -> None:
        nonlocal printed
        words = f"{what} {done:,} of {total:,}"
        show(done, total, words)
        printed = min(printed, done)  # a smaller number means that another count begins
        if not ERR.is_terminal and done // EVERY > printed // EVERY:
            printed = done
            note(f"{words}  {clock.left(done, total)}")

    return count
