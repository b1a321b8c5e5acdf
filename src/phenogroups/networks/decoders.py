"""From a code back to the input: images and volumes of any size, and features."""

from math import ceil, log2, prod

import numpy as np
import torch
from torch import Tensor, nn

from phenogroups.clustering.space import scaling
from phenogroups.data.stored import Inputs
from phenogroups.networks.encoder import Shape

CHANNELS = (64, 32, 16)  # from the smallest map on; the last is repeated if a map is doubled more often
MAP_SIDE = 8  # largest side of the first map
SAMPLED = 2**24  # pixels from which the scale is estimated: eight volumes of 128 voxels a side
HIDDEN = 256  # units of the hidden layer for features
TRANSPOSED = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class Decoder(nn.Module):
    """Layers that end in the shape of an input, and the scale in which inputs and reconstructions are compared."""

    mean: Tensor  # (features,), or (1,) for images: a pixel that hardly varies must not have the weight of others
    scale: Tensor

    def __init__(self, layers: nn.Module, units: int) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("mean", torch.zeros(units))
        self.register_buffer("scale", torch.ones(units))

    @torch.no_grad()
    def fit_scaling(self, inputs: Inputs) -> None:
        """Each feature is divided by its deviation: otherwise only those in large units would be reconstructed."""
        values = np.asarray(inputs[:: ceil(prod(inputs.shape) / SAMPLED)] if inputs.ndim > 2 else inputs)
        mean, scale = scaling(torch.tensor(values.reshape(-1, len(self.mean))).double(), "standard")
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def forward(self, code: Tensor) -> Tensor:
        return self.layers(code) * self.scale + self.mean

    def squared_error(self, code: Tensor, x: Tensor) -> Tensor:
        """(n, numbers of an input), in squared deviations."""
        return (self.layers(code) - (x - self.mean) / self.scale).square().flatten(1)


def build_decoder(dim: int, shape: Shape) -> Decoder:
    """A decoder from codes of this length to inputs of this shape."""
    if len(shape) == 1:
        layers = nn.Sequential(nn.Linear(dim, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, shape[0]))
        return Decoder(layers, shape[0])
    return image_decoder(dim, shape)


def image_decoder(dim: int, shape: Shape) -> Decoder:
    """A linear layer makes a small map of the code; transposed convolutions double it up to the size of the input."""
    space, (channels, *size) = len(shape) - 1, shape
    doublings = max(1, ceil(log2(max(size) / MAP_SIDE)))
    sizes = [[ceil(side / 2**i) for side in size] for i in reversed(range(doublings + 1))]
    width = [CHANNELS[min(i, len(CHANNELS) - 1)] for i in range(doublings)]
    layers = [nn.Linear(dim, width[0] * prod(sizes[0])), nn.Unflatten(1, (width[0], *sizes[0]))]
    for before, after, target in zip(width, [*width[1:], channels], sizes[1:], strict=True):
        # n pixels become 2n - 1, and one more where the side is even
        even = tuple(1 - side % 2 for side in target)
        layers += [nn.ReLU(inplace=True), TRANSPOSED[space](before, after, 3, 2, 1, output_padding=even)]
    return Decoder(nn.Sequential(*layers), 1)
