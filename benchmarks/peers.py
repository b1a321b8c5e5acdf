"""phenogroups beside its peers: the same inputs, the same machine, by turns; each run has a process of its own.

make peers, or python benchmarks/peers.py --python build/peers-venv/bin/python --data DIR. Cohorts: MNIST 7 (all sevens
and as many other digits; the labelled training sevens are scored), five pairs of scikit-learn's digits of odd sum (on
which no default was tuned), and X-rays of pneumonia as the frozen encoder lite0 sees them; of the last two a fifth is
held out by each seed, whole patients. Tables are in deviations of those trained on. What a user of each package writes
is in benchmarks/peer.py. A run that fails or takes too long is shown with its reason.
"""

import ast
import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from cohorts import READERS, Absent, Cohorts, features_of
from common import ERR, OUT, RESULTS, Row, about_cohort, machine, print_table, summary, write_result
from pairs import cohort_of, parted, scikit_learn_digits
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.clustering.matching import match_labels
from phenogroups.data.cohort import UNKNOWN, Cohort
from phenogroups.training.run import versions

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
PEER = Path(__file__).with_name("peer.py")
OURS = "phenogroups_deep_ucsl"
KEY = ("cohort", "part", "seed", "peer")  # what names a run
COLUMNS = ("subgroup_bacc", "seconds", "processor_seconds", "peak_memory_mb")
OUT_OF_TIME = (-24, 152)  # exit codes of SIGXCPU, seen directly and through a command such as nice

Name = Literal["mnist7", "digit pairs", "pneumonia"]
Parts = tuple[Cohort, Cohort]  # who is trained on, and the patients to assign


@dataclass(frozen=True, kw_only=True)
class Peers:
    """Deep UCSL beside the methods of other packages."""

    python: Path = Path(sys.executable)
    """Interpreter of the environment in which the peers are installed."""
    data: Path | None = None
    """Folder of the public files (default: PHENOGROUPS_DATA); a cohort that is not there is skipped."""
    cohorts: tuple[Name, ...] = ("digit pairs", "pneumonia", "mnist7")
    """Which ones."""
    peers: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """Which functions of peer.py, beside Deep UCSL or not."""
    seeds: int = 3
    """How many: 0, 1, 2, ..."""
    limit: int = 300
    """Processor seconds that one run may take."""
    before: str = ""
    """A command to start each run by, such as "nice -n 10"."""
    resume: bool = False
    """Keep the runs that the JSON file already has."""
    json: Annotated[Path, arg(metavar="PATH")] = RESULTS / "peers.json"
    """Where results are written, after each run."""

    def run(self) -> None:
        lines = lines_of_user_code()
        strange = [name for name in self.peers if name not in lines]
        if strange or self.seeds < 1:
            raise ValueError(
                f"Expected peers among {', '.join(lines)} and at least 1 seed. "
                f"Received: {', '.join(strange)} and {self.seeds}."
            )
        kept = json.loads(self.json.read_text()) if self.resume and self.json.is_file() else {"runs": [], "cohorts": {}}
        found, about = {tuple(run[part] for part in KEY): run for run in kept["runs"]}, kept["cohorts"]
        for cohort, seed, peer in product(self.cohorts, range(self.seeds), self.peers or lines):
            for part, parts in self.parts(cohort, seed).items():
                key = (cohort, part, seed, peer)
                if key in found:
                    continue
                about[part] = about_cohort(parts[0])
                found[key] = {**dict(zip(KEY, key, strict=True)), **self.one(peer, parts, seed)}
                score = "Subgroup {subgroup_bacc:.3f}, {seconds:.1f} s"
                said = found[key].get("error") or score.format(**found[key])
                say(f"{part}, seed {seed}, {peer}: {said}", ERR)
                self.write(list(found.values()), lines, about)
        show(list(found.values()), lines)

    def parts(self, name: Name, seed: int) -> dict[str, Parts]:
        """By name: who is trained on, and whom to assign."""
        if name == "digit pairs":
            pairs = [parted(cohort_of(scikit_learn_digits(), pair, seed), 0.2, seed) for pair in PAIRS]
            return {train.name: (train, known(test)) for train, test in pairs}
        try:
            cohort = read(name, self.data)
        except Absent as reason:
            say(f"{name} is skipped: {reason}", OUT)
            return {}
        # of MNIST the labelled sevens are among those trained on, whose labels nobody is given
        train, test = standardised(*cohort.split(0.2, seed)) if name == "pneumonia" else (cohort, cohort)
        return {name: (train, known(test))}

    def one(self, peer: str, parts: Parts, seed: int) -> Row:
        """Subgroup B-ACC, seconds and peak memory, or why there are none."""
        train, new = parts
        python = sys.executable if peer == OURS else self.python.absolute()
        with tempfile.TemporaryDirectory() as folder:
            given, told = Path(folder, "in.npz"), Path(folder, "out.npz")
            row = {subject: row for row, subject in enumerate(train.subject)}
            place = np.array([row.get(subject, -1) for subject in new.subject])  # of whom to assign, among the trained
            k = len(train.truth_names)
            np.savez(given, x=train.inputs, y=train.diagnosis, new=new.inputs, place=place, k=k)
            command = map(str, (python, PEER, peer, given, told, seed, self.limit))
            done = subprocess.run([*shlex.split(self.before), *command], capture_output=True, text=True, cwd=folder)
            if done.returncode in OUT_OF_TIME:
                return {"error": f"not finished within {self.limit} processor seconds"}
            if done.returncode:
                return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
            with np.load(told) as stored:
                labels, about = stored["labels"], json.loads(str(stored["about"]))
        named = np.unique(labels, return_inverse=True)[1]
        called = match_labels(named, np.asarray(new.truth), max(named.max() + 1, k))[named]
        return {"subgroup_bacc": float(balanced_accuracy_score(new.truth, called)), **about}

    def write(self, runs: list[Row], lines: dict[str, int], about: Row) -> None:
        result = {
            "options": asdict(self), "cohorts": about, "lines_of_user_code": lines, "runs": runs,
            "summary": summarised(runs), "machine": machine(), "versions": versions(),
            "versions_of_peers": installed(self.python),
        }  # fmt: skip
        write_result("peers", result, self.json)


