"""PCL: a view recognises its patient's other view and its patient's prototype (Li et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.data.batches import Batch
from phenogroups.losses import info_nce
from phenogroups.methods.deep_cluster import DeepCluster, Prototypes
from phenogroups.methods.settings import AtLeast, Shape
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, Teacher, projection, teacher_of


@dataclass(frozen=True)
class Concentrated(Prototypes):
    phi: Annotated[Tensor, Shape("subgroups")]  # concentrations, small where a subgroup is tight


@dataclass(eq=False, repr=False)
class PCL(DeepCluster, name="pcl", presets={"morpho_pcl": {"augmentation": "digits_morpho"}}):
    """
    Parameters
    ----------
    pretext
        Share of the epochs, the first, of InfoNCE alone: 35 of 75, as in the published training on MNIST.
    decay
        Decay of the momentum encoder's moving average per step.
    alpha
        Smoothing of the concentrations, so that small subgroups do not seem concentrated.
    """

    pretext: Annotated[float, AtLeast(0)] = 35 / 75
    decay: float = 0.99
    alpha: float = 10.0

    views: ClassVar[int] = 2
    beliefs_type: ClassVar[type] = Concentrated

    @property
    def warmup(self) -> int:  # pyright: ignore
        return round(self.pretext * self.epochs)

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        head = projection(encoder.dim)
        return {"projection": head, "teacher": Teacher(encoder, head, self.decay)}

    def encoder_of(self, network: Network) -> nn.Module:
        return teacher_of(network).encoder

    def project(self, network: Network, embedding: Tensor) -> Tensor:
        return F.normalize(teacher_of(network).projection(embedding), dim=1)

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Concentrated:
        found = super().e_step(embedding, diagnosis, previous, epoch)
        own = found.q.argmax(1)
        distance = (embedding - found.centroids[own]).norm(dim=1)
        phi = concentrations(distance, own, self.n_subgroups, self.alpha, self.temperature, self.comm)
        return Concentrated(found.q, found.centroids, phi)

    def losses(self, network: Network, batch: Batch, beliefs: Concentrated | None) -> dict[str, Tensor]:
        # two views of a batch are contrasted; the paper contrasts one view with a queue of the teacher's projections
        h, h_other = (F.normalize(network.heads["projection"](network.encoder(view)), dim=1) for view in batch.views)
        contrast = {"contrast": info_nce(h, h_other, self.temperature, self.comm)}
        if beliefs is None:
            return contrast
        logits = self.logits(torch.cat([h, h_other]), beliefs)
        return {**contrast, "prototypes": F.cross_entropy(logits, beliefs.q[batch.index].repeat(2, 1))}

    def logits(self, h: Tensor, beliefs: Concentrated) -> Tensor:
        """Logits of ProtoNCE, from which subgroups are read too."""
        return h @ beliefs.centroids.T / beliefs.phi

    def after_step(self, network: Network) -> None:
        teacher_of(network).update(network.encoder, network.heads["projection"])


def concentrations(
    distance: Tensor, own: Tensor, n_subgroups: int, alpha: float, temperature: float, comm: Communicator = LOCAL
) -> Tensor:
    """phi_k = sum_z ||z - c_k|| / (Z_k log(Z_k + alpha)) over the Z_k members of k; of mean `temperature`."""
    sizes = comm.all_reduce(torch.bincount(own, minlength=n_subgroups)).to(distance)
    total = comm.all_reduce(distance.new_zeros(n_subgroups).index_add(0, own, distance))
    phi = total / (sizes * (sizes + alpha).log()).clamp_min(1)
    phi = torch.where(sizes < 2, phi.max(), phi)  # a single member: the largest, as in the authors' code
    # identical members would give an infinite weight
    phi = phi.clamp_min(phi.mean() / 10).clamp_min(torch.finfo(phi.dtype).eps)
    return temperature * phi / phi.mean()
