"""Foundation model: K-means and logistic regression on its frozen embeddings (RETFound, Zhou et al. 2023; EVA-X).

Images are embedded by the encoder named; a table of features is taken as the embeddings of a model run elsewhere.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.linear import logistic_hyperplane
from phenogroups.clustering.space import Scaler
from phenogroups.data.cohort import Cohort
from phenogroups.data.stored import Inputs
from phenogroups.methods.afterwards import CentroidsAndHyperplane, centroids_of
from phenogroups.methods.prediction import Prediction
from phenogroups.methods.restoring import restored_encoder
from phenogroups.methods.settings import AtLeast
from phenogroups.methods.without_network import WithoutNetwork
from phenogroups.networks.encoders import Encoder, build_encoder, default_encoder, has_weights, is_lite0
from phenogroups.networks.weights import RANDOM
from phenogroups.training.checkpoint import Checkpoint, without_prefix
from phenogroups.training.distributed import on_device
from phenogroups.training.em import Progress
from phenogroups.training.embedding import embed_once


@dataclass(eq=False, repr=False)
class Foundation(WithoutNetwork, name="foundation"):
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

    Examples
    --------
    >>> from phenogroups import METHODS, drawn_table
    >>> cohort = drawn_table(80)
    >>> method = METHODS["foundation"]().fit(cohort)
    >>> method.predict_subgroup_proba(cohort).shape
    (80, 2)
    """

    encoder: str = "auto"
    weights: str | None = None
    n_starts: Annotated[int, AtLeast(1)] = 10
    scaler: Scaler = "standard"
    device: str = "auto"

    beliefs_type: ClassVar[type] = CentroidsAndHyperplane
    settings_of_its_own: ClassVar[tuple[str, ...]] = (
        "encoder",
        "weights",
    )  # not those that the others are trained from

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        encoder = self._frozen(cohort)
        self.encoder_ = encoder
        if encoder is None:
            return super()._fit(cohort, progress, checkpoint)
        device = next(on_device(encoder, self.device).parameters()).device
        z = embed_once(encoder, cohort.inputs, device)
        encoder.cpu()
        self.beliefs_ = self.e_step(z, cohort.diagnosis)

    @property
    def by_lite0(self) -> bool:
        return is_lite0(self.encoder, self.weights)

    @property
    def frozen_encoder(self) -> Encoder | None:
        return self.encoder_

    def encoder_for(self, inputs: Inputs) -> str:
        """The name of the encoder that sees these inputs."""
        return default_encoder(inputs.shape[1:], self.weights, inputs) if self.encoder == "auto" else self.encoder

    def _frozen(self, cohort: Cohort) -> Encoder | None:
        """The encoder of images; None for a table, which needs none."""
        shape, asked = cohort.input_shape, f"encoder {self.encoder!r} with weights {self.weights!r}"
        if len(shape) == 1:
            if has_weights(self.encoder, self.weights) or self.weights == RANDOM:
                raise ValueError(f"Expected images for {asked}. Received: a table. Give images, or leave both out.")
            return None
        name = self.encoder_for(cohort.inputs)
        if not has_weights(name, self.weights) and self.weights != RANDOM:
            raise ValueError(
                f"Expected an encoder that has learned for inputs of shape {shape}. Received: {asked}. Name one "
                "(encoder='lite0' for images from 0 to 1, 'hf:NAME', or 'resnet18' with weights='imagenet' or a file), "
                "or embed the images elsewhere and give the embeddings as features."
            )
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            encoder = build_encoder(name, shape, self.weights)
        encoder.check_inputs(cohort.inputs)
        return encoder.freeze()

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

    def vectors(self, cohort: Cohort) -> np.ndarray | None:
        return super().vectors(cohort) if self.encoder_ is None else embed_once(self.encoder_, self._inputs(cohort))

    def _predict(self, inputs: Inputs) -> Prediction:
        return super()._predict(inputs if self.encoder_ is None else embed_once(self.encoder_, inputs))

    def tensors(self) -> dict[str, Tensor]:
        of_encoder = {} if self.encoder_ is None else self.encoder_.state_dict()
        return {**super().tensors(), **{f"encoder.{name}": value.contiguous() for name, value in of_encoder.items()}}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        saved = without_prefix("encoder.", tensors)
        self.encoder_ = restored_encoder(self.encoder, self.input_shape_, saved) if saved else None
        super()._restore({name: value for name, value in tensors.items() if not name.startswith("encoder.")})

    def blank(self) -> dict[str, Tensor]:
        return super().blank() if self.encoder_ is None else self._said_of(torch.zeros(1, self.encoder_.dim))
