"""SimCLR: two views of one patient are recognised among those of all others (Chen et al. 2020); then K-means."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from phenogroups.data.batches import Batch
from phenogroups.losses import info_nce
from phenogroups.methods.reading import ReadByKMeans
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, projection


@dataclass(eq=False, repr=False)
class SimCLR(ReadByKMeans, name="simclr", presets={"morpho_simclr": {"augmentation": "digits_morpho"}}):
    """
    Parameters
    ----------
    temperature
        Temperature of the softmax over the other views.
    """

    temperature: float = 0.1

    needs_controls: ClassVar[bool] = False
    views: ClassVar[int] = 2

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"projection": projection(encoder.dim)}

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        a, b = (network.heads["projection"](network.encoder(view)) for view in batch.views)
        return {"contrast": info_nce(a, b, self.temperature, self.comm)}
