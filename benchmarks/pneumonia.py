"""Pneumonia, bacterial or viral: how right Deep UCSL is on patients it has not seen, how steadily, and at what cost.

python benchmarks/pneumonia.py --data DIR [--input pixels --size 96]. Scored on the test split if it is there and its
kinds of pneumonia are known (by file names or --labels), else on a share of the patients held out, others by each seed.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from common import PublicData, Row, about_cohort, finish, fit, main, over_seeds, scores_of

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.local import find, require
from phenogroups.data.examples.pneumonia import (
    TRUTH_NAMES,
    TRUTH_OF,
    has_embeddings,
    kinds_of,
    pneumonia_embeddings,
)
from phenogroups.data.opening import open_cohort


def xray_places(split: str) -> list[str]:
    folders = ("", "chest_xray/", "pneumonia/", "pneumonia/chest_xray/")
    return [f"{folder}{split}/PNEUMONIA" for folder in folders]


def read_xrays(
    data: Path | None, size: int, *, split: str = "train", intensity: str = "unit", labels: Path | None = None
) -> Cohort:
    """The public X-rays in grey, size x size pixels; `labels` as in `pneumonia_embeddings`."""
    reading = {"size": (size, size), "channels": 1, "intensity": intensity}
    cohort = open_cohort(require(data, *xray_places(split)).parent, reading=reading)
    truth = np.array([TRUTH_OF[kind] for kind in kinds_of([Path(name).name for name in cohort.subject], labels)])
    return replace(cohort, truth=truth, truth_names=TRUTH_NAMES, name="pneumonia")


def paper_subset(cohort: Cohort) -> Cohort:
    """All controls and equally many of either pneumonia, the first in the order of the files."""
    controls, *kinds = (np.flatnonzero(rows) for rows in (~cohort.is_patient, cohort.truth == 0, cohort.truth == 1))
    count = min(map(len, (controls, *kinds)))
    return cohort[np.sort(np.concatenate([controls, *(rows[:count] for rows in kinds)]))]


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
        if not (has_embeddings(self.data, "test") if self.input == "table" else find(self.data, *xray_places("test"))):
            return None
        test = self.some(self.load("test", False, self.labels))
        return test if test.truth is not None and (test.truth >= 0).any() else None

    def load(self, split: str, balanced: bool, labels: Path | None) -> Cohort:
        if self.input == "table":
            cohort = pneumonia_embeddings(self.data, split=split, labels=labels)
        else:
            cohort = read_xrays(self.data, self.size, split=split, intensity=self.intensity, labels=labels)
        return paper_subset(cohort) if balanced else cohort


if __name__ == "__main__":
    main(Pneumonia)
