"""From a code back to the input: images and volumes of any size, and features."""

from math import ceil, log2, prod

import numpy as np
import torch
from torch import Tensor, nn

from phenogroups.clustering.space import scaling
from phenogroups.networks.encoders import Shape

CHANNELS = (64, 32, 16)  # from the smallest map on; the last is kept however often a map is doubled
MAP_SIDE = 8  # of the map that the code is laid out on, at most
TELLING = 2**24  # pixels that tell their unit: eight volumes of 128 voxels a side, or thousands of small images
TRANSPOSED = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class Decoder(nn.Module):
    """Layers that end in the shape of an input; it carries the units in which inputs are compared with their copies."""

    mean: Tensor  # (features,), or (1,) for images: a pixel that hardly varies must not count like any other
    scale: Tensor

    def __init__(self, layers: nn.Module, units: int) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("mean", torch.zeros(units))
        self.register_buffer("scale", torch.ones(units))

    @torch.no_grad()
    def fit_scaling(self, inputs: np.ndarray) -> None:
        """Each feature counts by its own deviation, or one in large units would be all that is copied."""
        if inputs.ndim > 2:
            inputs = inputs[:: ceil(inputs.size / TELLING)].reshape(-1, 1)
        mean, scale = scaling(torch.tensor(inputs).double(), "standard")
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def forward(self, code: Tensor) -> Tensor:
        return self.layers(code) * self.scale + self.mean

    def squared_error(self, code: Tensor, x: Tensor) -> Tensor:
        """(n, numbers of an input), in squared deviations."""
        return (self.layers(code) - (x - self.mean) / self.scale).square().flatten(1)


def build_decoder(dim: int, shape: Shape) -> Decoder:
    """For codes of this length and inputs of this shape."""
    return of_features(dim, *shape) if len(shape) == 1 else of_images(dim, shape)


def of_features(dim: int, features: int, hidden: int = 256) -> Decoder:
    return Decoder(nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, features)), features)


def of_images(dim: int, shape: Shape) -> Decoder:
    """The code is laid out on a small map, which transposed convolutions double until it has the input's size."""
    space, (channels, *size) = len(shape) - 1, shape
    doublings = max(1, ceil(log2(max(size) / MAP_SIDE)))
    sizes = [[ceil(side / 2**i) for side in size] for i in reversed(range(doublings + 1))]
    width = [CHANNELS[min(i, len(CHANNELS) - 1)] for i in range(doublings)]
    layers = [nn.Linear(dim, width[0] * prod(sizes[0])), nn.Unflatten(1, (width[0], *sizes[0]))]
    for before, after, target in zip(width, [*width[1:], channels], sizes[1:], strict=True):
        # of n pixels it makes 2n - 1, and one more where the side is even
        even = tuple(1 - side % 2 for side in target)
        layers += [nn.ReLU(inplace=True), TRANSPOSED[space](before, after, 3, 2, 1, output_padding=even)]
    return Decoder(nn.Sequential(*layers), 1)
