"""Fundus photographs of three eye diseases: what Deep UCSL makes of a small cohort of colour pictures.

python benchmarks/fundus.py --data DIR, where DIR holds train.csv (path, diagnosis, subgroup) and the pictures. A fifth
is held out, others by each seed; copies of one picture stay on one side.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from common import PublicData, Row, about_cohort, beside, finish, fit, main, over_seeds, scores_of

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.local import require
from phenogroups.data.opening import open_cohort
from phenogroups.data.reading import Intensity, Reading
from phenogroups.data.table_files import read_table
from phenogroups.data.tables import TableSpec
from phenogroups.evaluation.scores import score
from phenogroups.methods import Method


@dataclass(frozen=True, kw_only=True)
class Fundus(PublicData):
    """AMD, diabetic retinopathy or glaucoma, from "ill or not" alone."""

    seeds: int = 3
    """How many: 0, 1, 2, ..."""
    set: tuple[str, ...] = ("augmentation=fundus",)
    """Settings of the method, such as epochs=20."""
    size: int = 96
    """Pixels a side."""
    intensity: Intensity = "standardise"
    """What is done to the numbers of each picture."""
    held_out: float = 0.2
    """Share of the pictures to score on."""

    def build(self, seed: int) -> Method:
        return super().build(seed).set_params(n_subgroups=3)

    def run(self) -> None:
        cohort = self.some(read_fundus(self.data, self.size, self.intensity))

        def one_seed(seed: int) -> Row:
            train, test = cohort.split(self.held_out, seed)
            method = self.build(seed)
            seconds = fit(method, train)
            found = method.predict_cohort(test)
            settings = {"n_subgroups": method.n_subgroups, "seed": seed, "augmentation": "fundus"}
            others = beside(("kmeans", "classifier"), train, test, **settings)
            return {**scores_of(test, found), "ari": score(test, found).ari, **others, "seconds": seconds}

        rows = over_seeds(self, one_seed)
        scored = {"held out by each seed": self.held_out}
        smoke = self.subjects is not None
        finish("fundus", self, rows, smoke=smoke, cohort=about_cohort(cohort), scored_on=scored)


def read_fundus(data: Path | None, size: int, intensity: Intensity) -> Cohort:
    """Equal pictures are one group: they would tell the answer across a split."""
    table = require(data, "train.csv", "fundus/train.csv")
    rows = read_table(table)
    rows["content"] = [hashlib.sha256(Path(table.parent, path).read_bytes()).hexdigest() for path in rows["path"]]
    reading = Reading((size, size), 3, intensity)
    spec = TableSpec(image="path", subject="path", group="content", truth="subgroup", reading=reading)
    return replace(open_cohort(rows, spec, folder=table.parent), name="fundus")


if __name__ == "__main__":
    main(Fundus)
