"""How often the number of subgroups is found, and how often subgroups are found where there are none.

python benchmarks/number.py [--kind digits|tables] [--none 40] [--planted 10]: drawn cohorts without subgroups, and with
2 to 5 of equal sizes and with the largest four times the smallest (20:80 of two). Finished cohorts are kept in the JSON
file and not run again.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from common import ERR, OUT, RESULTS, machine
from rich.table import Table
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.data.writing import write_whole
from phenogroups.methods import DeepUCSL
from phenogroups.training.run import versions
from phenogroups.workflows.choose import number_of_subgroups

RIGHT, NONE = 0.8, 38 / 40  # shares wanted
PLANTED = (2, 3, 4, 5)


@dataclass(frozen=True, kw_only=True)
class Number:
    """The number of subgroups of drawn cohorts, with and without subgroups."""

    kind: Literal["digits", "tables"] = "digits"
    """Drawn sevens, or drawn tables of 20 features."""
    none: int = 40
    """Cohorts without subgroups; every other table has an even spread instead, as wide as two subgroups."""
    planted: int = 10
    """Cohorts of each number and each kind of sizes."""
    subjects: int = 2000
    """Of each cohort, half of them patients."""
    separation: float = 6.0
    """Between subgroups of tables, in deviations of the noise."""
    first_seed: int = 100
    """Of the cohorts; those below 100 were looked at while the rule was made."""
    json: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: in benchmarks/results)")] = None

    def run(self) -> None:
        path = self.json or RESULTS / f"number-{self.kind}.json"
        rows = json.loads(path.read_text())["cohorts"] if path.is_file() else []
        done = {(row["planted"], row["sizes"], row["seed"]) for row in rows}
        for planted, sizes, seed in self.cohorts():
            if (planted, sizes, seed) in done:
                continue
            cohort, began = self.draw(planted, sizes, seed), time.perf_counter()
            found = number_of_subgroups(cohort, DeepUCSL(seed=seed))
            row = {
                "planted": planted, "sizes": sizes, "seed": seed, "found": found.subgroups, "p": found.p,
                "p_shuffled": found.p_shuffled, "reason": found.reason, "seconds": time.perf_counter() - began,
            }  # fmt: skip
            rows.append(row)
            say("  ".join(f"{name} {value}" for name, value in row.items()), ERR)
            about = {"benchmark": "number", "options": {**asdict(self), "json": None}, "machine": machine()}
            write_whole(path, json.dumps({**about, "versions": versions(), "cohorts": rows}, indent=1) + "\n")
        self.show(rows)

    def cohorts(self) -> Iterator[tuple[int, str, int]]:
        """By seed, so that whatever is finished is of all kinds."""
        for i in range(max(self.none, self.planted)):
            seed = self.first_seed + i
            if i < self.none:
                yield 1, "even" if self.kind == "tables" and i % 2 else "one", seed
            if i < self.planted:
                yield from ((k, sizes, seed) for k in PLANTED for sizes in ("equal", "1:4"))

    def draw(self, planted: int, sizes: str, seed: int) -> Cohort:
        shares = np.linspace(1, 4 if sizes == "1:4" else 1, planted)
        shares = tuple(shares / shares.sum())
        if self.kind == "digits":
            return drawn_digits(self.subjects, sizes=shares, seed=seed)
        if sizes == "even":
            return drawn_table(self.subjects, subgroups=0, separation=self.separation, seed=seed)
        return drawn_table(self.subjects, subgroups=planted, sizes=shares, separation=self.separation, seed=seed)

    def show(self, rows: list[dict]) -> None:
        table = Table("planted", "sizes", "cohorts", "right", "found instead")
        for kind in dict.fromkeys((row["planted"], row["sizes"]) for row in rows):
            some = [row["found"] for row in rows if (row["planted"], row["sizes"]) == kind]
            wrong = ", ".join(map(str, sorted(found for found in some if found != kind[0])))
            table.add_row(
                str(kind[0]), kind[1], str(len(some)), str(len(some) - len(wrong.split(", ")) * bool(wrong)), wrong
            )
        OUT.print(table)
        for name, share, some in (
            ("without subgroups", NONE, [row for row in rows if row["planted"] == 1]),
            ("with subgroups", RIGHT, [row for row in rows if row["planted"] > 1]),
        ):
            right = sum(row["found"] == row["planted"] for row in some)
            say(f"{name}: {right} of {len(some)} right; wanted {share:.0%}.", OUT)


if __name__ == "__main__":
    tyro.cli(Number).run()
