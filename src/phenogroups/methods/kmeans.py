"""Plain K-means on pixels or features of the patients: what one gets without a network and without controls."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from phenogroups.clustering.kmeans import inverse_square_proportions, squared_distances
from phenogroups.data.batches import read_in_blocks
from phenogroups.data.cohort import Cohort
from phenogroups.methods.base import Method, Prediction
from phenogroups.training.em import Progress


@dataclass(eq=False, repr=False)
class PlainKMeans(Method):
    n_starts: int = 10  # K-means++ starts

    needs_controls: ClassVar[bool] = False

    def _fit(self, cohort: Cohort, progress: Progress | None) -> None:
        vectors = cohort.patients.inputs.reshape(int(cohort.is_patient.sum()), -1)
        found = KMeans(self.n_subgroups, n_init=self.n_starts, random_state=self.seed).fit(vectors)
        self.centroids_ = torch.as_tensor(found.cluster_centers_, dtype=torch.float32)

    def _predict(self, inputs: np.ndarray) -> Prediction:
        def read(x: Tensor) -> dict[str, Tensor]:
            vectors = x.flatten(1)
            squared = squared_distances(vectors.double(), self.centroids_.double())
            return {"subgroup": inverse_square_proportions(squared), "embedding": vectors}

        found = read_in_blocks(inputs, read)
        return Prediction(found["subgroup"].numpy(), None, found["embedding"].numpy())

    def tensors(self) -> dict[str, Tensor]:
        return {"centroids": self.centroids_}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.centroids_ = tensors["centroids"]
