"""Checkpoints, from which an interrupted run resumes: complete files beside its folder, without executable content."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from phenogroups.clustering.communicator import lost_process_explained
from phenogroups.data.writing import write_whole
from phenogroups.training.run import RunError

if TYPE_CHECKING:
    from phenogroups.training.em import Trainer

FORMAT = 1  # raised when runs can no longer resume from earlier files
SUFFIX, KIND = ".resume", ".checkpoint"  # of the folder and of its files, which are a checksum and safetensors
NOTES = "notes"  # name of the tensor whose bytes are JSON
CHECKSUM = sha256().digest_size
STARTED, ELECTED = "start", "elected"  # names of files: of each start, and of the one that is trained further

Kept = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and notes that JSON can hold


def resume_folder(run: str | Path) -> Path:
    """The folder of checkpoints, beside the run folder, which is written only when it is complete."""
    run = Path(run).resolve()
    return run.with_name(run.name + SUFFIX)


def is_kept(run: str | Path) -> bool:
    """Whether there are checkpoints to resume from."""
    return any(resume_folder(run).glob(f"*{KIND}"))


@dataclass(frozen=True)
class Checkpoint:
    """A folder of checkpoints, deleted after success and kept after failure; without a folder, none is written.

    Files are named by a checksum of `identity`, which holds everything that the result of a run depends on: a run
    never resumes from the files of another one.
    """

    folder: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False  # if not, files of an earlier run are ignored
    note: Callable[[str], None] = lambda _: None  # called with a sentence about where the run resumes
    part: str = ""  # name of this run, where it is one of several

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
            self.folder.mkdir(parents=True, exist_ok=True)  # now, so that an error comes before the first epoch
            files = self._files()
            ours = [path for path in files if path.name.startswith(self._digest)]
            if self.resume and files and not ours:
                self._refuse(files[0])
            for path in [*files, *self.folder.glob("*.partial")]:  # incomplete files of a killed run
                if path not in ours:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"Expected to write checkpoints to {self.folder}. Received: {error}.") from error
        if self.resume and not ours:
            self.say(f"There is nothing in {self.folder} to go on from: the run starts at its beginning.")
        if ours and not self.resume:
            self.say(f"What an interrupted run kept in {self.folder} is replaced; with --resume it would go on.")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.folder is None:
            return
        with suppress(OSError):  # files that cannot be removed are no reason to fail
            if kind is None:
                for path in self._files():
                    path.unlink(missing_ok=True)
            self.folder.rmdir()  # fails if it is not empty

    def _files(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob(f"*{KIND}"))

    def _file(self, name: str) -> str:
        return f"{self._digest}-{self.part}{name}{KIND}".replace(" ", "-")

    def save(self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Write a checkpoint of this name; an earlier one is replaced when the new one is complete."""
        if self.folder is None:
            return
        text = json.dumps({"identity": dict(self.identity), **notes}).encode()
        # copies, as safetensors takes no two views of the same memory
        whole = {k: value.detach().cpu().clone(memory_format=torch.contiguous_format) for k, value in tensors.items()}
        whole[NOTES] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        content = save(whole)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / self._file(name), sha256(content).digest() + content)
        except OSError as error:
            raise RunError(f"Expected to write checkpoints to {self.folder}. Received: {error}.") from error

    def drop(self, start: str) -> None:
        """Delete the checkpoints whose names begin so."""
        for path in self._files():
            if path.name.startswith(self._file(start).removesuffix(KIND)):
                path.unlink(missing_ok=True)

    def load(self, name: str) -> Kept | None:
        """The checkpoint of this name; None if there is none, or if `resume` is off."""
        if self.folder is None or not self.resume or not (self.folder / self._file(name)).exists():
            return None
        path = self.folder / self._file(name)
        tensors, notes = _read(path)
        if notes.pop("identity", None) != dict(self.identity):  # the file was renamed
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


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with this prefix before their names."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have this prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def save_epoch(trainer: "Trainer", checkpoint: Checkpoint, *, elected: bool) -> None:
    """Save the state of training; random numbers and learning rate depend on the epoch alone."""
    if checkpoint.folder is None or trainer.comm.rank > 0:
        return
    beliefs = trainer.beliefs
    beliefs = {} if beliefs is None else vars(beliefs)
    moments = trainer.optimizer.state_dict()["state"]
    tensors = {
        **with_prefix("network.", trainer.network.state_dict()),
        **{f"optimizer.{i}.{name}": value for i, of_weight in moments.items() for name, value in of_weight.items()},
        **with_prefix("beliefs.", beliefs),
        **{f"frame.{epoch}": torch.from_numpy(frame) for epoch, frame in trainer.film.frames.items()},
    }
    notes = {
        **{name: getattr(trainer, name) for name in ("attempt", "epoch", "believed_at", "finished", "history")},
        "strides": {name: value.stride() for name, value in beliefs.items()},
        "precision": trainer.fabric.strategy.precision.state_dict(),  # the scale of losses in 16 bits
        # numbers that the method has computed, such as the agreement on its first subgroups
        "method": {k: v for k, v in vars(trainer.method).items() if k.endswith("_") and isinstance(v, float)},
    }
    checkpoint.save(ELECTED if elected else f"{STARTED}{trainer.attempt}", tensors, notes)
    if elected:
        checkpoint.drop(STARTED)


