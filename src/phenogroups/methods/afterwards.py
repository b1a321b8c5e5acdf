"""Methods that learn an embedding first and are read by K-means on the patients at the end."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.kmeans import inverse_square_proportions, kmeans, squared_distances
from phenogroups.clustering.linear import Hyperplane, logistic_hyperplane
from phenogroups.clustering.space import Scaler, scaling
from phenogroups.data.stored import Inputs
from phenogroups.methods.deep import DeepMethod
from phenogroups.methods.settings import Shape
from phenogroups.networks.network import Network
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.em import Progress
from phenogroups.training.embedding import embed, embed_once


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


@dataclass(eq=False, repr=False)
class ClusteredAfterwards(DeepMethod):
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
        return self.scaler != "robust"  # quantiles need everybody

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Any:
        patients = embedding[diagnosis == 1]
        return centroids_of(patients, self.n_subgroups, self.scaler, seed=self.seed, comm=self.comm)

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        return {"subgroup": beliefs.proportions(self.project(network, embedding))}


@dataclass(eq=False, repr=False)
class ReadByHeadOrKMeans(DeepMethod):
    """Subgroups are read from what the method clusters by itself, or by K-means of the finished embedding.

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
            seen = inputs if self.eyes_ is None else embed_once(self.eyes_, inputs)
            z = embed(self.encoder_of(self.network_), seen)
            self.beliefs_ = centroids_of(z, self.n_subgroups, self.scaler, seed=self.seed)

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        if self.reading == "kmeans":
            return {"subgroup": beliefs.proportions(embedding)}
        return {"subgroup": self.read_head(network, embedding, beliefs)}


@dataclass(frozen=True)
class CentroidsAndHyperplane(Centroids):
    """The same, and the hyperplane between controls and patients."""

    weights: Annotated[Tensor, Shape("dims")]
    intercept: Annotated[Tensor, Shape()]

    def diagnosis(self, z: Tensor) -> Tensor:
        return Hyperplane(self.weights, self.intercept).logit(z).sigmoid()


@dataclass(eq=False, repr=False)
class DiagnosedAfterwards(ClusteredAfterwards):
    """The diagnosis, too, is learned from the finished embedding, by logistic regression."""

    beliefs_type: ClassVar[type] = CentroidsAndHyperplane
    supports_distributed: ClassVar[bool] = False  # the regression needs everybody

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> CentroidsAndHyperplane:
        found = super().e_step(embedding, diagnosis, previous, epoch)
        plane = logistic_hyperplane(embedding, diagnosis)
        return CentroidsAndHyperplane(**vars(found), **vars(plane))

    def read(self, network: Network, embedding: Tensor, beliefs: CentroidsAndHyperplane) -> dict[str, Tensor]:
        ill = beliefs.diagnosis(self.project(network, embedding))
        return {**super().read(network, embedding, beliefs), "diagnosis": ill}
