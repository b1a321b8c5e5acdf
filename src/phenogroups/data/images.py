"""The image column of a table: its paths, and the checks that all files pass."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from phenogroups.data.cohort import CohortError, name_rows
from phenogroups.data.columns import require_columns
from phenogroups.data.decoding import UnreadableInput
from phenogroups.data.tables import Table
from phenogroups.data.threads import map_ahead

MOST_WORKERS = 4  # threads that decode: more would wait for each other
Found = TypeVar("Found")


@dataclass(frozen=True)
class ImagePath:
    """A cell of the image column: a path in the folder that images lie in."""

    cell: str
    folder: Path | None  # None: a frame made in Python, whose paths may lie anywhere

    def locate(self) -> Path:
        """Raises if the path leads out of the folder: a table from elsewhere must not choose what is read here."""
        if not self.cell:
            raise UnreadableInput("is empty")
        if self.folder is None:
            return Path(self.cell)
        path = self.folder / self.cell
        try:
            # inside by its name or by where links lead: the owner of a folder may place links in it
            is_inside = any(whole(path).is_relative_to(whole(self.folder)) for whole in (_by_name, Path.resolve))
        except (ValueError, OSError, RuntimeError) as error:  # no letter of a path, too long, links in a circle
            raise UnreadableInput(f"is no path ({error})") from error
        if not is_inside:
            raise UnreadableInput(
                f"leads out of the folder {self.folder}; move it there, or name its folder (--folder)"
            )
        return path

    def __str__(self) -> str:
        return self.cell or "the cell"


def _by_name(path: Path) -> Path:
    return Path(os.path.abspath(path))


def image_paths(table: Table) -> list[ImagePath]:
    require_columns(table.rows, [str(table.spec.image)])
    return [ImagePath(cell.strip(), table.folder) for cell in table.rows[table.spec.image]]


def read_ahead(
    paths: Iterable[ImagePath], read: Callable[[Path], Found], ahead: int | None = None
) -> Iterator[Found | UnreadableInput]:
    """What `read` returns for each file, in order, or the error that says why it cannot be used."""

    def attempt(path: ImagePath) -> Found | UnreadableInput:
        try:
            return read(path.locate())
        except UnreadableInput as error:
            return error

    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    return map_ahead(attempt, paths, workers=workers, ahead=ahead or 2 * workers)


def refuse_broken(broken: Mapping[int, str], subject: np.ndarray, paths: list[ImagePath]) -> None:
    if broken:
        raise CohortError(
            f"Expected a readable file in every row. Received {len(broken)} that are not; mend or drop them:\n"
            + "\n".join(f"  row {row + 1} ({subject[row]}): {paths[row]} {why}" for row, why in broken.items())
        )


def require_one_shape(shapes: Mapping[int, tuple[int, ...]], subject: np.ndarray) -> None:
    """`shapes`: of each row."""
    found = list(shapes.values())
    expected = max(set(found), key=found.count, default=())
    other = {row: shape for row, shape in shapes.items() if shape != expected}
    if other:
        raise CohortError(
            f"Expected images of shape {expected}, channels first, as most have. Received: "
            f"{', '.join(map(str, sorted({*other.values()})[:5]))} in {name_rows(subject[list(other)])}. "
            "Bring them to one shape (--size, --channels), or drop them."
        )