@cache
def read(name: str, data: Path | None) -> Cohort:
    return features_of(READERS[name](Cohorts(data=data)))


def known(cohort: Cohort) -> Cohort:
    """The patients whose subgroup can be scored."""
    return cohort[np.flatnonzero(np.asarray(cohort.truth) != UNKNOWN)]


def standardised(train: Cohort, test: Cohort) -> tuple[Cohort, Cohort]:
    scaler = StandardScaler().fit(train.inputs)
    train, test = (replace(part, inputs=np.float32(scaler.transform(part.inputs))) for part in (train, test))
    return train, test


def lines_of_user_code() -> dict[str, int]:
    """Of each function of peer.py that is a peer: the lines of its body that are not blank."""
    text = PEER.read_text()
    peers = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and len(node.args.args) == 5]
    bodies = {node.name: text.splitlines()[node.lineno : node.end_lineno] for node in peers}
    return {name: sum(bool(row.strip()) for row in body) for name, body in bodies.items()}


@cache
def installed(python: Path) -> dict[str, str]:
    """Packages of the peers, by the interpreter's own pip."""
    done = subprocess.run([str(python), "-m", "pip", "list", "--format", "json"], capture_output=True, text=True)
    wanted = {"clustpy", "mlni", "nidl", "scikit-learn", "torch", "numpy"}
    found = json.loads(done.stdout) if done.returncode == 0 else []
    return {package["name"]: package["version"] for package in found if package["name"].lower() in wanted}


def summarised(runs: list[Row]) -> list[Row]:
    """One line for each cohort and peer: over the seeds, of the mean over the parts of a cohort."""
    found = []
    for cohort, peer in dict.fromkeys((run["cohort"], run["peer"]) for run in runs):
        mine = [run for run in runs if (run["cohort"], run["peer"]) == (cohort, peer)]
        errors = [f"{run['part']}, seed {run['seed']}: {run['error']}" for run in mine if "error" in run]
        whole = [run for run in mine if "error" not in run]
        by_seed = [[run for run in whole if run["seed"] == seed] for seed in sorted({run["seed"] for run in whole})]
        rows = [{column: float(np.mean([run[column] for run in some])) for column in COLUMNS} for some in by_seed]
        found.append(
            {"cohort": cohort, "peer": peer, "runs": len(whole), "errors": errors}
            | {column: summary(column, rows) for column in COLUMNS}
        )
    return found


def show(runs: list[Row], lines: dict[str, int]) -> None:
    table, found = [], sorted(summarised(runs), key=lambda row: row["cohort"])
    for row in found:
        if row["runs"]:
            score, *costs = (row[column] for column in COLUMNS)
            deviation = "" if score["deviation"] is None else f" ± {score['deviation']:.3f}"
            cells = [f"{score['mean']:.3f}{deviation}", *(f"{cost['mean']:.1f}" for cost in costs)]
        else:
            cells = ["–"] * len(COLUMNS)
        table.append([row["cohort"], row["peer"], str(row["runs"]), *cells, str(lines[row["peer"]])])
    last = [i for i, row in enumerate(found[:-1]) if row["cohort"] != found[i + 1]["cohort"]]
    print_table(
        ("cohort", "peer", "runs", "Subgroup", "seconds", "processor\nseconds", "peak MB", "lines"), table, last
    )
    for row in found:
        if row["errors"]:
            say(f"{row['cohort']}, {row['peer']}: {len(row['errors'])} failed, such as {row['errors'][0]}", OUT)


if __name__ == "__main__":
    try:
        tyro.cli(Peers).run()
    except (ValueError, OSError) as error:
        say(f"peers.py: {error}", ERR)
        sys.exit(2)
