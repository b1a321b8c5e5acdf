"""What any picture or volume looks like, without an encoder: where it is bright, how rough it is, and its histogram."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

POOL = {2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
CELLS = {2: 8, 3: 4}  # a side of the coarse picture
ROUGH_CELLS = {2: 4, 3: 2}  # a side of the map of roughness, at each scale
SCALES = (1, 2, 4)  # pixels over which neighbours are compared
LEAST = 1e-3  # roughness that counts as none, of the spread of intensities
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of the histogram
TELLING = 4096  # pixels that the histogram is made of


def look(x: Tensor) -> Tensor:
    """(n, `size_of_look`): of images (n, channels, H, W) or volumes (n, channels, D, H, W)."""
    dims = x.ndim - 2
    step = max(1, prod(x.shape[2:]) // TELLING)
    histogram = torch.quantile(x.flatten(2)[..., ::step], torch.tensor(SHARES).to(x), dim=2)
    grey = x.mean(1, keepdim=True)
    rough = [POOL[dims](_roughness(grey, scale), ROUGH_CELLS[dims]).flatten(1) for scale in SCALES]
    # roughness differs by factors between kinds of pictures
    rough = (torch.cat(rough, 1) + LEAST).log()
    return torch.cat([POOL[dims](x, CELLS[dims]).flatten(1), rough, histogram.permute(1, 0, 2).flatten(1)], 1)


def size_of_look(shape: tuple[int, ...]) -> int:
    """Numbers that `look` says of an input of this shape."""
    channels, dims = shape[0], len(shape) - 1
    return channels * (CELLS[dims] ** dims + len(SHARES)) + len(SCALES) * ROUGH_CELLS[dims] ** dims


def _roughness(grey: Tensor, scale: int) -> Tensor:
    """(n, 1, ...): mean difference of neighbours `scale` pixels apart, along all axes, at every pixel."""
    found = torch.zeros_like(grey)
    for axis in range(2, grey.ndim):
        found += (grey - grey.roll(scale, axis)).abs()
    return found
