"""Every method on what the frozen encoder lite0 sees of a cohort: the table of docs/results.md beside the paper's.

python benchmarks/every_method.py oct --data DIR --out FOLDER. A fifth of the patients is held out by each seed. An
interrupted comparison goes on where it was stopped; benchmarks/beside_paper.py prints its table.

With --fine-tuned 96, methods see images of 96 pixels a side instead, and train lite0 from its ImageNet weights on,
throughout, as the paper trains its network.
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
FINE_TUNED = ("deep_ucsl", "simclr", "supcon", "swav", "deep_cluster")
AUGMENTATION = {"pneumonia": "xray", "oct": "oct", "fundus": "fundus"}


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
    fine_tuned: int | None = None
    """Pixels a side of images on which lite0 is trained; by default it is frozen."""
    epochs: int = 5
    """Of every method, where lite0 is trained; each is one pass, as in the paper."""

    def run(self) -> None:
        if self.fine_tuned is None:
            cohort = features_of(READERS[self.cohort](Cohorts(data=self.data)))
            methods = self.methods or [name for name in METHODS if name not in LEFT_OUT]
            # the encoder of the published recipe is for images
            settings = {f"{name}.encoder": "auto" for name in methods if name.startswith("deep_ucsl_paper")}
        else:
            cohort = READERS[self.cohort](Cohorts(data=self.data, size=self.fine_tuned))
            methods = self.methods or FINE_TUNED
            settings = {
                "encoder": "lite0", "fine_tune": "throughout", "epochs": self.epochs, "steps": 1,
                "augmentation": AUGMENTATION[self.cohort],
            }  # fmt: skip
        found = compare(cohort, methods, self.out, seeds=self.seeds, settings=settings, progress=told)
        say(str(found), OUT)
        name = f"{self.cohort}-lite0" + ("" if self.fine_tuned is None else f"-trained-{self.fine_tuned}")
        for kind in ("csv", "json"):  # cells, and methods
            shutil.copy(self.out / f"compare.{kind}", RESULTS / "compare" / f"{name}.{kind}")


def told(step: Step) -> None:
    if step.doing in ("finished", "failed"):
        say(str(step), ERR)


if __name__ == "__main__":
    tyro.cli(EveryMethod).run()
