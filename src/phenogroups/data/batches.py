"""From a cohort to batches: shuffled and augmented for the M-step, plain and in order for the E-step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phenogroups.data.augment import Augmentation
from phenogroups.data.stored import Inputs
from phenogroups.data.threads import map_ahead, set_within

NUMBERS_AT_ONCE = 2**22  # in a block of inputs: two volumes of 128 voxels a side
MOST_ROWS = 64  # on a CPU as fast per subject as more
_workers: ContextVar[int] = ContextVar("workers", default=0)  # not a setting of a method: results do not depend on it


def reading_ahead(workers: int) -> AbstractContextManager[None]:
    """Within this context, `workers` threads read the next rows of a cohort while the network computes."""
    if workers < 0:
        raise ValueError(f"Expected workers of at least 0. Received: {workers}.")
    return set_within(_workers, workers)


def _read_rows(inputs: Inputs, selections: Iterable[np.ndarray | slice]) -> Iterator[np.ndarray]:
    """Yield one array for each selection of rows."""

    def read(rows: np.ndarray | slice) -> np.ndarray:
        return np.asarray(inputs[rows])

    workers = _workers.get()
    return map_ahead(read, selections, workers=workers, ahead=workers) if workers else map(read, selections)


@dataclass(frozen=True)
class Batch:
    """Input of a training step. It has no truth, so that no method can learn from it."""

    views: tuple[Tensor, ...]  # augmented versions of the same subjects
    diagnosis: Tensor  # (n,): 0 control, 1 patient
    index: Tensor  # (n,): the subjects' positions in the training cohort


def as_tensor(inputs: Inputs, device: torch.device | str = "cpu") -> Tensor:
    """Rows of a cohort as float32 on the device; images channels-last, where convolutions are faster."""
    x = torch.from_numpy(np.ascontiguousarray(inputs)).to(device, torch.float32)
    if x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def effective_batch_size(count: int, asked: int, steps: int) -> int:
    """Small cohorts take smaller batches: at least eight steps per pass, but never fewer than 32 subjects.

    Not where a single step an epoch would do (`steps`), as in the published trainings.
    """
    return min(asked, count if steps == 1 else max(32, count // 8), count)


def shuffled_passes(count: int, size: int, steps: int) -> Iterator[list[Tensor]]:
    """The positions of the subjects in each of `steps` batches, from as many shuffled passes as that takes.

    Incomplete batches are left out.
    """
    per_pass = count // size
    for done in range(0, steps, per_pass):
        yield list(torch.randperm(count).split(size)[: min(per_pass, steps - done)])


def training_batches(
    inputs: Inputs,
    diagnosis: Tensor,
    passes: Iterable[Sequence[Tensor]],  # positions of the subjects of each batch
    *,
    views: int,
    augmentation: Augmentation,
    partners: Callable[[Tensor], Tensor | None] = lambda index: None,
    device: torch.device | str = "cpu",
) -> Iterator[Batch]:
    """Yield augmented batches.

    `partners` may return, for the subjects of a batch, positions of others; a view of these is then the last.
    """
    for batches in passes:
        for index, read in zip(batches, _read_rows(inputs, (index.numpy() for index in batches)), strict=True):
            x = as_tensor(read, device)
            augmented = [augmentation(x) for _ in range(views)]
            others = partners(index.to(device))
            if others is not None:
                augmented.append(augmentation(as_tensor(inputs[others.cpu().numpy()], device)))
            yield Batch(tuple(augmented), diagnosis[index.to(diagnosis.device)], index.to(device))


def rows_at_once(shape: tuple[int, ...]) -> int:
    """Number of inputs of this shape in one forward pass."""
    return int(np.clip(NUMBERS_AT_ONCE // np.prod(shape), 1, MOST_ROWS))


def read_in_blocks(
    inputs: Inputs, read: Callable[[Tensor], dict[str, Tensor]], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Apply `read` to blocks of rows; returns its tensors for all rows, in order, on the CPU."""
    rows = rows_at_once(inputs.shape[1:])
    found: dict[str, Tensor] = {}  # filled in place: concatenation at the end would need twice the memory
    spans = [slice(first, first + rows) for first in range(0, len(inputs), rows)]
    for span, block in zip(spans, _read_rows(inputs, spans), strict=True):
        # a copy, since torch does not accept read-only memory
        for name, values in read(as_tensor(np.array(block), device)).items():
            if name not in found:
                found[name] = torch.empty((len(inputs), *values.shape[1:]), dtype=values.dtype)
            found[name][span] = values
    return found
