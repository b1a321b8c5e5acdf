"""The README's figure: what DeepCluster and Deep UCSL see of the same drawn digits (the paper's first figure).

python benchmarks/readme_figure.py writes docs/images/what_methods_see.png.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

from dataclasses import dataclass
from pathlib import Path

import tyro

from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.projection import principal_axes, some_rows
from phenogroups.evaluation.scores import score
from phenogroups.methods import build_method
from phenogroups.report.comparison import methods_figure
from phenogroups.report.figures import as_file


@dataclass(frozen=True)
class Figure:
    out: Path = Path(__file__).parents[1] / "docs" / "images" / "what_methods_see.png"
    """Where to write it."""
    subjects: int = 1200
    """Digits to draw; a fifth of them is held out and shown."""
    seed: int = 0
    """Same seed, same figure."""

    def run(self) -> None:
        train, test = drawn_digits(self.subjects, seed=self.seed).split(0.2, self.seed)
        rows = some_rows(len(test), 600)
        points = {}
        for name in ("deep_cluster", "deep_ucsl"):
            found = build_method(name, {"seed": self.seed}).fit(train).predict_cohort(test)
            points[name] = principal_axes(found.embedding, found.embedding[rows], 2)[0]
            print(name, score(test, found))
        shown = test[rows]
        panel = ("Truth", shown.truth, shown.truth_names, range(2))
        figure = methods_figure(points, panel, shown.is_patient, ("boldness", shown.covariates["boldness"].to_numpy()))
        self.out.write_bytes(as_file(figure, "png"))


if __name__ == "__main__":
    tyro.cli(Figure).run()
