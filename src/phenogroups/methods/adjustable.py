"""Methods without a network whose inputs may first be adjusted for covariates, such as age, sex and site."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import Tensor

from phenogroups.clustering.adjust import Adjustment, column_name, fit_adjustment
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.properties import OF_NUMBERS
from phenogroups.data.stored import Inputs
from phenogroups.methods.without_network import WithoutNetwork
from phenogroups.training.checkpoint import Checkpoint, without_prefix
from phenogroups.training.em import Progress


@dataclass(eq=False, repr=False)
class Adjustable(WithoutNetwork):
    """Inputs may be adjusted for covariates before they are clustered.

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

    def rules(self) -> dict[str, Any]:
        """All settings but the adjustment."""
        return {name: value for name, value in self.get_params(deep=False).items() if name != "adjust"}

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
                "inputs alone. Give Cohort(inputs, diagnosis, covariates=...); the diagnosis is not looked at."
            )
        return self.adjustment_(X)

    def tensors(self) -> dict[str, Tensor]:
        adjustment = vars(self.adjustment_) if self.adjust else {}
        return {**super().tensors(), **{f"adjustment.{name}": value for name, value in adjustment.items()}}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        if self.adjust:
            self.adjustment_ = Adjustment(**without_prefix("adjustment.", tensors))
            self.adjustment_.check(tuple(map(column_name, self.adjust)), prod(self.input_shape_))
        super()._restore({name: value for name, value in tensors.items() if not name.startswith("adjustment.")})
