"""SupCon: views of one class attract each other (Khosla et al. 2020); K-means and logistic regression afterwards."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from phenogroups.clustering.space import Scaler
from phenogroups.data.batches import Batch
from phenogroups.losses import contrastive
from phenogroups.methods.afterwards import DiagnosedAfterwards
from phenogroups.networks.encoders import Encoder
from phenogroups.networks.heads import projection
from phenogroups.networks.network import Network


@dataclass(eq=False, repr=False)
class SupCon(DiagnosedAfterwards, name="supcon", presets={"morpho_supcon": {"augmentation": "digits_morpho"}}):
    """
    Parameters
    ----------
    temperature
        Temperature of the softmax over the other views.

    Examples
    --------
    >>> from phenogroups import METHODS, drawn_table
    >>> cohort = drawn_table(80)
    >>> method = METHODS["supcon"](epochs=2, steps=2).fit(cohort)
    >>> method.predict_subgroup_proba(cohort).shape
    (80, 2)
    """

    temperature: float = 0.1
    scaler: Scaler = "robust"

    views: ClassVar[int] = 2

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"projection": projection(encoder.dim)}

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        a, b = (network.heads["projection"](network.encoder(view)) for view in batch.views)
        return {"contrast": contrastive(a, b, batch.diagnosis, self.temperature, self.comm)}
