"""Vectors in blocks: sums over subjects need little memory beside the vectors, which may lie on disk."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.data.stored import StoredRows

Vectors = Tensor | np.ndarray | StoredRows  # (n, dims): in memory, memory-mapped, or rows of a file

ROWS = 2**15  # of a block: fewer cost calls; of more, whatever is made for ten subgroups leaves the cache


def spans(count: int, rows: int = ROWS) -> Iterator[slice]:
    """The rows of each block; yields one empty slice when count is 0, whose sums are zero."""
    return (slice(first, min(first + rows, count)) for first in range(0, max(count, 1), rows))


def blocks(z: Vectors) -> Iterator[tuple[slice, Tensor]]:
    """All vectors in order, some at a time, and which these are."""
    return ((rows, in_memory(z[rows])) for rows in spans(len(z)))


def kept(z: Tensor, keep: Tensor | None) -> Iterator[Tensor]:
    """Blocks of those whom the mask keeps, or of all."""
    return (block if keep is None else block[keep[rows]] for rows, block in blocks(z))


def stacked(parts: Iterable[Tensor], count: int) -> Tensor:
    """Parts of `count` rows in all, one below the other; unlike torch's `cat`, never twice in memory."""
    found, filled = torch.empty(0), 0
    for part in parts:
        if len(part) == count:
            return part
        if not filled:
            found = part.new_empty((count, *part.shape[1:]))
        found[filled : filled + len(part)] = part
        filled += len(part)
    return found


def in_memory(z: Vectors) -> Tensor:
    return z if isinstance(z, Tensor) else torch.from_numpy(np.array(z))


def take(z: Vectors, index: Tensor) -> Tensor:
    """The vectors at these positions, in memory."""
    return z.index_select(0, index.to(z.device)) if isinstance(z, Tensor) else in_memory(z[index.numpy(force=True)])


def summed(parts: Iterable[tuple[Tensor, ...]], comm: Communicator = LOCAL) -> tuple[Tensor, ...]:
    """Sums over blocks and over processes: on the CPU, in double precision."""
    total: tuple[Tensor, ...] = ()
    for part in parts:
        part = tuple(each.cpu().double() for each in part)
        total = tuple(a + b for a, b in zip(total, part, strict=True)) if total else part
    if comm.world_size == 1:
        return total
    reduced = comm.all_reduce(torch.cat([each.flatten() for each in total])).split([each.numel() for each in total])
    return tuple(flat.view_as(each) for flat, each in zip(reduced, total, strict=True))
