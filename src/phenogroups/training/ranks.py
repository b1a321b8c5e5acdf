"""Several processes that train one network: what they add up, and how a batch in parts stays one batch.

Every process reads and embeds its own rows of a batch; the embeddings (batch x dims) are told to all, so that all
compute the very losses that one process would. What flows back into the encoder is again each one's own rows, and one
sum of gradients ends the step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from phenogroups.clustering.sums import ALONE, Sums
from phenogroups.data.batches import Batch
from phenogroups.networks.encoders import Encoder
from phenogroups.networks.network import Network

TIMEOUT = timedelta(minutes=10)  # that a process waits for another; one that has died is noticed at once
PATIENCE = timedelta(days=1)  # the same while cohorts are read, as one machine may have to decode them
BLOCK = 2**18  # numbers that are normalised at once

_current: Sums = ALONE


class RanksError(ConnectionError):
    """Another process has died or does not answer."""


class Ranks(Sums):
    """The processes that torch.distributed knows of."""

    def __init__(self, device: torch.device, devices: int, nodes: int) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device, self.devices, self.nodes = device, devices, nodes
        self._patient = dist.new_group(timeout=PATIENCE)

    def __call__(self, part: Tensor) -> Tensor:
        whole = part.detach().to(self.device, copy=True).contiguous()
        with answered(self.world):
            dist.all_reduce(whole)
        return whole.to(part.device)

    def meet(self) -> None:
        """Wait, patiently, until all have read their cohorts."""
        with answered(self.world):
            dist.all_reduce(torch.zeros(1, device=self.device), group=self._patient)

    def collect(self, rows: Tensor) -> Tensor | None:
        """The rows of all processes on the first of them, the only one that holds them all; None on others."""
        counts = self.stack(torch.tensor(len(rows))).tolist()
        part = rows.new_zeros(max(counts), *rows.shape[1:], device=self.device)
        part[: len(rows)] = rows
        parts = [torch.empty_like(part) for _ in counts] if self.rank == 0 else None
        with answered(self.world):
            dist.gather(part, parts)
        if parts is None:
            return None
        return torch.cat([some[:count] for some, count in zip(parts, counts, strict=True)]).to(rows.device)


@contextmanager
def answered(world: int) -> Iterator[None]:
    """Say what it means when torch finds that a process is gone."""
    try:
        yield
    except RuntimeError as error:
        minutes = TIMEOUT.total_seconds() / 60
        raise RanksError(
            f"Expected an answer of all {world} processes within {minutes:.0f} minutes. Received: "
            f"{str(error).splitlines()[0]} One of them has died, or was never started: its own messages say why. "
            "Then start all of them again."
        ) from error


def current() -> Sums:
    """Who trains together now; one process alone unless `training.em.launch` was asked for more."""
    return _current


def join(ranks: Sums) -> None:
    global _current
    _current = ranks


class Share:
    """One process's part in training one network; alone, it is all of it."""

    def __init__(self, network: Network, sums: Sums, size: int, subjects: int, *, apart: bool) -> None:
        """`apart`: each process reads some rows of a batch of `size`; else all do the same, as is cheap for tables."""
        self.network, self.sums = network, sums
        self.first = sums.shard(subjects).start  # of the subjects whom this process holds beliefs about
        self.apart = apart and sums.world > 1
        self.rows = sums.shard(size) if self.apart else slice(None)
        encoders = [module for module in network.modules() if isinstance(module, Encoder)]
        self._hooks = [encoder.register_forward_hook(self._gather) for encoder in encoders if self.apart]
        norms = [module for encoder in encoders for module in encoder.modules() if isinstance(module, _BatchNorm)]
        on_cpu = next(network.parameters()).device.type == "cpu"
        # one process takes the same sums as several would, where they are as quick as torch's own
        self._norms = norms if self.apart or (apart and on_cpu) else []
        for norm in self._norms:
            norm.forward = partial(shared_norm, norm, sums)  # pyright: ignore[reportAttributeAccessIssue]

    def _gather(self, encoder: nn.Module, inputs: Any, z: Tensor) -> Tensor | None:
        if not encoder.training:
            return None
        return _Gather.apply(z.float() if z.dtype.itemsize < 4 else z, self.sums)  # half precision is rarely told

    def batch(self, batch: Batch, beliefs: Any) -> tuple[Batch, Any]:
        """With what is believed of these subjects, wherever they are: q has one row for each of the batch."""
        if self.sums.world == 1 or not hasattr(beliefs, "q"):
            return batch, beliefs
        place = batch.index - self.first
        here = (place >= 0) & (place < len(beliefs.q))
        q = beliefs.q.new_zeros(len(place), beliefs.q.shape[1])
        q[here] = beliefs.q[place[here]]
        return replace(batch, index=torch.arange(len(q), device=q.device)), replace(beliefs, q=self.sums(q))

    def add_gradients(self) -> None:
        """Of the encoder, what all saw of their rows; of the heads, who saw all rows, what the first process found."""
        if not self.apart:
            return
        encoder = {id(weight) for weight in self.network.encoder.parameters()}
        parts, gradients = [], []
        for weight in self.network.parameters():
            if weight.grad is not None:
                told = id(weight) in encoder or self.sums.rank == 0
                parts.append((weight.grad if told else torch.zeros_like(weight.grad)).flatten())
                gradients.append(weight.grad)
        _fill(gradients, self.sums(torch.cat(parts)))

    @torch.no_grad()
    def follow_first(self) -> None:
        """Take the first process's weights: on machines that round differently they would slowly part."""
        if self.sums.world == 1:
            return
        state = [value for value in self.network.state_dict().values() if value.is_floating_point()]
        whole = torch.cat([value.flatten() for value in state])
        _fill(state, self.sums(whole if self.sums.rank == 0 else torch.zeros_like(whole)))

    def end(self) -> None:
        """The network is again one that knows of no other process."""
        for hook in self._hooks:
            hook.remove()
        for norm in self._norms:
            del norm.forward


