"""Surrogate patients who vary as the patients do, but have no subgroups."""

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.gap import GRID, filled, smoothed


def without_groups(z: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """(count, n, D): surrogates of the patients `z` (n, D).

    Each principal axis is drawn separately, from the distribution of the patients made single-peaked and symmetric. So
    variances are kept, a uniform distribution stays about uniform, and groups disappear.
    """
    mean = z.mean(0)
    _, _, axes = torch.linalg.svd(z - mean, full_matrices=False)
    drawn = []
    for values in ((z - mean) @ axes.T).T:
        x = single_peaked(values, count, rng)
        x = (x - x.median(1, keepdim=True).values) * torch.as_tensor(rng.choice([-1.0, 1.0], x.shape)).to(x)
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True).clamp_min(1e-12)
        drawn.append(x * values.std())
    return torch.stack(drawn, dim=2) @ axes + mean


def single_peaked(values: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """(count, n): draws from the density of `values` (n,), smoothed and with its valleys filled; in other units."""
    density = filled(smoothed(values[None], torch.ones_like(values)[None]))[0].double().numpy()
    cell = rng.choice(GRID, (count, len(values)), p=density / density.sum())
    return torch.as_tensor(cell + rng.random(cell.shape)).to(values)
