"""How much faster the paper's network of 7 x 7 convolutions is by Fourier transforms than by torch's convolution.

python benchmarks/fourier.py [--images 256] [--rounds 5]. Forward and backward pass of a batch of random images of 32
pixels a side, by turns in one process; processor seconds, the least of all rounds. With glibc, a process that keeps
its memory (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000) gains more.
"""

import os
from dataclasses import dataclass
from functools import partial
from time import process_time

import torch
import tyro
from common import ERR, machine, print_table, write_result
from torch import nn

from phenogroups.cli import say
from phenogroups.networks.architectures import paper
from phenogroups.networks.fourier import FourierConv2d

SHAPE = (1, 32, 32)
KEPT = "MALLOC_MMAP_MAX_"


@dataclass(frozen=True, kw_only=True)
class Fourier:
    """The paper's network on MNIST, forth and back."""

    images: int = 256
    """Of a batch."""
    rounds: int = 5
    """By turns."""

    def run(self) -> None:
        torch.manual_seed(0)
        networks = {"Fourier": paper(SHAPE), "torch": paper(SHAPE)}
        for layer in networks["torch"].modules():
            if isinstance(layer, FourierConv2d):
                layer.forward = partial(nn.Conv2d.forward, layer)
        x = torch.randn(self.images, *SHAPE)
        seconds = {name: [] for name in networks}
        for _ in range(1 + self.rounds):
            for name, network in networks.items():
                began = process_time()
                network(x).square().sum().backward()
                seconds[name].append(process_time() - began)
        least = {name: min(some[1:]) for name, some in seconds.items()}  # the first round is for memory
        ratio = least["torch"] / least["Fourier"]
        rows = [[name, f"{1000 * each / self.images:.2f}"] for name, each in least.items()]
        print_table(["convolution", "processor ms per image"], [*rows, ["ratio", f"{ratio:.2f}"]])
        kept = KEPT in os.environ
        found = {"memory_kept": kept, "seconds": seconds, "ratio": ratio, "images": self.images, "machine": machine()}
        say(f"Written: {write_result('fourier' + '-memory-kept' * kept, found)}", ERR)


if __name__ == "__main__":
    tyro.cli(Fourier).run()
