"""The README's figure: what DeepCluster and Deep UCSL see of the same drawn digits (the paper's first figure).

python benchmarks/readme_figure.py writes docs/images/what_methods_see.png.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from matplotlib import rc_context
from matplotlib.figure import Figure

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.projection import principal_axes, some_rows
from phenogroups.evaluation.scores import score
from phenogroups.methods import build_method
from phenogroups.report.figures import COLUMN, STYLE, as_file, scatter, square


@dataclass(frozen=True)
class ReadmeFigure:
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
        self.out.write_bytes(as_file(drawn(points, shown), "png"))


@rc_context(STYLE)
def drawn(points: dict[str, np.ndarray], shown: Cohort) -> Figure:
    """One column per method: above coloured by truth, below by boldness."""
    figure = Figure(figsize=(COLUMN, COLUMN + 0.65), layout="constrained")
    grid = figure.subplots(2, len(points), squeeze=False)
    order = np.argsort(shown.is_patient, kind="stable")  # patients over controls
    boldness = shown.covariates["boldness"].to_numpy()[order]
    for (above, below), (method, where) in zip(grid.T, points.items(), strict=True):
        names, styles = shown.truth_names, range(2)
        handles = scatter(above, where, shown.truth, shown.is_patient, names, styles, area=2, legend=False)
        above.set_title(method, fontsize=7)
        ramp = below.scatter(*where[order].T, c=boldness, cmap="cividis", s=2, linewidths=0, marker="o", alpha=0.9)
        for ax in (above, below):
            ax.spines[:].set_visible(True)
            square(ax, where)
    figure.colorbar(ramp, ax=grid[1].tolist(), location="bottom", label="boldness", aspect=40, ticks=[])
    look = {"fontsize": 6, "markerscale": 2, "columnspacing": 0.8, "handletextpad": 0.1}
    figure.legend(handles=handles, loc="outside upper center", ncols=3, **look)
    return figure


if __name__ == "__main__":
    tyro.cli(ReadmeFigure).run()
