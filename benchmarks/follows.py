"""What the subgroups of each method follow among held-out patients: known subgroups, severity, how images were taken.

python benchmarks/follows.py oct --data DIR. Every method works on what the frozen encoder lite0 sees; severity (the
score of a logistic regression on the diagnosis) and properties of the images (docs/guides/is_it_real.md) are cut into
quarters. Adjusted mutual information: 1 is the same, 0 is chance.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import tyro
from cohorts import READERS, Cohorts, features_of
from common import ERR, Row, machine, print_table, write_result
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
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
    "vae_ucsl",
    "ucsl",
    "deep_ucsl",
)
KNOWN, SEVERITY = "known subgroups", "severity"


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
                ill = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
                score = ill.fit(np.asarray(train.inputs), train.diagnosis).decision_function(np.asarray(test.inputs))
                others = {SEVERITY: pd.Series(score), **pictures.image_properties}
                # among patients: controls are far less severe
                followed = {key: quarters(v.to_numpy(), test.is_patient) for key, v in others.items()}
                followed[KNOWN] = test.truth
                rows.append({"method": name, "seed": seed} | {
                    key: adjusted_mutual_info_score(value[test.is_patient], found) for key, value in followed.items()
                })  # fmt: skip
                say(f"{name}, seed {seed}: {KNOWN} {rows[-1][KNOWN]:.2f}", ERR)
        means = pd.DataFrame(rows).drop(columns="seed").groupby("method", sort=False).mean()
        properties = means.drop(columns=[KNOWN, SEVERITY])
        lines = [
            [str(name), *(f"{means.loc[name, key]:.2f}" for key in (KNOWN, SEVERITY)), f"{row.max():.2f}",
             str(row.idxmax())]
            for name, row in properties.iterrows()
        ]  # fmt: skip
        print_table(["method", KNOWN, SEVERITY, "most of a property", "which"], lines)
        found = {"cohort": self.cohort, "cells": rows, "means": means.to_dict("index"), "machine": machine()}
        say(f"Written: {write_result(f'follows-{self.cohort}', {**found, 'versions': versions()})}", ERR)


def quarters(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.nanquantile(values[among], [0.25, 0.5, 0.75]), values)


if __name__ == "__main__":
    tyro.cli(Follows).run()
