"""How often the number of subgroups is found, and how often subgroups are found where there are none.

python benchmarks/number.py [--kind digits|tables] [--none 40] [--planted 10]: drawn cohorts without subgroups, and with
2 to 5 of equal sizes and with the largest four times the smallest (20:80 of two). Finished cohorts are kept in the JSON
file and not run again; their number is decided anew, by the rule of today.

python benchmarks/number.py --kind scikit-learn|mnist|mnist-light|oct|pneumonia --data DIR: real pictures. Patients are
one to four classes (digits, or diseases), controls the rest, or the healthy. Without subgroups are: one class; one
class of which some are called patients at random (`same`); a cohort whose diagnosis is shuffled (`shuffled`). The rule
was made on even digits; odd ones are judged unless --tuning is given. scikit-learn: 8 x 8 pixels as a table; mnist: at
64 pixels, embedded by the frozen lite0; mnist-light: at 32 pixels, seen by encoders that are trained here; others as
benchmarks/cohorts.py reads them.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import torch
import tyro
from cohorts import READERS, Cohorts, features_of
from common import ERR, OUT, RESULTS, machine
from rich.table import Table
from sklearn.datasets import load_digits
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.data.examples.mnist import mnist
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.number import decide
from phenogroups.methods import DeepUCSL
from phenogroups.networks.encoders import build_encoder
from phenogroups.training.embedding import embed_once
from phenogroups.training.run import versions
from phenogroups.workflows.choose import number_of_subgroups

RIGHT, NONE = 0.8, 38 / 40  # shares wanted
PLANTED = (2, 3, 4, 5)
REAL = ("scikit-learn", "mnist", "mnist-light", "oct", "pneumonia")
SHOWN = ("gap", "gap_of_smaller", "apart", "p_gap", "agreement")  # criteria that are kept with each cohort
OF_A_DIGIT = 1000  # images of MNIST that cohorts are drawn from, the first of each digit


@dataclass(frozen=True)
class Pool:
    """Real subjects that cohorts are drawn from."""

    inputs: np.ndarray
    kind: np.ndarray  # class of each subject
    classes: np.ndarray  # those that patients may be of
    healthy: int | None  # class of the controls; None: all that are not the patients'
    each: int  # patients of a class

    def draw(self, planted: int, sizes: str, seed: int) -> Cohort:
        rng = np.random.default_rng(seed)

        def some(classes: np.ndarray, count: int) -> np.ndarray:
            return np.concatenate([rng.permutation(np.flatnonzero(self.kind == one))[:count] for one in classes])

        if sizes in ("one", "same"):
            ill = self.classes[[seed // 2 % len(self.classes)]]  # odd and even seeds have other sizes
        else:
            ill = rng.permutation(self.classes)[: max(planted, 2)]
        patients = some(ill, self.each * (2 if len(ill) == 1 else 1))
        others = np.setdiff1d(self.kind, ill) if self.healthy is None else np.array([self.healthy])
        controls = some(others, max(len(patients) // len(others), 2 * self.each // 3 if self.healthy is None else 0))
        diagnosis = np.arange(len(patients) + len(controls)) < len(patients)
        rows = np.concatenate([patients, controls])
        if sizes == "same":
            rows, diagnosis = patients, np.arange(len(patients)) % 2 == 0
        if sizes == "shuffled":
            diagnosis = rng.permutation(diagnosis)
        return Cohort(self.inputs[rows], diagnosis.astype(int), name="-".join(map(str, ill)))


@dataclass(frozen=True, kw_only=True)
class Number:
    """The number of subgroups of drawn cohorts, with and without subgroups."""

    kind: Literal["digits", "tables", "scikit-learn", "mnist", "mnist-light", "oct", "pneumonia"] = "digits"
    """Drawn sevens, drawn tables of 20 features, or real pictures."""
    data: Path | None = None
    """Folder of the real pictures (default: PHENOGROUPS_DATA); scikit-learn brings its own."""
    tuning: bool = False
    """Of real digits, the even ones, on which the rule was made, instead of the odd."""
    shuffled: int = 20
    """Real cohorts whose diagnosis is shuffled."""
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
        path = self.json or RESULTS / f"number-{self.kind}{'-tuning' * self.tuning}.json"
        rows = json.loads(path.read_text())["cohorts"] if path.is_file() else []
        for row in rows:
            row |= decided_anew(row)
        done = {(row["planted"], row["sizes"], row["seed"]) for row in rows}
        pool = self.pool() if self.kind in REAL else None
        for planted, sizes, seed in self.cohorts():
            if (planted, sizes, seed) in done:
                continue
            cohort = self.draw(planted, sizes, seed) if pool is None else pool.draw(planted, sizes, seed)
            began = time.perf_counter()
            found = number_of_subgroups(cohort, DeepUCSL(seed=seed))
            row = {
                "planted": planted, "sizes": sizes, "seed": seed, "found": found.subgroups, "p": found.p,
                "p_shuffled": found.p_shuffled, "reason": found.reason, "cohort": cohort.name,
                **{name: found.criteria[name].tolist() for name in SHOWN},
                "p_shuffled_of_each": found.criteria["p_shuffled"].tolist(),
                "seconds": time.perf_counter() - began,
            }  # fmt: skip
            rows.append(row)
            say("  ".join(f"{name} {value}" for name, value in row.items()), ERR)
            self.write(path, rows)
        self.write(path, rows)
        self.show(rows)

    def write(self, path: Path, rows: list[dict]) -> None:
        options = {**asdict(self), "data": None, "json": None}
        about = {"benchmark": "number", "options": options, "machine": machine(), "versions": versions()}
        write_whole(path, json.dumps({**about, "cohorts": rows}, indent=1) + "\n")

    def cohorts(self) -> Iterator[tuple[int, str, int]]:
        """By seed, so that whatever is finished is of all kinds."""
        real = self.kind in REAL
        most = {"oct": 3, "pneumonia": 2}.get(self.kind, 4)  # classes there are, or that are asked for
        for i in range(max(self.none, self.planted, self.shuffled * real)):
            seed = self.first_seed + i
            if real:
                if i < self.none:
                    yield 1, "same" if i % 2 else "one", seed
                if i < self.shuffled:
                    yield 1, "shuffled", seed
                if i < self.planted:
                    yield from ((k, "equal", seed) for k in range(2, most + 1))
                continue
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

    def pool(self) -> Pool:
        odd = np.arange(0 if self.tuning else 1, 10, 2)
        if self.kind == "scikit-learn":
            x, digit = load_digits(return_X_y=True)
            return Pool(np.asarray(x, np.float32), digit, odd, None, 150)
        if self.kind in ("mnist", "mnist-light"):
            cohort = mnist(data=self.data, balanced=False)
            digit = cohort.covariates["digit"].to_numpy()
            rows = np.concatenate([np.flatnonzero(digit == one)[:OF_A_DIGIT] for one in range(10)])
            x = np.asarray(cohort.inputs)[rows]
            if self.kind == "mnist":
                large = torch.nn.functional.interpolate(torch.as_tensor(x), (64, 64), mode="bilinear").numpy()
                x = embed_once(build_encoder("lite0", (1, 64, 64)).freeze(), large)
            return Pool(x, digit[rows], odd, None, 300)
        cohort = features_of(READERS[self.kind](Cohorts(data=self.data)))
        kind = np.where(cohort.is_patient, cohort.truth, -1)
        return Pool(np.asarray(cohort.inputs), kind, np.unique(kind[kind >= 0]), -1, 300)

    def show(self, rows: list[dict]) -> None:
        table = Table("planted", "sizes", "cohorts", "right", "found instead")
        for kind in dict.fromkeys((row["planted"], row["sizes"]) for row in rows):
            some = [row["found"] for row in rows if (row["planted"], row["sizes"]) == kind]
            wrong = ", ".join(map(str, sorted(found for found in some if found != kind[0])))
            table.add_row(
                str(kind[0]), kind[1], str(len(some)), str(len(some) - len(wrong.split(", ")) * bool(wrong)), wrong
            )
        OUT.print(table)
        over = sum(row["found"] > row["planted"] + 1 for row in rows if row["planted"] > 1)
        say(f"more than one too many: {over} of {sum(row['planted'] > 1 for row in rows)}.", OUT)
        for name, share, some in (
            ("shuffled diagnosis", 1.0, [row for row in rows if row["sizes"] == "shuffled"]),
            ("without subgroups", NONE, [row for row in rows if row["planted"] == 1 and row["sizes"] != "shuffled"]),
            ("with subgroups", RIGHT, [row for row in rows if row["planted"] > 1]),
        ):
            right = sum(row["found"] == row["planted"] for row in some)
            if not some:
                continue
            say(f"{name}: {right} of {len(some)} right; wanted {share:.0%}.", OUT)


def decided_anew(row: dict) -> dict:
    criteria = pd.DataFrame({name: row[name] for name in ("gap", "apart", "p_gap")})
    criteria["p_shuffled"] = row["p_shuffled_of_each"]
    found = decide(criteria.assign(subgroups=np.arange(len(criteria)) + 2))
    return {"found": found.subgroups, "reason": found.reason}


if __name__ == "__main__":
    tyro.cli(Number).run()
