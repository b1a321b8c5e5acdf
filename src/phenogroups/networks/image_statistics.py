"""Statistics of any image or volume that need no encoder: brightness by place, roughness, and the histogram."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

POOL = {2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
CELLS = {2: 8, 3: 4}  # a side of the coarse image
ROUGH_CELLS = {2: 4, 3: 2}  # a side of the map of roughness, at each scale
SCALES = (1, 2, 4)  # distances in pixels at which neighbours are compared
LEAST = 1e-3  # roughness that counts as none, of the spread of intensities
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the histogram
SAMPLED = 4096  # pixels from which the histogram is made


def image_statistics(x: Tensor) -> Tensor:
    """(n, statistics) of images (n, channels, H, W) or volumes (n, channels, D, H, W)."""
    dims = x.ndim - 2
    step = max(1, prod(x.shape[2:]) // SAMPLED)
    histogram = torch.quantile(x.flatten(2)[..., ::step], torch.tensor(QUANTILES).to(x), dim=2)
    grey = x.mean(1, keepdim=True)
    rough = [POOL[dims](_roughness(grey, scale), ROUGH_CELLS[dims]).flatten(1) for scale in SCALES]
    # the logarithm, as the roughness of different kinds of images differs by factors
    rough = (torch.cat(rough, 1) + LEAST).log()
    return torch.cat([POOL[dims](x, CELLS[dims]).flatten(1), rough, histogram.permute(1, 0, 2).flatten(1)], 1)


def number_of_statistics(shape: tuple[int, ...]) -> int:
    """The number of statistics of an input of this shape."""
    channels, dims = shape[0], len(shape) - 1
    return channels * (CELLS[dims] ** dims + len(QUANTILES)) + len(SCALES) * ROUGH_CELLS[dims] ** dims


def _roughness(grey: Tensor, scale: int) -> Tensor:
    """(n, 1, ...): difference of neighbours `scale` pixels apart, summed over the axes, at every pixel."""
    found = torch.zeros_like(grey)
    for axis in range(2, grey.ndim):
        found += (grey - grey.roll(scale, axis)).abs()
    return found
