"""VAE + UCSL: linear UCSL on the codes of a variational autoencoder of patients and controls (Louiset et al.)."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor

from phenogroups.methods.settings import AtLeast
from phenogroups.methods.ucsl import LinearUCSL, fit_ucsl
from phenogroups.methods.vae import VAE
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class VAEUCSL(VAE, name="vae_ucsl"):
    """
    Parameters
    ----------
    n_consensus
        Number of runs of UCSL whose consensus is taken.

    Examples
    --------
    >>> from phenogroups import METHODS, drawn_table
    >>> cohort = drawn_table(80)
    >>> method = METHODS["vae_ucsl"](epochs=2, steps=2, n_consensus=3).fit(cohort)
    >>> method.predict_subgroup_proba(cohort).shape
    (80, 2)
    """

    n_consensus: Annotated[int, AtLeast(1)] = 10

    needs_controls: ClassVar[bool] = True
    beliefs_type: ClassVar[type] = LinearUCSL

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> LinearUCSL:
        return fit_ucsl(embedding, diagnosis, self.n_subgroups, n_consensus=self.n_consensus, seed=self.seed)

    def read(self, network: Network, embedding: Tensor, beliefs: LinearUCSL) -> dict[str, Tensor]:
        code = self.project(network, embedding)
        return {"embedding": code, **beliefs.read(code)}
