"""Atomic writing: a file appears complete or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class RunError(ValueError):
    """A run folder, or another output, cannot be written or read; the message says why."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, and rename it when it is complete."""
    try:
        with whole_file(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise RunError(f"Expected to write {path}. Received: {error}.") from error


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which gets its name when the block ends without an error."""
    # the process number: another process may be writing the same file
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # fails if the name is a link, which would lead elsewhere
            yield file
            file.flush()
            os.fsync(file.fileno())  # the content must be on disk before the name is
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def lock(file: IO[bytes] | IO[str], *, wait: bool = True) -> bool:
    """Lock an open file against other processes until it is closed; returns whether that succeeded.

    The operating system releases the lock if this process dies. On Windows nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
