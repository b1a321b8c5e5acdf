"""How subgroups are read from a trained network: by a head, by K-means of the patients' embeddings, or by either."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.kmeans import inverse_square_proportions, kmeans, squared_distances
from phenogroups.clustering.linear import Hyperplane
from phenogroups.clustering.space import Scaler, scaling
from phenogroups.data.stored import Inputs
from phenogroups.methods.deep import DeepMethod
from phenogroups.methods.settings import Shape
from phenogroups.networks.network import Network
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.em import Progress
from phenogroups.training.embedding import embed


@dataclass(frozen=True)
class NoBeliefs:
    """Everything that was learned is in the network."""


@dataclass(eq=False, repr=False)
class ReadByHead(DeepMethod):
    """Trained by gradient descent alone, without an E-step; subgroups are read from a head of the network."""

    epochs: int = 10

    e_step_each_epoch: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = NoBeliefs
    supports_distributed: ClassVar[bool] = True

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> NoBeliefs:
        return NoBeliefs()


@dataclass(frozen=True)
class Centroids:
    """K-means of embeddings that are first centred and divided by `scale`."""

    center: Annotated[Tensor, Shape("dims")]
    scale: Annotated[Tensor, Shape("dims")]
    centroids: Annotated[Tensor, Shape("subgroups", "dims")]

    def proportions(self, z: Tensor) -> Tensor:
        """Membership by inverse square distance: (n, subgroups)."""
        return inverse_square_proportions(squared_distances((z - self.center) / self.scale, self.centroids))


def centroids_of(
    patients: Tensor, n_subgroups: int, scaler: Scaler, *, n_starts: int = 10, seed: int, comm: Communicator = LOCAL
) -> Centroids:
    """K-means on the embeddings of patients, scaled by their own statistics."""
    center, scale = scaling(patients, scaler, comm=comm)
    z = (patients - center) / scale
    return Centroids(center, scale, kmeans(z, n_subgroups, n_starts=n_starts, seed=seed, comm=comm))


@dataclass(frozen=True)
class CentroidsAndHyperplane(Centroids):
    """The same, and the hyperplane between controls and patients."""

    weights: Annotated[Tensor, Shape("dims")]
    intercept: Annotated[Tensor, Shape()]

    def diagnosis(self, z: Tensor) -> Tensor:
        return Hyperplane(self.weights, self.intercept).logit(z).sigmoid()


@dataclass(eq=False, repr=False)
class ReadByKMeans(DeepMethod):
    """The embedding is learned first; K-means on the patients' embeddings follows.

    Parameters
    ----------
    scaler
        How embeddings are scaled before K-means, by the statistics of the patients.
    """

    epochs: int = 10
    scaler: Scaler = "standard"

    e_step_each_epoch: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = Centroids

    @property
    def supports_distributed(self) -> bool:  # pyright: ignore
        return self.scaler != "robust"  # quantiles need all patients in one process

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Any:
        patients = embedding[diagnosis == 1]
        return centroids_of(patients, self.n_subgroups, self.scaler, seed=self.seed, comm=self.comm)

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        return {"subgroup": beliefs.proportions(self.project(network, embedding))}


@dataclass(eq=False, repr=False)
class ReadByHeadOrKMeans(DeepMethod):
    """Subgroups are read from the method's own clusters, or by K-means of the final embedding.

    Parameters
    ----------
    reading
        ``head``: from the method's own clusters, as the paper's published code does; ``kmeans``: by K-means on the
        patients' embeddings at the end, as its text says (Section 4.1).
    scaler
        How embeddings are scaled before that K-means, by the statistics of the patients.
    """

    reading: Literal["head", "kmeans"] = "head"
    scaler: Scaler = "standard"

    needs_controls: ClassVar[bool] = False

    @property
    def read_type(self) -> type:
        return Centroids if self.reading == "kmeans" else super().read_type

    def read_head(self, network: Network, embedding: Tensor, beliefs: Any) -> Tensor:
        """(n, subgroups): probabilities by the method's own clusters."""
        raise NotImplementedError

    def _train(
        self, inputs: Inputs, diagnosis: np.ndarray, progress: Progress | None, checkpoint: Checkpoint | None
    ) -> None:
        super()._train(inputs, diagnosis, progress, checkpoint)
        if self.reading == "kmeans":
            z = embed(self.encoder_of(self.network_), self._embedded(inputs))
            self.beliefs_ = centroids_of(z, self.n_subgroups, self.scaler, seed=self.seed)

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        if self.reading == "kmeans":
            return {"subgroup": beliefs.proportions(embedding)}
        return {"subgroup": self.read_head(network, embedding, beliefs)}
