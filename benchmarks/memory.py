"""Whether training from disk needs more memory for more images, and more time than training from memory.

python benchmarks/memory.py [--counts 500 5000]. Images of 224 x 224 are written to a file as the cache of decoded
inputs is. Each count is trained on in a process of its own, which also reads every row once; the smaller count is then
trained on from disk and from memory by turns.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import ERR, OUT, RESULTS, machine
from common import main as run_main
from lightning_fabric import Fabric
from rich.table import Table

from phenogroups.cli import say
from phenogroups.data.cohort import Cohort
from phenogroups.data.stored import StoredRows
from phenogroups.data.writing import write_whole
from phenogroups.methods import build_method
from phenogroups.training.em import Trainer
from phenogroups.training.isolated import peak_memory_mb
from phenogroups.training.run import versions

MEMORY_TARGET, TIME_TARGET = 300, 1.1  # megabytes between the two counts; epoch from disk, times one from memory


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory by number of images, and seconds of an epoch from disk and from memory."""

    counts: tuple[int, int] = (2000, 20000)
    """Images, fewer and more."""
    size: int = 224
    """Pixels a side."""
    steps: int = 10
    """Gradient steps of an epoch, of randomly drawn images."""
    batch: int = 64
    """Images in a step."""
    rounds: int = 5
    """Epochs from disk and from memory, by turns."""
    folder: Path | None = None
    """Where the images are written, for a while; by default the system's temporary folder."""

    def build(self, _: int) -> None:
        if min(self.counts) < 2 * self.batch:
            raise ValueError(f"Expected at least two batches of images. Received: {min(self.counts)}.")

    def run(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            paths = [write_images(Path(folder) / f"{count}.npy", count, self.size) for count in self.counts]
            peaks = [self.in_its_own_process(path) for path in paths]
            disk, memory = self.by_turns(paths[0])
        apart, ratio = abs(peaks[1] - peaks[0]), float(np.median(np.array(disk) / np.array(memory)))
        table = Table("", *(f"{count} images" for count in self.counts))
        table.add_row("on disk, MB", *(f"{count * self.size**2 * 4 / 2**20:.0f}" for count in self.counts))
        table.add_row("peak memory, MB", *(f"{peak:.0f}" for peak in peaks))
        OUT.print(table)
        say(f"Peaks lie {apart:.0f} MB apart (target: {MEMORY_TARGET}).", OUT)
        said = f"{np.median(disk):.2f} s from disk, {np.median(memory):.2f} s from memory"
        say(f"An epoch of {self.steps} steps: {said}; ratio {ratio:.3f} (target: {TIME_TARGET}).", OUT)
        found = {
            "benchmark": "memory", "options": vars(self), "peak_mb": dict(zip(self.counts, peaks, strict=True)),
            "seconds": {"disk": disk, "memory": memory}, "ratio": ratio, "machine": machine(), "versions": versions(),
        }  # fmt: skip
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(RESULTS / "memory.json", json.dumps(found, indent=2, default=str) + "\n")

    def in_its_own_process(self, path: Path) -> float:
        say(f"training on {path.stem} images", ERR)
        command = [sys.executable, __file__, "--child", str(path), str(self.steps), str(self.batch)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(done.stdout)

    def by_turns(self, path: Path) -> tuple[list[float], list[float]]:
        stored = StoredRows(path)
        trainers = [trainer(inputs, self.steps, self.batch) for inputs in (stored, np.asarray(stored))]
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(self.rounds + 1):  # the first warms up
            for one, times in zip(trainers, seconds, strict=True):
                began = perf_counter()
                one.m_step()
                if turn:
                    times.append(perf_counter() - began)
            say(f"round {turn} of {self.rounds}", ERR)
        return seconds


def write_images(path: Path, count: int, size: int) -> Path:
    """Noise, as no picture is harder to keep."""
    rng = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, 1, size, size))
    for first in range(0, count, 100):
        file[first : first + 100] = rng.random(file[first : first + 100].shape, dtype=np.float32)
    file.flush()
    return path


def trainer(inputs: Any, steps: int, batch: int) -> Trainer:
    labels = torch.arange(len(inputs)) % 2
    method: Any = build_method("classifier", {"steps": steps, "batch_size": batch, "augmentation": "none"})
    made = Trainer(method, Fabric(accelerator="cpu", devices=1), inputs, labels, 0)
    made.batch_size, made.steps = batch, steps  # not a whole pass: the images are many
    return made


def child(path: str, steps: str, batch: str) -> None:
    """Split as `discover` does, train a little, read everything once; prints the peak of its memory."""
    stored = StoredRows(Path(path))
    cohort = Cohort(stored, np.arange(len(stored)) % 2)
    train, test = cohort.split(0.2)
    assert len(cohort.fingerprint) == 64
    trainer(train.inputs, int(steps), int(batch)).m_step()
    trainer(test.patients.inputs, 1, min(int(batch), len(test) // 2)).m_step()
    print(peak_memory_mb())


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else run_main(Memory)
