"""Gaussian mixture on pixels or features of the patients, each subgroup with its own shape (scikit-learn's EM)."""

from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from phenogroups.clustering.gaussians import Gaussians
from phenogroups.methods.adjustable import Adjustable

FAINTEST = 1e-6  # variance of a component, as a share of the first, that scikit-learn's ridge would drown
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class Mixture:
    center: Tensor  # (numbers of an input,)
    basis: Tensor  # (numbers of an input, components): principal axes of the patients, in units of the mixture
    means: Tensor  # (subgroups, components)
    whitening: Tensor  # (subgroups, components, components): makes a subgroup's covariance one
    log_heights: Tensor  # (subgroups,)


@dataclass(eq=False, repr=False)
class PlainGaussianMixture(Adjustable):
    n_starts: int = 10  # of EM, twice; the likeliest is kept
    # a covariance of 1,024 pixels has half a million numbers, more than any cohort can tell; of ten components, 55
    components: int = 10  # principal components of the patients in which they are clustered, at most

    needs_controls: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = Mixture

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> Mixture:
        # pixels share one unit, features have each their own
        table = len(self.input_shape_) == 1
        x = vectors.astype(np.float64 if table else np.float32)
        scale = StandardScaler().fit(x).scale_ if table else np.ones(x.shape[1])
        x /= scale
        pca = PCA(min(self.components, len(x) - 1, x.shape[1]), random_state=self.seed).fit(x)
        variance = pca.explained_variance_
        kept = variance >= FAINTEST * variance[0]
        center, axes, deviation = pca.mean_, pca.components_[kept].T, np.sqrt(np.where(variance > 0, variance, 1))[kept]
        fits = []
        # starts are by K-means, which sees what is loud in the first units and what is faint in the second
        for units in (np.full_like(deviation, deviation[0]), deviation):
            mixture = GaussianMixture(
                self.n_subgroups, n_init=self.n_starts, max_iter=MAX_ITERATIONS, random_state=self.seed
            ).fit((x - center) @ (axes / units))
            fits.append((mixture.lower_bound_ - np.log(units).sum(), units, mixture))
        _, units, found = max(fits, key=itemgetter(0))  # the likelier in one and the same space
        whitening = found.precisions_cholesky_
        log_heights = np.log(found.weights_) + np.log(np.diagonal(whitening, axis1=1, axis2=2)).sum(axis=1)
        learned = (center * scale, axes / units / scale[:, None], found.means_, whitening, log_heights)
        # contiguous, as a model file makes them: matrix products of other strides round differently
        return Mixture(*(torch.as_tensor(np.ascontiguousarray(t)).double() for t in learned))

    def read(self, vectors: Tensor, beliefs: Mixture) -> dict[str, Tensor]:
        z = (vectors.double() - beliefs.center) @ beliefs.basis
        q = Gaussians(beliefs.means, beliefs.whitening, beliefs.log_heights).posterior(z)
        return {"subgroup": q, "embedding": z.float()}
