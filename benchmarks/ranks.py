"""What one subject costs each of several processes: time, memory, and what they tell each other.

python benchmarks/ranks.py [--processes 1 2]. Every number of processes trains the same course on the same images and
holds the same E-step on the same drawn vectors, one after the other in one run; docs/scale.md computes from these.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from common import ERR, OUT, RESULTS, machine, peak_memory_mb
from common import main as run_main
from lightning_fabric import Fabric
from rich.table import Table

from phenogroups.cli import say
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.sums import Sums
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.writing import write_whole
from phenogroups.methods import DeepUCSL
from phenogroups.training.em import Course, launch
from phenogroups.training.run import versions

DIMS, SUBGROUPS, ITERATIONS = 128, 2, 10
TIMED = {"epoch": "epoch", "embed": "embedding", "iteration": "EM iteration, per patient", "e_step": "E-step"}
TOLD = {
    "bytes_per_subject": "E-step, peak bytes per own subject",
    "step_kb": "told per gradient step, kB",
    "step_sums": "sums per gradient step",
    "e_step_kb": "told per E-step, kB",
    "e_step_sums": "sums per E-step",
}


@dataclass(frozen=True, kw_only=True)
class RanksBenchmark:
    """Constants of training in several processes."""

    processes: tuple[int, ...] = (1, 2)
    """Numbers of processes on this machine, the first of which others are compared with."""
    images: int = 1024
    """Of 32 pixels a side, trained on in an epoch."""
    vectors: int = 100_000
    """Subjects of the E-step, half of them patients."""

    def build(self, _: int) -> None:
        if min(self.processes, default=0) < 1:
            raise ValueError(f"Expected numbers of processes from 1 on. Received: {self.processes}.")

    def run(self) -> None:
        found = {count: self.of(count) for count in self.processes}
        table = Table("", *(f"{count} process{'es' if count > 1 else ''}" for count in found))
        for name, title in TIMED.items():
            table.add_row(f"{title}, µs per subject", *(f"{row[f'{name}_us']:.4g}" for row in found.values()))
            table.add_row("  of all processors", *(f"{row[f'{name}_cpu_us']:.4g}" for row in found.values()))
        for name, title in TOLD.items():
            table.add_row(title, *(f"{row[name]:.4g}" for row in found.values()))
        OUT.print(table)
        first = found[self.processes[0]]
        for count, row in found.items():
            said = ", ".join(f"{title} {first[f'{name}_us'] / row[f'{name}_us']:.2f}" for name, title in TIMED.items())
            say(f"Number of processes {count}, times as quick as {self.processes[0]}: {said}.", OUT)
        RESULTS.mkdir(parents=True, exist_ok=True)
        whole = {
            "benchmark": "ranks", "options": vars(self), "found": found, "machine": machine(), "versions": versions()
        }  # fmt: skip
        write_whole(RESULTS / "ranks.json", json.dumps(whole, indent=2, default=str) + "\n")

    def of(self, processes: int) -> dict[str, float]:
        say(f"number of processes: {processes}", ERR)
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            command = [sys.executable, __file__, "--child", processes, self.images, self.vectors, answer]
            subprocess.run([str(word) for word in command], check=True, stderr=subprocess.DEVNULL)
            return json.loads(answer.read_text())


class Counted:
    """How often, and how many bytes, were added up over processes."""

    def __init__(self, sums: Sums) -> None:
        self.calls = self.bytes = 0
        add = type(sums).__call__

        def counted(this: Sums, part: torch.Tensor) -> torch.Tensor:
            if this.world > 1:
                self.calls, self.bytes = self.calls + 1, self.bytes + part.numel() * part.element_size()
            return add(this, part)

        type(sums).__call__ = counted  # pyright: ignore[reportAttributeAccessIssue]

    def during(self, act: Callable[[], Any]) -> tuple[int, float]:
        before = self.calls, self.bytes
        act()
        return self.calls - before[0], (self.bytes - before[1]) / 1e3


def timed(what: str, subjects: float, sums: Sums, act: Callable[[], Any], rounds: int = 3) -> dict[str, float]:
    """Microseconds per subject, the median of some after one that warms up: by the clock, and of all processors."""
    taken = []
    for _ in range(rounds + 1):
        began = perf_counter(), process_time()
        act()
        taken.append((perf_counter() - began[0], process_time() - began[1]))
    wall, own = np.median(taken[1:], axis=0) / subjects * 1e6
    return {f"{what}_us": wall, f"{what}_cpu_us": float(sums(torch.tensor(own)))}


def child(processes: str, images: str, vectors: str, answer: str) -> None:
    torch.set_num_threads(1)
    sums = launch(int(processes))
    counted = Counted(sums)
    found = of_the_network(sums, counted, int(images)) | of_the_e_step(sums, counted, int(vectors))
    if sums.rank == 0:
        Path(answer).write_text(json.dumps(found))


def of_the_network(sums: Sums, counted: Counted, images: int) -> dict[str, float]:
    cohort = drawn_digits(images)
    method = DeepUCSL(restarts=1, warmup=10**6, steps=1, epochs=10**6)
    labels = torch.as_tensor(cohort.diagnosis)
    fabric = Fabric(accelerator="cpu", devices=1)
    course = Course(method, fabric, lambda: method.build(cohort.input_shape), cohort.inputs, labels, 0, None)

    def embed() -> None:
        course._forget()
        course.embedding()

    calls, kilobytes = counted.during(course.m_step)
    return {
        **timed("epoch", images, sums, course.m_step), **timed("embed", images, sums, embed),
        "step_kb": kilobytes / course._steps, "step_sums": calls / course._steps,
    }  # fmt: skip


def of_the_e_step(sums: Sums, counted: Counted, vectors: int) -> dict[str, float]:
    own = sums.shard(vectors)
    rng = torch.Generator().manual_seed(sums.rank)
    diagnosis = torch.arange(vectors)[own] % 2
    z = torch.randn(len(diagnosis), DIMS, generator=rng)
    z[:, 0] += diagnosis * torch.where(torch.rand(len(z), generator=rng) < 0.5, 5, -5)
    method = DeepUCSL(n_subgroups=SUBGROUPS)
    beliefs = method.e_step(z, diagnosis, None, 0)
    before = peak_memory_mb()
    calls, kilobytes = counted.during(lambda: method.e_step(z, diagnosis, beliefs, 1))
    whole = timed("e_step", vectors, sums, lambda: method.e_step(z, diagnosis, beliefs, 1))
    patients = beliefs.space(z[diagnosis == 1])
    q = beliefs.q[diagnosis == 1]

    def climb() -> None:
        tied_mixture(patients, SUBGROUPS, start=q, max_iterations=ITERATIONS, tolerance=-torch.inf, sums=sums)

    each = timed("iteration", (ITERATIONS + 1) * vectors / 2, sums, climb)
    more = torch.cat([z, z]), torch.cat([diagnosis, diagnosis])
    method.e_step(*more, None, 0)  # twice the subjects: what the peak rises by is theirs
    return {
        **each, **whole,
        "bytes_per_subject": (peak_memory_mb() - before) * 2**20 / len(z),
        "e_step_kb": kilobytes, "e_step_sums": calls,
    }  # fmt: skip


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else run_main(RanksBenchmark)
