"""How often a run warns of images that nothing is wrong with, and what it says of cohorts with and without subgroups.

python benchmarks/evidence.py [--images 60] [--cohorts 30]: small cohorts that take seconds each. Images are drawn with
a spot on the left or the right of every patient, which is a sound subgroup: neither brightness nor sharpness follows
it. Verdicts are on tables (no subgroups: an even continuum, or one illness) and on scikit-learn's digits (no subgroups:
patients are one digit), with two subgroups asked for everywhere.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from common import ERR, Options, Row, machine, main, write_result
from sklearn.datasets import load_digits

from phenogroups.cli import say
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.evaluation.scores import score
from phenogroups.methods import Method, build_method
from phenogroups.training.run import versions
from phenogroups.workflows.weigh import weigh

SIDE, DISTANCE = 32, 6  # pixels of a drawn image, and of its spot from the middle


@dataclass(frozen=True, kw_only=True)
class Evidence(Options):
    """Warnings of image quality on sound cohorts, and verdicts on cohorts with and without subgroups."""

    images: int = 60
    """Sound cohorts of images."""
    cohorts: int = 30
    """Cohorts without subgroups, and as many with two."""
    subjects: int = 300
    """Of each cohort, half of them patients."""
    first: int = 0
    """The first seed."""

    def run(self) -> None:
        rows = []
        for row in self.rows():
            rows.append(row)
            say(json.dumps(row), ERR)
        summary = {}
        for kind in dict.fromkeys(row["kind"] for row in rows):
            some = [row for row in rows if row["kind"] == kind]
            summary[kind] = {
                "cohorts": len(some),
                "verdicts": Counter(row["answer"] for row in some),
                "warned_of_images": sum("images of subgroup" in " ".join(row["warnings"]) for row in some),
            }
            say(f"{kind}: {json.dumps(summary[kind])}")
        found = {
            "options": asdict(self),
            "summary": summary,
            "rows": rows,
            "machine": machine(),
            "versions": versions(),
        }
        say(f"Written: {write_result('evidence', found, self.json)}", ERR)

    def rows(self) -> Iterator[Row]:
        for seed in range(self.first, self.first + self.images):
            quick = build_method("kmeans", {"seed": seed})
            yield {"kind": "sound images", "seed": seed, **self.judged(spots(self.subjects, seed), quick)}
        for seed in range(self.first, self.first + self.cohorts):
            none = drawn_table(self.subjects, subgroups=seed // 2 % 2, separation=6, seed=seed)
            one, other = seed % 10, (seed + 1 + seed // 10 % 9) % 10  # never the same digit
            drawn = {
                "without subgroups": digits([one], self.subjects, seed) if seed % 2 else none,
                "two subgroups": digits([one, other], self.subjects, seed)
                if seed % 2
                else drawn_table(self.subjects, separation=6, seed=seed),
            }
            for kind, cohort in drawn.items():
                yield {"kind": kind, "seed": seed, "cohort": cohort.name, **self.judged(cohort, self.build(seed))}

    def judged(self, cohort: Cohort, method: Method) -> Row:
        began = time.process_time()
        train, test = cohort.split(0.2, method.seed)
        seen, new = method.fit_predict_cohort(train), method.predict_cohort(test)
        scores = score(test, new)
        found = weigh(method, (train, seen), (test, new), scores.class_bacc)
        agreement = found.stability.set_index("what")[["agreement", "by_chance"]].round(3)
        return {
            "answer": found.verdict.answer, "warnings": found.warnings, "why": found.verdict.why,
            "passed": found.tested is not None and found.tested.subgroups > 1,
            "p": None if found.tested is None else round(found.tested.p, 3),
            "subgroup_bacc": None if scores.subgroup_bacc is None else round(scores.subgroup_bacc, 3),
            "halves": agreement.loc["halves"].tolist(), "seconds": round(time.process_time() - began, 1),
        }  # fmt: skip


def spots(subjects: int, seed: int) -> Cohort:
    """Noisy images of their own brightness and contrast; every patient has a spot on the left or on the right."""
    rng = np.random.default_rng(seed)
    ill, right = np.arange(subjects) % 2, rng.integers(0, 2, subjects)
    across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    where = SIDE / 2 + np.where(right, DISTANCE, -DISTANCE)[:, None, None]
    spot = np.exp(-((across - where) ** 2 + (down - SIDE / 2) ** 2) / 18) * ill[:, None, None]
    images = 0.4 + 0.3 * spot + rng.normal(0, 0.02, spot.shape)
    images = images * rng.normal(1, 0.05, (subjects, 1, 1)) + rng.normal(0, 0.02, (subjects, 1, 1))
    return Cohort(np.clip(images, 0, 1)[:, None].astype(np.float32), ill, truth=right, name="spots")


def digits(which: list[int], subjects: int, seed: int) -> Cohort:
    """Patients are these digits of scikit-learn's, controls some of the others."""
    data, rng = load_digits(), np.random.default_rng(seed)
    ill = np.isin(data.target, which)
    rows = np.concatenate([rng.permutation(np.flatnonzero(ill == kind))[: subjects // 2] for kind in (True, False)])
    truth = np.array([which.index(digit) if digit in which else -1 for digit in data.target[rows]])
    name = f"digits {' and '.join(map(str, which))}"
    return Cohort(data.data[rows].astype(np.float32), ill[rows].astype(int), truth=truth, name=name)


if __name__ == "__main__":
    main(Evidence)