def resume_training(trainers: list["Trainer"], checkpoint: Checkpoint) -> "Trainer | None":
    """Restore every trainer from its last checkpoint; returns the elected one, if one was elected.

    Only the process of rank 0 reads and writes files; it broadcasts what it reads.
    """
    first, resumed = trainers[0], None

    def load_everywhere(name: str) -> Kept | None:
        with lost_process_explained(first.comm.world_size):
            return first.fabric.broadcast(checkpoint.load(name))

    elected = load_everywhere(ELECTED)
    kept = [elected] if elected else [load_everywhere(f"{STARTED}{trainer.attempt}") for trainer in trainers]
    try:
        for tensors, notes in filter(None, kept):
            resumed = trainers[notes["attempt"]]
            _restore(resumed, tensors, notes)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RunError(
            f"Expected in {checkpoint.folder} what this method keeps. Received: {error}. Start without --resume."
        ) from error
    if resumed is not None:
        start = "" if elected else f" of start {resumed.attempt + 1} of {len(trainers)}"
        checkpoint.say(f"Going on after epoch {resumed.epoch} of {resumed.method.epochs}{start}.")
    return resumed if elected else None


def _restore(trainer: "Trainer", tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    trainer.network.load_state_dict(without_prefix("network.", tensors))
    weights = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in without_prefix("optimizer.", tensors).items():
        i, _, moment = name.partition(".")
        weight = weights[int(i)]
        # with the strides of its weight
        like = torch.empty_like(weight).copy_(value) if value.shape == weight.shape else value
        moments.setdefault(int(i), {})[moment] = like
    trainer.optimizer.load_state_dict({**trainer.optimizer.state_dict(), "state": moments})
    trainer.epoch, trainer.believed_at = int(notes["epoch"]), int(notes["believed_at"])
    trainer.finished, trainer.history = bool(notes["finished"]), [dict(row) for row in notes["history"]]
    if trainer.believed_at >= 0:
        # with the strides that they had: matrix products round differently for other strides
        beliefs = {
            name: _with_strides(value.to(trainer.fabric.device), notes["strides"][name])
            for name, value in without_prefix("beliefs.", tensors).items()
        }
        trainer.beliefs = trainer.method.beliefs_type(**beliefs)
    frames = {int(epoch): frame.numpy() for epoch, frame in without_prefix("frame.", tensors).items()}
    trainer.film.frames = dict(sorted(frames.items()))
    trainer.fabric.strategy.precision.load_state_dict(notes["precision"])
    for name, value in notes["method"].items():
        if name.endswith("_"):  # learned, and no setting
            setattr(trainer.method, name, float(value))


def _with_strides(value: Tensor, stride: list[int]) -> Tensor:
    if 0 in stride:  # an expanded tensor, whose rows share memory
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)
