"""Logistic regression on a finished embedding: of the diagnosis, or of memberships in subgroups."""

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


def membership_layer(z: Tensor, q: Tensor, weight: Tensor, strength: float = 0.1) -> tuple[Tensor, Tensor]:
    """Weights (K, dims) and biases (K,) of logits whose softmax is closest to memberships `q` (n, K).

    Logistic regression on standardised axes, in which every subject counts by its `weight` (of mean 1).
    """
    k = q.shape[1]
    center, scale = scaling(z.double(), "standard")
    # each subject is a member of every subgroup, by its share
    rows = ((z - center) / scale).repeat_interleave(k, dim=0)
    found = LogisticRegression(C=strength, max_iter=1000)
    share, member = (q * weight[:, None]).flatten(), torch.arange(k).repeat(len(z))
    found.fit(*(part.numpy(force=True) for part in (rows, member)), sample_weight=share.numpy(force=True))
    weights, bias = (torch.as_tensor(part, device=z.device) for part in (found.coef_, found.intercept_))
    if k == 2:  # one logit, that of the second
        weights, bias = (torch.cat([-part, part]) / 2 for part in (weights, bias))
    weights = weights / scale
    return weights.to(z), (bias - weights @ center).to(z)
