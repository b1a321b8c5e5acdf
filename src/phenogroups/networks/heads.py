"""Small networks on top of an embedding."""

from torch import nn


def projection(dim: int, hidden: int = 128, out: int = 128) -> nn.Module:
    """Where contrastive losses are computed, so that the embedding keeps what they would erase (Chen et al. 2020)."""
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out))
