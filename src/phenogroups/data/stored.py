"""Inputs that stay on disk: rows of an .npy file, read on demand."""

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 2**24  # bytes that iteration reads at once


class StoredRows:
    """Rows of a file, in any order. Slices and selections are views; `np.asarray` reads the numbers.

    Rows are copied into memory and not mapped, since pages of a mapped file count as memory of the process.
    """

    def __init__(self, path: Path, rows: np.ndarray | None = None) -> None:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)  # the header only
        self.path, self.dtype, self._offset = path.resolve(), stored.dtype, stored.offset
        self._inner = stored.shape[1:]
        self._rows = np.arange(len(stored)) if rows is None else rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._rows), *self._inner)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> Any:
        """One row as an array; several rows as a view, which reads nothing yet."""
        chosen = self._rows[rows]
        if np.ndim(chosen) == 0:
            return self._read(np.array([chosen]))[0]
        view = object.__new__(StoredRows)
        view.path, view.dtype, view._offset, view._inner = self.path, self.dtype, self._offset, self._inner
        view._rows = chosen
        return view

    def __iter__(self) -> Iterator[np.ndarray]:
        size = max(1, BLOCK // self._bytes)
        for first in range(0, len(self), size):
            yield from self._read(self._rows[first : first + size])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("Expected to copy: the numbers lie on disk.")
        return self._read(self._rows).astype(dtype or self.dtype, copy=False)

    @property
    def _bytes(self) -> int:
        return int(np.prod(self._inner, dtype=np.int64)) * self.dtype.itemsize

    def _read(self, rows: np.ndarray) -> np.ndarray:
        read = np.empty((len(rows), *self._inner), self.dtype)
        runs = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
        with self._open() as file:
            for run in runs:  # neighbours on disk are read at once
                file.seek(self._offset + int(rows[run[0]]) * self._bytes)
                wanted = memoryview(read[run[0] : run[-1] + 1]).cast("B")  # pyright: ignore[reportArgumentType]
                while wanted:
                    count = file.readinto(wanted)
                    if not count:
                        raise OSError(f"Expected {self.path} whole. Received: it ends early. Delete it and start anew.")
                    wanted = wanted[count:]
        return read

    def _open(self) -> FileIO:
        try:
            return FileIO(self.path)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"Expected decoded inputs in {self.path}. Received: the file is gone. Start again: it is decoded anew."
            ) from None


Inputs = np.ndarray | StoredRows
