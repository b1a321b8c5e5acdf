"""How far a subject is from everybody seen in training, and beyond which distance it is a stranger.

The distance is Mahalanobis' with a covariance of principal axes and an even rest (probabilistic PCA, Tipping & Bishop
1999), which few subjects suffice for. The limit is a tolerance limit (Wilks 1941) of subjects whom the
covariance has not seen: few of them are strangers by accident, whatever the size of the cohort.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

AXES = 64  # most principal axes
SUBJECTS_PER_AXIS = 5
FOLDS = 5  # parts of the subjects, each of which is measured by the others
MARKED, SURE = 0.05, 0.95  # at most this share of new subjects of the same kind are strangers, with this probability
LEAST = 1e-6  # variance along an axis, in squared deviations of a column: nothing is nearer than rounding


@dataclass(frozen=True)
class Familiar:
    """Where the training subjects lie; a few tensors, saved with the model."""

    center: Tensor  # (dims,)
    scale: Tensor  # (dims,)
    axes: Tensor  # (dims, axes): principal axes of the scaled vectors
    deviations: Tensor  # (axes,): along them
    rest: Tensor  # (): deviation along every other axis
    limit: Tensor  # (): distance beyond which a subject is a stranger

    def strangeness(self, vectors: Tensor) -> Tensor:
        """(n,): distances to the training subjects, 1 being the limit."""
        z = (vectors.double() - self.center) / self.scale
        along = z @ self.axes
        beside = (z.square().sum(1) - along.square().sum(1)).clamp_min(0)
        return ((along / self.deviations).square().sum(1) + beside / self.rest**2).sqrt() / self.limit


def fit_familiar(vectors: Tensor, group: np.ndarray, *, seed: int = 0) -> Familiar:
    """Of vectors (n, dims); the rows of a group are held out together."""
    if len(np.unique(group)) == 1:  # nobody would be left to measure by
        group = np.arange(len(group))
    names, of_row = np.unique(group, return_inverse=True)
    fold = torch.as_tensor((np.random.default_rng(seed).permutation(len(names)) % FOLDS)[of_row])
    vectors = vectors.double()
    away = torch.cat(
        [_fit(vectors[fold != i]).strangeness(vectors[fold == i]) for i in range(FOLDS) if (fold == i).any()]
    )
    found = _fit(vectors)
    return Familiar(**{**vars(found), "limit": away.sort().values[-1 - beyond_limit(len(away))]})


def beyond_limit(n: int) -> int:
    """How many of `n` subjects may lie beyond the limit, whose own error is counted; none of fewer than 93.

    Fewer than 59 are too few to be sure: then their largest distance is the limit.
    """
    return max(int((binom.cdf(np.arange(n), n, MARKED) <= 1 - SURE).sum()) - 1, 0)


def _fit(vectors: Tensor) -> Familiar:
    """With a limit of 1."""
    n, dims = vectors.shape
    center, scale = vectors.mean(0), vectors.std(0, correction=0)
    # what never varies has no unit of its own
    scale = torch.where(scale > 1e-6 * center.abs().clamp_min(1), scale, torch.ones_like(scale))
    z = (vectors - center) / scale
    count = max(1, min(AXES, n // SUBJECTS_PER_AXIS, dims))
    # of the smaller of both products, whose eigenvalues are the same
    if dims <= n:
        values, axes = (each.flip(-1)[..., :count] for each in torch.linalg.eigh(z.T @ z / n))
    else:
        values, of_subjects = (each.flip(-1)[..., :count] for each in torch.linalg.eigh(z @ z.T / n))
        axes = torch.nn.functional.normalize(z.T @ of_subjects, dim=0)
    rest = (z.square().sum() / n - values.sum()) / max(dims - count, 1)
    deviation = rest.clamp_min(LEAST).sqrt()
    return Familiar(center, scale, axes, values.clamp_min(LEAST).sqrt(), deviation, torch.ones((), dtype=z.dtype))
