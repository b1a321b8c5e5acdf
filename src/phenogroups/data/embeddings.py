"""A cache of embeddings, by the content of an input and by the encoder.

The key of a row is the checksum of its numbers: splits, seeds and commands that share images share their embeddings,
which are computed again for a changed image or another encoder. In a folder, every encoder has one file of records of
equal size, which is only appended to; a damaged record is ignored and computed again.
"""

import os
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path

import numpy as np

from phenogroups.data.cache import Progress, user_cache
from phenogroups.data.threads import set_within
from phenogroups.data.writing import lock

MOST = 2**28  # bytes of embeddings that a process holds in memory where there is no folder: 175,000 of lite0
MOST_TEMPORARY = 2**26  # the same within `keeping_embeddings(None)`: several runs of a consensus need the same
BLOCK = 2**24  # bytes that are read at once


class Memory:
    """Embeddings in memory; the oldest are dropped beyond `most` bytes."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[tuple[str, bytes], np.ndarray] = OrderedDict()

    def look_again(self, encoder: str, dim: int) -> None:
        """Nothing to do: no other process writes here."""

    def find(self, encoder: str, key: bytes) -> np.ndarray | None:
        return self._kept.get((encoder, key))

    def add(self, encoder: str, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        for key, vector in zip(keys, vectors, strict=True):
            if (encoder, key) not in self._kept:
                self._kept[encoder, key] = vector.copy()
                self._bytes += vector.nbytes
        while self._bytes > self._most:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes


class Folder:
    """One file for each encoder; several processes may read and append at once."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.folder, self._note = folder, note
        self._places: dict[str, dict[bytes, int]] = {}  # by encoder: key -> position of its record
        self._read: dict[str, int] = {}  # by encoder: number of records whose keys were read
        self._dim: dict[str, int] = {}
        self._fallback: Memory | None = None  # used once the folder cannot be written

    def look_again(self, encoder: str, dim: int) -> None:
        """Read the keys of records that were appended since the last call."""
        places, record = self._places.setdefault(encoder, {}), _record(dim)
        self._dim[encoder] = dim
        try:
            with self._path(encoder).open("rb", buffering=0) as file:
                whole = os.fstat(file.fileno()).st_size // record.itemsize
                first = self._read.get(encoder, 0)
                if whole < first:  # the file was deleted and started again
                    places.clear()
                    first = 0
                file.seek(first * record.itemsize)
                while first < whole:
                    count = min(max(BLOCK // record.itemsize, 1), whole - first)
                    found = np.frombuffer(file.read(count * record.itemsize), record)
                    places.update({one["key"].tobytes(): first + i for i, one in enumerate(found) if _is_sound(one)})
                    first += len(found)
                    if len(found) < count:
                        break
                self._read[encoder] = first
        except FileNotFoundError:
            places.clear()
            self._read[encoder] = 0
        except OSError as error:
            self._use_memory(error)

    def find(self, encoder: str, key: bytes) -> np.ndarray | None:
        place = self._places[encoder].get(key)
        if place is None:
            return None if self._fallback is None else self._fallback.find(encoder, key)
        record = _record(self._dim[encoder])
        try:
            with self._path(encoder).open("rb", buffering=0) as file:
                file.seek(place * record.itemsize)
                one = np.frombuffer(file.read(record.itemsize), record)[0]
        except (OSError, ValueError, IndexError):  # gone or cut off meanwhile
            return None
        return one["vector"] if one["key"].tobytes() == key and _is_sound(one) else None

    def add(self, encoder: str, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        if self._fallback is not None:
            return self._fallback.add(encoder, keys, vectors)
        record = _record(vectors.shape[1])
        records = np.zeros(len(keys), record)
        records["key"] = np.frombuffer(b"".join(keys), record["key"])
        records["vector"] = vectors
        records["crc"] = [_checksum(one) for one in records]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._path(encoder).open("ab", buffering=0) as file:
                lock(file)  # without locks, records that two processes append at once are damaged and computed again
                # an incomplete record of an interrupted process must not shift the records after it
                whole = os.fstat(file.fileno()).st_size // record.itemsize
                file.truncate(whole * record.itemsize)
                if file.write(records.tobytes()) != records.nbytes:
                    raise OSError("no space left on device")
        except OSError as error:
            self._use_memory(error)
            return self.add(encoder, keys, vectors)
        self._places[encoder].update({key: whole + i for i, key in enumerate(keys)})

    def _path(self, encoder: str) -> Path:
        return self.folder / f"{encoder}.embeddings"

    def _use_memory(self, error: OSError) -> None:
        if self._fallback is None:
            self._fallback = Memory()
            self._note(f"Embeddings cannot be kept in {self.folder} ({error}): they will be computed again next time.")


_store: ContextVar["Memory | Folder"] = ContextVar("store", default=Memory())  # noqa: B039, one for the process is meant
_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


def store() -> Memory | Folder:
    """The cache of the current context: in memory, unless `keeping_embeddings` set another."""
    return _store.get()


def current_folder() -> Path | None:
    """The folder of the current cache, if it has one; processes that are started need it."""
    return getattr(_store.get(), "folder", None)


def told() -> Progress | None:
    """The progress callback of the current context."""
    return _progress.get()


def keeping_embeddings(
    folder: Path | None, note: Callable[[str], None] = warnings.warn
) -> AbstractContextManager[None]:
    """Within this context, embeddings are cached in `folder`; None: in memory, until the context ends."""
    return set_within(_store, Memory(MOST_TEMPORARY) if folder is None else Folder(folder, note))


def embedding_progress(progress: Progress) -> AbstractContextManager[None]:
    """Within this context, `progress` is called with the numbers of embedded and of all inputs."""
    return set_within(_progress, progress)


def embeddings_folder(cache: Path | None) -> Path:
    """The folder `embeddings` in `cache`, or beside the decoded images in the user's cache."""
    return user_cache().with_name("embeddings") if cache is None else Path(cache) / "embeddings"


def key_of(row: np.ndarray) -> bytes:
    """A checksum of one input: its numbers, their type and their shape."""
    digest = sha256(repr((row.dtype.str, row.shape)).encode())
    digest.update(np.ascontiguousarray(row).data)
    return digest.digest()


def _record(dim: int) -> np.dtype:
    return np.dtype([("key", f"V{sha256().digest_size}"), ("vector", "<f4", (dim,)), ("crc", "<u4")])


def _checksum(one: np.void) -> int:
    return zlib.crc32(one["vector"].tobytes(), zlib.crc32(one["key"].tobytes()))


def _is_sound(one: np.void) -> bool:
    return _checksum(one) == one["crc"]
