"""BYOL: one view predicts the projection of the other by a momentum teacher (Grill et al. 2020); then K-means."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from phenogroups.data.batches import Batch
from phenogroups.methods.reading import ReadByKMeans
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, Teacher, projection, teacher_of


@dataclass(eq=False, repr=False)
class BYOL(ReadByKMeans, name="byol"):
    """
    Parameters
    ----------
    decay
        Decay of the teacher's moving average per step; the paper's 0.996 to 1 is for longer trainings.
    reading
        Whose embedding is clustered: the student's, as in BYOL's paper, or the teacher's, as in the comparison's code.
    """

    decay: float = 0.99
    reading: Literal["student", "teacher"] = "student"

    needs_controls: ClassVar[bool] = False
    views: ClassVar[int] = 2

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        # batch normalisation prevents the collapse to one constant prediction
        head, predictor = projection(encoder.dim, norm=True), projection(128, norm=True)
        return {"projection": head, "predictor": predictor, "teacher": Teacher(encoder, head, self.decay)}

    def encoder_of(self, network: Network) -> nn.Module:
        return network.encoder if self.reading == "student" else teacher_of(network).encoder

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        project, predict = network.heads["projection"], network.heads["predictor"]
        p, p_other = (predict(project(network.encoder(view))) for view in batch.views)
        t, t_other = (teacher_of(network)(view) for view in batch.views)
        return {"alignment": (alignment(p, t_other) + alignment(p_other, t)) / 2}

    def after_step(self, network: Network) -> None:
        teacher_of(network).update(network.encoder, network.heads["projection"])


def alignment(prediction: Tensor, target: Tensor) -> Tensor:
    """Negative cosine similarity: half of the paper's Eq. 2 up to a constant; -1 where all directions agree."""
    return -F.cosine_similarity(prediction, target, dim=1).mean()
