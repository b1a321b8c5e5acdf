"""What the subgroups of each method follow among held-out patients: the known subgroups, or how the image was taken.

python benchmarks/follows.py oct --data DIR. Every method works on what the frozen encoder lite0 sees; properties of the
images (docs/guides/is_it_real.md) are cut into quarters. Adjusted mutual information: 1 is the same, 0 is chance.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import tyro
from cohorts import READERS, Cohorts, features_of
from common import ERR, Row, machine, print_table, write_result
from sklearn.metrics import adjusted_mutual_info_score
from tyro.conf import Positional

from phenogroups.cli import say
from phenogroups.methods import build_method
from phenogroups.training.run import versions

METHODS = (
    "kmeans",
    "gaussian_mixture",
    "deep_cluster",
    "simclr",
    "swav",
    "supcon",
    "ws_deep_cluster",
    "ucsl",
    "deep_ucsl",
)
KNOWN = "known subgroups"


@dataclass(frozen=True)
class Follows:
    """What subgroups follow."""

    cohort: Positional[Literal["oct", "pneumonia", "fundus"]]
    data: Path | None = None
    """Folder of the public files (default: PHENOGROUPS_DATA)."""
    methods: tuple[str, ...] = METHODS
    """Names in phenogroups.METHODS."""
    seeds: int = 3
    """How many: 0, 1, 2, ... Each holds out other patients."""

    def run(self) -> None:
        images = READERS[self.cohort](Cohorts(data=self.data))
        table = features_of(images)
        rows: list[Row] = []
        for name in self.methods:
            for seed in range(self.seeds):
                train, test = table.split(0.2, seed)
                _, pictures = images.split(0.2, seed)
                method = build_method(name, {"n_subgroups": len(table.truth_names), "seed": seed}).fit(train)
                found = method.predict_cohort(test).subgroup[test.is_patient].argmax(1)
                followed = {KNOWN: test.truth, **{key: quarters(v) for key, v in pictures.image_properties.items()}}
                rows.append({"method": name, "seed": seed} | {
                    key: adjusted_mutual_info_score(value[test.is_patient], found) for key, value in followed.items()
                })  # fmt: skip
                say(f"{name}, seed {seed}: {KNOWN} {rows[-1][KNOWN]:.2f}", ERR)
        means = pd.DataFrame(rows).drop(columns="seed").groupby("method", sort=False).mean()
        properties = means.drop(columns=KNOWN)
        lines = [
            [str(name), f"{means.loc[name, KNOWN]:.2f}", f"{row.max():.2f}", str(row.idxmax())]
            for name, row in properties.iterrows()
        ]
        print_table(["method", KNOWN, "most of a property", "which"], lines)
        found = {"cohort": self.cohort, "cells": rows, "means": means.to_dict("index"), "machine": machine()}
        say(f"Written: {write_result(f'follows-{self.cohort}', {**found, 'versions': versions()})}", ERR)


def quarters(values: pd.Series) -> np.ndarray:
    return np.searchsorted(values.quantile([0.25, 0.5, 0.75]), values)


if __name__ == "__main__":
    tyro.cli(Follows).run()
