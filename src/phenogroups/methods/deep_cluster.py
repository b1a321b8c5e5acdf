"""DeepCluster-v2: the clusters of one epoch are the classes of the next (Caron et al. 2018, 2020)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from phenogroups.clustering.kmeans import spherical_kmeans
from phenogroups.clustering.matching import match_members
from phenogroups.data.batches import Batch
from phenogroups.methods.reading import ReadByHeadOrKMeans
from phenogroups.methods.settings import Shape
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, projection


@dataclass(frozen=True)
class Prototypes:
    q: Annotated[Tensor, Shape("subjects", "subgroups")]  # one-hot
    centroids: Annotated[Tensor, Shape("subgroups", "dims")]  # C, of length one


@dataclass(eq=False, repr=False)
class DeepCluster(ReadByHeadOrKMeans, name="deep_cluster"):
    """
    Parameters
    ----------
    temperature
        Temperature of the softmax over the prototypes.
    """

    epochs: int = 10
    temperature: float = 0.1

    beliefs_type: ClassVar[type] = Prototypes

    @property
    def supports_distributed(self) -> bool:  # pyright: ignore
        return self.reading == "head"  # K-means at the end needs all patients in one process

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"projection": projection(encoder.dim)}

    def project(self, network: Network, embedding: Tensor) -> Tensor:
        """h, normalised to length one."""
        return F.normalize(network.heads["projection"](embedding), dim=1)

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Any:
        # on current embeddings of plain inputs; the paper clusters stored embeddings of augmented ones
        c = spherical_kmeans(embedding, self.n_subgroups, seed=self.seed, comm=self.comm)
        if previous is not None:
            c = c[match_members(previous.q.argmax(1), embedding, c, self.comm)]
        return Prototypes(F.one_hot((embedding @ c.T).argmax(1), self.n_subgroups).to(c), c)

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        h = self.project(network, network.encoder(batch.views[0]))
        return {"clustering": F.cross_entropy(self.logits(h, beliefs), beliefs.q[batch.index])}

    def logits(self, h: Tensor, beliefs: Any) -> Tensor:
        return h @ beliefs.centroids.T / self.temperature

    def read_head(self, network: Network, embedding: Tensor, beliefs: Any) -> Tensor:
        return self.logits(self.project(network, embedding), beliefs).softmax(1)
