"""Every method on what the frozen encoder lite0 sees of a cohort: the table of docs/results.md beside the paper's.

python benchmarks/every_method.py oct --data DIR --out FOLDER. A fifth of the patients is held out by each seed. An
interrupted comparison goes on where it was stopped; benchmarks/beside_paper.py prints its table.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from cohorts import READERS, Cohorts, features_of
from common import ERR, OUT, RESULTS
from tyro.conf import Positional, arg

from phenogroups.cli import say
from phenogroups.methods import METHODS
from phenogroups.workflows.compare import Step, compare

# the features of a table can be neither dilated nor eroded; a consensus is several runs of another method
LEFT_OUT = ("morpho_pcl", "morpho_simclr", "morpho_supcon", "consensus")


@dataclass(frozen=True)
class EveryMethod:
    """All methods and presets that a table of features allows, by their defaults."""

    cohort: Positional[Literal["pneumonia", "oct", "fundus"]]
    out: Annotated[Path, arg(metavar="FOLDER")]
    """Folder to write, or to go on with."""
    data: Path | None = None
    """Folder of the public files (default: PHENOGROUPS_DATA)."""
    methods: Annotated[tuple[str, ...], arg(metavar="METHOD ...", help_behavior_hint="(default: all of a table)")] = ()
    """Names in phenogroups.METHODS."""
    seeds: int = 3
    """How many: 0, 1, 2, ... Each holds out other patients."""

    def run(self) -> None:
        cohort = features_of(READERS[self.cohort](Cohorts(data=self.data)))
        methods = self.methods or [name for name in METHODS if name not in LEFT_OUT]
        # the encoder of the published recipe is for images
        settings = {f"{name}.encoder": "auto" for name in methods if name.startswith("deep_ucsl_paper")}
        found = compare(cohort, methods, self.out, seeds=self.seeds, settings=settings, progress=told)
        say(str(found), OUT)
        for kind in ("csv", "json"):  # cells, and methods
            shutil.copy(self.out / f"compare.{kind}", RESULTS / "compare" / f"{self.cohort}-lite0.{kind}")


def told(step: Step) -> None:
    if step.doing in ("finished", "failed"):
        say(str(step), ERR)


if __name__ == "__main__":
    tyro.cli(EveryMethod).run()
