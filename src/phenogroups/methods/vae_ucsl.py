"""VAE + UCSL: linear UCSL on the codes of a variational autoencoder of patients and controls (Louiset et al.)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from phenogroups.methods.settings import AtLeast
from phenogroups.methods.ucsl import UCSL, LinearUCSL, fit_ucsl
from phenogroups.methods.vae import VAE
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class VAEUCSL(VAE, name="vae_ucsl"):
    """
    Parameters
    ----------
    n_consensus
        Number of runs of UCSL whose consensus is taken.
    """

    n_consensus: Annotated[int, AtLeast(1)] = 10

    needs_controls: ClassVar[bool] = True
    supports_distributed: ClassVar[bool] = False  # UCSL needs all subjects in one process
    beliefs_type: ClassVar[type] = LinearUCSL

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> LinearUCSL:
        return fit_ucsl(embedding, diagnosis, UCSL(self.n_subgroups, self.seed, n_consensus=self.n_consensus))

    def read(self, network: Network, embedding: Tensor, beliefs: LinearUCSL) -> dict[str, Tensor]:
        code = self.project(network, embedding)
        return {"embedding": code, **beliefs.read(code)}
