"""VAE + UCSL: linear UCSL on the codes of a variational autoencoder of patients and controls (Louiset et al.)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from phenogroups.methods.ucsl import LinearUCSL, fit_ucsl
from phenogroups.methods.vae import VAE
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class VAEUCSL(VAE):
    n_consensus: int = 10  # runs of UCSL that must agree

    needs_controls: ClassVar[bool] = True
    beliefs_type: ClassVar[type] = LinearUCSL

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> LinearUCSL:
        return fit_ucsl(embedding, diagnosis, self.n_subgroups, n_consensus=self.n_consensus, seed=self.seed)

    def read(self, network: Network, embedding: Tensor, beliefs: LinearUCSL) -> dict[str, Tensor]:
        code = self.project(network, embedding)
        return {"embedding": code, **beliefs.read(code)}
