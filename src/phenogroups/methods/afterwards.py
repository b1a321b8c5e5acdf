"""Methods that learn an embedding first; their only E-step, K-means on the patients, is at the end."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.kmeans import inverse_square_proportions, kmeans, squared_distances
from phenogroups.clustering.linear import Hyperplane, logistic_hyperplane
from phenogroups.clustering.space import Scaler, scaling
from phenogroups.methods.deep import DeepMethod
from phenogroups.methods.settings import Shape
from phenogroups.networks.network import Network


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
