"""Mixture of experts: a gate learns from the diagnosis alone which classifier to use (Chen et al. 2022).

The gate, p(c | x), is the subgroup; it is trained by the loss of the diagnosis alone.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from phenogroups.data.batches import Batch
from phenogroups.losses import diagnosis_loss, mixture_of_experts_logit
from phenogroups.methods.reading import ReadByHead
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class MixtureOfExperts(ReadByHead, name="mixture_of_experts"):
    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        # linear heads on one encoder, as in Deep UCSL; in the original, each expert is a network of its own
        return {name: nn.Linear(encoder.dim, self.n_subgroups) for name in ("experts", "gate")}

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        """- log sum_k p(c=k | x) p(y | x, c=k).

        All experts are evaluated, weighted by the gate; the original evaluates the likeliest one, after adding noise.
        """
        z = network.encoder(batch.views[0])
        logit = mixture_of_experts_logit(network.heads["experts"](z), network.heads["gate"](z))
        return {"classification": diagnosis_loss(logit, batch.diagnosis, self.comm)}

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        gate, experts = network.heads["gate"](embedding), network.heads["experts"](embedding)
        diagnosis = mixture_of_experts_logit(experts, gate).sigmoid()
        return {"subgroup": gate.softmax(1), "diagnosis": diagnosis, "experts": experts}
