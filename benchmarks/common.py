"""Shared by the benchmarks: their options, the loop over seeds, and the table and JSON that it ends in."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch is imported

import json
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tyro.conf import arg

from phenogroups.cli import parse_settings, say, training_bar
from phenogroups.data.cohort import Cohort
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.scores import Scores, score
from phenogroups.methods import Method, Prediction, build_method, settings_of
from phenogroups.training.memory import keep_memory
from phenogroups.training.run import versions

OUT, ERR = Console(), Console(stderr=True)
RESULTS = Path(__file__).parent / "results"
TITLES = {
    "seed": "seed",
    "class_bacc": "Class",
    "subgroup_gate": "Subgroup\ngate",
    "subgroup_centroid": "Subgroup\ncentroid",
    "overall_bacc": "Overall",
    "ari": "ARI",
    "kmeans": "K-means",
    "gaussian_mixture": "Gaussian\nmixture",
    "classifier": "classifier\n+ K-means",
    "subgroup_bacc": "Subgroup",
    "map_with": "map\nwith bar",
    "ink_with": "ink\nwith bar",
    "map_without": "map\nwithout",
    "ink_without": "ink\nwithout",
    "page_mb": "page MB",
    "report_seconds": "report s",
    "report_cpu_seconds": "report\nCPU s",
    "open_seconds": "opens s",
    "seconds": "seconds",
    "peak_memory_mb": "peak MB",
}
COSTS = (
    "seconds",
    "peak_memory_mb",
    "page_mb",
    "report_seconds",
    "report_cpu_seconds",
    "open_seconds",
)  # the greater, the worse

Row = dict[str, Any]  # seed, scores (None where undefined) and costs of one run


@dataclass(frozen=True, kw_only=True)
class Options:
    seeds: int = 5
    """How many: 0, 1, 2, ..."""
    method: str = "deep_ucsl"
    """A name in phenogroups.METHODS; a wrong one lists all."""
    preset: Literal["default", "paper"] = "default"
    """paper: the published recipe of the method."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Settings of the method, such as epochs=20."""
    json: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: in benchmarks/results)")] = None
    """Where results are written."""

    @property
    def method_name(self) -> str:
        return self.method if self.preset == "default" else f"{self.method}_{self.preset}"

    def build(self, seed: int) -> Method:
        return build_method(self.method_name, {**parse_settings(self.set), "seed": seed})


@dataclass(frozen=True, kw_only=True)
class PublicData(Options):
    data: Path | None = None
    """Folder of the public files (default: PHENOGROUPS_DATA)."""
    labels: Path | None = None
    """JSON file of known subgroups, read by evaluation only."""
    subjects: int | None = None
    """Train and score on so few, for a smoke test."""

    def some(self, cohort: Cohort) -> Cohort:
        """Evenly spaced rows, so that all kinds stay in."""
        if self.subjects is None or self.subjects >= len(cohort):
            return cohort
        return cohort[np.linspace(0, len(cohort) - 1, self.subjects).astype(int)]


def main(options: Callable[..., Any]) -> None:
    """Parse the command line and run; an error that the user can mend is one message."""
    keep_memory()  # as the command line does
    try:
        asked = tyro.cli(options)
        asked.build(0)  # a wrong setting is said before anything is read
        asked.run()
    except (ValueError, FloatingPointError, OSError) as error:
        say(f"{Path(sys.argv[0]).name}: {error}", ERR)
        sys.exit(2)


def fit(method: Method, cohort: Cohort) -> float:
    """Seconds."""
    with training_bar(method) as progress:
        began = time.perf_counter()
        method.fit(cohort, progress=progress)
        return time.perf_counter() - began


def scores_of(cohort: Cohort, prediction: Prediction) -> Row:
    """As a user gets them (gate), and as the centroids read them."""
    gate, centroid = score(cohort, prediction), Scores()
    if prediction.by_centroid is not None:
        centroid = score(cohort, prediction, reading="centroid")
    row = {
        "subgroup_gate": gate.subgroup_bacc,
        "subgroup_centroid": centroid.subgroup_bacc,
        "overall_bacc": gate.overall_bacc,
    }
    if np.count_nonzero(known_subgroups(cohort)) < 2:  # of one known subgroup, whoever tells nothing apart is right
        row = dict.fromkeys(row)
    return {"class_bacc": gate.class_bacc, **row}


def beside(names: tuple[str, ...], train: Cohort, test: Cohort, **settings: Any) -> Row:
    """Subgroup B-ACC of other methods on the same people; each takes those of the settings that it has."""
    found: Row = {}
    for name in names:
        known = {f.name for f in fields(build_method(name, {}))}
        method = build_method(name, {key: value for key, value in settings.items() if key in known})
        found[name] = score(test, method.fit(train).predict_cohort(test)).subgroup_bacc
    return found


