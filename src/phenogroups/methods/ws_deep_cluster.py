"""WS-DeepClustering: the clusters of the patients are classes to predict, and the controls are one more class.

A weakly supervised DeepCluster of K + 1 classes, which Deep UCSL is compared with: Sinkhorn K-means of the patients,
rows [Q, 0] of patients and [0, ..., 0, 1] of controls (Louiset et al., appendix, "Comparison with weakly supervised
deep clustering and foundation models").
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phenogroups.clustering.kmeans import inverse_square_proportions, sinkhorn_kmeans, squared_distances
from phenogroups.clustering.matching import match_members
from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.clustering.space import Scaler, scaling
from phenogroups.data.batches import Batch
from phenogroups.losses import class_balance
from phenogroups.methods.deep import DeepMethod
from phenogroups.methods.settings import Shape
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network


@dataclass(frozen=True)
class Classes:
    q: Annotated[Tensor, Shape("subjects", "classes")]  # soft for patients; the last class is that of the controls


@dataclass(eq=False, repr=False)
class WSDeepCluster(DeepMethod, name="ws_deep_cluster"):
    """
    Parameters
    ----------
    scaler
        How embeddings are scaled before K-means, by the statistics of the patients.
    epsilon
        Sinkhorn temperature.
    """

    epochs: int = 10
    scaler: Scaler = "standard"
    epsilon: float = 0.05

    beliefs_type: ClassVar[type] = Classes

    @property
    def supports_distributed(self) -> bool:  # pyright: ignore
        return self.scaler != "robust"  # quantiles need all patients in one process

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"classes": nn.Linear(encoder.dim, self.n_subgroups + 1)}

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Classes:
        patient = diagnosis == 1
        center, scale = scaling(embedding[patient], self.scaler, comm=self.comm)
        z = (embedding[patient] - center) / scale
        centroids = sinkhorn_kmeans(z, self.n_subgroups, epsilon=self.epsilon, seed=self.seed, comm=self.comm)
        if previous is not None:  # the order that the head has learned
            centroids = centroids[match_members(previous.q[patient].argmax(1), z, centroids, self.comm)]
        proportions = inverse_square_proportions(squared_distances(z, centroids))
        q = F.one_hot(torch.full_like(diagnosis, self.n_subgroups), self.n_subgroups + 1).to(z)
        q[patient] = F.pad(sinkhorn(proportions, self.epsilon, comm=self.comm), (0, 1))
        return Classes(q)

    def losses(self, network: Network, batch: Batch, beliefs: Classes) -> dict[str, Tensor]:
        logits = network.heads["classes"](network.encoder(batch.views[0]))
        each = F.cross_entropy(logits, beliefs.q[batch.index], reduction="none")
        # patients and controls have equal weight, as in every method here that predicts the diagnosis
        weights = class_balance(batch.diagnosis, self.comm)
        return {"classification": (weights[batch.diagnosis] * each).mean()}

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        logits = network.heads["classes"](embedding)
        log_odds = logits[:, :-1].logsumexp(1) - logits[:, -1]  # of 1 - p(control)
        return {"subgroup": logits[:, :-1].softmax(1), "diagnosis": log_odds.sigmoid()}
