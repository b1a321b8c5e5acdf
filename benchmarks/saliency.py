"""Whether maps of what speaks for a subgroup lie on what the subgroups differ in: the crossbar of drawn sevens.

python benchmarks/saliency.py --seeds 3 --subjects 2000. A map that is spread evenly has 1. The columns `ink` are
of the picture itself: only what is beyond that speaks for the map.
"""

from dataclasses import dataclass

import numpy as np
from common import Options, Row, finish, fit, main, over_seeds
from scipy.ndimage import binary_dilation

from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.saliency import REFERENCES, saliency, some_patients
from phenogroups.evaluation.scores import score


@dataclass(frozen=True, kw_only=True)
class Saliency(Options):
    """How many times as much of a map as chance lies on the crossbar."""

    seeds: int = 3
    """How many: 0, 1, 2, ..."""
    subjects: int = 2000
    """Digits to draw, half of them sevens."""
    maps: int = 20
    """Held-out sevens of each form that are mapped."""

    def run(self) -> None:
        def one_seed(seed: int) -> Row:
            cohort, plain = (drawn_digits(self.subjects, seed=seed, marks=marks) for marks in (True, False))
            marks = np.asarray(cohort.inputs)[:, 0] - np.asarray(plain.inputs)[:, 0] > 0.2  # ink of the crossbar
            marks = dict(zip(cohort.subject, marks, strict=True))
            train, test = cohort.split(0.2, seed)
            method = self.build(seed)
            seconds = fit(method, train)
            found = method.predict_cohort(test)
            references = np.asarray(train.inputs[some_patients(train, REFERENCES)])
            usual = np.mean([mark for mark in marks.values() if mark.any()], axis=0) > 0.3  # where crossbars are
            row: Row = {"subgroup_bacc": score(test, found).subgroup_bacc}
            for truth, name in ((1, "with"), (0, "without")):
                rows = np.flatnonzero(test.truth == truth)[: self.maps]
                regions = [binary_dilation(marks[test.subject[i]]) if truth else usual for i in rows]
                maps = [saliency(method, test, i, found.subgroup[i].argmax(), references) for i in rows]
                inks = [np.asarray(test.inputs[i, 0]) for i in rows]
                row[f"map_{name}"] = beyond_chance(maps, regions)
                row[f"ink_{name}"] = beyond_chance(inks, regions)
            return {**row, "seconds": seconds}

        finish("saliency", self, over_seeds(self, one_seed))


def beyond_chance(maps: list[np.ndarray], regions: list[np.ndarray]) -> float:
    """Share of the map's mass on the region, over the region's share of the area; mean over maps."""
    shares = [one[where].sum() / max(one.sum(), 1e-12) / where.mean() for one, where in zip(maps, regions, strict=True)]
    return float(np.mean(shares))


if __name__ == "__main__":
    main(Saliency)
