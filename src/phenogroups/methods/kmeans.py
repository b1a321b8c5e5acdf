"""K-means on pixels or features of the patients, the baseline without a network and without controls."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from phenogroups.clustering.kmeans import inverse_square_proportions, squared_distances
from phenogroups.methods.settings import AtLeast, Shape
from phenogroups.methods.without_network import Adjustable


@dataclass(frozen=True)
class Means:
    centroids: Annotated[Tensor, Shape("subgroups", "inputs")]


@dataclass(eq=False, repr=False)
class PlainKMeans(Adjustable, name="kmeans"):
    """
    Parameters
    ----------
    n_starts
        Number of K-means++ starts; the best is kept.
    """

    n_starts: Annotated[int, AtLeast(1)] = 10

    needs_controls: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = Means

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> Means:
        found = KMeans(self.n_subgroups, n_init=self.n_starts, random_state=self.seed).fit(vectors)
        return Means(torch.as_tensor(found.cluster_centers_, dtype=torch.float32))

    def read(self, vectors: Tensor, beliefs: Means) -> dict[str, Tensor]:
        squared = squared_distances(vectors.double(), beliefs.centroids.double())
        return {"subgroup": inverse_square_proportions(squared), "embedding": vectors}
