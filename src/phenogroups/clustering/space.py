"""The space in which patients are clustered: embeddings scaled by the patients, without what is no kind of illness."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from phenogroups.clustering.sums import ALONE, Sums

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
        # products in double precision: rounded back, a row has the same bits in any company
        z = z - (z.double() @ self.severity.double())[:, None].to(z) * self.severity
        return (z.clamp(-self.limit, self.limit).double() @ self.basis.double()).to(z)


def fit_space(
    embedding: Tensor,
    is_patient: Tensor,
    *,
    scaler: Scaler = "standard",
    remove_severity: bool = False,
    winsorise: float | None = None,
    components: int | None = None,
    sums: Sums = ALONE,
) -> DiseaseSpace:
    """Scaling by the statistics of the patients alone (reference: the scaler is fitted on train patients)."""
    patients, controls = embedding[is_patient], embedding[~is_patient]
    center, scale = scaling(patients, scaler, sums)
    dims = embedding.shape[1]
    severity = torch.zeros(dims, dtype=embedding.dtype, device=embedding.device)
    if remove_severity and sums.places(len(controls))[1]:
        # the first thing that varies among patients is how ill they look, not in which way
        toward = -sums.mean((controls - center) / scale)
        severity = torch.nn.functional.normalize(toward, dim=0).to(embedding)
    limit = torch.tensor(
        float("inf") if winsorise is None else winsorise, dtype=embedding.dtype, device=embedding.device
    )
    basis = torch.eye(dims, dtype=embedding.dtype, device=embedding.device)
    space = DiseaseSpace(center, scale, severity, basis, limit)
    if components is None or components >= dims:
        return space
    z = space(patients).double()
    z = z - sums.mean(z)
    _, vectors = torch.linalg.eigh(sums(z.T @ z))
    leading = vectors.flip(1)[:, :components]
    # an eigenvector's sign is arbitrary: fix it, so that the same data give the same coordinates
    sign = leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
    return DiseaseSpace(center, scale, severity, (leading * sign).to(embedding.dtype), limit)


def scaling(patients: Tensor, scaler: Scaler, sums: Sums = ALONE) -> tuple[Tensor, Tensor]:
    """Centre and scale (dims,) by the statistics of these patients; `robust` needs all of them in one process."""
    if scaler == "none":
        return patients.new_zeros(patients.shape[1:]), patients.new_ones(patients.shape[1:])
    if scaler == "standard":
        center = sums.mean(patients).to(patients)
        scale = sums.mean((patients - center).square()).sqrt().to(patients)
    elif scaler == "robust":
        low, center, high = patients.quantile(patients.new_tensor([0.25, 0.5, 0.75]), dim=0)
        scale = high - low
    else:
        raise ValueError(f"Expected scaler 'standard', 'robust' or 'none'. Received: {scaler!r}.")
    # a unit that is silent among patients carries no subgroup: leave it at zero instead of dividing by zero
    floor = torch.finfo(scale.dtype).eps * center.abs().clamp_min(1)
    return center, torch.where(scale > floor, scale, torch.ones_like(scale))
