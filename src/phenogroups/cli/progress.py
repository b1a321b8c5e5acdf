"""What the terminal shows while a command runs: messages and progress bars."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from phenogroups.methods import Method
    from phenogroups.workflows.compare import Step

# what a terminal would obey instead of showing it: escape sequences, and marks that turn text around
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

OUT = Console()
ERR = Console(stderr=True)


def note(text: str) -> None:
    say(text, ERR)


def say(text: str, where: Console = OUT) -> None:
    """Print text without markup, without line breaks and without control characters."""
    text = OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    where.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def comparing_bar() -> Iterator[Callable[["Step"], None]]:
    """The running cell, its progress and the time left, in one line below the finished cells."""
    from datetime import timedelta

    from rich.progress import BarColumn, Progress, SpinnerColumn

    columns = (SpinnerColumn(), "{task.description}", BarColumn(20), "{task.fields[left]}")
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task("starting", total=None, left="")

        def show(step: "Step") -> None:
            if step.doing in ("finished", "failed"):
                note(str(step))
                return
            if step.doing == "begins" and not ERR.is_terminal:
                note(str(step))
            done = step.cell - 1 + step.epoch / (step.epochs or 1)
            left = "" if step.left is None else f"{timedelta(seconds=round(step.left))} left"
            bar.update(task, description=str(step), completed=done, total=step.cells, left=left)

        yield show


@contextmanager
def training_bar(method: "Method") -> Iterator[Callable[[dict[str, float]], None] | None]:
    """A bar over the epochs, with the losses and the time left; before it, one over the images that are embedded.

    Yields None where the method has no epochs.
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
