"""Hyperplanes between patients and controls, many at once: one for each weighting of the same subjects.

The loss is logistic, or the square of the hinge: a margin like the hinge, but smooth. So one solver serves both, starts
from an earlier solution and shares its matrix products among all hyperplanes.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from phenogroups.clustering.space import scaling

Loss = Literal["logistic", "squared_hinge"]
CURVATURE = {"logistic": 0.25, "squared_hinge": 2.0}  # of the loss, at most
NEGLIGIBLE = 1e-10  # share of the largest variance below which an axis is rounding error
MOST_STEPS = 500


@dataclass(frozen=True)
class Hyperplanes:
    weights: Tensor  # (dims, hyperplanes)
    intercepts: Tensor  # (hyperplanes,)

    def scores(self, z: Tensor) -> Tensor:
        """(n, hyperplanes): w.x + b, positive on the patients' side."""
        return z @ self.weights + self.intercepts

    def __getitem__(self, some: Any) -> "Hyperplanes":
        return Hyperplanes(self.weights[:, some], self.intercepts[some])


def fit_hyperplanes(
    z: Tensor,
    diagnosis: Tensor,
    weights: Tensor,  # (n, hyperplanes): how much a subject counts for each
    *,
    loss: Loss,
    strength: float = 1.0,  # C: of the losses against the penalty
    start: Hyperplanes | None = None,
    tolerance: float = 1e-4,
) -> Hyperplanes:
    """Each minimises |w|^2 / 2 + C sum_i weights_i loss(w.x_i + b), as scikit-learn's linear models do."""
    if strength <= 0:
        raise ValueError(
            f"Expected a strength above 0. Received: {strength}. The smaller, the simpler the hyperplanes."
        )
    side = (2 * diagnosis - 1).to(z)[:, None]
    turned = z.T.contiguous()  # a product with it is twice as fast as one with a transposed view
    total = weights.sum(0).clamp_min(torch.finfo(z.dtype).eps)
    share, penalty = weights / total, 1 / (strength * total)  # every objective is a mean, whatever its weights
    curvature = torch.cat([penalty + CURVATURE[loss] * (turned.square() @ share), torch.ones_like(penalty)[None]])
    unit = curvature.rsqrt()  # in which all axes are about equally steep, so that few steps are enough

    w = torch.zeros_like(unit) if start is None else torch.cat([start.weights, start.intercepts[None]]) / unit
    search = torch.optim.LBFGS(
        [w], max_iter=MOST_STEPS, history_size=10, tolerance_grad=tolerance, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    @torch.no_grad()
    def objective() -> float:
        plane = w * unit
        margin = side * (z @ plane[:-1] + plane[-1])
        if loss == "logistic":
            losses, slope = -logsigmoid(margin), -torch.sigmoid(-margin)
        else:
            missing = (1 - margin).clamp_min(0)
            losses, slope = missing.square(), -2 * missing
        slope = slope * side * share
        w.grad = torch.cat([penalty * plane[:-1] + turned @ slope, slope.sum(0, keepdim=True)]) * unit
        return ((penalty * plane[:-1].square()).sum() / 2 + (share * losses).sum()).item()

    search.step(objective)
    plane = w * unit
    return Hyperplanes(plane[:-1], plane[-1])


def balanced(weights: Tensor, diagnosis: Tensor) -> Tensor:
    """The weights (n, hyperplanes), scaled such that patients and controls count alike for each hyperplane."""
    ill = (diagnosis == 1)[:, None]
    of_patients, of_controls = (torch.where(who, weights, 0).sum(0) for who in (ill, ~ill))
    of_class = torch.where(ill, of_patients, of_controls)
    # a class without any weight keeps none
    return weights * torch.where(of_class > 0, (of_patients + of_controls) / (2 * of_class), 0)


@dataclass(frozen=True)
class Coordinates:
    """Standardised features, seen along their principal axes.

    A hyperplane with penalty |w|^2 is the same in any rotated coordinates, so all axes together lose nothing; but they
    are no more than features or subjects, and no two of them say the same.
    """

    center: Tensor  # (features,)
    basis: Tensor  # (features, axes)

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.center) @ self.basis

    def in_features(self, planes: Hyperplanes) -> Hyperplanes:
        """The same hyperplanes for features as they were measured."""
        weights = self.basis @ planes.weights
        return Hyperplanes(weights, planes.intercepts - self.center @ weights)


def fit_coordinates(x: Tensor, components: int | None = None) -> Coordinates:
    """All axes along which subjects differ, or the `components` along which they differ most."""
    center, scale = scaling(x, "standard")
    z = (x - center) / scale
    tall = z.shape[0] >= z.shape[1]
    values, vectors = torch.linalg.eigh(z.T @ z if tall else z @ z.T)
    values, vectors = values.flip(0), vectors.flip(1)
    count = max(int((values > NEGLIGIBLE * values[0]).sum()), 1)
    vectors = vectors[:, : count if components is None else min(count, components)]
    if not tall:
        vectors = normalize(z.T @ vectors, dim=0)
    # an eigenvector's sign is arbitrary: fix it, so that the same data give the same coordinates
    sign = vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    return Coordinates(center, vectors * sign / scale[:, None])
