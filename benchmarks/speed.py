"""How much of the training time is the network: an epoch of Deep UCSL beside a bare loop on ready tensors.

python benchmarks/speed.py [--encoder light --shape 1 32 32]. Both train the same network in the same process, by turns;
the bare loop has its batches ready on the device, not augmented, and one loss.
"""

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from common import ERR, OUT, RESULTS, machine
from common import main as run_main
from lightning_fabric import Fabric
from rich.table import Table
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.data.batches import as_tensor
from phenogroups.methods.deep_ucsl import DeepUCSL
from phenogroups.training.em import Course
from phenogroups.training.run import versions, write_whole

TARGET = 0.9  # of the bare loop's images per second


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Images per second of training, in the product and bare."""

    encoder: str = "auto"
    """A name in networks.encoders."""
    shape: Annotated[tuple[int, ...], arg(metavar="INT ...")] = (1, 32, 32)
    """Of one input: channels and pixels."""
    batch_size: int = 256
    """Inputs per step."""
    steps: int = 40
    """Gradient steps per epoch."""
    rounds: int = 5
    """Epochs of each, by turns."""

    def build(self, _: int) -> DeepUCSL:
        # a warm-up without end: no E-step is timed
        return DeepUCSL(
            encoder=self.encoder, batch_size=self.batch_size, steps=1, epochs=10**6, warmup=10**6, restarts=1
        )

    def run(self) -> None:
        rng = np.random.default_rng(0)
        count = self.steps * self.batch_size
        inputs = rng.random((count, *self.shape), dtype=np.float32)
        labels = torch.arange(count) % 2
        method = self.build(0)
        course = Course(
            method, Fabric(accelerator="cpu", devices=1), lambda: method.build(self.shape), inputs, labels, 0, None
        )
        network = method.build(self.shape)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
        ready = [as_tensor(inputs[i : i + self.batch_size]) for i in range(0, count, self.batch_size)]

        def bare() -> None:
            network.train()
            for i, x in enumerate(ready):
                logits = network.heads["experts"](network.encoder(x))
                y = labels[i * self.batch_size : (i + 1) * self.batch_size, None].expand_as(logits).float()
                loss = F.binary_cross_entropy_with_logits(logits, y)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

        seconds: dict[str, list[float]] = {"product": [], "bare": []}
        for turn in range(self.rounds + 1):  # the first warms both up
            for name, epoch in (("product", course.m_step), ("bare", bare)):
                began = perf_counter()
                epoch()
                if turn:
                    seconds[name].append(perf_counter() - began)
            say(f"round {turn} of {self.rounds}", ERR)
        rates = {name: count / np.median(times) for name, times in seconds.items()}
        table = Table("", "inputs/s (median)", "seconds per epoch")
        for name, rate in rates.items():
            table.add_row(name, f"{rate:.0f}", ", ".join(f"{s:.2f}" for s in seconds[name]))
        OUT.print(table)
        ratio = float(np.median(np.array(seconds["bare"]) / np.array(seconds["product"])))
        say(f"The product trains at {ratio:.2f} of the bare loop (target {TARGET}).", OUT)
        path = RESULTS / f"speed-{self.encoder}-{'x'.join(map(str, self.shape))}.json"
        found = {
            "benchmark": "speed", "options": vars(self), "seconds": seconds, "inputs_per_second": rates, "ratio": ratio,
            "machine": machine(), "versions": versions(),
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found, indent=2, default=str) + "\n")


if __name__ == "__main__":
    run_main(Speed)
