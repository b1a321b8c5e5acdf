"""How often a run warns of a confound where there is none, and where a scanner was planted.

python benchmarks/confounds.py [--seeds 100] [--artefacts 20]: each seed draws a table with two subgroups under louder
variation that everybody shares, trains on 80 % of it, and looks for covariates that the subgroups follow. There, age
and sex act on features, so that a method that fails may truly follow them; with covariates shuffled among patients and
among controls every warning is false. The artefacts have no subgroups, but a second scanner that no control has seen.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from common import ERR, OUT, RESULTS, Options, Row, machine, main
from rich.table import Table

from phenogroups.cli import say
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.confounds import associations, warnings
from phenogroups.evaluation.scores import score
from phenogroups.methods import settings_of
from phenogroups.training.run import versions

FALSE_ALARMS = 0.05  # of sound cohorts, at most


@dataclass(frozen=True, kw_only=True)
class Confounds(Options):
    """Warnings of confounds on drawn tables, sound and unsound."""

    seeds: int = 100
    """Sound cohorts: 0, 1, 2, ..."""
    artefacts: int = 20
    """Cohorts with a planted scanner."""
    subjects: int = 600
    """Of each cohort, half of them patients."""
    site_effect: float = 6.0
    """Between the scanners, in deviations of the noise."""

    def run(self) -> None:
        rows = []
        for row in self.rows():
            rows.append(row)
            shown = "  ".join(f"{name} {value}" for name, value in row.items() if name != "warnings")
            say("  ".join([shown, *row["warnings"]]), ERR)
        table, summary = Table("cohorts", "drawn", "warned of a covariate", "warned of site"), {}
        for kind in dict.fromkeys(row["cohort"] for row in rows):
            some = [row for row in rows if row["cohort"] == kind]
            warned = sum(bool(row["warnings"]) for row in some)
            of_site = sum(any("follow site" in said for said in row["warnings"]) for row in some)
            summary[kind] = {"drawn": len(some), "warned": warned, "of_site": of_site}
            table.add_row(kind, *map(str, summary[kind].values()))
        OUT.print(table)
        say(f"Target: at most {FALSE_ALARMS:.0%} of sound cohorts warned of, and every planted scanner.", OUT)
        path = self.json or RESULTS / f"confounds-{self.method_name}.json"
        found = {
            "benchmark": "confounds", "options": asdict(self), "settings": settings_of(self.build(0)),
            "summary": summary, "cohorts": rows, "machine": machine(), "versions": versions(),
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found, indent=2, default=str) + "\n")
        say(f"Written: {path}", ERR)

    def rows(self) -> Iterator[Row]:
        for seed in range(self.artefacts):
            cohort = drawn_table(self.subjects, subgroups=1, site_effect=self.site_effect, seed=seed)
            for row in self.looked_at(cohort, seed, shuffled=False):
                yield {"cohort": "planted scanner", **row}
        for seed in range(self.seeds):
            first, second = self.looked_at(drawn_table(self.subjects, seed=seed), seed, shuffled=True)
            yield {"cohort": "sound", **first}
            yield {"cohort": "sound, covariates shuffled", **second}

    def looked_at(self, cohort: Cohort, seed: int, *, shuffled: bool) -> Iterator[Row]:
        """With its covariates, and then with shuffled ones."""
        began = time.perf_counter()
        parts = cohort.split(0.2, seed)
        method = self.build(seed).fit(parts[0])
        train, test = (method.predict_cohort(part) for part in parts)
        scored = {"seed": seed, "subgroup_bacc": score(parts[1], test).subgroup_bacc}
        scored["seconds"] = round(time.perf_counter() - began, 1)
        subgroup, diagnosis = (
            np.concatenate(pair) for pair in ((train.subgroup, test.subgroup), [part.diagnosis for part in parts])
        )
        covariates = pd.concat([part.covariates for part in parts], ignore_index=True)
        yield {**scored, **self.associated(subgroup, diagnosis, covariates, seed)}
        if shuffled:
            order, rng = np.arange(len(diagnosis)), np.random.default_rng(seed)
            for kind in (0, 1):
                order[diagnosis == kind] = rng.permutation(order[diagnosis == kind])
            yield {**scored, **self.associated(subgroup, diagnosis, covariates.iloc[order], seed)}

    def associated(self, subgroup: np.ndarray, diagnosis: np.ndarray, covariates: pd.DataFrame, seed: int) -> Row:
        table = associations(subgroup, diagnosis, covariates, seed=seed)
        values = table.set_index(["covariate", "among"])["value"].dropna()
        found = {f"{name} {among}": round(value, 3) for (name, among), value in values.items()}
        return {**found, "warnings": warnings(table)}


if __name__ == "__main__":
    main(Confounds)
