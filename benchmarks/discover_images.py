"""From files to the report: how long `phenogroups discover` takes on photographs, from nothing, and in how much memory.

python benchmarks/discover_images.py [--images 5000]. JPEG files of 224 pixels a side are drawn: half are controls,
cloth of random colours; patients have a smooth disc or a striped one on it. The command runs without options in a
process of its own, with an empty cache, and is watched from outside.
"""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from common import ERR, OUT, machine, write_result
from common import main as run_main
from PIL import Image
from rich.table import Table

from phenogroups.cli import say
from phenogroups.data.embeddings import _record
from phenogroups.networks.lite0 import Lite0
from phenogroups.training.run import versions

MINUTES, MB = 5, 2000  # at most, of 5,000 images on two cores
READ = re.compile(r"\d+ patients and \d+ controls")  # what the command says once all files are read


@dataclass(frozen=True, kw_only=True)
class DiscoverImages:
    """Seconds by phase, and peak memory."""

    images: int = 5000
    """Files that are drawn."""
    side: int = 224
    """Pixels."""
    folder: Path | None = None
    """Where files are drawn, for a while; by default the system's temporary folder."""

    def build(self, _: int) -> None:
        if self.images < 40:
            raise ValueError(f"Expected at least 40 images. Received: {self.images}.")

    def run(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as home:
            say(f"drawing {self.images} images", ERR)
            draw_images(Path(home) / "images", self.images, self.side)
            found = self.watch(Path(home))
        table = Table("phase", "seconds")
        for name, seconds in found["seconds"].items():
            table.add_row(name, f"{seconds:.1f}")
        OUT.print(table)
        minutes, peak = found["seconds"]["all"] / 60, found["peak_memory_mb"]
        targets = f"targets of 5,000: {MINUTES} minutes, {MB} MB"
        say(f"{self.images} images: {minutes:.1f} minutes, peak memory {peak:.0f} MB ({targets}). {found['scores']}")
        write_result(
            "discover_images" + "-smoke" * (self.images < 5000),
            {"options": vars(self), **found, "machine": machine(), "versions": versions()},
        )

    def watch(self, home: Path) -> dict[str, Any]:
        """Run the command; its lines and its files tell which phase it is in."""
        run, cache = home / "run", home / "cache"
        command = [sys.executable, "-m", "phenogroups.cli", "discover", str(home / "images")]
        command += ["--control", "healthy", "--out", str(run)]
        environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
        began, times, peak = perf_counter(), {}, 0.0
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def listen() -> None:
            for line in child.stdout or ():
                say(line.rstrip(), ERR)
                if READ.search(line):
                    times["reading"] = perf_counter() - began

        listener = threading.Thread(target=listen)
        listener.start()
        record, trained_on = _record(Lite0.dim).itemsize, round(0.8 * self.images) - 1
        while child.poll() is None:
            peak = max(peak, peak_of(child.pid))
            kept = sum(path.stat().st_size for path in cache.rglob("*.embeddings")) // record
            if kept >= trained_on and "embedding" not in times:
                times["embedding"] = perf_counter() - began - times.get("reading", 0)
            sleep(0.1)
        listener.join()
        whole = perf_counter() - began
        if child.returncode != 0:
            raise ValueError(f"Expected the command to succeed. Received: code {child.returncode}.")
        with (run / "history.csv").open() as file:
            times["training"] = sum(float(row["seconds"]) for row in csv.DictReader(file))
        times["other starts, held-out images, report"] = whole - sum(times.values())
        scores = next(iter(json.loads((run / "scores.json").read_text()).values()))
        return {
            "seconds": {**times, "all": whole}, "peak_memory_mb": peak, "scores": scores,
            "cache_mb": sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) / 2**20,
            "model_mb": (run / "model.safetensors").stat().st_size / 2**20,
        }  # fmt: skip


def peak_of(process: int) -> float:
    """Megabytes that it has held at once so far."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # it has just ended
        return 0.0
    return next((int(line.split()[1]) / 2**10 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def draw_images(folder: Path, count: int, side: int) -> None:
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, :side] / side
    cloths = rng.normal(size=(20, side, side, 1)) * 12  # drawn once: noise takes longer than all else
    for i in range(count):
        ill = i % 2 == 1
        picture = rng.uniform(60, 180, 3) + 30 * (rows + columns)[..., None] + cloths[i % len(cloths)]
        if ill:
            (y, x), radius = rng.uniform(0.35, 0.65, 2), rng.uniform(0.15, 0.25)
            inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
            striped = np.sign(np.sin(60 * rows + rng.uniform(0, 6))) if i % 4 == 1 else 1.0
            picture += 40 * (inside * striped)[..., None]
        place = folder / ("ill" if ill else "healthy")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(place / f"{i:05d}.jpeg", quality=90)


if __name__ == "__main__":
    run_main(DiscoverImages)
