"""Vectors in blocks, so that sums over subjects need little memory beside the vectors."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator

ROWS = 2**15  # of a block: smaller blocks cost more calls, larger ones do not fit into the cache with ten subgroups


def spans(count: int, rows: int = ROWS) -> Iterator[slice]:
    """The rows of each block; yields one empty slice when count is 0, whose sums are zero."""
    return (slice(first, min(first + rows, count)) for first in range(0, max(count, 1), rows))


def blocks(z: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of the vectors in their order, each with its rows."""
    return ((rows, z[rows]) for rows in spans(len(z)))


def kept(z: Tensor, keep: Tensor | None) -> Iterator[Tensor]:
    """Blocks of the vectors that the mask keeps, or of all."""
    return (block if keep is None else block[keep[rows]] for rows, block in blocks(z))


def stacked(parts: Iterable[Tensor], count: int) -> Tensor:
    """The parts, `count` rows in all, as one tensor; unlike with `torch.cat`, they are not twice in memory."""
    found, filled = torch.empty(0), 0
    for part in parts:
        if len(part) == count:
            return part
        if not filled:
            found = part.new_empty((count, *part.shape[1:]))
        found[filled : filled + len(part)] = part
        filled += len(part)
    return found


def summed(parts: Iterable[tuple[Tensor, ...]], comm: Communicator = LOCAL) -> tuple[Tensor, ...]:
    """Sums over blocks and over processes, on the CPU and in double precision."""
    total: tuple[Tensor, ...] = ()
    for part in parts:
        part = tuple(each.cpu().double() for each in part)
        total = tuple(a + b for a, b in zip(total, part, strict=True)) if total else part
    if comm.world_size == 1:
        return total
    reduced = comm.all_reduce(torch.cat([each.flatten() for each in total])).split([each.numel() for each in total])
    return tuple(flat.view_as(each) for flat, each in zip(reduced, total, strict=True))
