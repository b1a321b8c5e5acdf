"""Classifier: cross-entropy between patients and controls, then K-means on the patients' embeddings."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from phenogroups.data.batches import Batch
from phenogroups.losses import diagnosis_loss
from phenogroups.methods.reading import ReadByKMeans
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, projection


@dataclass(eq=False, repr=False)
class Classifier(ReadByKMeans, name="classifier"):
    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"diagnosis": projection(encoder.dim, out=1)}

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        logit = network.heads["diagnosis"](network.encoder(batch.views[0])).squeeze(1)
        return {"classification": diagnosis_loss(logit, batch.diagnosis, self.comm)}

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        ill = network.heads["diagnosis"](embedding).squeeze(1).sigmoid()
        return {**super().read(network, embedding, beliefs), "diagnosis": ill}
