"""Autoencoder: K-means on codes from which patients are reconstructed (Hinton & Salakhutdinov 2006)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, ClassVar, cast

import numpy as np
from torch import Tensor, nn

from phenogroups.data.augment import Augmentation, resolve_augmentation
from phenogroups.data.batches import Batch
from phenogroups.data.stored import Inputs
from phenogroups.methods.afterwards import ClusteredAfterwards
from phenogroups.networks.decoders import TELLING, Decoder, build_decoder
from phenogroups.networks.encoders import Encoder
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class Autoencoder(ClusteredAfterwards, name="autoencoder"):
    """
    Examples
    --------
    >>> from phenogroups import METHODS, drawn_table
    >>> cohort = drawn_table(80)
    >>> method = METHODS["autoencoder"](epochs=2, steps=2).fit(cohort)
    >>> method.predict_subgroup_proba(cohort).shape
    (80, 2)
    """

    needs_controls: ClassVar[bool] = False
    settings_of_its_own: ClassVar[tuple[str, ...]] = ("augmentation",)

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"decoder": build_decoder(encoder.dim, input_shape)}

    def build(
        self, input_shape: tuple[int, ...], inputs: Inputs | None = None, saved: Mapping[str, Tensor] | None = None
    ) -> Network:
        network = super().build(input_shape, inputs, saved)
        if inputs is not None:
            # a sample of a large cohort is enough, and the rest need not be read
            every = ceil(prod(inputs.shape) / TELLING) if inputs.ndim > 2 else 1
            self.decoder(network).fit_scaling(np.asarray(inputs[::every]))
        return network

    def augment(self, input_shape: tuple[int, ...]) -> Augmentation:
        """None by default: a view is reconstructed, and views should be the plain inputs."""
        return resolve_augmentation("none" if self.augmentation == "auto" else self.augmentation)

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        x = batch.views[0]
        return {"reconstruction": self.decoder(network).squared_error(network.encoder(x), x).mean()}

    def decoder(self, network: Network) -> Decoder:
        return cast(Decoder, network.heads["decoder"])
