"""The space in which patients are clustered: embeddings scaled by the patients, without the axis of severity."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.blocks import kept, stacked, summed
from phenogroups.clustering.communicator import LOCAL, Communicator

QUANTILES_AT_ONCE = 2**23  # numbers of as many columns as are sorted together
Scaler = Literal["standard", "robust", "none"]


@dataclass(frozen=True)
class DiseaseSpace:
    """A fixed map from embeddings to the vectors that are clustered; a few tensors, saved with the model."""

    center: Tensor  # (dims,)
    scale: Tensor  # (dims,)
    severity: Tensor  # (dims,): unit axis from controls to patients that is removed, or zeros
    basis: Tensor  # (dims, components): principal axes of the patients
    limit: Tensor  # (): standard deviations to which coordinates are clipped, or infinity

    def __call__(self, embedding: Tensor, keep: Tensor | None = None) -> Tensor:
        """The vectors of all subjects, or of those whom the mask keeps."""
        count = len(embedding) if keep is None else int(keep.sum())
        return stacked(map(self._of, kept(embedding, keep)), count)

    def _of(self, embedding: Tensor) -> Tensor:
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
    comm: Communicator = LOCAL,
) -> DiseaseSpace:
    """Scaling by the statistics of the patients alone (reference: the scaler is fitted on train patients)."""
    center, scale = scaling(embedding, scaler, is_patient, comm)
    counts = torch.stack([(~is_patient).sum(), is_patient.sum()])
    ((n_controls, n_patients),) = (each.tolist() for each in summed([(counts,)], comm))
    dims = embedding.shape[1]
    severity = torch.zeros(dims, dtype=embedding.dtype, device=embedding.device)
    if remove_severity and n_controls:
        # the first thing that varies among patients is how ill they look, not in which way
        parts = ((-((controls - center) / scale).double().sum(0),) for controls in kept(embedding, ~is_patient))
        (toward,) = summed(parts, comm)
        severity = torch.nn.functional.normalize(toward, dim=0).to(embedding)
    limit = torch.tensor(
        float("inf") if winsorise is None else winsorise, dtype=embedding.dtype, device=embedding.device
    )
    basis = torch.eye(dims, dtype=embedding.dtype, device=embedding.device)
    space = DiseaseSpace(center, scale, severity, basis, limit)
    if components is None or components >= dims:
        return space
    seen = (space._of(patients).double() for patients in kept(embedding, is_patient))
    products, total = summed(((z.T @ z, z.sum(0)) for z in seen), comm)
    _, vectors = torch.linalg.eigh(products - total[:, None] * total / n_patients)
    leading = vectors.flip(1)[:, :components]
    # an eigenvector's sign is arbitrary: fix it, so that the same data give the same coordinates
    sign = leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
    return DiseaseSpace(center, scale, severity, (leading * sign).to(embedding), limit)


def scaling(z: Tensor, scaler: Scaler, keep: Tensor | None = None, comm: Communicator = LOCAL) -> tuple[Tensor, Tensor]:
    """Centre and scale (dims,) by the statistics of these patients, or of those whom the mask keeps.

    `robust` needs all of them in one process.
    """
    if scaler == "none":
        return z.new_zeros(z.shape[1:]), z.new_ones(z.shape[1:])
    if scaler == "standard":
        total, count = summed(((block.double().sum(0), torch.tensor(len(block))) for block in kept(z, keep)), comm)
        center = (total / count).to(z)
        (squares,) = summed((((block - center).square().double().sum(0),) for block in kept(z, keep)), comm)
        scale = (squares / count).sqrt().to(z)
    elif scaler == "robust":
        at_once = max(1, QUANTILES_AT_ONCE // len(z))
        parts = (some if keep is None else some[keep] for some in z.split(at_once, dim=1))
        quantiles = [np.quantile(some.mT.numpy(force=True), [0.25, 0.5, 0.75], axis=1) for some in parts]
        low, center, high = torch.as_tensor(np.concatenate(quantiles, axis=1)).to(z)
        scale = high - low
    else:
        raise ValueError(f"Expected scaler 'standard', 'robust' or 'none'. Received: {scaler!r}.")
    # a unit that is constant among patients carries no subgroup: a scale of one leaves it at zero
    floor = torch.finfo(scale.dtype).eps * center.abs().clamp_min(1)
    return center, torch.where(scale > floor, scale, torch.ones_like(scale))
