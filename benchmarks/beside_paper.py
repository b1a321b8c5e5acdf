"""A comparison's table beside the paper's own figures, as Markdown for docs/results.md.

phenogroups compare mnist7 --methods ... --out FOLDER, then python benchmarks/beside_paper.py mnist7 FOLDER.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from common import OUT
from tyro.conf import Positional, arg

from phenogroups.cli import say

# Subgroup B-ACC, mean and deviation over three initialisations (paper, tables of MNIST 7, pneumonia and OCT)
PUBLISHED: dict[str, dict[str, str]] = {
    "mnist7": {
        "deep_cluster": "0.540 ± 0.032", "pcl": "0.555 ± 0.018", "morpho_pcl": "0.732 ± 0.027",
        "byol": "0.552 ± 0.013", "scan": "0.597 ± 0.039", "swav": "0.601 ± 0.009", "simclr": "0.634 ± 0.007",
        "morpho_simclr": "0.721 ± 0.021", "autoencoder": "0.776 ± 0.007", "mixture_of_experts": "0.5 ± 0.0",
        "classifier": "0.633 ± 0.020", "supcon": "0.669 ± 0.066", "morpho_supcon": "0.808 ± 0.018",
        "ucsl": "0.815 ± 0.009", "ws_deep_cluster": "0.744 ± 0.019", "deep_ucsl_paper_soft": "0.816 ± 0.017",
        "deep_ucsl_paper_hard": "0.895 ± 0.014", "deep_ucsl_paper_without_sinkhorn": "0.908 ± 0.008",
        "deep_ucsl_paper": "0.920 ± 0.015", "deep_ucsl": "0.920 ± 0.015",
    },
    "pneumonia": {
        "deep_cluster": "0.814 ± 0.008", "pcl": "0.773 ± 0.055", "swav": "0.815 ± 0.006", "scan": "0.576 ± 0.059",
        "simclr": "0.741 ± 0.027", "byol": "0.748 ± 0.034", "vae_ucsl": "0.731 ± 0.004",
        "classifier": "0.560 ± 0.014", "supcon": "0.576 ± 0.036", "ws_deep_cluster": "0.826 ± 0.004",
        "foundation": "0.813", "deep_ucsl_paper_without_sinkhorn": "0.847 ± 0.037", "deep_ucsl_paper": "0.835 ± 0.007",
        "deep_ucsl": "0.835 ± 0.007", "supervised_upper_bound": "0.891 ± 0.005",
    },
    "oct": {
        "deep_cluster": "0.593 ± 0.052", "pcl": "0.428 ± 0.022", "swav": "0.563 ± 0.073", "scan": "0.449 ± 0.045",
        "simclr": "0.578 ± 0.009", "byol": "0.337 ± 0.002", "vae_ucsl": "0.585 ± 0.026",
        "classifier": "0.371 ± 0.009", "supcon": "0.618 ± 0.002", "ws_deep_cluster": "0.554 ± 0.060",
        "foundation": "0.365", "deep_ucsl_paper_without_sinkhorn": "0.345 ± 0.003", "deep_ucsl_paper": "0.626 ± 0.010",
        "deep_ucsl": "0.626 ± 0.010", "supervised_upper_bound": "0.971 ± 0.004",
    },
    "drawn": {},
}  # fmt: skip
COLUMNS = {"class_bacc": "Class", "subgroup_bacc": "Subgroup", "overall_bacc": "Overall", "ari": "ARI"}


@dataclass(frozen=True)
class BesidePaper:
    """Print a comparison as Markdown, with the paper's Subgroup B-ACC as a column."""

    cohort: Positional[Literal["mnist7", "pneumonia", "oct", "drawn"]]
    folder: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Written by phenogroups compare."""

    def run(self) -> None:
        methods = json.loads((self.folder / "compare.json").read_text())["methods"]
        published = PUBLISHED[self.cohort]
        paper = ["paper's Subgroup"] if published else []
        heads = ["method", "trained on", "seeds", *COLUMNS.values(), *paper, "seconds", "peak MB"]
        say(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", OUT)
        for row in methods:
            cells = [
                f"`{row['method']}`",
                row["kind"],
                str(row["seeds"]),
                *(_spread(row, column) for column in COLUMNS),
            ]
            cells += [published.get(row["method"], "")] if published else []
            say(f"| {' | '.join([*cells, _cost(row, 'seconds'), _cost(row, 'peak_memory_mb')])} |", OUT)


def _spread(row: dict[str, Any], column: str) -> str:
    mean, deviation = row[f"{column}_mean"], row[f"{column}_deviation"]
    if mean is None:
        return "×" if row["seeds"] else "failed"
    text = f"{mean:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")
    star = r"\*" if row.get(f"{column}_star") else ""
    return f"**{text}**{star}" if row.get(f"{column}_best") else text


def _cost(row: dict[str, Any], column: str) -> str:
    return "" if row[f"{column}_mean"] is None else f"{row[f'{column}_mean']:.0f}"


if __name__ == "__main__":
    tyro.cli(BesidePaper).run()
