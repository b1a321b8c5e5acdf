"""The weights of a method: one encoder and its heads. Calling it returns named losses."""

from collections.abc import Callable

from torch import Tensor, nn

from phenogroups.networks.encoders import Encoder


class Network(nn.Module):
    def __init__(self, encoder: Encoder, heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)

    def forward(self, losses: Callable[["Network"], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The one call of the M-step, so that distribution, precision and compilation wrap one object.

        What the losses are of is hidden in a function: Fabric would copy the parts of whatever it is given.
        """
        return losses(self)
