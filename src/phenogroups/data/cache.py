"""Cohorts larger than memory: every file is decoded once into one .npy file, from which training reads rows.

The name of the file is a checksum of what it was made of (paths, their sizes and times, the reading), so that a changed
input or another size is decoded anew. It is written as .partial beside a journal of finished rows, from which an
interrupted decoding continues, and renamed to .npy when it is complete.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from phenogroups.data.cohort import CohortError
from phenogroups.data.decoding import UnreadableInput
from phenogroups.data.reading import ImagePath, Reading, read_ahead, read_input
from phenogroups.data.stored import StoredRows
from phenogroups.data.untrusted import machine_memory
from phenogroups.data.writing import lock

FORMAT = 1  # of the key; raised when decoding changes
RECORD = np.dtype([("row", "<i8"), ("crc", "<u4")])  # one entry of the journal
DTYPE = np.dtype("<f4")
MOST_HELD = 2**29  # largest size of decoded inputs that are held in memory, in bytes: a split holds them twice
SHARE = 0.5  # the same, as a share of the machine's memory

Progress = Callable[[int, int], None]  # called with the number of finished rows and of all rows


class UnusableRows(CohortError):
    """Some files cannot be read, or shapes differ. Nothing is kept, since the corrected files get another checksum."""

    def __init__(self, broken: dict[int, str], shapes: dict[int, tuple[int, ...]]) -> None:
        super().__init__(f"Expected readable files of one shape. Received: {len(broken)} unreadable ones.")
        self.broken, self.shapes = broken, shapes  # by row: the reason why it cannot be read, or its shape


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phenogroups" / "decoded"


def too_large_to_hold(count: int, first: np.ndarray) -> bool:
    """Whether `count` inputs of this size exceed the memory limit."""
    memory = machine_memory()
    return count * first.nbytes > min(MOST_HELD, SHARE * memory if memory is not None else MOST_HELD)


def cached_inputs(
    paths: Sequence[ImagePath], reading: Reading, folder: Path, *, progress: Progress | None = None
) -> StoredRows:
    """All inputs as rows of one file in `folder`; raises UnusableRows."""
    key = _key(paths, reading)
    whole, record, lock_file = (folder / f"{key}.{ending}" for ending in ("npy", "crc", "lock"))
    together = "LOCAL_RANK" in os.environ  # set by torchrun and Fabric: processes that train together take turns
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_file.open("w") as file:
            if not lock(file, wait=together):
                raise CohortError(
                    f"Expected no other process that decodes this cohort into {folder}. Received: there is one. "
                    "Wait for it, then start again."
                )
            try:
                if len(_intact_rows(whole, record, len(paths), progress)) < len(paths):
                    _decode_all(paths, reading, whole, record, progress)
            finally:
                if not together:  # another process may be waiting for this very file
                    with suppress(OSError):
                        lock_file.unlink()
    except OSError as error:
        raise CohortError(
            f"Expected to keep decoded inputs in {folder}. Received: {error}. Name another folder (--cache)."
        ) from error
    return StoredRows(whole)


def _key(paths: Sequence[ImagePath], reading: Reading) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, asdict(reading)]).encode())
    for image in paths:
        try:
            path = image.locate()
            about = path.stat()
            described = f"{path.resolve()}\x1f{about.st_size}\x1f{about.st_mtime_ns}"
        except (UnreadableInput, OSError) as error:
            described = str(error)
        digest.update(described.encode() + b"\x1e")
    return digest.hexdigest()[:32]


def _decode_all(
    paths: Sequence[ImagePath], reading: Reading, whole: Path, record: Path, progress: Progress | None
) -> None:
    partial, journal = whole.with_suffix(".partial"), record.with_suffix(".journal")
    done = _intact_rows(partial, journal, len(paths))
    broken: dict[int, str] = {}
    begin, shape = (0, None) if not done else _header(partial)
    shape = None if shape is None else shape[1:]
    shapes = dict.fromkeys(done, shape or ())
    try:
        with partial.open("r+b" if done else "w+b") as numbers, journal.open("ab" if done else "wb") as log:
            left = read_ahead(
                (path for row, path in enumerate(paths) if row not in done), lambda path: read_input(path, reading)
            )
            for row in range(len(paths)):
                if row not in done:
                    image = next(left)
                    if isinstance(image, UnreadableInput):
                        broken[row] = str(image)
                        continue
                    image = np.ascontiguousarray(image, dtype=DTYPE)
                    shapes[row] = image.shape
                    if shape is None:
                        shape = image.shape
                        begin = _begin(numbers, (len(paths), *shape))
                    if image.shape == shape:
                        _write_row(numbers, log, begin, row, image)
                if progress is not None:
                    progress(row + 1, len(paths))
            numbers.flush()
            os.fsync(numbers.fileno())
            if broken or len({*shapes.values()}) > 1:
                raise UnusableRows(broken, shapes)
    except CohortError:
        partial.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)
        raise
    os.replace(journal, record)
    os.replace(partial, whole)


def _begin(file: IO[bytes], shape: tuple[int, ...]) -> int:
    """Write the header and reserve the space; returns the offset of the rows."""
    needed, folder = int(np.prod(shape, dtype=np.int64)) * DTYPE.itemsize, Path(file.name).parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CohortError(
            f"Expected {needed / 1e9:.1f} GB of free space in {folder} for {shape[0]} decoded inputs. "
            f"Received: {free / 1e9:.1f} GB. Make room, take a smaller --size, or name another folder (--cache)."
        )
    header = {"descr": DTYPE.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    begin = file.tell()
    file.truncate(begin + needed)
    return begin


def _write_row(numbers: IO[bytes], log: IO[bytes], begin: int, row: int, image: np.ndarray) -> None:
    numbers.seek(begin + row * image.nbytes)
    numbers.write(image.data)
    numbers.flush()
    # after the numbers, so that the journal lists no row that was not written
    log.write(np.array((row, zlib.crc32(image.data)), dtype=RECORD).tobytes())
    log.flush()


def _header(path: Path) -> tuple[int, tuple[int, ...]]:
    """The offset of the rows, and the shape."""
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    return stored.offset, stored.shape


def _intact_rows(path: Path, journal: Path, count: int, progress: Progress | None = None) -> set[int]:
    """Rows whose numbers have the checksum in the journal; none where a file is missing or of another shape."""
    intact = set()
    try:
        begin, shape = _header(path)
        if shape[0] != count:
            return intact
        os.truncate(journal, journal.stat().st_size // RECORD.itemsize * RECORD.itemsize)  # an incomplete last entry
        size = int(np.prod(shape[1:], dtype=np.int64)) * DTYPE.itemsize
        buffer = bytearray(size)
        with path.open("rb", buffering=0) as file:
            for row, crc in dict(np.frombuffer(journal.read_bytes(), RECORD).tolist()).items():
                file.seek(begin + row * size)
                if file.readinto(buffer) == size and zlib.crc32(buffer) == crc:
                    intact.add(row)
                if progress is not None:
                    progress(len(intact), count)
    except (ValueError, OSError):  # interrupted before the header was complete
        return set()
    return intact
