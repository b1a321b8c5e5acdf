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
    """One process's part in training one network; alone, it is all of it and nothing is done."""

    def __init__(self, network: Network, sums: Sums, size: int, subjects: int, *, apart: bool) -> None:
        """`apart`: each process reads some rows of a batch of `size`; else all do the same, as is cheap for tables."""
        self.network, self.sums = network, sums
        self.first = sums.shard(subjects).start  # of the subjects whom this process holds beliefs about
        self.apart = apart and sums.world > 1
        self.rows = sums.shard(size) if self.apart else slice(0, size)
        if self.apart:
            self._hooks = [m.register_forward_hook(self._gather) for m in network.modules() if isinstance(m, Encoder)]
            for norm in self._norms():
                norm.forward = partial(shared_norm, norm, sums)

    def _norms(self) -> list[_BatchNorm]:
        """Those that see rows of this process only; heads see everybody's."""
        encoders = [module for module in self.network.modules() if isinstance(module, Encoder)]
        return [module for encoder in encoders for module in encoder.modules() if isinstance(module, _BatchNorm)]

    def _gather(self, encoder: nn.Module, inputs: Any, z: Tensor) -> Tensor | None:
        return _Gather.apply(z.float(), self.sums) if encoder.training else None

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
        """Of the encoder, the sum of what all saw; of the heads, who saw everybody's rows, that of the first process."""
        if not self.apart:
            return
        mine = self.sums.rank == 0
        own = {id(weight) for weight in self.network.encoder.parameters()}
        weights = [weight for weight in self.network.parameters() if weight.grad is not None]
        parts = [w.grad if id(w) in own or mine else torch.zeros_like(w) for w in weights]
        _fill([w.grad for w in weights], self.sums(torch.cat([part.flatten() for part in parts])))

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
        if self.apart:
            for hook in self._hooks:
                hook.remove()
            for norm in self._norms():
                del norm.forward


def _fill(tensors: list[Any], flat: Tensor) -> None:
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
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, sums: Sums) -> tuple[Tensor, ...]:
        over, channels = [0, *range(2, x.ndim)], x.shape[1]
        count = x.numel() // channels
        variance, mean = torch.var_mean(x.float(), over, correction=0)
        own = torch.stack([mean, variance + mean.square()]).double() * count if count else mean.new_zeros(2, channels)
        own = torch.cat([own.double().flatten(), own.new_tensor([count]).double()])
        total = sums(own)
        mean, square = (total[:-1] / total[-1]).view(2, channels)
        variance = (square - mean.square()).clamp_min(0)
        mean, variance, count = mean.to(weight), variance.to(weight), total[-1].to(weight)
        ctx.save_for_backward(x, weight, mean, variance, count)
        ctx.eps, ctx.sums = eps, sums
        ctx.mark_non_differentiable(mean, variance, count)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance, count = ctx.saved_tensors
        # as if mean and variance were given; then what they owe to the rows of all
        direct, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradients[0], x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        along_bias, along_weight = ctx.sums(torch.stack([of_bias, of_weight]).double()).to(weight) / count
        inverse = (variance + ctx.eps).rsqrt()
        beside = (1, -1, *[1] * (x.ndim - 2))
        slope, shift = (weight * inverse**2 * along_weight).view(beside), (weight * inverse * along_bias).view(beside)
        return direct - shift - (x - mean.view(beside)) * slope, of_weight, of_bias, None, None
