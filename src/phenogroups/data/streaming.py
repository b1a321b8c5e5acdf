"""The inputs of any number of subjects in blocks, of which memory holds a few at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from phenogroups.data.batches import NUMBERS_AT_ONCE, rows_at_once
from phenogroups.data.cache import Progress, UnusableRows, cached_inputs
from phenogroups.data.cohort import CohortError
from phenogroups.data.decoding import UnreadableInput
from phenogroups.data.reading import ImagePath, Reading, read_ahead, read_input
from phenogroups.data.stored import Inputs, StoredRows

MOST_BATCHES = 16  # in one block


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table."""

    rows: range
    inputs: Inputs  # (readable rows, ...), in order
    broken: dict[int, str] = field(default_factory=dict)  # rows that have no input, and why

    @property
    def readable(self) -> np.ndarray:
        return np.array([row for row in self.rows if row not in self.broken], dtype=np.int64)


def rows_of_block(shape: tuple[int, ...]) -> int:
    """One batch of a network, or several where inputs are small."""
    at_once = rows_at_once(shape)
    return at_once * int(np.clip(NUMBERS_AT_ONCE // (prod(shape) * at_once), 1, MOST_BATCHES))


def blocks_of(inputs: Inputs, broken: dict[int, str] | None = None) -> Iterator[Block]:
    """Yield blocks of inputs in memory or in a file, which has no input for `broken` rows."""
    broken = broken or {}
    count, size = len(inputs) + len(broken), rows_of_block(inputs.shape[1:])
    begin = 0
    for first in range(0, count, size):
        rows = range(first, min(first + size, count))
        without = {row: broken[row] for row in rows if row in broken}
        end = begin + len(rows) - len(without)
        yield Block(rows, np.asarray(inputs[begin:end]), without)
        begin = end


def decoded_blocks(paths: list[ImagePath], reading: Reading, shape: tuple[int, ...]) -> Iterator[Block]:
    """Yield blocks of files, in order; threads decode the next block while the caller computes."""
    size = rows_of_block(shape)
    files = read_ahead(paths, lambda path: _read_row(path, reading, shape), ahead=2 * size)
    for first in range(0, len(paths), size):
        rows = range(first, min(first + size, len(paths)))
        inputs, broken = np.empty((len(rows), *shape), np.float32), {}
        for row in rows:
            image = next(files)
            if isinstance(image, UnreadableInput):
                broken[row] = str(image)
            else:
                inputs[row - first - len(broken)] = image
        yield Block(rows, inputs[: len(rows) - len(broken)], broken)


def _read_row(path: Path, reading: Reading, shape: tuple[int, ...]) -> np.ndarray:
    try:
        image = read_input(path, reading)
    except UnreadableInput:
        raise
    except Exception as error:  # one file must not stop all others
        raise UnreadableInput(f"cannot be prepared ({type(error).__name__}: {error})") from error
    if image.shape != shape:
        raise UnreadableInput(_other_shape(image.shape, shape))
    return image


def cached_rows(
    paths: list[ImagePath], reading: Reading, shape: tuple[int, ...], folder: Path, progress: Progress | None = None
) -> tuple[StoredRows, dict[int, str]]:
    """All rows that can be decoded, in a file in `folder`, and why the others cannot."""
    broken: dict[int, str] = {}
    while True:
        rows = [row for row in range(len(paths)) if row not in broken]
        if not rows:
            raise CohortError("Expected files that can be read. Received: none.")
        try:
            stored = cached_inputs([paths[row] for row in rows], reading, folder, progress=progress)
        except UnusableRows as error:  # decode the others
            broken |= {rows[at]: why for at, why in error.broken.items()}
            broken |= {rows[at]: _other_shape(one, shape) for at, one in error.shapes.items() if one != shape}
            continue
        if stored.shape[1:] != shape:
            why = _other_shape(stored.shape[1:], shape)
            raise CohortError(f"Expected images as in training. Received: every one {why}.")
        return stored, broken


def _other_shape(found: tuple[int, ...], shape: tuple[int, ...]) -> str:
    if len(found) == len(shape) and found[1:] == shape[1:]:
        channels = {1: "grey (1 channel)", 3: "in colour (3 channels)"}
        now, then = (channels.get(each[0], f"of {each[0]} channels") for each in (found, shape))
        return f"is {now}, and those of training are {then}; save it as they are if it is the same kind of picture"
    return f"has shape {found}, channels first; those of training have {shape}"
