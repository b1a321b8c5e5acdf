"""MNIST 7 with or without crossbar: how right Deep UCSL is, how steadily, and at what cost.

python benchmarks/mnist7.py --data DIR --labels FILE. The form of the labels says what is scored: with training
positions, the labelled training sevens; with "No bar" and "With bar", the first test sevens. Class is always of the
test images.
"""

from dataclasses import dataclass

from common import PublicData, Row, about_cohort, finish, fit, main, over_seeds, scores_of

from phenogroups.data.examples.mnist import mnist, parse_labels
from phenogroups.evaluation.scores import score


@dataclass(frozen=True, kw_only=True)
class MNIST7(PublicData):
    """MNIST 7 with or without crossbar, from "7 or not" alone."""

    def run(self) -> None:
        labelled = None if self.labels is None else parse_labels(self.labels)[0]
        train = self.some(mnist(7, data=self.data, labels=self.labels if labelled == "train" else None))
        test = self.some(mnist(7, data=self.data, split="test", labels=self.labels if labelled == "test" else None))
        scored = train if labelled == "train" else test

        def one_seed(seed: int) -> Row:
            method = self.build(seed)
            seconds = fit(method, train)
            row = scores_of(scored, method.predict_cohort(scored))
            row["class_bacc"] = score(test, method.predict_cohort(test)).class_bacc
            return {**row, "seconds": seconds}

        rows = over_seeds(self, one_seed)
        finish(
            "mnist7", self, rows, smoke=self.subjects is not None, trained_on=about_cohort(train),
            subgroups_scored_on={"split": labelled, **about_cohort(scored)}, class_scored_on=about_cohort(test),
        )  # fmt: skip


if __name__ == "__main__":
    main(MNIST7)
