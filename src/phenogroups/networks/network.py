"""The weights of a method: one encoder and its heads. Calling it returns named losses."""

from typing import Any, Protocol

from torch import Tensor, nn

from phenogroups.data.batches import Batch
from phenogroups.networks.encoders import Encoder


class Rules(Protocol):
    """What a network needs of a method: how its losses are computed."""

    def losses(self, network: "Network", batch: Batch, beliefs: Any) -> dict[str, Tensor]: ...


class Network(nn.Module):
    def __init__(self, encoder: Encoder, heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)

    def forward(self, rules: Rules, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        """The one call of the M-step, so that distribution, precision and compilation wrap one object."""
        return rules.losses(self, batch, beliefs)
