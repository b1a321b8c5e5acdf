"""Foundation model: K-means and logistic regression on its frozen embeddings (RETFound, Zhou et al. 2023; EVA-X).

Images are embedded by the encoder named; a table of features is taken as the embeddings of a model run elsewhere.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.linear import logistic_hyperplane
from phenogroups.clustering.space import Scaler
from phenogroups.data.cohort import Cohort
from phenogroups.methods.afterwards import CentroidsAndHyperplane, centroids_of
from phenogroups.methods.base import Prediction, require_tensors
from phenogroups.methods.without_network import WithoutNetwork
from phenogroups.networks.encoders import Encoder, build_encoder, default_encoder, has_weights
from phenogroups.training.checkpoint import Checkpoint, under
from phenogroups.training.em import Progress, embed, on_device, read_all

RANDOM = "random"


@dataclass(eq=False, repr=False)
class Foundation(WithoutNetwork):
    encoder: str = "auto"  # of images: hf:NAME, or a name in networks.encoders together with weights
    weights: str | None = None  # of an encoder that has none: a file, imagenet, or random: what nothing learned sees
    n_starts: int = 10  # of K-means; the best is kept
    scaler: Scaler = "standard"  # of embeddings before K-means, by the patients' statistics
    device: str = "auto"  # on which training images are embedded, as Fabric's accelerator: auto, cpu, gpu, mps

    beliefs_type: ClassVar[type] = CentroidsAndHyperplane

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        encoder = self._frozen(cohort)
        self.encoder_ = encoder
        if encoder is None:
            return super()._fit(cohort, progress, checkpoint)
        z = embed(on_device(encoder, self.device), cohort.inputs).numpy(force=True)
        encoder.cpu()
        self.beliefs_ = self.e_step(z, cohort.diagnosis)

    def _frozen(self, cohort: Cohort) -> Encoder | None:
        """The encoder of images; None for a table, which needs none."""
        shape, asked = cohort.input_shape, f"encoder {self.encoder!r} with weights {self.weights!r}"
        if len(shape) == 1:
            if has_weights(self.encoder, self.weights):
                raise ValueError(f"Expected images for {asked}. Received: a table. Give images, or leave both out.")
            return None
        if not has_weights(self.encoder, self.weights):
            raise ValueError(
                f"Expected an encoder that has learned for inputs of shape {shape}. Received: {asked}. Name one "
                "(encoder='hf:NAME', or encoder='resnet18' with weights='imagenet' or a file), or embed the images "
                "elsewhere and give the embeddings as features."
            )
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            encoder = build_encoder(self._name(shape), shape, None if self.weights == RANDOM else self.weights)
        encoder.check_inputs(cohort.inputs)
        return encoder.freeze()

    def _name(self, shape: tuple[int, ...]) -> str:
        return default_encoder(shape) if self.encoder == "auto" else self.encoder

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

    def _predict(self, inputs: np.ndarray) -> Prediction:
        if self.encoder_ is None:
            return super()._predict(inputs)
        return Prediction.of_tensors(read_all(self.encoder_, inputs, lambda z: self.read(z, self.beliefs_)))

    def tensors(self) -> dict[str, Tensor]:
        of_encoder = {} if self.encoder_ is None else self.encoder_.state_dict()
        return {**super().tensors(), **{f"encoder.{name}": value for name, value in of_encoder.items()}}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        saved = under("encoder.", tensors)
        self.encoder_ = None
        if saved:
            name = self._name(self.input_shape_)
            with torch.device("meta"):
                require_tensors(build_encoder(name, self.input_shape_, None, saved).state_dict(), saved)
            encoder = build_encoder(name, self.input_shape_, None, saved)
            encoder.load_state_dict(saved)
            self.encoder_ = encoder.freeze()
        super()._restore({name: value for name, value in tensors.items() if not name.startswith("encoder.")})

    def blank(self) -> dict[str, Tensor]:
        return super().blank() if self.encoder_ is None else self._said_of(torch.zeros(1, self.encoder_.dim))
