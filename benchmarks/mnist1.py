"""MNIST 1 with or without an upper stroke: how right Deep UCSL is, against a rule on the drawn strokes.

python benchmarks/mnist1.py --data DIR. There are no labels of ones, so a rule says which of them surely have an upper
stroke or a foot beside the main stroke, and which surely have not; others are not scored. --picture FILE shows some of
either side, by which the rule was made.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from common import PublicData, Row, about_cohort, beside, finish, fit, main, over_seeds, scores_of
from PIL import Image
from scipy.ndimage import affine_transform

from phenogroups.data.cohort import UNKNOWN, Cohort
from phenogroups.data.examples.mnist import mnist
from phenogroups.evaluation.scores import score

NAMES = ("without upper stroke", "with upper stroke")
SHOWN = 24  # in a row of the picture


@dataclass(frozen=True, kw_only=True)
class MNIST1(PublicData):
    """MNIST 1 with or without an upper stroke, from "1 or not" alone."""

    picture: Path | None = None
    """Where to write examples of what the rule says."""

    def run(self) -> None:
        train = self.some(with_rule(mnist(1, data=self.data)))
        test = self.some(mnist(1, data=self.data, split="test"))
        if self.picture is not None:
            examples(train).save(self.picture)

        def one_seed(seed: int) -> Row:
            method = self.build(seed)
            seconds = fit(method, train)
            found = method.predict_cohort(train)
            row = scores_of(train, found)
            row["class_bacc"] = score(test, method.predict_cohort(test)).class_bacc
            row |= beside(("kmeans", "gaussian_mixture"), train, train, n_subgroups=2, seed=seed)
            return {**row, "seconds": seconds}

        rows = over_seeds(self, one_seed)
        finish("mnist1", self, rows, smoke=self.subjects is not None, trained_on=about_cohort(train))


def with_rule(cohort: Cohort) -> Cohort:
    truth = np.full(len(cohort), UNKNOWN)
    ones = np.flatnonzero(cohort.is_patient)
    truth[ones] = [strokes(image) for image in np.asarray(cohort.inputs)[ones, 0].astype(float)]
    return replace(cohort, truth=truth, truth_names=NAMES)


def strokes(image: np.ndarray) -> int:
    """Which of NAMES, or UNKNOWN, by what lies beside the main stroke once it is upright."""
    upright = sheared(image)
    ink = upright > 0.35
    widths = ink.sum(1)
    (rows,) = np.nonzero(widths)
    top, height = rows[0], rows[-1] - rows[0] + 1
    usual, upper = np.median(widths[rows]), ink[top : top + max(3, height // 2)]
    parts = (np.diff(np.pad(upper, ((0, 0), (1, 1))).astype(int), axis=1) == 1).sum(1)
    wide = (parts >= 2).sum() + 0.7 * (upper.sum(1) >= usual + 3).sum()
    foot = widths[rows[-1] - max(2, height // 5) : rows[-1] + 1].max() - usual
    middle = upright[top + int(0.4 * height) : top + int(0.8 * height)].sum(0)
    columns = np.arange(len(image))
    place = (middle * columns).sum() / max(middle.sum(), 1e-9)
    of_head = upright[top : top + max(3, int(0.45 * height))]
    left, right = of_head[:, columns < place - usual / 2 - 1].sum(), of_head[:, columns > place + usual / 2 + 1].sum()
    beside_it = left - right / 2
    if (wide >= 3 and beside_it > 1) or (foot >= 5 and beside_it > 0.7):
        return 1
    return 0 if beside_it < 0.3 and wide < 1 and foot < 3 else UNKNOWN


def sheared(image: np.ndarray) -> np.ndarray:
    """The image with its main stroke upright and its centre of mass in the middle."""
    y, x = np.mgrid[: len(image), : len(image)]
    ink = image / image.sum()
    cy, cx = (ink * y).sum(), (ink * x).sum()
    slope = (ink * (y - cy) * (x - cx)).sum() / (ink * (y - cy) ** 2).sum()
    matrix, middle = np.array([[1, 0], [slope, 1]]), np.full(2, (len(image) - 1) / 2)
    return affine_transform(image, matrix, offset=np.array([cy, cx]) - matrix @ middle, order=1)


def examples(cohort: Cohort) -> Image.Image:
    """Two rows of each: with, unknown, without."""
    rng, rows = np.random.default_rng(0), []
    for kind in (1, UNKNOWN, 0):
        chosen = rng.permutation(np.flatnonzero(cohort.is_patient & (cohort.truth == kind)))[: 2 * SHOWN]
        pictures = np.asarray(cohort.inputs)[chosen, 0]
        rows += [np.concatenate(list(part), axis=1) for part in np.split(pictures, 2)]
    return Image.fromarray((255 * np.concatenate(rows)).astype(np.uint8))


if __name__ == "__main__":
    main(MNIST1)
