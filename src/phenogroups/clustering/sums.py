"""Sums over subjects who may be spread over several processes: all that clustering must know of the others."""

import torch
from torch import Tensor


class Sums:
    """Of a process that has everybody: what it has is the sum already.

    Where subjects are spread, `training.ranks` adds up. Everything below is made of that one addition, so that every
    process ends with the same bits; sums are in double precision, so that it hardly matters where the cuts lie.
    """

    rank: int = 0
    world: int = 1  # processes

    def __call__(self, part: Tensor) -> Tensor:
        """The sum of every process's tensor; all have one shape."""
        return part

    def shard(self, count: int) -> slice:
        """The rows of `count` that are this process's own; others have as many, or one more or less."""
        return slice(self.rank * count // self.world, (self.rank + 1) * count // self.world)

    def stack(self, part: Tensor) -> Tensor:
        """(processes, ...): every process's tensor; all have one shape."""
        every = part.new_zeros(self.world, *part.shape)
        every[self.rank] = part
        return self(every)

    def places(self, count: int) -> tuple[int, int]:
        """How many rows processes before this one have, and how many there are, if this one has `count`."""
        counts = self.stack(torch.tensor(count))
        return int(counts[: self.rank].sum()), int(counts.sum())

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, one after the other; only for what is bounded."""
        if self.world == 1:
            return rows
        first, count = self.places(len(rows))
        every = rows.new_zeros(count, *rows.shape[1:])
        every[first : first + len(rows)] = rows
        return self(every)

    def spaced(self, count: int, most: int) -> slice:
        """Which of this process's `count` rows are in an evenly spaced sample of everybody's, `most` at most."""
        first, everybody = self.places(count)
        step = max(-(-everybody // most), 1)
        return slice(-first % step, None, step)

    def sample(self, rows: Tensor, most: int) -> Tensor:
        """Evenly spaced rows of everybody's, `most` at most."""
        return self.gather(rows[self.spaced(len(rows), most)])

    def mean(self, rows: Tensor) -> Tensor:
        """Over everybody's rows, in double precision; of nobody, NaN."""
        own = rows.sum(0, dtype=torch.float64)
        total = self(torch.cat([own.flatten(), own.new_tensor([len(rows)])]))
        return (total[:-1] / total[-1]).view_as(own)


ALONE = Sums()
