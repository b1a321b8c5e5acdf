"""How fast `phenogroups predict` is beside the bare encoder, and whether more images need more memory.

python benchmarks/predict.py [--rows png-32 png-224]. Noise is written as files, one of which is broken; a network with
random weights stands for a trained one. Predicting runs in its own process, as the command does; the bare encoder sees
as many inputs, ready in memory, in blocks of the same size and with as many threads, by turns.
"""

import csv
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any, Literal

import numpy as np
import torch
from common import ERR, OUT, RESULTS, machine, write_result
from common import main as run_main
from PIL import Image
from rich.table import Table
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.data.batches import as_tensor, rows_at_once
from phenogroups.data.cohort import Cohort
from phenogroups.methods import build_method, load, name_of, settings_of
from phenogroups.training.isolated import peak_memory_mb
from phenogroups.training.run import versions, write_model
from phenogroups.workflows.predict import predict_table

TARGET = 0.9  # of the bare encoder's images per second
READY = 2**24  # numbers that the bare encoder has in memory, and sees again and again


@dataclass(frozen=True, kw_only=True)
class Row:
    images: int  # files to predict; memory is also measured at a tenth of them
    side: int  # pixels
    files: Literal["png", "npy", "cache"]  # npy needs no decoding; cache: PNG, decoded before into one file (--cache)
    encoder: str = "light"
    rounds: int = 2  # of each, by turns; the median counts


ROWS = {
    "png-32": Row(images=100_000, side=32, files="png"),
    "npy-32": Row(images=100_000, side=32, files="npy"),
    "cache-32": Row(images=100_000, side=32, files="cache"),
    "png-224": Row(images=1_000, side=224, files="png", encoder="resnet18"),
}
RESULT = RESULTS / "predict.json"  # rows that are not asked for are kept as they were


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Images per second of predicting, in the product and bare; peak memory by number of images."""

    rows: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = tuple(ROWS)
    """Which images."""
    threads: int = 0
    """Of torch, in both; 0: as many as it likes."""
    folder: Path | None = None
    """Where images are written, for a while; by default the system's temporary folder."""

    def build(self, _: int) -> None:
        unknown = [name for name in self.rows if name not in ROWS]
        if unknown:
            raise ValueError(f"Expected rows among {', '.join(ROWS)}. Received: {', '.join(unknown)}.")

    def run(self) -> None:
        rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else {}
        for name in self.rows:
            rows[name] = Case(ROWS[name], self.threads, self.folder).measure()
            rows = {each: rows[each] for each in ROWS if each in rows}
            write_result("predict", {"rows": rows, "machine": machine(), "versions": versions()})


