"""Any number of files, decoded ahead of whoever asks for them: memory holds a few blocks, whatever their number."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from phenogroups.data.batches import NUMBERS_AT_ONCE, rows_at_once
from phenogroups.data.cache import cached_inputs
from phenogroups.data.cohort import CohortError
from phenogroups.data.reading import Reading, UnreadableInput, read_input
from phenogroups.data.stored import Inputs, StoredRows
from phenogroups.data.tables import ImagePath

MOST_WORKERS = 4  # threads that decode: more would wait for each other
MOST_BLOCKS = 16  # of those that a network sees at once, in one block here


@dataclass(frozen=True)
class Block:
    """Some rows of a table, one after the other."""

    rows: range
    inputs: Inputs  # (readable rows, ...), in order
    broken: dict[int, str] = field(default_factory=dict)  # rows that have no input, and why

    @property
    def readable(self) -> np.ndarray:
        return np.array([row for row in self.rows if row not in self.broken], dtype=np.int64)


def rows_of_block(shape: tuple[int, ...]) -> int:
    """As many as a network sees at once, or some times as many where inputs are small."""
    at_once = rows_at_once(shape)
    return at_once * int(np.clip(NUMBERS_AT_ONCE // (prod(shape) * at_once), 1, MOST_BLOCKS))


def blocks_of(inputs: Inputs, broken: dict[int, str] | None = None) -> Iterator[Block]:
    """Of inputs that are there already; rows that are `broken` have none among them."""
    broken = broken or {}
    count, size = len(inputs) + len(broken), rows_of_block(inputs.shape[1:])
    begin = 0
    for first in range(0, count, size):
        rows = range(first, min(first + size, count))
        without = {row: broken[row] for row in rows if row in broken}
        end = begin + len(rows) - len(without)
        yield Block(rows, np.asarray(inputs[begin:end]), without)
        begin = end


def decoded_blocks(
    cells: Sequence[str], home: Path | None, reading: Reading, shape: tuple[int, ...], workers: int | None = None
) -> Iterator[Block]:
    """Of files, in order. Threads decode the next ones while the caller computes: decoders let other threads work."""
    workers = workers or min(MOST_WORKERS, os.cpu_count() or 1)
    size = rows_of_block(shape)
    waiting: deque[Future[Block]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        try:
            for first in range(0, len(cells), size):
                rows = range(first, min(first + size, len(cells)))
                paths = [ImagePath(cells[row], home) for row in rows]
                waiting.append(pool.submit(_decode, paths, rows, reading, shape))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for task in waiting:
                task.cancel()


def _decode(paths: list[ImagePath], rows: range, reading: Reading, shape: tuple[int, ...]) -> Block:
    inputs, broken = np.empty((len(rows), *shape), np.float32), {}
    for row, path in zip(rows, paths, strict=True):
        try:
            image = read_input(path.locate(), reading)
            if image.shape != shape:
                raise UnreadableInput(_other_shape(image.shape, shape))
            inputs[row - rows[0] - len(broken)] = image
        except UnreadableInput as error:
            broken[row] = str(error)
        except Exception as error:  # one file must not stop all others
            broken[row] = f"cannot be prepared ({type(error).__name__}: {error})"
    return Block(rows, inputs[: len(rows) - len(broken)], broken)


def cached_rows(
    cells: Sequence[str], home: Path | None, reading: Reading, shape: tuple[int, ...], folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[StoredRows, dict[int, str]]:  # fmt: skip
    """All that can be decoded, as rows of a file in `folder`, and the rows that cannot."""
    paths, broken = [ImagePath(cell, home) for cell in cells], {}

    def on_broken(found: list[tuple[int, str]]) -> None:
        broken.update({rows[place]: why for place, why in found})
        if found:
            raise _OthersRemainError

    def on_shapes(found: dict[int, tuple[int, ...]]) -> None:
        broken.update({rows[at]: _other_shape(one, shape) for at, one in found.items() if one != shape})
        raise _OthersRemainError

    while True:
        rows = [row for row in range(len(paths)) if row not in broken]
        if not rows:
            raise CohortError("Expected files that can be read. Received: none.")
        try:
            stored = cached_inputs(
                [paths[row].locate for row in rows], reading, folder, on_broken=on_broken, on_shapes=on_shapes,
                progress=progress,
            )  # fmt: skip
        except _OthersRemainError:
            continue
        if stored.shape[1:] != shape:
            why = _other_shape(stored.shape[1:], shape)
            raise CohortError(f"Expected images as in training. Received: every one {why}.")
        return stored, broken


class _OthersRemainError(CohortError):
    """Some rows were found broken; the rest is decoded without them."""


def _other_shape(found: tuple[int, ...], shape: tuple[int, ...]) -> str:
    return f"has shape {found}, channels first; those of training have {shape}"
