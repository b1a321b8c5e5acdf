"""The drawn cohort of `phenogroups demo` over many seeds: Deep UCSL beside K-means and a Gaussian mixture on pixels.

python benchmarks/demo.py --seeds 10 --subjects 6000 --sizes 0.5 0.5. Each seed draws, splits and trains anew; scores
are of the held-out fifth.
"""

from dataclasses import dataclass

from common import ERR, OUT, Options, Row, beside, finish, fit, main, over_seeds, scores_of

from phenogroups.cli import say
from phenogroups.data.examples.drawn import drawn_digits

GOOD = 0.95  # what a seed has to reach


@dataclass(frozen=True, kw_only=True)
class Demo(Options):
    """Drawn sevens with or without crossbar, from "7 or not" alone."""

    seeds: int = 10
    """How many: 0, 1, 2, ..."""
    subjects: int = 6000
    """Digits to draw, half of them sevens."""
    sizes: tuple[float, ...] = (0.5, 0.5)
    """Shares of the sevens without and with crossbar."""
    digit: int = 7
    """The digit that is the disease."""
    held_out: float = 0.2
    """Share of the digits to score on."""

    def run(self) -> None:
        def one_seed(seed: int) -> Row:
            say(f"drawing {self.subjects} digits", ERR)
            cohort = drawn_digits(self.subjects, digit=self.digit, sizes=self.sizes, seed=seed)
            train, test = cohort.split(self.held_out, seed)
            method = self.build(seed)
            seconds = fit(method, train)
            others = beside(("kmeans", "gaussian_mixture"), train, test, n_subgroups=method.n_subgroups, seed=seed)
            return {**scores_of(test, method.predict_cohort(test)), **others, "seconds": seconds}

        rows = over_seeds(self, one_seed)
        shares = "-".join(f"{100 * share:.0f}" for share in self.sizes)
        good = sum((row["subgroup_gate"] or 0) >= GOOD for row in rows)
        finish(f"demo-{shares}", self, rows, good={"threshold": GOOD, "seeds": good})
        say(f"{good} of {len(rows)} seeds reach {GOOD} by the gate.", OUT)


if __name__ == "__main__":
    main(Demo)
