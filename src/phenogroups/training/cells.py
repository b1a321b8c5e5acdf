"""The results of a comparison, one small file per cell (a method and a seed), so that none is computed twice."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from phenogroups.data.untrusted import parse_json, read_limited
from phenogroups.data.writing import write_whole
from phenogroups.training.run import RunError, member, versions

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder may compute a cell twice, which does no harm
    fcntl = None

LOCK = "lock"

Found = dict[str, Any]  # the content of a cell's file


@dataclass(frozen=True, eq=False)
class Cell:
    """One method with one seed; `key` holds everything that its results depend on."""

    method: str
    seed: int
    settings: dict[str, Any]
    key: dict[str, Any]
    epochs: int | None = None  # as set; None: a method without epochs

    @cached_property
    def digest(self) -> str:
        return _checksum(self.key)

    @property
    def file(self) -> str:
        return f"{self.method}-{self.seed}-{self.digest[:12]}.json"


class Cells:
    """A folder of cells. Processes claim cells by locks of the operating system, which end with the process."""

    def __init__(self, folder: Path, check: Callable[[Found], None] = lambda _: None) -> None:
        self.folder, self.check = folder, check  # raises a ValueError if a file does not hold a cell

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.is_symlink():  # it could lead to a folder of another user
                raise OSError("it is a link")
            self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise RunError(f"Expected to write into {self.folder}. Received: {error}.") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def files(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.json")}

    def read(self, cell: Cell, note: Callable[[str], None] = lambda _: None) -> Found | None:
        """The content of a finished cell; None if there is none or its file is damaged."""
        path = self.folder / cell.file
        try:
            found = parse_json(read_limited(member(self.folder, cell.file)))
            if found.pop("sha256") != _checksum(found) or found["key"] != cell.key:
                raise ValueError("its content is not what was written")
            self.check(found)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            note(f"Expected a finished cell in {path}. Received a damaged file ({error}). It is run again.")
            return None

    def write(self, cell: Cell, found: Mapping[str, Any]) -> None:
        whole = {
            "method": cell.method, "seed": cell.seed, **found, "when": datetime.now(UTC).isoformat(),
            "versions": versions(), "key": cell.key,
        }  # fmt: skip
        text = json.dumps({**whole, "sha256": _checksum(whole)}, indent=1, allow_nan=False)
        write_whole(self.folder / cell.file, text + "\n")

    @contextmanager
    def claim(self, cell: Cell | None) -> Iterator[bool]:
        """Whether this process may compute the cell. For None, the table of all cells, the call waits for its turn."""
        place = 0 if cell is None else 1 + int(cell.digest[:12], 16)  # of a byte, which need not exist in the file
        ours = self._lockf("LOCK_EX" if cell is None else "LOCK_NB", place)
        try:
            yield ours
        finally:
            if ours:
                self._lockf("LOCK_UN", place)

    def _lockf(self, how: str, place: int) -> bool:
        if fcntl is None:
            return True
        try:
            fcntl.lockf(self._lock, getattr(fcntl, how) | (fcntl.LOCK_EX if how == "LOCK_NB" else 0), 1, place)
        except (BlockingIOError, PermissionError):  # the errors of POSIX for a lock that another process holds
            return False
        except OSError:  # a folder without locks, as on some network drives: then as on Windows
            return True
        return True


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
