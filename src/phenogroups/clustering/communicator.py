"""The communicator: what the processes that train together exchange, so that each computes what one would alone."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch import Tensor

TIMEOUT = timedelta(minutes=10)  # for which a process waits for another; one that has died is noticed at once


class ProcessLostError(ConnectionError):
    """Another process has died or does not answer."""


@dataclass(frozen=True)
class Communicator:
    """Subjects may be spread over several processes, in their order; by default one process holds all of them.

    Every process must make the same calls. All of them get the same result, except from `shard`, `sampled_rows` and
    `gather_on_first`.
    """

    rank: int = 0
    world_size: int = 1  # number of processes
    device: torch.device | str = "cpu"  # where the tensors are that processes can exchange

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum over processes of tensors of one shape, without gradients."""
        if self.world_size == 1:
            return part
        total = part.detach().to(self.device, copy=True).contiguous()
        with lost_process_explained(self.world_size):
            dist.all_reduce(total)
        return total.to(part.device)

    def shard(self, count: int) -> slice:
        """The rows of `count` that belong to this process; shards differ in size by one at most."""
        return slice(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)

    def counts(self, count: int) -> list[int]:
        """How many rows each process has, if this one has `count`."""
        if self.world_size == 1:
            return [count]
        each = torch.zeros(self.world_size, dtype=torch.int64)
        each[self.rank] = count
        return self.all_reduce(each).tolist()

    def offset_and_total(self, count: int) -> tuple[int, int]:
        """How many rows the processes before this one have, and how many all have, if this one has `count`."""
        counts = self.counts(count)
        return sum(counts[: self.rank]), sum(counts)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes in the order of their ranks, without gradients; use it for bounded samples."""
        if self.world_size == 1:
            return rows
        counts = self.counts(len(rows))
        part = self._padded(rows, max(counts))
        parts = [torch.empty_like(part) for _ in counts]
        with lost_process_explained(self.world_size):
            dist.all_gather(parts, part)
        return _unpadded(parts, counts).to(rows.device)

    def gather_on_first(self, rows: Tensor) -> Tensor | None:
        """The rows of all processes on the process of rank 0; None on the others."""
        if self.world_size == 1:
            return rows
        counts = self.counts(len(rows))
        part = self._padded(rows, max(counts))
        parts = [torch.empty_like(part) for _ in counts] if self.rank == 0 else None
        with lost_process_explained(self.world_size):
            dist.gather(part, parts)
        return None if parts is None else _unpadded(parts, counts).to(rows.device)

    def gather_batch(self, rows: Tensor) -> Tensor:
        """The rows of all processes, of which each has as many, with gradients to the process that they come from."""
        if self.world_size == 1:
            return rows
        with lost_process_explained(self.world_size), warnings.catch_warnings():
            # torch 2.13 names a function of a private module as the successor, which torch 2.8 does not have
            warnings.simplefilter("ignore", FutureWarning)
            return torch.cat(dist_nn.all_gather(rows.contiguous()))

    def sampled_rows(self, count: int, most: int) -> slice:
        """Which of this process's `count` rows are in an evenly spaced sample of all rows, `most` at most."""
        offset, total = self.offset_and_total(count)
        step = max(-(-total // most), 1)
        return slice(-offset % step, None, step)

    def sample(self, rows: Tensor, most: int) -> Tensor:
        """An evenly spaced sample of all rows, `most` at most."""
        return self.gather(rows[self.sampled_rows(len(rows), most)])

    def mean(self, rows: Tensor) -> Tensor:
        """The mean over all rows, in double precision; NaN if there are none."""
        own = rows.sum(0, dtype=torch.float64)
        total = self.all_reduce(torch.cat([own.flatten(), own.new_tensor([len(rows)])]))
        return (total[:-1] / total[-1]).view_as(own)

    def _padded(self, rows: Tensor, count: int) -> Tensor:
        part = rows.new_zeros(count, *rows.shape[1:], device=self.device)
        part[: len(rows)] = rows.detach()
        return part


def _unpadded(parts: list[Tensor], counts: list[int]) -> Tensor:
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


@contextmanager
def lost_process_explained(world_size: int) -> Iterator[None]:
    """Within, errors of torch.distributed say what they mean for the user; other errors pass."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        minutes = TIMEOUT.total_seconds() / 60
        raise ProcessLostError(
            f"Expected an answer of all {world_size} processes within {minutes:.0f} minutes. Received: "
            f"{str(error).splitlines()[0]} One of them has died, or was never started: its own messages say why. "
            "Then start all of them again."
        ) from error


LOCAL = Communicator()  # one process
