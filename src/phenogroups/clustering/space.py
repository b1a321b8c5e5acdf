"""The space in which patients are clustered: embeddings scaled by the patients, without what is no kind of illness."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scaler = Literal["standard", "robust", "none"]


@dataclass(frozen=True)
class DiseaseSpace:
    """A fixed map from embeddings to the vectors that are clustered; a few tensors, saved with the model."""

    center: Tensor  # (dims,)
    scale: Tensor  # (dims,)
    severity: Tensor  # (dims,): unit axis from controls to patients that is removed, or zeros
    basis: Tensor  # (dims, components): principal axes of the patients
    limit: Tensor  # (): deviations beyond which a coordinate is pulled in, or infinity

    def __call__(self, embedding: Tensor) -> Tensor:
        z = (embedding - self.center) / self.scale
        z = z - (z @ self.severity)[:, None] * self.severity
        return z.clamp(-self.limit, self.limit) @ self.basis


def fit_space(
    embedding: Tensor,
    is_patient: Tensor,
    *,
    scaler: Scaler = "standard",
    remove_severity: bool = False,
    winsorise: float | None = None,
    components: int | None = None,
) -> DiseaseSpace:
    """Scaling by the statistics of the patients alone (reference: the scaler is fitted on train patients)."""
    patients = embedding[is_patient]
    center, scale = scaling(patients, scaler)
    dims = embedding.shape[1]
    severity = torch.zeros(dims, dtype=embedding.dtype, device=embedding.device)
    if remove_severity and not is_patient.all():
        # the first thing that varies among patients is how ill they look, not in which way
        toward = -((embedding[~is_patient] - center) / scale).mean(0)
        severity = torch.nn.functional.normalize(toward, dim=0)
    limit = torch.tensor(
        float("inf") if winsorise is None else winsorise, dtype=embedding.dtype, device=embedding.device
    )
    basis = torch.eye(dims, dtype=embedding.dtype, device=embedding.device)
    space = DiseaseSpace(center, scale, severity, basis, limit)
    if components is None or components >= dims:
        return space
    z = space(patients).double()
    z = z - z.mean(0)
    _, vectors = torch.linalg.eigh(z.T @ z)
    leading = vectors.flip(1)[:, :components]
    # an eigenvector's sign is arbitrary: fix it, so that the same data give the same coordinates
    sign = leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
    return DiseaseSpace(center, scale, severity, (leading * sign).to(embedding.dtype), limit)


def scaling(patients: Tensor, scaler: Scaler) -> tuple[Tensor, Tensor]:
    """Centre and scale (dims,) by the statistics of these patients."""
    if scaler == "none":
        return torch.zeros_like(patients[0]), torch.ones_like(patients[0])
    if scaler == "standard":
        center, scale = patients.mean(0), patients.std(0, correction=0)
    elif scaler == "robust":
        low, center, high = patients.quantile(patients.new_tensor([0.25, 0.5, 0.75]), dim=0)
        scale = high - low
    else:
        raise ValueError(f"Expected scaler 'standard', 'robust' or 'none'. Received: {scaler!r}.")
    # a unit that is silent among patients carries no subgroup: leave it at zero instead of dividing by zero
    floor = torch.finfo(scale.dtype).eps * center.abs().clamp_min(1)
    return center, torch.where(scale > floor, scale, torch.ones_like(scale))
