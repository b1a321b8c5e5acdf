"""Foundation model: K-means and logistic regression on its frozen embeddings (RETFound, Zhou et al. 2023; EVA-X).

Images are embedded by the encoder named; a table of features is taken as the embeddings of a model run elsewhere.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.linear import logistic_hyperplane
from phenogroups.clustering.space import Scaler
from phenogroups.data.cohort import Cohort
from phenogroups.methods.reading import CentroidsAndHyperplane, centroids_of
from phenogroups.methods.settings import AtLeast
from phenogroups.methods.with_encoder import WithEncoder
from phenogroups.methods.without_network import WithoutNetwork
from phenogroups.networks.encoders import has_weights
from phenogroups.networks.weights import RANDOM
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.em import Progress


@dataclass(eq=False, repr=False)
class Foundation(WithEncoder, WithoutNetwork, name="foundation"):
    """
    Parameters
    ----------
    encoder
        Encoder of images: ``lite0``, ``hf:NAME``, or a name in `phenogroups.networks.encoders` together with weights.
    weights
        Weights of the encoder: a file, ``imagenet``, or ``random`` as a baseline that has learned nothing.
    n_starts
        Number of K-means starts; the best is kept.
    scaler
        How embeddings are scaled before K-means, by the statistics of the patients.
    device
        Where training images are embedded, as Fabric's accelerator: ``auto``, ``cpu``, ``gpu`` or ``mps``.
    """

    n_starts: Annotated[int, AtLeast(1)] = 10
    scaler: Scaler = "standard"
    device: str = "auto"

    beliefs_type: ClassVar[type] = CentroidsAndHyperplane
    encoder_prefix: ClassVar[str] = "encoder."
    # a recipe sets the encoder from which the other methods are trained
    settings_of_its_own: ClassVar[tuple[str, ...]] = ("encoder", "weights")

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        self.frozen_encoder_ = None
        if self._embeds(cohort):
            self.frozen_encoder_ = self.build_frozen_encoder(cohort.inputs)
            cohort = replace(cohort, inputs=self.embed_cohort(self.frozen_encoder_, cohort.inputs, self.device))
        super()._fit(cohort, progress, checkpoint)

    def _embeds(self, cohort: Cohort) -> bool:
        """Whether inputs are images, which need an encoder; raises where the settings do not fit them."""
        shape, asked = cohort.input_shape, f"encoder {self.encoder!r} with weights {self.weights!r}"
        if len(shape) == 1:
            if has_weights(self.encoder, self.weights) or self.weights == RANDOM:
                raise ValueError(f"Expected images for {asked}. Received: a table. Give images, or leave both out.")
            return False
        if not has_weights(self.encoder_for(cohort.inputs), self.weights) and self.weights != RANDOM:
            raise ValueError(
                f"Expected a pretrained encoder for inputs of shape {shape}. Received: {asked}. Name one "
                "(encoder='lite0' for images from 0 to 1, 'hf:NAME', or 'resnet18' with weights='imagenet' or a file), "
                "or embed the images elsewhere and give the embeddings as features."
            )
        return True

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> CentroidsAndHyperplane:
        z, y = torch.as_tensor(vectors, dtype=torch.float32), torch.as_tensor(diagnosis)
        found = centroids_of(z[y == 1], self.n_subgroups, self.scaler, n_starts=self.n_starts, seed=self.seed)
        return CentroidsAndHyperplane(**vars(found), **vars(logistic_hyperplane(z, y)))

    def read(self, vectors: Tensor, beliefs: CentroidsAndHyperplane) -> dict[str, Tensor]:
        found = {"subgroup": beliefs.proportions(vectors), "diagnosis": beliefs.diagnosis(vectors)}
        return {**found, "embedding": vectors}

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), **self.encoder_tensors()}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        super()._restore(self.restore_encoder(tensors))
