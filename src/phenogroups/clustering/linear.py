"""Logistic regression of the diagnosis on a finished embedding."""

from dataclasses import dataclass

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from phenogroups.clustering.space import scaling


@dataclass(frozen=True)
class Hyperplane:
    weights: Tensor  # (dims,)
    intercept: Tensor  # ()

    def logit(self, z: Tensor) -> Tensor:
        return z @ self.weights + self.intercept


def logistic_hyperplane(z: Tensor, diagnosis: Tensor, strength: float = 1.0) -> Hyperplane:
    """Logistic regression on standardised axes, both classes counting alike; the scaling is in the weights."""
    center, scale = scaling(z.double(), "standard")
    found = LogisticRegression(C=strength, class_weight="balanced", max_iter=1000)
    found.fit(((z - center) / scale).numpy(force=True), diagnosis.numpy(force=True))
    weights = torch.as_tensor(found.coef_[0], device=z.device) / scale
    intercept = torch.as_tensor(found.intercept_[0], device=z.device) - weights @ center
    return Hyperplane(weights.to(z), intercept.to(z))
