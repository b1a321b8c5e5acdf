"""From a cohort to batches: shuffled and augmented for the M-step, plain and in order for the E-step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from phenogroups.data.augment import Augmentation
from phenogroups.data.stored import Inputs

NUMBERS_AT_ONCE = 2**22  # in a block of inputs: two volumes of 128 voxels a side
MOST_ROWS = 64  # on a CPU as fast per subject as more, and one subject alone waits for one block only


@dataclass(frozen=True)
class Batch:
    """What a method sees while it learns. There is no truth here, so no method can peek."""

    views: tuple[Tensor, ...]  # augmented versions of the same subjects
    diagnosis: Tensor  # (n,): 0 control, 1 patient
    index: Tensor  # (n,): the subjects' positions in the training cohort


def as_tensor(inputs: Inputs, device: torch.device | str = "cpu") -> Tensor:
    """Rows of a cohort as float32 on the device; images channels-last, which CPU and GPU convolutions prefer."""
    x = torch.from_numpy(np.ascontiguousarray(inputs)).to(device, torch.float32)
    if x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def effective_batch_size(count: int, asked: int) -> int:
    """Small cohorts take smaller batches: at least eight steps per pass, but never fewer than 32 subjects."""
    return min(asked, max(32, count // 8), count)


def training_batches(
    inputs: Inputs,
    diagnosis: Tensor,
    *,
    size: int,
    steps: int,
    views: int,
    augmentation: Augmentation,
    partners: Callable[[Tensor], Tensor | None] = lambda index: None,
    device: torch.device | str = "cpu",
) -> Iterator[Batch]:
    """`steps` batches from as many shuffled passes as that takes; incomplete batches are left out.

    `partners` may name another subject for each of a batch, whose view then follows those of its own.
    """
    per_pass = len(inputs) // size
    order = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        place = step % per_pass
        if place == 0:
            order = torch.randperm(len(inputs))
        index = order[place * size : (place + 1) * size]
        x = as_tensor(inputs[index.numpy()], device)
        seen = [augmentation(x) for _ in range(views)]
        others = partners(index.to(device))
        if others is not None:
            seen.append(augmentation(as_tensor(inputs[others.cpu().numpy()], device)))
        yield Batch(tuple(seen), diagnosis[index.to(diagnosis.device)], index.to(device))


def rows_at_once(shape: tuple[int, ...]) -> int:
    """How many inputs of this shape a network sees together."""
    return int(np.clip(NUMBERS_AT_ONCE // np.prod(shape), 1, MOST_ROWS))


def read_in_blocks(
    inputs: Inputs, read: Callable[[Tensor], dict[str, Tensor]], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """What `read` makes of all rows, in order, on the CPU; its tensors have one row per input.

    Every block has the same number of rows (the last is filled up), because matrix products round differently for
    different shapes: so a subject gets the same bits alone and in company.
    """
    rows = rows_at_once(inputs.shape[1:])
    found: dict[str, list[Tensor]] = {}
    for first in range(0, len(inputs), rows):
        some = np.asarray(inputs[first : first + rows])
        block = np.concatenate([some, np.repeat(some[:1], rows - len(some), axis=0)])
        for name, values in read(as_tensor(block, device)).items():
            found.setdefault(name, []).append(values[: len(some)].cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}
