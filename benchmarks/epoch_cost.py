"""What an epoch of each method costs, per view of an input, beside an epoch of the plain classifier.

python benchmarks/epoch_cost.py [--size 32]. All train on equally many inputs with the same encoder in one
process; every round times each method once, and ratios are taken within a round. E-steps are counted where a method
holds one before each epoch. With one thread (OMP_NUM_THREADS=1), seconds are the processor's, which other programs on
the machine hardly change. --recipe mnist7 takes each method as published instead, with its own encoder and batches.
"""

import json
from dataclasses import dataclass, fields
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import torch
from common import ERR, OUT, RESULTS, machine
from common import main as run_main
from lightning_fabric import Fabric
from rich.table import Table
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.writing import write_whole
from phenogroups.methods import METHODS, DeepMethod, build_method
from phenogroups.recipes import recipe
from phenogroups.training.em import Trainer
from phenogroups.training.run import versions

TARGET = 2.2  # times the classifier's epoch, per view
SAME = {"encoder": "auto", "augmentation": "digits", "batch_size": 256, "steps": 1, "epochs": 10**6}


@dataclass(frozen=True, kw_only=True)
class EpochCost:
    """Seconds of an epoch of every deep method."""

    size: int = 32
    """Pixels a side."""
    inputs: int = 4096
    """How many are trained on in an epoch."""
    rounds: int = 5
    """Epochs of each, by turns."""
    recipe: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Settings as published for one of the paper's cohorts, instead of the same for all."""
    methods: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all deep ones)")] = ()
    """Names in phenogroups.METHODS."""

    def build(self, _: int) -> None:
        for name in self.methods:
            build_method(name, {})

    def run(self) -> None:
        deep = {name: make() for name, make in METHODS.items() if isinstance(make(), DeepMethod)}
        chosen = [name for name in deep if name in self.methods or not self.methods]
        say(f"drawing {2 * self.inputs} digits", ERR)
        cohort = drawn_digits(2 * self.inputs, size=self.size)
        both, patients = cohort[: self.inputs], cohort.patients[: self.inputs]
        trainers = {}
        for name in dict.fromkeys(["classifier", *chosen]):
            known = {f.name for f in fields(deep[name])}
            same = {key: value for key, value in SAME.items() if key in known}
            published = None if self.recipe is None else recipe(self.recipe)
            method = build_method(name, same) if published is None else published.build(name, epochs=SAME["epochs"])
            trainers[name] = self.trainer(method, both if method.needs_controls else patients)
        clock = process_time if torch.get_num_threads() == 1 else perf_counter
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        for turn in range(self.rounds + 1):  # the first warms up, and holds the first E-steps
            for name, trainer in trainers.items():
                began = clock()
                trainer.m_step()
                if turn:
                    seconds[name].append((clock() - began) / trainer.views_seen)
            say(f"round {turn} of {self.rounds}", ERR)
        self.report(seconds, {name: trainer.views_seen for name, trainer in trainers.items()})

    def trainer(self, method: Any, cohort: Any) -> Any:
        truth = method.reads_truth  # it trains on true subgroups in the diagnosis' place
        labels = torch.as_tensor(cohort.truth if truth else cohort.diagnosis)
        trainer = Timed(
            method, Fabric(accelerator="cpu", devices=1), lambda: method.build(cohort.input_shape), cohort.inputs,
            labels, 0, None,
        )  # fmt: skip
        trainer.epoch = method.warmup  # what comes before the first E-step is the cheaper part
        return trainer

    def report(self, seconds: dict[str, list[float]], views: dict[str, int]) -> None:
        classifier = np.array(seconds["classifier"])
        ratios = {name: float(np.median(np.array(times) / classifier)) for name, times in seconds.items()}
        table = Table("", "views", "seconds per epoch and view", "times the classifier's")
        for name in sorted(ratios, key=lambda name: ratios[name]):
            table.add_row(name, str(views[name]), f"{np.median(seconds[name]):.2f}", f"{ratios[name]:.2f}")
        OUT.print(table)
        over = [name for name, ratio in ratios.items() if ratio > TARGET]
        say(f"Above {TARGET}: {', '.join(over) or 'none'}.", OUT)
        found = {
            "benchmark": "epoch_cost", "options": vars(self), "seconds_per_view": seconds, "views": views,
            "ratios": ratios, "machine": machine(), "versions": versions(),
        }  # fmt: skip
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = "epoch_cost" if self.recipe is None else f"epoch_cost-{self.recipe}"
        write_whole(RESULTS / f"{name}.json", json.dumps(found, indent=2, default=str) + "\n")


class Timed(Trainer):
    """A trainer that knows how many views a batch of it had."""

    @property
    def views_seen(self) -> int:
        index = torch.arange(2)
        return self.method.views + (self.method.partners(index, self.beliefs) is not None)


if __name__ == "__main__":
    run_main(EpochCost)
