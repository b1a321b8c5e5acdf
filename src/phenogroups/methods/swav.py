"""SwAV: one view's balanced cluster code must be predictable from the other (Caron et al. 2020).

Two views of full size, as in the study: without the paper's small crops and its queue of earlier batches.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.data.batches import Batch
from phenogroups.methods.reading import ReadByHead
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, projection


@dataclass(eq=False, repr=False)
class SwAV(ReadByHead, name="swav"):
    """
    Parameters
    ----------
    temperature
        Temperature of the predicted codes.
    epsilon
        Sinkhorn temperature of the codes to be predicted.
    """

    temperature: float = 0.1
    epsilon: float = 0.05

    needs_controls: ClassVar[bool] = False
    views: ClassVar[int] = 2

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        # one prototype per subgroup, because they are the clusters here; the paper has thousands
        prototypes = nn.Linear(128, self.n_subgroups, bias=False)
        normalise(prototypes)
        return {"projection": projection(encoder.dim), "prototypes": prototypes}

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        s, s_other = (self.scores(network, network.encoder(view)) for view in batch.views)
        swapped = self.swapped(s, s_other) + self.swapped(s_other, s)
        return {"swapped_prediction": swapped / 2}

    def swapped(self, scores: Tensor, other: Tensor) -> Tensor:
        """The code of one view, predicted from the other (Eq. 2)."""
        # to convergence over the whole batch; the paper stops after three iterations
        codes = sinkhorn(scores.detach(), self.epsilon, comm=self.comm)
        return F.cross_entropy(other / self.temperature, codes)

    def scores(self, network: Network, embedding: Tensor) -> Tensor:
        """(n, subgroups): cosines of projections and prototypes."""
        return network.heads["prototypes"](F.normalize(network.heads["projection"](embedding), dim=1))

    def after_step(self, network: Network) -> None:
        normalise(network.heads["prototypes"])

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        return {"subgroup": (self.scores(network, embedding) / self.temperature).softmax(1)}


@torch.no_grad()
def normalise(prototypes: nn.Module) -> None:
    for weight in prototypes.parameters():
        weight.copy_(F.normalize(weight, dim=1))
