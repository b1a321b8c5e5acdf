"""How fast every encoder trains, those of the paper at its input sizes: an epoch of Deep UCSL beside a bare loop.

python benchmarks/training_speed.py [--rows light-32 paper-32]. The bare loop has the same network, its batches ready on
the device, not augmented, and one loss. Both run by turns in one process; the peaks of memory are of processes of their
own. The product's time has its share of the film, of which a fit takes a frame every forty steps or more.
Precision bf16-mixed and torch.compile are timed in the bare loop, beside the loss after the same steps.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from common import ERR, OUT, RESULTS, machine, write_result
from common import main as run_main
from lightning_fabric import Fabric
from rich.table import Table
from torch import nn
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.data.batches import as_tensor
from phenogroups.methods.deep_ucsl import DeepUCSL
from phenogroups.training.em import Trainer
from phenogroups.training.isolated import peak_memory_mb
from phenogroups.training.run import versions

TARGET = 0.95  # of the bare loop's images per second
LOSS_STEPS = 8  # after which losses of the variants are compared
VARIANTS = ("32-true", "bf16-mixed", "compile")
RESULT = RESULTS / "training_speed.json"  # rows that are not asked for are kept as they were


@dataclass(frozen=True)
class Row:
    encoder: str
    shape: tuple[int, ...]
    batch_size: int
    augmentation: str
    steps: int  # of an epoch
    rounds: int  # epochs of each, by turns
    variants: bool = True  # whether bf16 and torch.compile are tried too


ROWS = {  # as in phenogroups/recipes; batches of 256 images of 224 pixels are cut to what a CPU does in seconds
    "light-32": Row("light", (1, 32, 32), 256, "digits", 8, 7),
    "light-96": Row("light", (1, 96, 96), 64, "digits", 4, 5, variants=False),
    "paper-32": Row("paper", (1, 32, 32), 256, "digits", 2, 3),
    "resnet18-xray-224": Row("resnet18", (1, 224, 224), 32, "xray", 2, 5),
    # the same network: its variants are tried once
    "resnet18-oct-224": Row("resnet18", (1, 224, 224), 32, "oct", 2, 5, variants=False),
    "resnet18-fundus-224": Row("resnet18", (3, 224, 224), 32, "fundus", 2, 5, variants=False),
    "lite0-224": Row("lite0", (3, 224, 224), 32, "fundus", 2, 5, variants=False),
    "mlp": Row("mlp", (1280,), 256, "none", 40, 7, variants=False),
    # a step takes half a minute on two cores, and compiling longer
    "densenet121-brain-128": Row("densenet121_projected", (1, 128, 128, 128), 8, "brain", 1, 2, variants=False),
}


@dataclass(frozen=True, kw_only=True)
class TrainingSpeed:
    """Images per second and peak memory of training, in the product and bare, for every encoder."""

    rows: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = tuple(ROWS)
    """Which encoders at which size."""

    def build(self, _: int) -> None:
        unknown = [name for name in self.rows if name not in ROWS]
        if unknown:
            raise ValueError(f"Expected rows among {', '.join(ROWS)}. Received: {', '.join(unknown)}.")

    def run(self) -> None:
        kept = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
        rows = [row for row in kept if row["row"] in ROWS and row["row"] not in self.rows]
        for name in self.rows:
            say(f"{name}: {ROWS[name]}", ERR)
            found = {"row": name, **vars(ROWS[name]), **by_turns(ROWS[name]), "load": machine()["load"]}
            del found["variants"]
            found["peak_mb"] = {way: in_its_own_process(name, way) for way in ("product", "bare")}
            if ROWS[name].variants:
                found["variants"] = {way: in_its_own_process(name, way) for way in VARIANTS}
            rows.append(found)
            self.show(rows)
            rows.sort(key=lambda row: list(ROWS).index(row["row"]))
            # row by row: whoever stops a long run keeps what was measured
            path = write_result("training_speed", {
                "options": vars(self), "rows": rows, "machine": machine(), "versions": versions(),
            })  # fmt: skip
        slow = [
            f"{row['row']} ({row['ratio']:.2f})" for row in rows if row["row"] in self.rows and row["ratio"] < TARGET
        ]
        say(f"Below {TARGET} of the bare loop: {', '.join(slow) or 'none'}.", OUT)
        say(f"Written: {path}", ERR)

    def show(self, rows: list[dict[str, Any]]) -> None:
        table = Table("", "batch", "product/s", "bare/s", "ratio", "product MB", "bare MB", *VARIANTS)
        for row in rows:
            rates, peaks = row["inputs_per_second"], row["peak_mb"]
            variants = [row.get("variants", {}).get(way) or {} for way in VARIANTS]
            said = [
                f"{v['rate']:.3g}/s, loss {v['loss']:.4f}" if "rate" in v else v.get("failed", "–") for v in variants
            ]
            table.add_row(
                row["row"], str(row["batch_size"]), f"{rates['product']:.4g}", f"{rates['bare']:.4g}",
                f"{row['ratio']:.2f}", f"{peaks['product']:.0f}", f"{peaks['bare']:.0f}", *said,
            )  # fmt: skip
        OUT.print(table)


def drawn(row: Row) -> tuple[np.ndarray, torch.Tensor]:
    count = row.steps * row.batch_size
    return np.random.default_rng(0).random((count, *row.shape), dtype=np.float32), torch.arange(count) % 2


def build_method(row: Row) -> DeepUCSL:
    # a warm-up without end: no E-step is timed
    return DeepUCSL(
        encoder=row.encoder, batch_size=row.batch_size, augmentation=row.augmentation, steps=1, epochs=10**6,
        warmup=10**6, restarts=1,
    )  # fmt: skip


def product(row: Row, inputs: np.ndarray, labels: torch.Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
    """An epoch, and the frame of the film that follows it."""
    method = build_method(row)
    trainer = Trainer(method, Fabric(accelerator="cpu", devices=1), inputs, labels, 0)
    trainer.batch_size, trainer.steps = row.batch_size, row.steps  # small cohorts would take smaller batches
    record, trainer.film.record = trainer.film.record, lambda *_: None
    return trainer.m_step, lambda: record(trainer.epoch, trainer.embedding)


def bare(row: Row, inputs: np.ndarray, labels: torch.Tensor, way: str = "32-true") -> Callable[[], float]:
    """An epoch over ready tensors; its last loss."""
    torch.manual_seed(0)
    network = build_method(row).build(row.shape).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    size = row.batch_size
    ready = [as_tensor(inputs[i : i + size]) for i in range(0, len(inputs), size)]
    targets = [labels[i : i + size, None].expand(-1, 2).float() for i in range(0, len(inputs), size)]
    see: nn.Module = nn.Sequential(network.encoder, network.heads["experts"])
    if way == "compile":
        see = torch.compile(see)  # pyright: ignore[reportAssignmentType]

    def epoch() -> float:
        loss = torch.tensor(0.0)
        for x, y in zip(ready, targets, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "bf16-mixed"):
                loss = F.binary_cross_entropy_with_logits(see(x).float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        return loss.item()

    return epoch


def by_turns(row: Row) -> dict[str, Any]:
    inputs, labels = drawn(row)
    trained, film = product(row, inputs, labels)
    ways: dict[str, Callable[[], Any]] = {"product": trained, "bare": bare(row, inputs, labels), "film": film}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(row.rounds + 1):  # the first warms both up
        for name, epoch in ways.items():
            began = perf_counter()
            epoch()
            if turn:
                seconds[name].append(perf_counter() - began)
        say(f"round {turn} of {row.rounds}", ERR)
    # an epoch of a fit has more steps than one here, and one frame
    frame = row.steps / max(DeepUCSL.steps, row.steps) * float(np.median(seconds.pop("film")))
    seconds["product"] = [each + frame for each in seconds["product"]]
    return {
        "seconds": seconds,
        "inputs_per_second": {name: len(inputs) / float(np.median(times)) for name, times in seconds.items()},
        "ratio": float(np.median(np.array(seconds["bare"]) / np.array(seconds["product"]))),
    }


def in_its_own_process(name: str, way: str) -> Any:
    """Peak memory of product or bare loop; of a variant, its inputs per second and its loss."""
    command = [sys.executable, __file__, "--child", name, way]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:  # a compiler may be missing, or too little memory
        if way not in VARIANTS:
            raise ChildProcessError(done.stderr)
        return {"failed": (done.stderr.strip().splitlines() or ["ended without a word"])[-1][:200]}
    numbers = [float(each) for each in done.stdout.split()]
    return dict(zip(("rate", "loss"), numbers, strict=True)) if way in VARIANTS else numbers[0]


def child(name: str, way: str) -> None:
    row = ROWS[name]
    inputs, labels = drawn(row)
    if way in VARIANTS:
        epoch = bare(row, inputs, labels, way)
        losses, seconds = [epoch()], []  # the first compiles
        while len(losses) * row.steps < LOSS_STEPS or len(seconds) < row.rounds:
            began = perf_counter()
            losses.append(epoch())
            seconds.append(perf_counter() - began)
        # the loss after the same number of steps in every variant
        print(len(inputs) / float(np.median(seconds)), losses[-1])
        return
    epoch = product(row, inputs, labels)[0] if way == "product" else bare(row, inputs, labels)
    epoch()
    epoch()
    print(peak_memory_mb())


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else run_main(TrainingSpeed)
