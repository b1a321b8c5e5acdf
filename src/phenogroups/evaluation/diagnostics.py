"""The paper's own diagnostics on subjects who were not trained on; none of them needs the truth.

With z the embedding, p(c | x) the gate and P_k the patients whose likeliest subgroup is k:

distance ratio          max_k d_k / min_k d_k, where d_k = |mean z of P_k - mean z of controls|     (paper, Fig. UMAP)
gate entropy            mean over controls of -sum_k p(c=k | x) log p(c=k | x) / log K
expert specialisation   mean_k (B_kk - mean_{j != k} B_kj), where B_kj is the balanced accuracy of expert j, which says
                        patient where its log-odds are above 0, on P_k against all controls
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import entropy

from phenogroups.clustering.kmeans import distance_ratio

if TYPE_CHECKING:
    from phenogroups.methods.prediction import Prediction


@dataclass(frozen=True)
class Diagnostics:
    """None where a number is undefined: no controls, an empty subgroup, no experts."""

    distance_ratio: float | None = None  # 1: controls are equally far from all subgroups
    gate_entropy_controls: float | None = None  # 1: the gate is undecided about controls; 0: it is sure of each
    expert_specialisation: float | None = None  # 0: the experts of other subgroups do as well as a subgroup's own
    specialisation_error: float | None = None  # its standard error; None where a subgroup has one patient


def diagnostics(diagnosis: np.ndarray, prediction: "Prediction") -> Diagnostics:
    """Of subjects with a known diagnosis (0 control, 1 patient) and what a method predicts of them."""
    is_patient, k = np.asarray(diagnosis) == 1, prediction.subgroup.shape[1]
    if len(is_patient) != len(prediction.subgroup):
        raise ValueError(
            f"Expected a prediction for each of {len(is_patient)} subjects. Received: {len(prediction.subgroup)}. "
            "Predict the cohort that is looked at."
        )
    if is_patient.all() or k < 2:
        return Diagnostics()
    likeliest = np.where(is_patient, prediction.subgroup.argmax(axis=1), -1)
    found: dict[str, float | None] = {
        "gate_entropy_controls": float(entropy(prediction.subgroup[~is_patient], axis=1, base=k).mean())
    }
    members = [likeliest == subgroup for subgroup in range(k)]
    if all(member.any() for member in members):
        found["distance_ratio"] = distance_ratio(torch.as_tensor(prediction.embedding), torch.as_tensor(likeliest), k)
        if prediction.experts is not None:
            own, error = _specialisation(prediction.experts > 0, members)
            found |= {"expert_specialisation": own, "specialisation_error": error}
    return Diagnostics(**found)


def _specialisation(says_patient: np.ndarray, members: list[np.ndarray]) -> tuple[float, float | None]:
    """Expert specialisation, and its standard error.

    Controls do not enter: summed over the subgroups, each expert's specificity is added as own and subtracted as other.
    """
    gains, variances = [], []
    for k, member in enumerate(members):
        says = says_patient[member].astype(np.float64)
        others = (says.sum(axis=1) - says[:, k]) / (says.shape[1] - 1)
        gain = (says[:, k] - others) / 2
        gains.append(gain.mean())
        variances.append(gain.var(ddof=1) / len(gain) if len(gain) > 1 else np.inf)
    error = float(np.sqrt(sum(variances)) / len(members))
    return float(np.mean(gains)), error if np.isfinite(error) else None
