"""Pairs of real digits: two digits are the disease, the other eight are healthy; which of the two, nobody says.

python benchmarks/pairs.py: all 45 pairs of scikit-learn's digits (8 x 8, bundled) as tables of 64 standardised
features, one seed. --kinds 3 (4, 5): 30 of all combinations of so many digits instead, evenly chosen. --images --data
DIR: six pairs (combinations) of MNIST as images. A share of every digit is held out and scored, another by each seed.
Defaults are tuned on pairs of even sum; the others are counted apart.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from common import ERR, OUT, PublicData, Row, machine, main, print_table, summary, trial, write_result
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from phenogroups.cli import say
from phenogroups.data.cohort import UNKNOWN, Cohort, CohortError
from phenogroups.data.examples.local import require
from phenogroups.data.examples.mnist import mnist
from phenogroups.methods import Method, build_method, settings_of
from phenogroups.training.run import versions

GOOD = 0.95  # what a pair has to reach
BASELINES = ("kmeans", "gaussian_mixture")
IMAGE_PAIRS = ((0, 6), (3, 5), (7, 9), (1, 2), (3, 8), (4, 9))  # three of even sum, three of odd sum
CONTROLS, PATIENTS = 4000, 3000  # images of MNIST taken for a pair

COMBINATIONS, OF_IMAGES = 30, 6  # of three and more digits

Pair = tuple[int, ...]
Digits = tuple[np.ndarray, np.ndarray]  # inputs, and which digit each is


@dataclass(frozen=True, kw_only=True)
class Pairs(PublicData):
    """Which of two digits, from "one of the two or not" alone."""

    seeds: int = 1
    """How many: 0, 1, 2, ... Each holds out other digits."""
    images: bool = False
    """Six pairs of MNIST as images, instead of all pairs of scikit-learn's digits as tables."""
    kinds: int = 2
    """How many digits are the disease."""
    pairs: tuple[str, ...] = ()
    """Only these, such as 1-2 1-8."""
    held_out: float = 0.2
    """Share of the digits to score on."""

    def run(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"Expected at least 1 seed. Received: {self.seeds}.")
        wanted = self.wanted()
        try:
            source = mnist_images(self.data) if self.images else scikit_learn_digits()
        except CohortError as error:
            say(f"MNIST is skipped: {error}", OUT)
            return
        rows: list[Row] = []
        for pair in wanted:
            for seed in range(self.seeds):
                rows += list(self.one_pair(source, pair, seed))
        found = [self.of_pair(rows, pair) for pair in wanted]
        self.print_pairs(found)
        counted = {"even sum": self.counted(found, 0), "odd sum": self.counted(found, 1), "all": self.counted(found)}
        for which, line in counted.items():
            if line:
                words = ", ".join(f"{name} {mean:.3f}" for name, mean in line["mean"].items())
                good = f"{line['good']} of {line['pairs']} pairs reach {GOOD}"
                say(f"{which}: {good} by {self.method_name}; mean Subgroup {words}", OUT)
        result = {
            "options": asdict(self),
            "method": self.method_name,
            "settings": settings_of(self.build(0)),
            "cells": rows,
            "pairs": found,
            "summary": {"threshold": GOOD, **counted},
            "machine": machine(),
            "versions": versions(),
        }
        some = f"-of-{self.kinds}" * (self.kinds > 2) + "-some" * bool(self.pairs)
        some += "-smoke" * (self.subjects is not None)
        name = f"pairs-{'images' if self.images else 'tables'}-{self.method_name}{some}"
        say(f"Written: {write_result(name, result, self.json)}", ERR)

    def wanted(self) -> list[Pair]:
        if not 2 <= self.kinds <= 8:
            raise ValueError(f"Expected 2 to 8 kinds. Received: {self.kinds}.")
        every = list(combinations(range(10), self.kinds))
        if not self.pairs:
            if self.kinds == 2:
                return list(IMAGE_PAIRS) if self.images else every
            return every[:: len(every) // (OF_IMAGES if self.images else COMBINATIONS)]
        asked = [pair for pair in every if "-".join(map(str, pair)) in self.pairs]
        if len(asked) < len(self.pairs):
            raise ValueError(
                f"Expected {self.kinds} digits each, such as 1-8, smallest first. Received: {' '.join(self.pairs)}."
            )
        return asked

    def one_pair(self, source: Digits, pair: Pair, seed: int) -> Iterator[Row]:
        """Every method on the same held-out digits."""
        cohort = self.some(cohort_of(source, pair, seed))
        train, test = parted(cohort, self.held_out, seed)
        for name in (self.method_name, *BASELINES):
            row = trial(self.prepared(name, len(pair), seed), train, test)
            say(f"{'-'.join(map(str, pair))}, seed {seed}, {name}: Subgroup {row['subgroup_bacc']:.3f}", ERR)
            yield {"pair": pair, "method": name, "seed": seed, **row}

    def prepared(self, name: str, kinds: int, seed: int) -> Method:
        method = self.build(seed) if name == self.method_name else build_method(name, {"seed": seed})
        known = {field.name for field in fields(method)}
        return method.set_params(n_subgroups=kinds) if "n_subgroups" in known else method

    def of_pair(self, rows: list[Row], pair: Pair) -> Row:
        """Over the seeds."""
        found: Row = {"pair": pair}
        for name in (self.method_name, *BASELINES):
            mine = [row for row in rows if row["pair"] == pair and row["method"] == name]
            found[name] = {
                column: summary(column, mine) for column in mine[0] if column not in ("pair", "method", "seed")
            }
        return found

    def print_pairs(self, found: list[Row]) -> None:
        lines = []
        for row in found:
            mine = row[self.method_name]
            means = [mine["subgroup_bacc"]["mean"], mine["subgroup_bacc"]["worst"]]
            means += [row[name]["subgroup_bacc"]["mean"] for name in BASELINES]
            means += [mine["class_bacc"]["mean"] if mine["class_bacc"] else np.nan, mine["smallest_share"]["mean"]]
            pair = "-".join(map(str, row["pair"]))
            parity = "odd" if sum(row["pair"]) % 2 else "even"
            lines.append([pair, parity, *(f"{mean:.3f}" for mean in means), f"{mine['seconds']['mean']:.1f}"])
        titles = (
            "pair",
            "sum",
            "Subgroup",
            "worst",
            "K-means",
            "Gaussian\nmixture",
            "Class",
            "smallest\nsubgroup",
            "seconds",
        )
        print_table(titles, lines)

    def counted(self, found: list[Row], parity: int | None = None) -> Row:
        """How many pairs are good, and the mean of every method."""
        some = [row for row in found if parity is None or sum(row["pair"]) % 2 == parity]
        if not some:
            return {}
        mean = {name: [row[name]["subgroup_bacc"]["mean"] for row in some] for name in (self.method_name, *BASELINES)}
        return {
            "pairs": len(some),
            "good": sum(value >= GOOD for value in mean[self.method_name]),
            "mean": {name: float(np.mean(values)) for name, values in mean.items()},
        }


def scikit_learn_digits() -> Digits:
    inputs, digit = load_digits(return_X_y=True)
    return np.asarray(inputs, np.float32), np.asarray(digit)


def mnist_images(data: Path | None) -> Digits:
    """Of 28 pixels on a page of 32, as everywhere in the package."""
    places = [f"{folder}train-images-idx3-ubyte{ending}" for folder in ("mnist/", "") for ending in (".gz", "")]
    cohort = mnist(data=require(data, *places).parent, balanced=False)
    return np.asarray(cohort.inputs), cohort.covariates["digit"].to_numpy()


def cohort_of(digits: Digits, pair: Pair, seed: int) -> Cohort:
    """All digits of a small source; of a large one, so many that a run takes a minute, the controls in equal parts."""
    inputs, digit = digits
    rng = np.random.default_rng(seed)
    most = {d: PATIENTS // len(pair) if d in pair else CONTROLS // (10 - len(pair)) for d in range(10)}
    rows = np.sort(np.concatenate([rng.permutation(np.flatnonzero(digit == d))[: most[d]] for d in range(10)]))
    place = np.full(10, UNKNOWN)
    place[list(pair)] = range(len(pair))
    truth = place[digit[rows]]
    return Cohort(
        inputs[rows],
        diagnosis=(truth != UNKNOWN).astype(int),
        covariates=pd.DataFrame({"digit": digit[rows]}),
        truth=truth,
        truth_names=tuple(map(str, pair)),
        name=f"digits-{'-'.join(map(str, pair))}",
    )


def parted(cohort: Cohort, held_out: float, seed: int) -> tuple[Cohort, Cohort]:
    """(train, held out), every digit on both sides; tables in deviations of those trained on."""
    train, test = train_test_split(
        np.arange(len(cohort)), test_size=held_out, stratify=cohort.covariates["digit"], random_state=seed
    )
    if len(cohort.input_shape) == 1:
        scaled = StandardScaler().fit(cohort.inputs[train]).transform(cohort.inputs)
        cohort = replace(cohort, inputs=np.asarray(scaled, np.float32))
    return cohort[np.sort(train)], cohort[np.sort(test)]


if __name__ == "__main__":
    main(Pairs)
