"""What an E-step costs: K-means of several processes and Sinkhorn K-means beside scikit-learn's Lloyd and POT.

python benchmarks/estep.py [--counts 10000 100000]. Drawn embeddings; the same starts, the same number of iterations
and of threads for all, by turns in one process. An iteration is the difference between a fit of one and of more.
Memory is the peak of a process of its own beyond what it held before the embeddings, and beyond the embeddings.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
from common import ERR, OUT, machine, write_result
from common import main as run_main
from rich.table import Table
from sklearn.cluster import KMeans, kmeans_plusplus
from threadpoolctl import threadpool_limits
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.clustering.kmeans import (
    equal_sizes,
    inverse_square_proportions,
    kmeans,
    lloyd,
    nearest,
    sinkhorn_kmeans,
    squared_distances,
)
from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.methods.deep_ucsl import DeepUCSL
from phenogroups.training.isolated import peak_memory_mb
from phenogroups.training.run import versions

TIME_TARGET, MEMORY_TARGET = 1.5, 300  # times an iteration of Lloyd's; megabytes beyond the embeddings
APART = 0.5  # deviations between subgroups: they overlap, so that no fit converges before the last iteration
EPSILON, TOLERANCE = 0.05, 1e-6  # of Sinkhorn, here and in POT
SAMPLE = 10_000  # embeddings that the start is taken from
MEASURED = ("kmeans", "sinkhorn_kmeans", "deep_ucsl")


@dataclass(frozen=True, kw_only=True)
class EStep:
    """Seconds of an iteration and megabytes of an E-step, by number of embeddings and of subgroups."""

    counts: Annotated[tuple[int, ...], arg(metavar="INT ...")] = (10**4, 10**5, 10**6)
    """Embeddings."""
    subgroups: Annotated[tuple[int, ...], arg(metavar="INT ...")] = (2, 5, 10)
    """Looked for."""
    dims: int = 128
    """Numbers in an embedding."""
    iterations: int = 20
    """Beyond the first."""
    rounds: int = 5
    """Fits of each, by turns."""
    threads: int = torch.get_num_threads()
    """Of everybody."""
    memory: bool = True
    """Whether peaks of memory are measured too."""

    def build(self, _: int) -> None:
        if min(*self.counts, self.iterations, self.rounds, self.threads) < 1:
            raise ValueError("Expected positive numbers of embeddings, iterations, rounds and threads.")

    def run(self) -> None:
        torch.set_num_threads(self.threads)
        with threadpool_limits(self.threads):
            cells = [self.cell(count, k) for count in self.counts for k in self.subgroups]
        memory = []
        if self.memory:
            memory = [self.peak(what, count, max(self.subgroups)) for count in self.counts for what in MEASURED]
        path = write_result("estep", {
            "options": vars(self), "cells": cells, "memory": memory, "machine": machine(),
            "versions": versions(),
        })  # fmt: skip
        self.show(cells, memory)
        say(f"Written: {path}", ERR)

    def cell(self, count: int, k: int) -> dict[str, Any]:
        """Seconds of an iteration of each, and what became of it."""
        z = drawn(count, self.dims, k)
        start = start_of(z, k)
        fits: dict[str, Callable[[int], float]] = {
            "scikit-learn": lambda most: of_scikit_learn(z, start, most),
            "kmeans": lambda most: lloyd(z, start, nearest(z), max_iterations=most)[1],
            "sinkhorn_kmeans": lambda most: lloyd(z, start, equal_sizes(z, EPSILON), max_iterations=most)[1],
        }
        seconds: dict[str, list[float]] = {name: [] for name in fits}
        inertia: dict[str, float] = {}
        for turn in range(self.rounds + 1):  # the first warms up
            for name, fit in fits.items():
                first, _ = timed(fit, 1)
                all_of_them, inertia[name] = timed(fit, 1 + self.iterations)
                if turn:
                    seconds[name].append((all_of_them - first) / self.iterations)
        reference = np.median(seconds["scikit-learn"])  # a single difference is noisy: fits begin by copying
        found = {
            "count": count, "subgroups": k, "seconds": seconds,
            "inertia": inertia,
            "ratio": {name: float(np.median(each) / reference) for name, each in seconds.items()},
            "plan": self.plan(z, start),
        }  # fmt: skip
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found["ratio"].items())
        say(f"{count} embeddings, {k} subgroups: {ratios}", ERR)
        return found

    def plan(self, z: torch.Tensor, start: torch.Tensor) -> dict[str, Any]:
        """Seconds of one Sinkhorn plan, here and by POT, and how far its sizes are from equal ones."""
        scores = inverse_square_proportions(squared_distances(z, start))
        ways: dict[str, Callable[[], np.ndarray]] = {"here": lambda: sinkhorn(scores, EPSILON).numpy()}
        try:
            import ot
        except ImportError:
            say("POT is missing (pip install 'phenogroups[benchmark]'): its column stays empty.", ERR)
        else:
            even, equal = np.full(len(z), 1 / len(z)), np.full(len(start), 1 / len(start))
            cost = -scores.numpy().astype(np.float64)
            ways["pot"] = lambda: (
                len(z) * ot.sinkhorn(even, equal, cost, EPSILON, stopThr=TOLERANCE, numItermax=1000, warn=False)
            )
        found: dict[str, Any] = {name: {"seconds": []} for name in ways}
        for _ in range(min(self.rounds, 3)):
            for name, way in ways.items():
                began = perf_counter()
                plan = way()
                found[name]["seconds"].append(perf_counter() - began)
                sizes = plan.mean(axis=0, dtype=np.float64)
                found[name]["error"] = float(np.abs(sizes - 1 / len(start)).max())
        return found

    def peak(self, what: str, count: int, k: int) -> dict[str, Any]:
        say(f"memory of {what} on {count} embeddings", ERR)
        command = [sys.executable, __file__, "--child", what, *map(str, (count, self.dims, k, self.threads))]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        before, peak = map(float, done.stdout.split())
        embeddings = count * self.dims * 4 / 2**20
        beyond = peak - before - embeddings
        return {"what": what, "count": count, "subgroups": k, "embeddings_mb": embeddings, "beyond_mb": beyond}

    def show(self, cells: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
        table = Table(
            "embeddings", "subgroups", "scikit-learn, s", "K-means", "Sinkhorn K-means", "one plan, s", "POT, s"
        )
        for cell in cells:
            plans = [cell["plan"].get(name) for name in ("here", "pot")]
            table.add_row(
                str(cell["count"]), str(cell["subgroups"]), f"{np.median(cell['seconds']['scikit-learn']):.4f}",
                f"{cell['ratio']['kmeans']:.2f}", f"{cell['ratio']['sinkhorn_kmeans']:.2f}",
                *("–" if plan is None else f"{np.median(plan['seconds']):.4f}" for plan in plans),
            )  # fmt: skip
        OUT.print(table)
        most = max(self.counts)
        worst = max(max(cell["ratio"].values()) for cell in cells if cell["count"] == most)
        say(f"At most {worst:.2f} times Lloyd's iteration with {most} embeddings (target: {TIME_TARGET}).", OUT)
        if self.memory:
            worst = max(each["beyond_mb"] for each in memory)
            say(f"At most {worst:.0f} MB beyond the embeddings (target: {MEMORY_TARGET}).", OUT)


def drawn(count: int, dims: int, k: int) -> torch.Tensor:
    """Overlapping clouds, block by block: nothing else of this size is ever in memory."""
    generator = torch.Generator().manual_seed(0)
    z = torch.empty(count, dims)
    for block in z.split(10_000):
        block.normal_(generator=generator)
        block[torch.arange(len(block)), torch.randint(k, (len(block),), generator=generator)] += APART
    return z


def start_of(z: torch.Tensor, k: int) -> torch.Tensor:
    """By K-means++ among some, as the product starts."""
    return torch.as_tensor(kmeans_plusplus(z[:SAMPLE].numpy(), k, random_state=0)[0])


def of_scikit_learn(z: torch.Tensor, start: torch.Tensor, most: int) -> float:
    found = KMeans(len(start), init=start.numpy(), n_init=1, max_iter=most, tol=0, copy_x=False).fit(z.numpy())
    return found.inertia_ / len(z)


def timed(fit: Callable[[int], float], most: int) -> tuple[float, float]:
    began = perf_counter()
    inertia = fit(most)
    return perf_counter() - began, inertia


def child(what: str, count: str, dims: str, k: str, threads: str) -> None:
    """Prints its memory before the embeddings, and its peak after the E-step."""
    torch.set_num_threads(int(threads))
    e_step(what, drawn(2000, int(dims), int(k)), int(k))  # libraries take their own memory when first used
    before = peak_memory_mb()
    e_step(what, drawn(int(count), int(dims), int(k)), int(k))
    print(before, peak_memory_mb())


def e_step(what: str, z: Any, k: int) -> None:
    if what == "deep_ucsl":  # the first of all patients and controls, and one that goes on from it
        method, diagnosis = DeepUCSL(n_subgroups=k), torch.arange(len(z)) % 2
        beliefs = method.e_step(z, diagnosis, None, 1)
        method.e_step(z, diagnosis, beliefs, 2)
    else:
        {"kmeans": kmeans, "sinkhorn_kmeans": sinkhorn_kmeans}[what](z, k)


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else run_main(EStep)
