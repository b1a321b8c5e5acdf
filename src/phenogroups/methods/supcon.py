"""SupCon: views of one class attract each other (Khosla et al. 2020); then K-means and logistic regression."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from phenogroups.clustering.linear import logistic_hyperplane
from phenogroups.clustering.space import Scaler
from phenogroups.data.batches import Batch
from phenogroups.losses import contrastive
from phenogroups.methods.reading import CentroidsAndHyperplane, ReadByKMeans
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, projection


@dataclass(eq=False, repr=False)
class SupCon(ReadByKMeans, name="supcon", presets={"morpho_supcon": {"augmentation": "digits_morpho"}}):
    """
    Parameters
    ----------
    temperature
        Temperature of the softmax over the other views.
    """

    temperature: float = 0.1
    scaler: Scaler = "robust"

    views: ClassVar[int] = 2
    beliefs_type: ClassVar[type] = CentroidsAndHyperplane
    supports_distributed: ClassVar[bool] = False  # the regression needs all subjects in one process

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"projection": projection(encoder.dim)}

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        a, b = (network.heads["projection"](network.encoder(view)) for view in batch.views)
        return {"contrast": contrastive(a, b, batch.diagnosis, self.temperature, self.comm)}

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> CentroidsAndHyperplane:
        found = super().e_step(embedding, diagnosis, previous, epoch)
        return CentroidsAndHyperplane(**vars(found), **vars(logistic_hyperplane(embedding, diagnosis)))

    def read(self, network: Network, embedding: Tensor, beliefs: CentroidsAndHyperplane) -> dict[str, Tensor]:
        return {**super().read(network, embedding, beliefs), "diagnosis": beliefs.diagnosis(embedding)}
