"""The package's defaults on every real cohort at hand, beside plain clustering and supervision on the same features.

python benchmarks/cohorts.py --data DIR, where DIR holds pneumonia/, oct/, fundus/ and mnist/ (what is absent is
skipped); or --features FILE.npz ... for tables of features: `z` (subjects, features), `y` (0 control, 1 patient), `t`
(the subgroup's name, empty for controls) and, if rows belong together, `g`. A fifth of the people is held out and
scored, others by each seed; what belongs to one patient stays on one side.

Images of 64 pixels and more are seen by the package's frozen encoder once, and every method works on that table.
Smaller ones are given as pixels. `kmeans` takes numbers as they are, `gaussian_mixture` ten components of standardised
features, `foundation` standardised features; `supervised` is logistic regression on the true subgroups of the training
patients, a bound and not a competitor.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from common import (
    ERR,
    OUT,
    PublicData,
    Row,
    about_cohort,
    machine,
    main,
    print_table,
    summary,
    trial,
    write_result,
)
from fundus import read_fundus
from pneumonia import read_xrays
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from phenogroups.cli import say
from phenogroups.data.cache import user_cache
from phenogroups.data.cohort import UNKNOWN, Cohort, CohortError
from phenogroups.data.embeddings import keeping_embeddings
from phenogroups.data.examples.local import find, require
from phenogroups.data.examples.mnist import mnist
from phenogroups.data.opening import open_cohort
from phenogroups.data.reading import Reading
from phenogroups.data.tables import TableSpec
from phenogroups.methods import Method, build_method, settings_of
from phenogroups.networks.encoders import build_encoder
from phenogroups.training.embedding import embed_once
from phenogroups.training.run import versions

SIDE = 64  # pixels from which on images are seen by the frozen encoder
SIZE = 224  # pixels a side of X-rays, OCT and photographs as the frozen encoder sees them
BASELINES = ("kmeans", "gaussian_mixture", "foundation")
SUPERVISED = "supervised"
STRENGTHS = [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]  # C of the logistic regression, chosen among the training patients
COLUMNS = ("class_bacc", "subgroup_bacc", "smallest_share", "seconds")

Name = Literal["pneumonia", "oct", "fundus", "mnist7", "mnist1"]


@dataclass(frozen=True, kw_only=True)
class Cohorts(PublicData):
    """Every real cohort at hand, by one set of defaults."""

    seeds: int = 3
    """How many: 0, 1, 2, ... Each holds out other people."""
    cohorts: tuple[Name, ...] = ("pneumonia", "oct", "fundus", "mnist7", "mnist1")
    """Which ones."""
    features: tuple[Path, ...] = ()
    """Instead: npz files of z (features), y (diagnosis), t (subgroup's name) and g (patient)."""
    labels: Path | None = None
    """JSON file of known sevens, read by evaluation only (default: crossbar_train.json beside MNIST)."""
    labels_of_ones: Path | None = None
    """JSON file of known ones in the same form; without it, MNIST 1 has no Subgroup score."""
    held_out: float = 0.2
    """Share of the people to score on."""
    size: int = SIZE
    """Pixels a side of X-rays, OCT and photographs as they are read."""

    def run(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"Expected at least 1 seed. Received: {self.seeds}.")
        rows: list[Row] = []
        about: Row = {}
        wanted = self.features or self.cohorts
        for which in wanted:
            try:
                cohort = self.some(read_features(which) if isinstance(which, Path) else READERS[which](self))
                cohort = features_of(cohort)
            except Absent as reason:
                say(f"{which} is skipped: {reason}", OUT)
                continue
            about[cohort.name] = about_cohort(cohort)
            for seed in range(self.seeds):
                rows += self.one_split(cohort, seed)
        if not rows:
            raise ValueError(
                f"Expected at least one cohort. Received: {', '.join(map(str, wanted))}, none of them here."
            )
        found = summarised(rows)
        print_summary(found)
        for sentence in verdicts(found, self.method_name):
            say(sentence, OUT)
        name = f"cohorts{'-features' * bool(self.features)}-{self.method_name}{'-smoke' * (self.subjects is not None)}"
        result = {
            "options": asdict(self),
            "method": self.method_name,
            "settings": settings_of(self.build(0)),
            "cohorts": about,
            "cells": rows,
            "summary": found,
            "machine": machine(),
            "versions": versions(),
        }
        say(f"Written: {write_result(name, result, self.json)}", ERR)

    def one_split(self, cohort: Cohort, seed: int) -> list[Row]:
        """Every method on the same held-out people."""
        train, test = cohort.split(self.held_out, seed)
        rows = []
        for name in (self.method_name, *BASELINES, SUPERVISED):
            if name == SUPERVISED:
                if cohort.truth is None:
                    continue
                row = supervised(train, test, seed)
            elif name == "foundation":  # of a table, for pixels have no encoder that has learned
                row = trial(self.prepared(name, cohort, seed), as_features(train), as_features(test))
            else:
                row = trial(self.prepared(name, cohort, seed), train, test)
            rows.append({"cohort": cohort.name, "method": name, "seed": seed, **row})
            words = "  ".join(f"{column} {_number(row[column])}" for column in COLUMNS)
            say(f"{cohort.name}, seed {seed}, {name}: {words}", ERR)
        return rows

    def prepared(self, name: str, cohort: Cohort, seed: int) -> Method:
        method = self.build(seed) if name == self.method_name else build_method(name, {"seed": seed})
        known = {field.name for field in fields(method)}
        return method.set_params(n_subgroups=len(cohort.truth_names) or 2) if "n_subgroups" in known else method


class Absent(Exception):
    """The cohort cannot be had on this machine; says what was looked for."""


def features_of(cohort: Cohort) -> Cohort:
    """The cohort as the frozen encoder sees it, a table; tables and small images stay as they are."""
    if len(cohort.input_shape) == 1 or max(cohort.input_shape[1:]) < SIDE:
        return cohort
    with keeping_embeddings(user_cache()):  # seen once, whatever is run again
        return replace(cohort, inputs=embed_once(build_encoder("lite0", cohort.input_shape).freeze(), cohort.inputs))


def as_features(cohort: Cohort) -> Cohort:
    return replace(cohort, inputs=np.asarray(cohort.inputs).reshape(len(cohort), -1))


def read_features(path: Path) -> Cohort:
    """A table of features somebody else made."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            given = {name: stored[name] for name in ("z", "y", "t", "g") if name in stored.files}
            z, y, t = given["z"], given["y"], given["t"].astype(str)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise CohortError(
            f"Expected an npz file with z, y and t, words saved as text and not as objects. Received: {path} ({error})."
        ) from error
    names = sorted(set(t[y == 1]) - {""})
    truth = np.array([names.index(word) if word in names else UNKNOWN for word in t])
    group = given["g"].astype(str) if "g" in given else np.empty(0, str)
    return Cohort(z.astype(np.float32), y, group=group, truth=truth, truth_names=tuple(names), name=path.stem)


def supervised(train: Cohort, test: Cohort, seed: int) -> Row:
    """Logistic regression on the true subgroups of the training patients: what these features can tell at all."""
    seen, new = (as_features(cohort[np.flatnonzero(_truth(cohort) != UNKNOWN)]) for cohort in (train, test))
    regression = LogisticRegression(class_weight="balanced", max_iter=2000)
    folds = StratifiedGroupKFold(3, shuffle=True, random_state=seed)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), regression), {"logisticregression__C": STRENGTHS},
        scoring="balanced_accuracy", cv=folds,
    ).fit(seen.inputs, _truth(seen), groups=seen.group)  # fmt: skip
    called = search.predict(new.inputs)
    sizes = np.bincount(called, minlength=len(train.truth_names))
    return {
        "class_bacc": None,
        "subgroup_bacc": float(balanced_accuracy_score(_truth(new), called)),
        "smallest_share": float(sizes.min() / sizes.sum()),
        "seconds": float(search.refit_time_),
        "strength": search.best_params_["logisticregression__C"],
    }


def _truth(cohort: Cohort) -> np.ndarray:
    return np.full(len(cohort), UNKNOWN) if cohort.truth is None else cohort.truth


def _pneumonia(asked: Cohorts) -> Cohort:
    _needed(asked, "pneumonia/chest_xray/train/PNEUMONIA", "chest_xray/train/PNEUMONIA", "pneumonia/train/PNEUMONIA")
    return read_xrays(asked.data, asked.size)


def _oct(asked: Cohorts) -> Cohort:
    table = _needed(asked, "oct/train.csv")
    reading = Reading((asked.size, asked.size), 1)
    spec = TableSpec(image="path", subject="path", group="patient", truth="subgroup", reading=reading)
    return replace(open_cohort(table, spec), name="oct")


def _fundus(asked: Cohorts) -> Cohort:
    return read_fundus(_needed(asked, "fundus/train.csv").parent, asked.size, "unit")


def _mnist7(asked: Cohorts) -> Cohort:
    images = _needed(asked, "mnist/train-images-idx3-ubyte.gz", "mnist/train-images-idx3-ubyte")
    labels = asked.labels or find(images.parent, "crossbar_train.json")
    return replace(mnist(7, data=images.parent, labels=labels), name="mnist7")


def _mnist1(asked: Cohorts) -> Cohort:
    images = _needed(asked, "mnist/train-images-idx3-ubyte.gz", "mnist/train-images-idx3-ubyte")
    return replace(mnist(1, data=images.parent, labels=asked.labels_of_ones), name="mnist1")


READERS: dict[str, Callable[[Cohorts], Cohort]] = {
    "pneumonia": _pneumonia, "oct": _oct, "fundus": _fundus, "mnist7": _mnist7, "mnist1": _mnist1,
}  # fmt: skip


def _needed(asked: Cohorts, *places: str) -> Path:
    try:
        return require(asked.data, *places)
    except CohortError as error:
        raise Absent(str(error)) from error


def summarised(rows: list[Row]) -> list[Row]:
    """One line for each cohort and method: mean, deviation and worst over the seeds."""
    cells = list(dict.fromkeys((row["cohort"], row["method"]) for row in rows))
    return [
        {
            "cohort": cohort,
            "method": method,
            **{column: summary(column, _of(rows, cohort, method)) for column in COLUMNS},
        }
        for cohort, method in cells
    ]


def _of(rows: list[Row], cohort: str, method: str) -> list[Row]:
    return [row for row in rows if (row["cohort"], row["method"]) == (cohort, method)]


def print_summary(found: list[Row]) -> None:
    lines = []
    for row in found:
        spread = [_spread(row[column]) for column in ("class_bacc", "subgroup_bacc")]
        rest = [_number((row[column] or {}).get(part)) for column, part in (
            ("subgroup_bacc", "worst"), ("smallest_share", "mean"),
        )]  # fmt: skip
        lines.append([row["cohort"], row["method"], *spread, *rest, f"{row['seconds']['mean']:.1f}"])
    last = [i for i, row in enumerate(found[:-1]) if row["cohort"] != found[i + 1]["cohort"]]
    titles = ("cohort", "method", "Class", "Subgroup", "worst", "smallest\nsubgroup", "seconds")
    print_table(titles, lines, last)


def verdicts(found: list[Row], method: str) -> list[str]:
    """For each cohort with known subgroups, the method against the best of those that saw the same features."""
    sentences = []
    for cohort in dict.fromkeys(row["cohort"] for row in found):
        mean = {row["method"]: row["subgroup_bacc"]["mean"] for row in found
                if row["cohort"] == cohort and row["subgroup_bacc"] is not None}  # fmt: skip
        others = [name for name in BASELINES if name in mean and name != method]
        if method not in mean or not others:
            sentences.append(f"{cohort}: no known subgroups to score.")
            continue
        best = max(others, key=mean.__getitem__)
        below = f", {mean[method] - mean[SUPERVISED]:+.3f} to supervised" if SUPERVISED in mean else ""
        sentences.append(f"{cohort}: {method} vs best baseline ({best}): {mean[method] - mean[best]:+.3f}{below}")
    return sentences


def _spread(values: dict[str, float | None] | None) -> str:
    if values is None:
        return "–"
    deviation = "" if values["deviation"] is None else f" ± {values['deviation']:.3f}"
    return f"{values['mean']:.3f}{deviation}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main(Cohorts)
