"""VAE: K-means on codes that are close to a prior and reconstruct the patients (Kingma & Welling 2014)."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from phenogroups.clustering.space import Scaler
from phenogroups.data.batches import Batch
from phenogroups.data.stored import Inputs
from phenogroups.methods.autoencoder import Autoencoder, reconstructed_shape
from phenogroups.methods.settings import AtLeast
from phenogroups.networks.architectures import VAE_SIDE
from phenogroups.networks.decoders import build_decoder
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.encoders import STRIDED, VAE64
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class VAE(Autoencoder, name="vae"):
    """
    Parameters
    ----------
    latent
        Number of latent variables.
    beta
        Weight of the divergence from the prior; 1 gives the evidence lower bound.
    noise
        Standard deviation of p(x | z), in standard deviations of the inputs. With 1, the latent variables of a table of
        features stay unused.
    """

    latent: Annotated[int, AtLeast(1)] = 32
    beta: float = 1.0
    noise: float = 0.5
    scaler: Scaler = "none"  # the prior scales the latents; if standardised, unused ones would vary as much as others

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        code = {name: nn.Linear(encoder.dim, self.latent) for name in ("mean", "log_variance")}
        return {**code, "decoder": build_decoder(self.latent, reconstructed_shape(encoder, input_shape))}

    def encoder_by_default(self, input_shape: tuple[int, ...], inputs: Inputs | None = None) -> str:
        """For larger images the network of the paper's VAE, which resizes them to 64 pixels a side."""
        name = super().encoder_by_default(input_shape, inputs)
        return VAE64 if name == STRIDED and len(input_shape) == 3 and min(input_shape[1:]) >= VAE_SIDE else name

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        """The negative evidence lower bound, summed over pixels and latents as in the original (without constants)."""
        x = batch.views[0]
        h = network.encoder(x)
        mean, log_variance = network.heads["mean"](h), network.heads["log_variance"](h)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        error = self.decoder(network).squared_error(z, self.resized(network, x)).sum(1) / (2 * self.noise**2)
        return {
            "reconstruction": error.mean(),
            "divergence": self.beta * divergence_from_prior(mean, log_variance).mean(),
        }

    def project(self, network: Network, embedding: Tensor) -> Tensor:
        return network.heads["mean"](embedding)

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        return {**super().read(network, embedding, beliefs), "embedding": self.project(network, embedding)}


def divergence_from_prior(mean: Tensor, log_variance: Tensor) -> Tensor:
    """(n,): KL(N(mean, variance) || N(0, 1)), summed over latents (Appendix B of the paper)."""
    return (mean.square() + log_variance.exp() - log_variance - 1).sum(1) / 2
