"""Pneumonia, bacterial or viral: how right Deep UCSL is on patients it has not seen, how steadily, and at what cost.

python benchmarks/pneumonia.py --data DIR [--input pixels --size 96]. Scored on the test split if it is there and its
kinds of pneumonia are known (by file names or --labels), else on a share of the patients held out, others by each seed.
"""

from dataclasses import dataclass
from typing import Literal

from common import PublicData, Row, about_cohort, finish, fit, main, over_seeds, scores_of

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.pneumonia import has_embeddings, has_images, pneumonia, pneumonia_embeddings


@dataclass(frozen=True, kw_only=True)
class Pneumonia(PublicData):
    """Pneumonia, bacterial or viral, from "ill or not" alone."""

    input: Literal["table", "pixels"] = "table"
    """table: frozen ImageNet embeddings (resnet50_train.npz); pixels: the X-rays."""
    size: int = 96
    """Pixels a side."""
    intensity: Literal["unit", "minmax", "standardise"] = "unit"
    """What is done to the numbers of each image."""
    balanced: bool = False
    """The paper's training subset: as many of either pneumonia as controls."""
    held_out: float = 0.2
    """Share of the patients to score on where there is no test split."""

    def run(self) -> None:
        test = self.known_test()
        # only what is scored is labelled: file names of the two splits may coincide
        train = self.some(self.load("train", self.balanced, None if test is not None else self.labels))

        def one_seed(seed: int) -> Row:
            seen, new = (train, test) if test is not None else train.split(self.held_out, seed)
            method = self.build(seed)
            seconds = fit(method, seen)
            return {**scores_of(new, method.predict_cohort(new)), "seconds": seconds}

        rows = over_seeds(self, one_seed)
        scored = {"held out by each seed": self.held_out} if test is None else {"split": "test", **about_cohort(test)}
        finish(
            f"pneumonia-{self.input}", self, rows, smoke=self.subjects is not None, cohort=about_cohort(train),
            scored_on=scored,
        )  # fmt: skip

    def known_test(self) -> Cohort | None:
        """The test split, if it is there with subgroups to compare with."""
        if not (has_embeddings if self.input == "table" else has_images)(self.data, "test"):
            return None
        test = self.some(self.load("test", False, self.labels))
        return test if test.truth is not None and (test.truth >= 0).any() else None

    def load(self, split: str, balanced: bool, labels: object) -> Cohort:
        chosen = {"split": split, "balanced": balanced, "labels": labels}
        if self.input == "table":
            return pneumonia_embeddings(self.data, **chosen)
        return pneumonia(self.data, size=self.size, intensity=self.intensity, **chosen)


if __name__ == "__main__":
    main(Pneumonia)
