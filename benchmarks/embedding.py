"""How fast images become embeddings, from files to the kept table, beside the bare encoder at its best.

python benchmarks/embedding.py [--images 500]. Pictures of blurred noise are written as JPEG and as PNG. First the bare
encoder lite0 sees images that are ready in memory, by batch size and memory layout, with and without its batch
normalisations folded into convolutions. Then, by turns in one process, the best of these and the product: files are
decoded, hashed, embedded and kept in an empty folder, in memory or by the cache on disk (`--cache`), as by `discover`.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch is imported

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

import numpy as np
import torch
from common import ERR, OUT, machine, write_result
from common import main as run_main
from PIL import Image
from rich.table import Table

from phenogroups.cli import say
from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings
from phenogroups.data.inputs import read_inputs
from phenogroups.data.opening import open_table
from phenogroups.data.reading import Reading
from phenogroups.data.tables import TableSpec
from phenogroups.networks.encoders import build_encoder
from phenogroups.training.embedding import embed_once
from phenogroups.training.run import versions

TARGET = 0.9  # of the bare encoder's images per second
BATCHES = (1, 2, 4, 8, 16, 32)
READY = 32  # images that the bare encoder has in memory, and sees again and again
LAYOUTS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Images per second of embedding, in the product and bare."""

    images: int = 500
    """Files of each kind."""
    side: int = 224
    """Pixels."""
    rounds: int = 3
    """Of the product and the bare encoder, by turns; the median of their ratios counts."""
    seconds: float = 2.0
    """That each batch size and layout of the bare encoder is watched."""

    def build(self, _: int) -> None:
        if self.images < READY:
            raise ValueError(f"Expected at least {READY} images. Received: {self.images}.")

    def run(self) -> None:
        encoder = build_encoder("lite0", (3, self.side, self.side)).freeze()
        networks = {"folded": encoder.fast, "plain": encoder}
        bare: dict[str, dict[int, float]] = {}
        for name, network in networks.items():
            for layout, memory_format in LAYOUTS.items():
                network.memory_format = memory_format
                for weight in network.parameters():
                    weight.data = weight.data.to(memory_format=memory_format) if weight.ndim == 4 else weight.data
                bare[f"{name}, {layout}"] = {
                    batch: self.bare(network, batch, memory_format, seconds=self.seconds) for batch in BATCHES
                }
        OUT.print(self.as_table(bare))
        kind, batch = max(((kind, batch) for kind in bare for batch in BATCHES), key=lambda at: bare[at[0]][at[1]])
        used = encoder.rows_at_once((3, self.side, self.side))
        say(f"Best: {kind}, batches of {batch}. The product: folded, channels last, batches of {used}.", OUT)
        encoder = build_encoder("lite0", (3, self.side, self.side)).freeze()
        if kind != "folded, channels last":
            say("The product does not use what was best here: compare the two rows on a quiet machine.", OUT)
        found = {}
        for files in ("jpeg", "png"):
            for way in ("memory", "cache"):
                found[f"{files}, {way}"] = self.by_turns(
                    files,
                    way == "cache",
                    lambda: self.bare(encoder.fast, batch, torch.channels_last, images=self.images),
                )
        write_result(
            "embedding",
            {"options": vars(self), "bare": bare, "product": found, "machine": machine(), "versions": versions()},
        )

    @torch.inference_mode()
    def bare(
        self, network: torch.nn.Module, batch: int, memory_format: torch.memory_format, *, seconds: float = np.inf,
        images: float = np.inf,
    ) -> float:  # fmt: skip
        """Images per second, for so long or so many."""
        ready = torch.rand(READY, 3, self.side, self.side).contiguous(memory_format=memory_format).split(batch)
        network(ready[0])
        seen, began = 0, perf_counter()
        while seen < images and perf_counter() - began < seconds:
            seen += len(network(ready[(seen // batch) % len(ready)]))
        return seen / (perf_counter() - began)

    def by_turns(self, files: Literal["jpeg", "png"], cached: bool, bare: Callable[[], float]) -> dict[str, Any]:
        """The ratio of images per second; of processor time too, which others on the machine disturb less."""
        rates: list[dict[str, float]] = []
        with tempfile.TemporaryDirectory() as home:
            table = self.write_images(Path(home), files)
            for turn in range(self.rounds):
                rates.append(self.product(table, Path(home) / f"cache{turn}", cached))
                began = process_time()
                rates[-1]["bare"] = bare()
                rates[-1]["bare_cpu_ms"] = 1000 * (process_time() - began) / self.images
                say(f"{files}, {'cache' if cached else 'memory'}: {rates[-1]}", ERR)
        ratio = float(np.median([one["product"] / one["bare"] for one in rates]))
        cpu = float(np.median([one["bare_cpu_ms"] / one["cpu_ms"] for one in rates]))
        say(
            f"{files}, {'by the cache on disk' if cached else 'in memory'}: decoding and embedding run at {ratio:.2f} "
            f"of the bare encoder (target {TARGET}), by processor time at {cpu:.2f}.", OUT,
        )  # fmt: skip
        return {"rounds": rates, "ratio": ratio, "cpu_ratio": cpu, "load": machine()["load"]}

    def product(self, table: Path, cache: Path, cached: bool) -> dict[str, float]:
        encoder = build_encoder("lite0", (3, self.side, self.side)).freeze()
        encoder.fast  # noqa: B018, made once for a cohort of any size
        spec = TableSpec(image="image", reading=Reading(size=(self.side, self.side)))
        began, cpu = perf_counter(), process_time()
        inputs = read_inputs(open_table(table, spec), cache=cache if cached else None)
        read = perf_counter() - began
        with keeping_embeddings(embeddings_folder(cache)):
            embed_once(encoder, inputs)
        seconds = perf_counter() - began
        cpu = process_time() - cpu
        return {"product": self.images / seconds, "reading_seconds": read, "cpu_ms": 1000 * cpu / self.images}

    def write_images(self, home: Path, files: str) -> Path:
        """Smooth noise, so that files are about as large as photographs'."""
        rng = np.random.default_rng(0)
        names = [f"{i}.{files}" for i in range(self.images)]
        for name in names:
            small = Image.fromarray(rng.integers(0, 255, (self.side // 4, self.side // 4, 3), dtype=np.uint8))
            small.resize((self.side, self.side), Image.Resampling.BICUBIC).save(home / name)
        table = home / "table.csv"
        table.write_text("\n".join(["image", *names]) + "\n")
        return table

    def as_table(self, bare: dict[str, dict[int, float]]) -> Table:
        table = Table("images/s by batch size", *map(str, BATCHES))
        for kind, rates in bare.items():
            table.add_row(kind, *(f"{rate:.0f}" for rate in rates.values()))
        return table


if __name__ == "__main__":
    run_main(Embedding)
