"""Several processes beside one: speed, agreement of the subgroups found, and the constants that docs/scale.md uses.

python benchmarks/ranks.py [--processes 1 2]. Every process has one thread. All numbers of processes train the same
network on the same images, hold the same E-step on the same vectors, and fit the demo cohort, one after the other.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common import ERR, OUT, machine, peak_memory_mb, write_result
from common import main as run_main
from rich.table import Table
from sklearn.metrics import adjusted_rand_score

from phenogroups.cli import say
from phenogroups.clustering.communicator import Communicator
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.space import DiseaseSpace
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.methods import DeepUCSL
from phenogroups.training.distributed import build_fabric, launch
from phenogroups.training.em import Trainer
from phenogroups.training.run import versions

DIMS, SUBGROUPS, ITERATIONS = 128, 2, 10
TIMED = {"iteration": "EM iteration, per patient", "e_step": "E-step"}
SENT = {
    "bytes_per_subject": "E-step, peak bytes per own subject",
    "e_step_kb": "sent per E-step, kB",
    "e_step_calls": "collective calls per E-step",
}
SPEED_TARGET, FROM_SIZE = 1.6, 96  # times as fast as the first number of processes, from so many pixels a side
AGREEMENT_TARGET = 0.95  # adjusted Rand index


@dataclass(frozen=True, kw_only=True)
class RanksBenchmark:
    """Speed, agreement and constants of training in several processes."""

    processes: tuple[int, int] = (1, 2)
    """Two numbers of processes on this machine; the second is compared with the first."""
    sizes: tuple[int, ...] = (32, 96)
    """Pixels a side of the images of which an epoch is timed."""
    images: int = 1024
    """How many of them."""
    vectors: int = 100_000
    """Subjects of the E-step, half of them patients."""
    subjects: int = 6000
    """Digits of the demo cohort in which subgroups are compared; 0 leaves this out."""

    def build(self, _: int) -> None:
        if min(self.processes, default=0) < 1:
            raise ValueError(f"Expected numbers of processes from 1 on. Received: {self.processes}.")

    def run(self) -> None:
        one, several = self.processes
        found = {count: self.ask("time", count, self.images, self.vectors, *self.sizes) for count in self.processes}
        self.show(found)
        whole = {"options": vars(self), "found": found, "machine": machine(), "versions": versions()}
        for size in self.sizes:
            ratio = found[one][f"epoch{size}_us"] / found[several][f"epoch{size}_us"]
            target = f" (target: {SPEED_TARGET})" if size >= FROM_SIZE else ""
            say(f"Training, {size} pixels: {several} processes are {ratio:.2f} times as fast as {one}{target}.", OUT)
        if self.subjects:
            whole["agreement"] = self.agreement()
        path = write_result("ranks", whole)
        say(f"Written: {path}", ERR)

    def agreement(self) -> dict[str, float]:
        one, several = self.processes
        asked = ((one, 0), (several, 0), (one, 1))  # processes and seed
        fits = {(count, seed): self.ask("fit", count, self.subjects, seed) for count, seed in asked}
        labels = {key: np.array(found["labels"]) for key, found in fits.items()}
        patients = labels[one, 0] >= 0
        found = {
            name: float(adjusted_rand_score(labels[one, 0][patients], labels[other][patients]))
            for name, other in (("processes", (several, 0)), ("seeds", (one, 1)))
        }
        say(
            f"Subgroups of the demo cohort, adjusted Rand index: {found['processes']:.3f} between {one} and {several} "
            f"processes (target: {AGREEMENT_TARGET}), {found['seeds']:.3f} between two seeds of {one}.", OUT,
        )  # fmt: skip
        return found

    def show(self, found: dict[int, dict[str, float]]) -> None:
        table = Table("", *(f"{count} process{'es' if count > 1 else ''}" for count in found))
        rows = {f"{what}{size}": f"{what}, {size} pixels" for size in self.sizes for what in ("epoch", "embedding")}
        for name, title in (rows | TIMED).items():
            table.add_row(f"{title}, µs per subject", *(f"{row[f'{name}_us']:.4g}" for row in found.values()))
            table.add_row("  of all processors", *(f"{row[f'{name}_cpu_us']:.4g}" for row in found.values()))
        steps = {f"step{size}_kb": f"sent per gradient step, {size} pixels, kB" for size in self.sizes}
        for name, title in (steps | SENT).items():
            table.add_row(title, *(f"{row[name]:.4g}" for row in found.values()))
        OUT.print(table)

    def ask(self, what: str, processes: int, *words: object) -> dict[str, Any]:
        """What so many processes answer."""
        say(f"{what} {' '.join(map(str, words))}: number of processes {processes}", ERR)
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            command = [sys.executable, __file__, "--child", what, processes, answer, *words]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ChildProcessError(done.stderr)
            return json.loads(answer.read_text())


class Counted:
    """How often processes exchange tensors, and how many bytes each sends; without those of DDP itself."""

    def __init__(self) -> None:
        self.calls = self.bytes = 0
        for name in ("all_reduce", "all_gather"):
            setattr(dist, name, self._counting(getattr(dist, name), sent=0 if name == "all_reduce" else 1))

    def _counting(self, real: Callable[..., Any], sent: int) -> Callable[..., Any]:
        def counting(*tensors: Any, **more: Any) -> Any:
            self.calls, self.bytes = self.calls + 1, self.bytes + tensors[sent].nbytes
            return real(*tensors, **more)

        return counting

    def during(self, act: Callable[[], Any]) -> tuple[int, float]:
        """Calls and kilobytes."""
        before = self.calls, self.bytes
        act()
        return self.calls - before[0], (self.bytes - before[1]) / 1e3


def timed(what: str, subjects: float, comm: Communicator, act: Callable[[], Any], rounds: int = 3) -> dict[str, float]:
    """Microseconds per subject, the median after one round that warms up: by the clock, and of all processors."""
    taken = []
    for _ in range(rounds + 1):
        began = perf_counter(), process_time()
        act()
        taken.append((perf_counter() - began[0], process_time() - began[1]))
    wall, own = np.median(taken[1:], axis=0) / subjects * 1e6
    return {f"{what}_us": wall, f"{what}_cpu_us": float(comm.all_reduce(torch.tensor(own)))}


def child(what: str, processes: str, answer: str, *words: str) -> None:
    torch.set_num_threads(1)
    comm = launch(int(processes))
    found = {"time": times, "fit": fit}[what](comm, *map(int, words))
    if comm.rank == 0:
        Path(answer).write_text(json.dumps(found))


def fit(comm: Communicator, subjects: int, seed: int) -> dict[str, Any]:
    """As `phenogroups demo` does: on four fifths of the cohort."""
    train, _ = drawn_digits(subjects, seed=0).split(0.2, 0)
    return {"labels": DeepUCSL(seed=seed).fit(train).labels_.tolist()}


def times(comm: Communicator, images: int, vectors: int, *sizes: int) -> dict[str, float]:
    counted = Counted()
    of_networks = [times_of_network(comm, counted, images, size) for size in sizes]
    return {k: v for found in of_networks for k, v in found.items()} | times_of_e_step(comm, counted, vectors)


def times_of_network(comm: Communicator, counted: Counted, images: int, size: int) -> dict[str, float]:
    cohort = drawn_digits(images, size=size)
    # a warm-up without end: no E-step is timed
    method = DeepUCSL(encoder="light", restarts=1, warmup=10**6, steps=1, epochs=10**6)
    trainer = Trainer(method, build_fabric("cpu", "32-true"), cohort.inputs, torch.as_tensor(cohort.diagnosis), 0)

    def embed() -> None:
        trainer._embedding = None
        trainer.embedding()

    _, kilobytes = counted.during(trainer.m_step)
    weights = sum(each.nbytes for each in (*trainer.network.parameters(), *trainer.network.buffers())) / 1e3
    return {
        **timed(f"epoch{size}", images, comm, trainer.m_step), **timed(f"embedding{size}", images, comm, embed),
        f"step{size}_kb": 0.0 if comm.world_size == 1 else kilobytes / trainer.steps + weights,
    }  # fmt: skip


def times_of_e_step(comm: Communicator, counted: Counted, vectors: int) -> dict[str, float]:
    own = comm.shard(vectors)
    rng = torch.Generator().manual_seed(comm.rank)
    diagnosis = torch.arange(vectors)[own] % 2
    z = torch.randn(len(diagnosis), DIMS, generator=rng)
    z[:, 0] += diagnosis * torch.where(torch.rand(len(z), generator=rng) < 0.5, 5, -5)
    method = DeepUCSL(n_subgroups=SUBGROUPS)
    beliefs = method.e_step(z, diagnosis, None, 0)
    before = peak_memory_mb()
    calls, kilobytes = counted.during(lambda: method.e_step(z, diagnosis, beliefs, 1))
    whole = timed("e_step", vectors, comm, lambda: method.e_step(z, diagnosis, beliefs, 1))
    space = DiseaseSpace(*(getattr(beliefs, f.name) for f in fields(DiseaseSpace)))
    patients = space(z[diagnosis == 1])
    q = beliefs.q[diagnosis == 1]

    def climb() -> None:
        tied_mixture(patients, SUBGROUPS, start=q, max_iterations=ITERATIONS, tolerance=-torch.inf, comm=comm)

    each = timed("iteration", (ITERATIONS + 1) * vectors / 2, comm, climb)
    more = torch.cat([z, z]), torch.cat([diagnosis, diagnosis])
    method.e_step(*more, None, 0)  # twice the subjects: what the peak rises by is theirs
    return {
        **each, **whole,
        "bytes_per_subject": (peak_memory_mb() - before) * 2**20 / len(z),
        "e_step_kb": kilobytes, "e_step_calls": calls,
    }  # fmt: skip


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else run_main(RanksBenchmark)
