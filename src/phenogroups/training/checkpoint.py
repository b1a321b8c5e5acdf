"""What an interrupted run goes on from: files beside its folder, whole or not there, that hold nothing executable."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from phenogroups.data.writing import write_whole
from phenogroups.training.run import RunError

FORMAT = 1  # raised when earlier files can no longer be gone on from
SUFFIX, KIND = ".resume", ".checkpoint"  # of the folder, of its files: a checksum, then safetensors
NOTES = "notes"  # name of the tensor whose bytes are JSON
CHECKSUM = sha256().digest_size

Kept = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and what JSON can hold


def resume_folder(run: str | Path) -> Path:
    """Beside the run folder, which itself is whole or not there."""
    run = Path(run).resolve()
    return run.with_name(run.name + SUFFIX)


def is_kept(run: str | Path) -> bool:
    """Whether there is something to go on from."""
    return any(resume_folder(run).glob(f"*{KIND}"))


@dataclass(frozen=True)
class Checkpoint:
    """A folder of what is kept; without a folder, nothing is. On success it goes, after a failure it stays.

    Files are named by a checksum of `identity`, all that the bits of a run depend on: what is kept of another run is
    never gone on from, and what is kept of the same run is right whenever it was written.
    """

    folder: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False  # else what is there is not looked at
    note: Callable[[str], None] = lambda _: None  # hears in a sentence what is gone on from
    part: str = ""  # of a run that is made of several

    def of_part(self, part: str) -> "Checkpoint":
        return replace(self, part=f"{self.part}{part} ")

    def say(self, sentence: str) -> None:
        self.note(f"{self.part}{sentence}")

    @cached_property
    def _digest(self) -> str:
        return sha256(json.dumps(dict(self.identity), sort_keys=True).encode()).hexdigest()[:16]

    def __enter__(self) -> Self:
        if self.folder is None:
            return self
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # says now, not after the first epoch, that this cannot be
            files = self._files()
            ours = [path for path in files if path.name.startswith(self._digest)]
            if self.resume and files and not ours:
                self._refuse(files[0])
            for path in [*files, *self.folder.glob("*.partial")]:  # the last are what a killed run was about to write
                if path not in ours:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"Expected to keep what is trained in {self.folder}. Received: {error}.") from error
        if self.resume and not ours:
            self.say(f"There is nothing in {self.folder} to go on from: the run starts at its beginning.")
        if ours and not self.resume:
            self.say(f"What an interrupted run kept in {self.folder} is replaced; with --resume it would go on.")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.folder is None:
            return
        with suppress(OSError):  # a rest that cannot be removed is no reason to fail
            if kind is None:
                for path in self._files():
                    path.unlink(missing_ok=True)
            self.folder.rmdir()  # unless something is in it

    def _files(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob(f"*{KIND}"))

    def _file(self, name: str) -> str:
        return f"{self._digest}-{self.part}{name}{KIND}".replace(" ", "-")

    def save(self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Keep it under this name; what was kept under it before stays until this is whole."""
        if self.folder is None:
            return
        words = json.dumps({"identity": dict(self.identity), **notes}).encode()
        # copies, as safetensors takes no two views of the same memory
        whole = {k: value.detach().cpu().clone(memory_format=torch.contiguous_format) for k, value in tensors.items()}
        whole[NOTES] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        content = save(whole)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / self._file(name), sha256(content).digest() + content)
        except OSError as error:
            raise RunError(f"Expected to keep what is trained in {self.folder}. Received: {error}.") from error

    def drop(self, start: str) -> None:
        """Whatever was kept under names that begin so."""
        for path in self._files():
            if path.name.startswith(self._file(start).removesuffix(KIND)):
                path.unlink(missing_ok=True)

    def load(self, name: str) -> Kept | None:
        """What was kept under this name; None if nothing was, or if it is not to be gone on from."""
        if self.folder is None or not self.resume or not (self.folder / self._file(name)).exists():
            return None
        path = self.folder / self._file(name)
        tensors, notes = _read(path)
        if notes.pop("identity", None) != dict(self.identity):  # somebody renamed it
            self._refuse(path)
        return tensors, notes

    def _refuse(self, path: Path) -> None:
        _, notes = _read(path)
        kept = notes.get("identity")
        different = ", ".join(_differences(kept, dict(self.identity))) if isinstance(kept, dict) else "everything"
        raise RunError(
            f"Expected in {path.parent} what an interrupted run of the same cohort, method and settings kept. "
            f"Received: that of another, which differs in {different}. Ask for the same as then, "
            "or start without --resume, which replaces it."
        )


def _read(path: Path) -> Kept:
    try:
        content = path.read_bytes()
        if sha256(content[CHECKSUM:]).digest() != content[:CHECKSUM]:
            raise ValueError("a damaged file, as its checksum says")
        tensors = load(content[CHECKSUM:])
        notes = json.loads(tensors.pop(NOTES).numpy().tobytes())
        if not isinstance(notes, dict):
            raise ValueError("other notes than were written")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(
            f"Expected {path} as an interrupted run kept it. Received: {error}. Start without --resume."
        ) from error
    return tensors, notes


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name in {**a, **b}:
        was, now = a.get(name), b.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differences(was, now, f"{within}{name} ")
        elif was != now:
            short = all(len(str(value)) < 30 for value in (was, now))
            yield f"{within}{name}" + (f" ({was} then, {now} now)" if short else "")


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