def _fill(tensors: list[Tensor], flat: Tensor) -> None:
    for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(values.view(tensor.shape))


def refuse_dropout(encoder: nn.Module) -> None:
    """Processes would draw different masks, and different batches from then on."""
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in encoder.modules()):
        raise ValueError(
            "Expected an encoder without dropout in several processes. Received: one with it. Train it in one process."
        )


class _Gather(torch.autograd.Function):
    """Everybody's rows from one's own; every process computes the same loss, so its gradient needs no sum."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, sums: Sums) -> Tensor:
        first, count = sums.places(len(z))
        ctx.rows = slice(first, first + len(z))
        whole = z.new_zeros(count, *z.shape[1:])
        whole[ctx.rows] = z
        return sums(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.rows], None


def shared_norm(norm: Any, sums: Sums, x: Tensor) -> Tensor:
    """Batch normalisation by the whole batch; torch's own of several processes needs a GPU."""
    if not norm.training:
        return type(norm).forward(norm, x)
    y, mean, variance, count = _Norm.apply(x, norm.weight, norm.bias, norm.eps, sums)
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        share = 1 / norm.num_batches_tracked.item() if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean, share)
        norm.running_var.lerp_(variance * (count / (count - 1)), share)
    return y


class _Norm(torch.autograd.Function):
    """Sums are over each subject's own pixels first, which have the same bits anywhere, then in double precision.

    torch's own run through the whole batch in single precision: of 256 images of 32 pixels a side, variances are then
    off by 7e-5 (measured), which is enough for another course of the training.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, sums: Sums) -> tuple[Tensor, ...]:
        per_channel = (1, -1, *[1] * (x.ndim - 2))
        count = sums(torch.tensor(x.numel() // x.shape[1])).to(weight)
        mean = (sums(_of_subjects(x.to(weight)).double().sum(0)) / count).to(weight)
        own = torch.cat([_of_subjects((part - mean.view(per_channel)).square_()) for part in _blocks(x)])
        variance = (sums(own.double().sum(0)) / count).to(weight)
        ctx.save_for_backward(x, weight, mean, variance, count)
        ctx.eps, ctx.sums = eps, sums
        ctx.mark_non_differentiable(mean, variance, count)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance, count = ctx.saved_tensors
        per_channel = (1, -1, *[1] * (x.ndim - 2))
        parts = list(zip(_blocks(x), _blocks(gradients[0]), strict=True))
        inverse = (variance + ctx.eps).rsqrt()
        own = [torch.stack([_of_subjects(g.to(weight)), _of_subjects(part * g.to(weight))]) for part, g in parts]
        of_bias, along_x = torch.cat(own, dim=1).double().sum(1)
        of_weight = (along_x - mean * of_bias) * inverse
        along_bias, along_weight = ctx.sums(torch.stack([of_bias, of_weight])).to(weight) / count
        # d loss / dx = weight / deviation * (g - along_bias - y * along_weight), y the normalised x: linear in g and x
        slope = -weight * inverse**2 * along_weight
        direct, slope, constant = (
            factor.view(per_channel)
            for factor in (weight * inverse, slope, -slope * mean - weight * inverse * along_bias)
        )
        of_x = torch.empty_like(x)
        for found, (part, g) in zip(_blocks(of_x), parts, strict=True):
            torch.addcmul(constant, part, slope, out=found).addcmul_(g, direct)
        return of_x, of_weight.to(weight), of_bias.to(weight), None, None


def _of_subjects(x: Tensor) -> Tensor:
    """(n, channels): sums over all the pixels of each."""
    return x.sum(list(range(2, x.ndim))) if x.ndim > 2 else x


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    """Some rows at a time: on a CPU, what is computed of them then stays in its cache."""
    return x.split(max(1, BLOCK // x.shape[1:].numel()) if x.device.type == "cpu" else max(1, len(x)))
