"""Small networks on top of an embedding, and the teacher that follows a student."""

from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn

from phenogroups.networks.network import Network


def projection(dim: int, hidden: int = 128, out: int = 128, *, norm: bool = False) -> nn.Module:
    """Where contrastive losses are computed, so that the embedding keeps what they would erase (Chen et al. 2020)."""
    between = [nn.BatchNorm1d(hidden)] if norm else []
    return nn.Sequential(nn.Linear(dim, hidden), *between, nn.ReLU(inplace=True), nn.Linear(hidden, out))


class Teacher(nn.Module):
    """A copy of encoder and projection that learns by no gradient: its weights follow theirs slowly.

    Not torch's AveragedModel: it would jump to the student at the first step, and its rule cannot be pickled.
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
    def follow(self, encoder: nn.Module, projection: nn.Module) -> None:
        for mine, student in ((self.encoder, encoder), (self.projection, projection)):
            for weight, goal in zip(mine.parameters(), student.parameters(), strict=True):
                weight.lerp_(goal, 1 - self.decay)
            for statistic, goal in zip(mine.buffers(), student.buffers(), strict=True):
                statistic.copy_(goal)  # of batch normalisation: averages already


def teacher_of(network: Network) -> Teacher:
    return cast(Teacher, network.heads["teacher"])
