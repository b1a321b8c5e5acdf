"""Supervised subgroups: cross-entropy on the true subgroups of the patients, an upper bound for the other methods.

It is the only method that reads the truth, and it discovers nothing.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from phenogroups.data.batches import Batch
from phenogroups.data.cohort import UNKNOWN, Cohort, CohortError
from phenogroups.losses import balanced_cross_entropy
from phenogroups.methods.reading import ReadByHead
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network, projection
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.em import Progress


@dataclass(eq=False, repr=False)
class SupervisedSubgroups(ReadByHead, name="supervised_upper_bound"):
    needs_controls: ClassVar[bool] = False
    reads_truth: ClassVar[bool] = True

    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        return {"subgroup": projection(encoder.dim, out=self.n_subgroups)}

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        if cohort.truth is None:
            raise CohortError(
                f"Expected a cohort with truth, the known subgroups, for {type(self).__name__}. Received: none. "
                "Fit Cohort(inputs, diagnosis, truth=...), or choose a method that needs no truth."
            )
        known = cohort.truth != UNKNOWN
        names, subgroup = np.unique(cohort.truth[known], return_inverse=True)
        if len(names) != self.n_subgroups:
            raise CohortError(
                f"Expected {self.n_subgroups} known subgroups, as n_subgroups says. Received: {len(names)} among "
                f"{known.sum()} patients of known truth. Set n_subgroups to their number."
            )
        # passed as the diagnosis, because `Batch` has no truth
        self._train(self.trained_on(cohort).inputs, subgroup, progress, checkpoint)

    def trained_on(self, cohort: Cohort) -> Cohort:
        """The patients whose subgroup is known."""
        return cohort[cohort.truth != UNKNOWN]

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        """All subgroups have equal weight, as in the balanced accuracy whose upper bound this is."""
        logits = network.heads["subgroup"](network.encoder(batch.views[0]))
        return {"classification": balanced_cross_entropy(logits, batch.diagnosis, self.comm)}

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        return {"subgroup": network.heads["subgroup"](embedding).softmax(1)}

    def caveats(self) -> list[str]:
        return ["These subgroups were not found: the known ones were learned, to show how well that can be done."]
