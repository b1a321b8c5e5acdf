"""SCAN: neighbours in the embedding of a pretext task must fall into one cluster (Van Gansbeke et al. 2020).

Three stages: SimCLR; then a patient and its neighbours get one cluster; then confident predictions become labels.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phenogroups.data.batches import Batch
from phenogroups.losses import balanced_cross_entropy, info_nce
from phenogroups.methods.reading import ReadByHeadOrKMeans
from phenogroups.methods.settings import AtLeast, Shape
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, projection

PATIENTS_PER_NEIGHBOUR = 20  # at least: with few patients, the twentieth neighbour is not similar


@dataclass(frozen=True)
class Neighbours:
    neighbours: Annotated[Tensor, Shape("subjects", "neighbours")]  # positions in the cohort
    self_labelling: Annotated[Tensor, Shape()]  # whether the last stage has begun


@dataclass(eq=False, repr=False)
class SCAN(ReadByHeadOrKMeans, name="scan"):
    """
    Parameters
    ----------
    pretext
        Share of the epochs, the first, that train SimCLR.
    self_labelling
        Share of the epochs, the last, in which confident predictions are used as labels.
    neighbours
        Largest number of neighbours of each patient.
    temperature
        Temperature of SimCLR.
    entropy_weight
        Weight of the entropy of cluster sizes; without it, one cluster would hold all patients.
    threshold
        Probability from which a prediction is used as a label.
    """

    epochs: int = 10
    pretext: float = 0.5
    self_labelling: float = 0.2
    neighbours: Annotated[int, AtLeast(1)] = 20
    temperature: float = 0.1
    entropy_weight: float = 5.0
    threshold: float = 0.99

    views: ClassVar[int] = 2
    beliefs_type: ClassVar[type] = Neighbours

    @property
    def warmup(self) -> int:  # pyright: ignore
        return min(round(self.pretext * self.epochs), self.epochs - 1)  # clustering needs one epoch

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        # the original trains ten cluster heads and keeps the one of lowest loss
        return {"projection": projection(encoder.dim), "cluster": nn.Linear(encoder.dim, self.n_subgroups)}

    def project(self, network: Network, embedding: Tensor) -> Tensor:
        return network.heads["projection"](embedding)  # the space of SimCLR, in which the original mines neighbours

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Neighbours | None, epoch: int) -> Neighbours:
        if previous is None:
            count = min(self.neighbours, max(1, len(embedding) // PATIENTS_PER_NEIGHBOUR))
            previous = Neighbours(nearest(embedding, count), torch.tensor(False))
        if epoch == self.epochs:  # neighbours are not needed after training, and would be large in the model file
            return replace(previous, neighbours=previous.neighbours[:0])
        begins = self.epochs - min(round(self.self_labelling * self.epochs), self.epochs - self.warmup - 1)
        return replace(previous, self_labelling=torch.tensor(epoch >= begins))

    def partners(self, index: Tensor, beliefs: Neighbours | None) -> Tensor | None:
        if beliefs is None or beliefs.self_labelling:
            return None
        near = beliefs.neighbours[index]
        return near.gather(1, torch.randint(near.shape[1], (len(near), 1), device=near.device)).squeeze(1)

    def losses(self, network: Network, batch: Batch, beliefs: Neighbours | None) -> dict[str, Tensor]:
        if beliefs is None:
            a, b = (network.heads["projection"](network.encoder(view)) for view in batch.views)
            return {"contrast": info_nce(a, b, self.temperature)}
        # a patient and its neighbour, or two views of a patient; both are augmented in the same way
        a, b = (network.heads["cluster"](network.encoder(view)) for view in (batch.views[0], batch.views[-1]))
        if beliefs.self_labelling:
            return {"self_labelling": self_labelling_loss(a, b, self.threshold)}
        return {"consistency": consistency_loss(a, b), "entropy": -self.entropy_weight * entropy_of_mean(a)}

    def moved(self, before: Any, after: Any, diagnosis: Tensor) -> None:
        """Unknown: beliefs hold the neighbours, which are mined once, and not the subgroups."""

    def read_head(self, network: Network, embedding: Tensor, beliefs: Any) -> Tensor:
        return network.heads["cluster"](embedding).softmax(1)


def nearest(z: Tensor, count: int, rows: int = 1024) -> Tensor:
    """(n, count): positions of the nearest neighbours by cosine similarity, computed for `rows` at once."""
    z = F.normalize(z, dim=1)
    found = []
    for first in range(0, len(z), rows):
        similarity = z[first : first + rows] @ z.T
        similarity.diagonal(first).fill_(-torch.inf)
        found.append(similarity.topk(count, dim=1).indices)
    return torch.cat(found)


def consistency_loss(a: Tensor, b: Tensor) -> Tensor:
    """- mean log <p(x), p(x')>, from logits (Eq. 2, first term)."""
    return -torch.logsumexp(F.log_softmax(a, dim=1) + F.log_softmax(b, dim=1), dim=1).mean()


def entropy_of_mean(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction, highest when all clusters have the same size (Eq. 2, second term)."""
    log_p = F.log_softmax(logits, dim=1).logsumexp(0) - torch.log(logits.new_tensor(len(logits)))
    return -(log_p.exp() * log_p).sum()


def self_labelling_loss(teacher: Tensor, student: Tensor, threshold: float) -> Tensor:
    """Cross-entropy of one view on confident predictions of the other; clusters have equal weight."""
    probability, label = teacher.detach().softmax(1).max(dim=1)
    rows = probability > threshold
    return balanced_cross_entropy(student[rows], label[rows])
