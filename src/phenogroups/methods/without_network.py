"""Methods that train no network: they learn from inputs as vectors, pixels or features, in one E-step."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.adjust import Adjustment, column_name, fit_adjustment
from phenogroups.data.batches import read_in_blocks
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.properties import OF_NUMBERS
from phenogroups.data.stored import Inputs
from phenogroups.methods.base import Assign, Method
from phenogroups.methods.prediction import Prediction
from phenogroups.training.checkpoint import Checkpoint, with_prefix, without_prefix
from phenogroups.training.em import Progress

MOST_DIMS = 10_000  # of vectors on which a method is fitted again: an image of 100 pixels a side
BEFORE_VECTORS = ("adjust", "encoder", "weights")  # settings about what makes vectors of inputs


@dataclass(eq=False, repr=False)
class WithoutNetwork(Method):
    """A method that learns from inputs as vectors, in one E-step.

    Attributes
    ----------
    beliefs_ : dataclass of tensors
        The result of the E-step.
    """

    beliefs_type: ClassVar[type]  # the dataclass of tensors that `e_step` returns

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> Any:
        """Beliefs from inputs as vectors (n, numbers); of the patients only unless `needs_controls`."""
        raise NotImplementedError

    def read(self, vectors: Tensor, beliefs: Any) -> dict[str, Tensor]:
        """Fields of a Prediction from some inputs as vectors."""
        raise NotImplementedError

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        trained = cohort if self.needs_controls else cohort.patients
        self.beliefs_ = self.e_step(np.asarray(trained.inputs).reshape(len(trained), -1), trained.diagnosis)

    def vectors(self, cohort: Cohort) -> np.ndarray | None:
        if self.frozen_encoder_ is None and prod(cohort.input_shape) > MOST_DIMS:
            return None
        return np.asarray(self._embedded(self._inputs(cohort))).reshape(len(cohort), -1)

    def refit(self, vectors: np.ndarray, diagnosis: np.ndarray, seed: int) -> Assign | None:
        own = {name: value for name, value in self.get_params(deep=False).items() if name not in BEFORE_VECTORS}
        again = type(self)(**{**own, "seed": seed}).fit(Cohort(vectors.astype(np.float32), diagnosis))
        return lambda x: again.predict_subgroup(x.astype(np.float32))

    def _predict(self, inputs: Inputs) -> Prediction:
        return Prediction.of_tensors(read_in_blocks(inputs, lambda x: self.read(x.flatten(1), self.beliefs_)))

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self.beliefs_))

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.beliefs_ = self.beliefs_type(**tensors)

    def predict_blank(self) -> dict[str, Tensor]:
        frozen, largest = self.frozen_encoder_, max(tensor.numel() for tensor in vars(self.beliefs_).values())
        numbers = prod(self.input_shape_) if frozen is None else frozen.dim
        if numbers > largest:  # refused before so much memory is allocated
            raise ValueError(f"Expected a model of inputs of shape {self.input_shape_}. Received: {largest} numbers.")
        with torch.no_grad():
            return self.read(torch.zeros(1, numbers), self.beliefs_)


@dataclass(eq=False, repr=False)
class Adjustable(WithoutNetwork):
    """A method without a network whose inputs may be adjusted for covariates, such as age, sex and site.

    Parameters
    ----------
    adjust
        Covariates whose effect, estimated on controls, is subtracted from the inputs; ``C(site)`` treats numbers as
        codes. Properties of images (``image_brightness``, ``image_width``, ...) need no column of the table.
    """

    adjust: tuple[str, ...] = ()

    @property
    def covariates(self) -> tuple[str, ...]:
        """All but those that are measured on the inputs themselves; a model of features measures nothing."""
        of_features = len(getattr(self, "input_shape_", ())) == 1
        return tuple(name for name in map(column_name, self.adjust) if of_features or name not in OF_NUMBERS)

    def check_covariates(self, who: Cohort) -> None:
        if self.adjust:
            self.adjustment_.check_covariates(who)

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        if self.adjust:
            self.adjustment_ = fit_adjustment(cohort, self.adjust)
            cohort = replace(cohort, inputs=self.adjustment_(cohort))
        super()._fit(cohort, progress, checkpoint)

    def _inputs(self, X: Any) -> Inputs:
        inputs = super()._inputs(X)
        if not self.adjust:
            return inputs
        if not isinstance(X, Cohort):
            raise CohortError(
                f"Expected a cohort with covariates, as this model adjusts for {', '.join(self.adjust)}. Received: "
                "inputs alone. Give Cohort(inputs, diagnosis, covariates=...); the diagnosis is not read."
            )
        return self.adjustment_(X)

    def tensors(self) -> dict[str, Tensor]:
        adjustment = vars(self.adjustment_) if self.adjust else {}
        return {**super().tensors(), **with_prefix("adjustment.", adjustment)}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        if self.adjust:
            self.adjustment_ = Adjustment(**without_prefix("adjustment.", tensors))
            self.adjustment_.check(tuple(map(column_name, self.adjust)), prod(self.input_shape_))
        super()._restore({name: value for name, value in tensors.items() if not name.startswith("adjustment.")})
