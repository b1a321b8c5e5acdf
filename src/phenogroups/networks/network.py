"""The weights of a method: one encoder and its heads, which are small networks on top of the embedding."""

from collections.abc import Callable
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from phenogroups.networks.encoder import Encoder


class Network(nn.Module):
    def __init__(self, encoder: Encoder, heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)

    def forward(self, losses: Callable[["Network"], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The losses by name: the one call of the M-step, so that distribution and precision wrap one object.

        Batch and beliefs are bound to the function beforehand, because Fabric would copy tensors that it is given.
        """
        return losses(self)


def projection(dim: int, hidden: int = 128, out: int = 128, *, norm: bool = False) -> nn.Module:
    """Where contrastive losses are computed, so that the embedding keeps what they would erase (Chen et al. 2020)."""
    between = [nn.BatchNorm1d(hidden)] if norm else []
    return nn.Sequential(nn.Linear(dim, hidden), *between, nn.ReLU(inplace=True), nn.Linear(hidden, out))


class Teacher(nn.Module):
    """An exponential moving average of encoder and projection, which no gradient reaches.

    Not torch's AveragedModel: its first update copies the student, and its update rule cannot be pickled.
    """

    def __init__(self, encoder: nn.Module, projection: nn.Module, decay: float) -> None:
        super().__init__()
        self.encoder, self.projection = deepcopy(encoder), deepcopy(projection)
        self.decay = decay
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.projection(self.encoder(x))

    @torch.no_grad()
    def update(self, encoder: nn.Module, projection: nn.Module) -> None:
        for own, student in ((self.encoder, encoder), (self.projection, projection)):
            for weight, target in zip(own.parameters(), student.parameters(), strict=True):
                weight.lerp_(target, 1 - self.decay)
            for statistic, target in zip(own.buffers(), student.buffers(), strict=True):
                statistic.copy_(target)  # of batch normalisation, which are averages already


def teacher_of(network: Network) -> Teacher:
    return cast(Teacher, network.heads["teacher"])
