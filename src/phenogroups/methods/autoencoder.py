"""Autoencoder: K-means on codes from which patients are reconstructed (Hinton & Salakhutdinov 2006)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from phenogroups.data.augment import Augmentation, resolve_augmentation
from phenogroups.data.batches import Batch
from phenogroups.data.stored import Inputs
from phenogroups.methods.reading import ReadByKMeans
from phenogroups.networks.decoders import Decoder, build_decoder
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.encoders import LIGHT, STRIDED
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class Autoencoder(ReadByKMeans, name="autoencoder"):
    needs_controls: ClassVar[bool] = False
    settings_of_its_own: ClassVar[tuple[str, ...]] = ("augmentation", "encoder", "weights")

    def encoder_by_default(self, input_shape: tuple[int, ...], inputs: Inputs | None = None) -> str:
        """Not `light`: a code that is pooled over the image has lost positions."""
        name = super().encoder_by_default(input_shape, inputs)
        return STRIDED if name == LIGHT and self.weights is None else name

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"decoder": build_decoder(encoder.dim, reconstructed_shape(encoder, input_shape))}

    def build(
        self, input_shape: tuple[int, ...], inputs: Inputs | None = None, saved: Mapping[str, Tensor] | None = None
    ) -> Network:
        network = super().build(input_shape, inputs, saved)
        if inputs is not None:
            self.decoder(network).fit_scaling(inputs)
        return network

    def augment(self, input_shape: tuple[int, ...]) -> Augmentation:
        """By default none, because it is the plain input that should be reconstructed."""
        return resolve_augmentation("none" if self.augmentation == "auto" else self.augmentation)

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        x = batch.views[0]
        code = network.encoder(x)
        return {"reconstruction": self.decoder(network).squared_error(code, self.resized(network, x)).mean()}

    def resized(self, network: Network, x: Tensor) -> Tensor:
        """Inputs at the size at which they are encoded, which are reconstructed."""
        return cast(Encoder, network.encoder).resized(x)

    def decoder(self, network: Network) -> Decoder:
        return cast(Decoder, network.heads["decoder"])


def reconstructed_shape(encoder: Encoder, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an input at the size at which it is encoded and reconstructed."""
    return input_shape if len(input_shape) == 1 else tuple(encoder.resized(torch.empty(1, *input_shape)).shape[1:])
