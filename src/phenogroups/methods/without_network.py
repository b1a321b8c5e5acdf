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
from phenogroups.methods.base import Method
from phenogroups.methods.prediction import Prediction
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.em import Progress


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
