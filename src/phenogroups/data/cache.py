"""Cohorts larger than memory: every file is decoded once into one .npy file, from which training reads rows.

The file is named by what it was made of (paths, their sizes and times, the reading), so that a changed file or another
size is decoded anew. It is written under a partial name beside a journal of finished rows: an interrupted decoding goes
on where it was stopped, and a file with its own name is whole.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from phenogroups.data.cohort import CohortError
from phenogroups.data.decoding import UnreadableInput
from phenogroups.data.reading import ImagePath, Reading, read_ahead, read_input
from phenogroups.data.stored import StoredRows
from phenogroups.data.untrusted import machine_memory

FORMAT = 1  # of the key; raised when decoding changes
RECORD = np.dtype([("row", "<i8"), ("crc", "<u4")])  # one entry of the journal
DTYPE = np.dtype("<f4")
MOST_HELD = 2**29  # bytes of decoded inputs in memory, at most: a split holds them twice
SHARE = 0.5  # of the machine's memory, at most

Progress = Callable[[int, int], None]  # rows done, rows in all


class UnusableRows(CohortError):
    """Some files cannot be read, or not all have one shape. Nothing is kept: their mended versions get another name."""

    def __init__(self, broken: dict[int, str], shapes: dict[int, tuple[int, ...]]) -> None:
        super().__init__(f"Expected readable files of one shape. Received: {len(broken)} unreadable ones.")
        self.broken, self.shapes = broken, shapes  # by row: why it cannot be read; the shape of every other


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
    whole, record = folder / f"{key}.npy", folder / f"{key}.crc"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f"{key}.lock", folder):
            if not (whole.is_file() and record.is_file() and _is_sound(whole, record, progress)):
                _decode_all(paths, reading, whole, record, progress)
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
            said = f"{path.resolve()}\x1f{about.st_size}\x1f{about.st_mtime_ns}"
        except (UnreadableInput, OSError) as error:
            said = str(error)
        digest.update(said.encode() + b"\x1e")
    return digest.hexdigest()[:32]


def _decode_all(
    paths: Sequence[ImagePath], reading: Reading, whole: Path, record: Path, progress: Progress | None
) -> None:
    partial, journal = whole.with_suffix(".partial"), record.with_suffix(".journal")
    done = _resume(partial, journal, len(paths))
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
    # the journal follows the numbers: what it names is on its way to the disk
    log.write(np.array((row, zlib.crc32(image.data)), dtype=RECORD).tobytes())
    log.flush()


def _header(path: Path) -> tuple[int, tuple[int, ...]]:
    """The offset of the rows, and the shape."""
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    return stored.offset, stored.shape


def _resume(partial: Path, journal: Path, count: int) -> set[int]:
    """Complete rows of an earlier, interrupted decoding."""
    if not partial.is_file() or not journal.is_file():
        return set()
    try:
        begin, shape = _header(partial)
        if shape[0] != count:
            return set()
        os.truncate(journal, journal.stat().st_size // RECORD.itemsize * RECORD.itemsize)  # its last entry may be torn
        return {row for row, good in _checked(partial, journal, begin, shape) if good}
    except (ValueError, OSError):  # interrupted before the header was whole
        return set()


def _is_sound(whole: Path, record: Path, progress: Progress | None) -> bool:
    """Whether every row has its checksum; reading the file also brings it into the cache of the system."""
    try:
        begin, shape = _header(whole)
        good = 0
        for _, right in _checked(whole, record, begin, shape):
            good += right
            if progress is not None:
                progress(good, shape[0])
        return good == shape[0]
    except (ValueError, OSError):
        return False


def _checked(path: Path, journal: Path, begin: int, shape: tuple[int, ...]) -> Iterator[tuple[int, bool]]:
    entries = np.frombuffer(journal.read_bytes(), RECORD)
    size = int(np.prod(shape[1:], dtype=np.int64)) * DTYPE.itemsize
    buffer = bytearray(size)
    with path.open("rb", buffering=0) as file:
        for row, crc in dict(entries.tolist()).items():
            file.seek(begin + row * size)
            yield row, file.readinto(buffer) == size and zlib.crc32(buffer) == crc


@contextmanager
def _alone(lock: Path, folder: Path) -> Iterator[None]:
    """Exclusive use of the files of one cohort; the system releases the lock if this process dies.

    Processes that train together read the same cohort and take turns.
    """
    try:
        import fcntl
    except ImportError:  # Windows: two processes would write the same numbers
        yield
        return
    together = "LOCAL_RANK" in os.environ  # set by torchrun and Fabric
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if together else fcntl.LOCK_NB))
        except OSError:
            raise CohortError(
                f"Expected to be alone in decoding this cohort into {folder}. Received: another process does it. "
                "Wait for it, then start again."
            ) from None
        try:
            yield
        finally:
            if not together:  # who waits for a lock must not be left with a file that is gone
                with suppress(OSError):
                    lock.unlink()
