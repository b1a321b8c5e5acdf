"""Drawn brains over several seeds: whether Deep UCSL finds in volumes where the lesions of a patient lie.

python benchmarks/brains.py --seeds 5. Each seed draws, splits and trains anew; scores are of the held-out fifth.
"""

from dataclasses import dataclass

from common import OUT, Options, Row, beside, finish, fit, main, over_seeds, scores_of

from phenogroups.cli import say
from phenogroups.data.examples.drawn_brains import drawn_brains

GOOD = 0.9  # what a seed has to reach


@dataclass(frozen=True, kw_only=True)
class Brains(Options):
    """Lesions around the ventricles or in the cortex, from "ill or not" alone."""

    subjects: int = 600
    """Brains to draw, half of them ill."""
    size: int = 32
    """Voxels a side."""
    held_out: float = 0.2
    """Share of the brains to score on."""

    def run(self) -> None:
        def one_seed(seed: int) -> Row:
            train, test = drawn_brains(self.subjects, size=self.size, seed=seed).split(self.held_out, seed)
            method = self.build(seed)
            seconds = fit(method, train)
            others = beside(("kmeans", "gaussian_mixture"), train, test, n_subgroups=method.n_subgroups, seed=seed)
            return {**scores_of(test, method.predict_cohort(test)), **others, "seconds": seconds}

        rows = over_seeds(self, one_seed)
        good = sum((row["subgroup_gate"] or 0) >= GOOD for row in rows)
        finish("brains", self, rows, good={"threshold": GOOD, "seeds": good})
        say(f"{good} of {len(rows)} seeds reach {GOOD} by the gate.", OUT)


if __name__ == "__main__":
    main(Brains)