@dataclass(frozen=True)
class Case:
    row: Row
    threads: int
    folder: Path | None

    def measure(self) -> dict[str, Any]:
        row = self.row
        with tempfile.TemporaryDirectory(dir=self.folder) as home:
            folder = Path(home)
            self.write_run(folder / "run")
            tables = {count: self.write_images(folder, count) for count in (row.images // 10, row.images)}
            found: dict[str, list[dict[str, float]]] = {"product": [], "bare": []}
            for turn in range(row.rounds):
                found["product"].append(self.in_its_own_process(folder, tables[row.images]))
                found["bare"].append(self.bare(folder / "run"))
                say(f"round {turn + 1} of {row.rounds}: {found['product'][-1]} {found['bare'][-1]}", ERR)
            few = self.in_its_own_process(folder, tables[row.images // 10])
        rates = {name: [one["images_per_second"] for one in times] for name, times in found.items()}
        ratio = float(np.median(np.array(rates["product"]) / np.array(rates["bare"])))
        peak = max(one["peak_memory_mb"] for one in found["product"])
        table = Table(str(row), "images/s (median)", "CPU ms per image")
        for name, times in found.items():
            cpu = 1000 * np.median([one["cpu_seconds"] for one in times]) / row.images
            table.add_row(name, f"{np.median(rates[name]):.0f}", f"{cpu:.3f}")
        OUT.print(table)
        say(f"Predicting runs at {ratio:.2f} of the bare encoder (target {TARGET}).", OUT)
        peaks = {row.images // 10: few["peak_memory_mb"], row.images: peak}
        say("Peak memory: " + ", ".join(f"{count:,} images {mb:.0f} MB" for count, mb in peaks.items()), OUT)
        return {**vars(row), "rounds": found, "ratio": ratio, "peak_memory_mb": peaks, "load": machine()["load"]}

    def write_run(self, run: Path) -> None:
        """A model that has learned next to nothing, and a recipe that reads a table of images."""
        rng = np.random.default_rng(0)
        cohort = Cohort(rng.random((64, 1, self.row.side, self.row.side), dtype=np.float32), np.arange(64) % 2)
        small = {"encoder": self.row.encoder, "epochs": 1, "steps": 1, "restarts": 1, "warmup": 0}
        method = build_method("deep_ucsl", small).fit(cohort)
        run.mkdir()
        spec = {"image": "path", "subject": "id", "reading": {}}
        about = {"method": name_of(method), "settings": settings_of(method), "input_shape": list(cohort.input_shape)}
        write_model(run, {**about, "table": spec}, method.state())

    def write_images(self, folder: Path, count: int) -> Path:
        rng, ending = np.random.default_rng(0), "npy" if self.row.files == "npy" else "png"
        home = folder / "images"
        home.mkdir(exist_ok=True)
        paths = [home / f"{i}.{ending}" for i in range(count)]
        for path in paths:
            if path.exists():
                continue
            picture = rng.integers(0, 256, (self.row.side, self.row.side), dtype=np.uint8)
            np.save(path, picture) if ending == "npy" else Image.fromarray(picture).save(path)
        paths[count // 2] = home / f"broken.{ending}"
        paths[count // 2].write_bytes(b"broken")
        table = home / f"{count}.csv"
        with table.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["id", "path"])
            rows.writerows((f"s{i}", path.name) for i, path in enumerate(paths))
        return table

    def in_its_own_process(self, folder: Path, table: Path) -> dict[str, float]:
        cache = str(folder / "cache") if self.row.files == "cache" else ""
        if cache:  # decoded before, as for the second model
            self.child(folder, table, cache)
        return self.child(folder, table, cache)

    def child(self, folder: Path, table: Path, cache: str) -> dict[str, float]:
        command = [sys.executable, __file__, "--child", str(folder / "run"), str(table), str(self.threads), cache]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def bare(self, run: Path) -> dict[str, float]:
        """The encoder alone on as many inputs."""
        if self.threads:
            torch.set_num_threads(self.threads)
        method: Any = load(run)
        rows = rows_at_once(method.input_shape_)
        blocks = max(1, min(READY // (rows * self.row.side**2), self.row.images // rows))
        rng = np.random.default_rng(0)
        ready = [as_tensor(rng.random((rows, *method.input_shape_), dtype=np.float32)) for _ in range(blocks)]
        encoder, count = method.whole_encoder, 0
        with torch.no_grad():
            encoder(ready[0])
            began, cpu = perf_counter(), process_time()
            while count < self.row.images:
                for x in ready:
                    encoder(x)
                    count += rows
                    if count >= self.row.images:
                        break
        return {"images_per_second": count / (perf_counter() - began), "cpu_seconds": process_time() - cpu}


def child(run: str, table: str, threads: str, cache: str) -> None:
    """Predict a table and print how long that took, from the first file to the written table."""
    if int(threads):
        torch.set_num_threads(int(threads))
    load(run)  # libraries are imported and warm
    began, cpu = perf_counter(), process_time()
    found = predict_table(run, table, f"{table}.out", cache=cache or None)
    seconds, cpu = perf_counter() - began, process_time() - cpu
    if found.broken != 1:
        raise ValueError(f"Expected one broken file to be named. Received: {found.named}.")
    said = {
        "images_per_second": found.subjects / seconds, "cpu_seconds": cpu, "peak_memory_mb": peak_memory_mb(),
    }  # fmt: skip
    print(json.dumps(said))


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else run_main(Predict)
