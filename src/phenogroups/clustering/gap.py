"""The gap between subgroups: how much of their density is missing in the valley between them."""

from functools import lru_cache
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

GRID = 128  # points at which a density is evaluated
REACH = 4.5  # standard deviations that the grid spans to either side
BANDWIDTH = 1.0  # of the density, in standard deviations times n^(-1/5)
FARTHEST, STEPS = 12.0, 200  # two normal distributions are compared up to so many deviations apart, in so many steps


def pair_gaps(scores: Tensor, q: Tensor) -> Tensor:
    """(pairs, batch): the gaps between any two subgroups.

    `scores` (batch, n, K) are linear discriminants: the difference of two columns tells these two subgroups apart.
    Subjects count by their posteriors `q` (batch, n, K) of the two.
    """
    gaps = [gap(scores[..., a] - scores[..., b], q[..., a] + q[..., b]) for a, b in combinations(range(q.shape[2]), 2)]
    return torch.stack(gaps)


def gap(values: Tensor, weight: Tensor) -> Tensor:
    """(batch,): the share of the smoothed density of `values` (batch, n) that its valleys lack; 0 is no gap."""
    density = smoothed(values, weight)
    return (filled(density) - density).sum(1) / density.sum(1).clamp_min(1e-12)


def deviations_apart(gap: float, n: int) -> float:
    """How far apart two normal distributions of equal size lie whose gap is as wide among `n` values.

    In standard deviations of each of them; below 3 is hardly a gap. A density of few values is smoothed more, so that
    the gap of the same two distributions is narrower: this is how far apart they lie whatever the number of values.
    """
    apart, gaps = _gaps_of_normals(n)
    return float(np.interp(gap, gaps, apart)) if gap > 0 else float(apart[0])


@lru_cache(maxsize=1024)
def _gaps_of_normals(n: int) -> tuple[np.ndarray, np.ndarray]:
    """How far apart two normal distributions lie, and the gap between them."""
    apart = torch.linspace(2, FARTHEST, 1 + STEPS).double()[:, None]
    spread = (1 + apart**2 / 4).sqrt()  # of both together, by which values are standardised
    width = (spread**-2 + (BANDWIDTH * max(n, 1) ** -0.2) ** 2).sqrt()  # of each, smoothed
    points, middle = torch.linspace(-REACH, REACH, GRID).double(), apart / 2 / spread
    density = torch.stack([torch.exp(-(((points - place) / width) ** 2) / 2) for place in (-middle, middle)]).sum(0)
    gaps = (filled(density) - density).sum(1) / density.sum(1)
    return apart[:, 0].numpy(), gaps.cummax(0).values.numpy()


def smoothed(values: Tensor, weight: Tensor) -> Tensor:
    """(batch, points): the density of standardised values on a grid."""
    whole = weight.sum(1, keepdim=True).clamp_min(1e-6)
    middle = (weight * values).sum(1, keepdim=True) / whole
    spread = ((weight * (values - middle) ** 2).sum(1, keepdim=True) / whole).sqrt().clamp_min(1e-12)
    place = (((values - middle) / spread).clamp(1 - REACH, REACH - 1) + REACH) / (2 * REACH) * (GRID - 1)
    below = place.floor().long()
    above = place - below
    counts = values.new_zeros(len(values), GRID)
    counts = counts.scatter_add_(1, below, weight * (1 - above)).scatter_add_(1, below + 1, weight * above)
    width = (BANDWIDTH * whole**-0.2 / (2 * REACH) * (GRID - 1))[:, 0]  # in points of the grid
    widths, which = (width, None) if len(width) == 1 else width.unique(return_inverse=True)
    if len(widths) == 1:  # values of one number, such as simulations, share a kernel
        return counts @ _kernel(widths.item(), width.dtype, width.device)
    return (counts[:, None] @ _kernels(widths)[which])[:, 0]


@lru_cache(maxsize=32)  # splits of the same subjects are compared by the hundred
def _kernel(width: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _kernels(torch.tensor([width], dtype=dtype, device=device))[0]


def _kernels(widths: Tensor) -> Tensor:
    """(widths, points, points): weights of the points around each point."""
    points = torch.arange(GRID, device=widths.device)
    return torch.exp(-(((points[:, None] - points) / widths[:, None, None]) ** 2) / 2)


def filled(density: Tensor) -> Tensor:
    """The least single-peaked function above each density (batch, points)."""
    left = density.cummax(1).values
    right = density.flip(1).cummax(1).values.flip(1)
    return torch.minimum(left, right)
