"""Methods that take inputs as they are, pixels or features, and hold one E-step."""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from phenogroups.data.batches import read_in_blocks
from phenogroups.data.cohort import Cohort
from phenogroups.data.stored import Inputs
from phenogroups.methods.base import Find, Method
from phenogroups.methods.prediction import Prediction
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.em import Progress

MOST_DIMS = 10_000  # of vectors in which subgroups are found again: a picture of 100 pixels a side
BEFORE_VECTORS = ("adjust", "encoder", "weights")  # settings about what makes vectors of inputs


@dataclass(eq=False, repr=False)
class WithoutNetwork(Method):
    """A method that learns from inputs as vectors, in one E-step.

    Attributes
    ----------
    beliefs_ : dataclass of tensors
        What the E-step concluded.
    """

    beliefs_type: ClassVar[type]  # the dataclass of tensors that `e_step` returns

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> Any:
        """What is concluded from inputs as vectors (n, numbers); of the patients only unless `needs_controls`."""
        raise NotImplementedError

    def read(self, vectors: Tensor, beliefs: Any) -> dict[str, Tensor]:
        """Fields of a Prediction from some inputs as vectors."""
        raise NotImplementedError

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        seen = cohort if self.needs_controls else cohort.patients
        self.beliefs_ = self.e_step(np.asarray(seen.inputs).reshape(len(seen), -1), seen.diagnosis)

    def vectors(self, cohort: Cohort) -> np.ndarray | None:
        few = prod(cohort.input_shape) <= MOST_DIMS
        return np.asarray(self._inputs(cohort)).reshape(len(cohort), -1) if few else None

    def find_again(self, vectors: np.ndarray, diagnosis: np.ndarray, seed: int) -> Find | None:
        own = {name: value for name, value in self.get_params(deep=False).items() if name not in BEFORE_VECTORS}
        again = type(self)(**{**own, "seed": seed}).fit(Cohort(vectors.astype(np.float32), diagnosis))
        return lambda x: again.predict_subgroup(x.astype(np.float32))

    def _predict(self, inputs: Inputs) -> Prediction:
        return Prediction.of_tensors(read_in_blocks(inputs, lambda x: self.read(x.flatten(1), self.beliefs_)))

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self.beliefs_))

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.beliefs_ = self.beliefs_type(**tensors)

    def blank(self) -> dict[str, Tensor]:
        numbers, held = prod(self.input_shape_), max(tensor.numel() for tensor in vars(self.beliefs_).values())
        if numbers > held:  # refused before so much memory is taken
            raise ValueError(f"Expected a model of inputs of shape {self.input_shape_}. Received: {held} numbers.")
        return self._said_of(torch.zeros(1, numbers))

    def _said_of(self, vectors: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            return self.read(vectors, self.beliefs_)
