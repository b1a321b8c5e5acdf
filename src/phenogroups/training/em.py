"""The loop of every deep method: E-step over the whole cohort, M-step over batches. The only file that knows Fabric."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from phenogroups.data.augment import Augmentation
from phenogroups.data.batches import Batch, as_tensor, effective_batch_size, training_batches
from phenogroups.networks.network import Network

PIXELS_AT_ONCE = 2**22  # per forward pass without gradients

Progress = Callable[[dict[str, float]], None]


class Trainable(Protocol):
    """The hooks and settings of a deep method that the loop reads."""

    epochs: int
    steps: int
    batch_size: int
    learning_rate: float
    seed: int
    device: str
    precision: Any
    views: int
    e_step_each_epoch: bool
    warmup: int

    def augment(self, input_shape: tuple[int, ...]) -> Augmentation: ...
    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]: ...
    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Any: ...
    def observe(self, network: Network, embedding: Tensor, diagnosis: Tensor, beliefs: Any) -> dict[str, float]: ...


def expectation_maximisation(
    method: Trainable,
    build: Callable[[], Network],
    inputs: np.ndarray,
    diagnosis: np.ndarray,
    progress: Progress | None = None,
) -> tuple[Network, Any, list[dict[str, float]]]:
    """Train from scratch; the network, the last beliefs and one row of history per epoch."""
    fabric = Fabric(accelerator=method.device, devices=1, precision=method.precision)
    fabric.launch()
    history: list[dict[str, float]] = []
    # everything random below is drawn from generators seeded here; the caller's own are left as they were
    with torch.random.fork_rng():
        torch.manual_seed(method.seed)
        network = build()
        if inputs.ndim == 4:
            network = network.to(memory_format=torch.channels_last)
        optimizer = torch.optim.Adam(network.parameters(), lr=method.learning_rate)
        wrapped, optimizer = fabric.setup(network, optimizer)
        labels = torch.as_tensor(diagnosis, device=fabric.device)
        size = effective_batch_size(len(inputs), method.batch_size)
        steps = max(len(inputs) // size, method.steps)
        augmentation = method.augment(inputs.shape[1:])
        beliefs = None  # until the first E-step
        embedding: Tensor | None = None
        for epoch in range(method.epochs):
            torch.manual_seed(method.seed * 100_003 + epoch)
            began = time.perf_counter()
            if method.e_step_each_epoch and epoch >= method.warmup:
                if embedding is None:
                    embedding = embed(network, inputs)
                beliefs = method.e_step(embedding, labels, beliefs, epoch)
            sums: dict[str, Tensor] = {}
            network.train()
            for step, batch in enumerate(
                training_batches(
                    inputs, labels, size=size, steps=steps, views=method.views, augmentation=augmentation,
                    device=fabric.device,
                )
            ):  # fmt: skip
                losses = wrapped(method, batch, beliefs)
                optimizer.zero_grad(set_to_none=True)
                fabric.backward(torch.stack(list(losses.values())).sum())
                optimizer.step()
                for name, loss in losses.items():
                    sums[name] = sums.get(name, torch.zeros_like(loss)) + loss.detach()
                if progress is not None and step % 5 == 4:
                    progress(
                        {"epoch": epoch + (step + 1) / steps, **{k: v.item() / (step + 1) for k, v in sums.items()}}
                    )
            row: dict[str, float] = {"epoch": epoch + 1, **{name: total.item() / steps for name, total in sums.items()}}
            _refuse_divergence(row, method.learning_rate)
            if (method.e_step_each_epoch and epoch + 1 >= method.warmup) or epoch == method.epochs - 1:
                embedding = embed(network, inputs)
                row |= method.observe(network, embedding, labels, beliefs)
            history.append({**row, "seconds": time.perf_counter() - began})
            if progress is not None:
                progress(history[-1])
        if embedding is None:
            embedding = embed(network, inputs)
        torch.manual_seed(method.seed * 100_003 + method.epochs)
        beliefs = method.e_step(embedding, labels, beliefs, method.epochs)
    network.eval()
    return network.cpu(), beliefs, history


def _refuse_divergence(row: dict[str, float], learning_rate: float) -> None:
    broken = [name for name, value in row.items() if not np.isfinite(value)]
    if broken:
        raise FloatingPointError(
            f"Expected finite losses. Received: {', '.join(broken)} not finite in epoch {row['epoch']}. "
            f"Lower the learning rate (now {learning_rate}) or look for extreme input values."
        )


@torch.no_grad()
def read_all(network: Network, inputs: np.ndarray, read: Callable[[Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `read` makes of the embeddings of all subjects, from plain inputs, in order, on the CPU.

    Every forward pass has the same number of rows (the last is filled up), because matrix products round differently
    for different shapes: so a subject gets the same bits alone and in company.
    """
    network.eval()
    device = next(network.parameters()).device
    rows = int(np.clip(2 ** int(np.log2(PIXELS_AT_ONCE / np.prod(inputs.shape[1:]))), 1, 256))
    found: dict[str, list[Tensor]] = {}
    for first in range(0, len(inputs), rows):
        some = inputs[first : first + rows]
        x = as_tensor(np.concatenate([some, np.repeat(some[:1], rows - len(some), axis=0)]), device)
        for name, values in read(network.encoder(x).float()).items():
            found.setdefault(name, []).append(values[: len(some)].cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def embed(network: Network, inputs: np.ndarray) -> Tensor:
    """(subjects, dims), on the network's device."""
    z = read_all(network, inputs, lambda z: {"embedding": z})["embedding"]
    return z.to(next(network.parameters()).device)
