"""Foundation model: K-means and logistic regression on its frozen embeddings (RETFound, Zhou et al. 2023; EVA-X).

The table of features is taken as these embeddings: no foundation model is run here.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.linear import logistic_hyperplane
from phenogroups.clustering.space import Scaler
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.methods.afterwards import CentroidsAndHyperplane, centroids_of
from phenogroups.methods.without_network import WithoutNetwork
from phenogroups.training.em import Progress


@dataclass(eq=False, repr=False)
class Foundation(WithoutNetwork):
    n_starts: int = 10  # of K-means; the best is kept
    scaler: Scaler = "standard"  # of embeddings before K-means, by the patients' statistics

    takes_images: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = CentroidsAndHyperplane

    def _fit(self, cohort: Cohort, progress: Progress | None) -> None:
        if len(cohort.input_shape) != 1:
            raise CohortError(
                "Expected a table of embeddings, one row of numbers per subject. Received: inputs of shape "
                f"{cohort.input_shape}. Embed them by the foundation model first and give its embeddings as features."
            )
        super()._fit(cohort, progress)

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> CentroidsAndHyperplane:
        z, y = torch.as_tensor(vectors, dtype=torch.float32), torch.as_tensor(diagnosis)
        found = centroids_of(z[y == 1], self.n_subgroups, self.scaler, n_starts=self.n_starts, seed=self.seed)
        return CentroidsAndHyperplane(**vars(found), **vars(logistic_hyperplane(z, y)))

    def read(self, vectors: Tensor, beliefs: CentroidsAndHyperplane) -> dict[str, Tensor]:
        return {
            "subgroup": beliefs.proportions(vectors),
            "diagnosis": beliefs.diagnosis(vectors),
            "embedding": vectors,
        }
