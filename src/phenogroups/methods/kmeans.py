"""Plain K-means on pixels or features of the patients: what one gets without a network and without controls."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from phenogroups.clustering.kmeans import inverse_square_proportions, squared_distances
from phenogroups.methods.adjustable import Adjustable


@dataclass(frozen=True)
class Means:
    centroids: Tensor  # (subgroups, numbers of an input)


@dataclass(eq=False, repr=False)
class PlainKMeans(Adjustable):
    n_starts: int = 10  # K-means++ starts; the best is kept

    needs_controls: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = Means

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> Means:
        found = KMeans(self.n_subgroups, n_init=self.n_starts, random_state=self.seed).fit(vectors)
        return Means(torch.as_tensor(found.cluster_centers_, dtype=torch.float32))

    def read(self, vectors: Tensor, beliefs: Means) -> dict[str, Tensor]:
        squared = squared_distances(vectors.double(), beliefs.centroids.double())
        return {"subgroup": inverse_square_proportions(squared), "embedding": vectors}
