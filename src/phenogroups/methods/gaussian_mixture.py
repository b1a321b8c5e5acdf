"""Gaussian mixture on pixels or features of the patients, each subgroup with its own shape (scikit-learn's EM)."""

from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, ClassVar

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from phenogroups.clustering.gaussians import Gaussians
from phenogroups.methods.settings import AtLeast, Shape
from phenogroups.methods.without_network import Adjustable

LEAST_VARIANCE = 1e-6  # relative to the first; below, scikit-learn's ridge would dominate a component
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class Mixture:
    center: Annotated[Tensor, Shape("inputs")]
    basis: Annotated[Tensor, Shape("inputs", "components")]  # principal axes of the patients, in units of the mixture
    means: Annotated[Tensor, Shape("subgroups", "components")]
    whitening: Annotated[
        Tensor, Shape("subgroups", "components", "components")
    ]  # transforms a covariance to the identity
    log_heights: Annotated[Tensor, Shape("subgroups")]


@dataclass(eq=False, repr=False)
class PlainGaussianMixture(Adjustable, name="gaussian_mixture"):
    """
    Parameters
    ----------
    n_starts
        Number of starts of EM in each of two spaces; the likeliest result is kept.
    components
        Largest number of principal components of the patients in which they are clustered. A covariance of 1,024 pixels
        has half a million entries, more than a cohort can estimate; one of ten components has 55.
    """

    n_starts: Annotated[int, AtLeast(1)] = 10
    components: Annotated[int, AtLeast(1)] = 10

    needs_controls: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = Mixture

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> Mixture:
        # features have different units, pixels have the same
        table = len(self.input_shape_) == 1
        x = vectors.astype(np.float64 if table else np.float32)
        scale = StandardScaler().fit(x).scale_ if table else np.ones(x.shape[1])
        x /= scale
        pca = PCA(min(self.components, len(x) - 1, x.shape[1]), random_state=self.seed).fit(x)
        variance = pca.explained_variance_
        kept = variance >= LEAST_VARIANCE * variance[0]
        center, axes, deviation = pca.mean_, pca.components_[kept].T, np.sqrt(np.where(variance > 0, variance, 1))[kept]
        fits = []
        # K-means starts in both spaces: unscaled, where large variances dominate, and whitened
        for units in (np.full_like(deviation, deviation[0]), deviation):
            mixture = GaussianMixture(
                self.n_subgroups, n_init=self.n_starts, max_iter=MAX_ITERATIONS, random_state=self.seed
            ).fit((x - center) @ (axes / units))
            fits.append((mixture.lower_bound_ - np.log(units).sum(), units, mixture))
        _, units, found = max(fits, key=itemgetter(0))  # likelihoods in the same space
        whitening = found.precisions_cholesky_
        log_heights = np.log(found.weights_) + np.log(np.diagonal(whitening, axis1=1, axis2=2)).sum(axis=1)
        learned = (center * scale, axes / units / scale[:, None], found.means_, whitening, log_heights)
        # contiguous, as when read from a model file: products of other strides round differently
        return Mixture(*(torch.as_tensor(np.ascontiguousarray(t)).double() for t in learned))

    def read(self, vectors: Tensor, beliefs: Mixture) -> dict[str, Tensor]:
        z = (vectors.double() - beliefs.center) @ beliefs.basis
        q = Gaussians(beliefs.means, beliefs.whitening, beliefs.log_heights).posterior(z)
        return {"subgroup": q, "embedding": z.float()}
