"""Methods whose heads are trained by gradient descent alone, without beliefs of an E-step."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from phenogroups.methods.deep import DeepMethod


@dataclass(frozen=True)
class NoBeliefs:
    """The heads hold everything that was learned."""


@dataclass(eq=False, repr=False)
class EndToEnd(DeepMethod):
    """Subgroups are read from a head of the network."""

    epochs: int = 10

    e_step_each_epoch: ClassVar[bool] = False
    beliefs_type: ClassVar[type] = NoBeliefs
    supports_distributed: ClassVar[bool] = True

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> NoBeliefs:
        return NoBeliefs()
