"""VAE: a patient's code is a distribution near the prior from which it can be copied (Kingma & Welling 2014)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phenogroups.clustering.space import Scaler
from phenogroups.data.batches import Batch
from phenogroups.methods.autoencoder import Autoencoder
from phenogroups.networks.decoders import build_decoder
from phenogroups.networks.encoders import Encoder
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class VAE(Autoencoder):
    latent: int = 32  # length of the code
    beta: float = 1.0  # weight of the divergence from the prior; 1 is the evidence lower bound
    noise: float = 0.5  # deviation of p(x | z), in deviations of the inputs; with 1, features would not be worth coding
    scaler: Scaler = "none"  # the prior gives every latent its unit; rescaled, the unused would be as loud as others

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        read = {name: nn.Linear(encoder.dim, self.latent) for name in ("mean", "log_variance")}
        return {**read, "decoder": build_decoder(self.latent, input_shape)}

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        """The negative evidence lower bound, summed over pixels and latents as in the original (without constants)."""
        x = batch.views[0]
        h = network.encoder(x)
        mean, log_variance = network.heads["mean"](h), network.heads["log_variance"](h)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        error = self.decoder(network).squared_error(z, x).sum(1) / (2 * self.noise**2)
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