def trial(method: Method, train: Cohort, test: Cohort) -> Row:
    """One method on people it has not seen: scores, the share of its smallest subgroup among them, and seconds."""
    seconds = fit(method, train)
    found = method.predict_cohort(test)
    scores = score(test, found)
    sizes = np.bincount(found.subgroup[test.is_patient].argmax(1), minlength=found.subgroup.shape[1])
    return {
        "class_bacc": scores.class_bacc,
        "subgroup_bacc": scores.subgroup_bacc,
        "smallest_share": float(sizes.min() / sizes.sum()),
        "seconds": seconds,
    }


def known_subgroups(cohort: Cohort) -> list[int]:
    """How many patients of each subgroup are known."""
    if cohort.truth is None:
        return []
    return np.bincount(cohort.truth[cohort.truth >= 0], minlength=len(cohort.truth_names)).tolist()


def over_seeds(options: Options, one_seed: Callable[[int], Row]) -> list[Row]:
    if options.seeds < 1:
        raise ValueError(f"Expected at least 1 seed. Received: {options.seeds}.")
    rows = []
    for seed in range(options.seeds):
        rows.append({"seed": seed, **one_seed(seed), "peak_memory_mb": peak_memory_mb()})
        words = "  ".join(f"{TITLES[name]} {_cell(name, value)}" for name, value in rows[-1].items())
        say(words.replace("\n", " "), ERR)
    return rows


def finish(name: str, options: Options, rows: list[Row], **about: Any) -> None:
    """Print the table and write the JSON."""
    OUT.print(as_table(rows))
    path = options.json or RESULTS / f"{name}-{options.method_name}{'-smoke' * bool(about.get('smoke'))}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "benchmark": name,
        "options": asdict(options),
        "method": options.method_name,
        "settings": settings_of(options.build(0)),
        **about,
        "seeds": rows,
        "summary": {column: summary(column, rows) for column in rows[0] if column != "seed"},
        "machine": machine(),
        "versions": versions(),
    }
    write_whole(path, json.dumps(found, indent=2, default=str) + "\n")
    say(f"Written: {path}", ERR)


def write_result(name: str, found: dict[str, Any], path: Path | None = None) -> Path:
    """The JSON of a benchmark that is no loop over seeds; by default where `benchmarks/performance.py` looks for it."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"benchmark": name, **found}, indent=2, default=str) + "\n")
    return path


def summary(column: str, rows: list[Row]) -> dict[str, float | None] | None:
    """Mean, deviation and worst over the seeds that have this number."""
    values = np.array([row[column] for row in rows if row[column] is not None])
    if not len(values):
        return None
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std(ddof=1)) if len(values) > 1 else None,
        "worst": float(values.max() if column in COSTS else values.min()),
    }


def as_table(rows: list[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns = [column for column in rows[0] if any(row[column] is not None for row in rows)]
    for column in columns:
        table.add_column(TITLES[column], justify="right")
    for row in rows:
        table.add_row(*(_cell(column, row[column]) for column in columns), end_section=row is rows[-1])
    found = {column: summary(column, rows) or {} for column in columns if column != "seed"}
    for line, word in {"mean": "mean", "deviation": "±", "worst": "worst"}.items():
        table.add_row(word, *(_cell(column, values[line]) for column, values in found.items()))
    return table


def print_table(titles: Sequence[str], lines: Sequence[Sequence[str]], sections: Sequence[int] = ()) -> None:
    """Lines of words under these titles; a rule follows the lines at the positions `sections`."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title, word in zip(titles, lines[0], strict=True):
        table.add_column(title, justify="right" if word[:1] in "0123456789–" else "left", no_wrap=True)
    for position, line in enumerate(lines):
        table.add_row(*line, end_section=position in sections)
    OUT.print(table)


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "–"
    digits = {"seed": 0, "seconds": 1, "peak_memory_mb": 0}.get(column, 3)
    return f"{value:.{digits}f}"


def about_cohort(cohort: Cohort) -> dict[str, Any]:
    return {
        "name": cohort.name,
        "controls": int((~cohort.is_patient).sum()),
        "patients": int(cohort.is_patient.sum()),
        "known_subgroups": dict(zip(cohort.truth_names, known_subgroups(cohort), strict=True)),
        "input_shape": cohort.input_shape,
        "fingerprint": cohort.fingerprint,
    }


def peak_memory_mb() -> float:
    """Of this process since it began."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2 ** (20 if sys.platform == "darwin" else 10)  # bytes there, kibibytes elsewhere


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "platform": platform.platform(),
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),  # above the number of cores: the seconds were shared with others
    }
