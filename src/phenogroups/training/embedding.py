"""Embeddings of whole cohorts, by an encoder in training or by a frozen one.

Embeddings by a frozen encoder are cached by the content of the input.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from phenogroups.data import embeddings
from phenogroups.data.augment import Augmentation
from phenogroups.data.batches import as_tensor, read_in_blocks
from phenogroups.data.stored import Inputs
from phenogroups.data.threads import map_ahead
from phenogroups.networks.encoder import Encoder

READERS = 2  # threads that read and hash the next rows while the encoder computes
AHEAD = 8  # blocks that they read ahead at most


@torch.no_grad()
def read_all(
    encoder: nn.Module, inputs: Inputs, read: Callable[[Tensor], dict[str, Tensor]],
    augmentation: Augmentation | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Apply `read` to the embeddings of all subjects, of plain inputs by default; tensors on the CPU, in order."""
    encoder.eval()
    device = next(encoder.parameters()).device
    seen = augmentation or (lambda x: x)
    return read_in_blocks(inputs, lambda x: read(encoder(seen(x)).float()), device)


def embed(encoder: nn.Module, inputs: Inputs, augmentation: Augmentation | None = None) -> Tensor:
    """(subjects, dims), on the encoder's device."""
    z = read_all(encoder, inputs, lambda z: {"embedding": z}, augmentation)["embedding"]
    return z.to(next(encoder.parameters()).device)


@contextmanager
def without_dropout(network: nn.Module) -> Iterator[None]:
    """Within this context, dropout is off, also in training mode, in which batch normalisation computes statistics."""
    rates = {module: module.p for module in network.modules() if isinstance(module, _DropoutNd)}
    for module in rates:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in rates.items():
            module.p = p


@torch.inference_mode()
def embed_once(encoder: Encoder, inputs: Inputs, device: torch.device | str = "cpu") -> np.ndarray:
    """(subjects, dims), float32, by a frozen encoder.

    All batches have the same size, the last one is padded, so that an embedding does not depend on other subjects.
    """
    store, progress, name = embeddings.store(), embeddings.told(), encoder.identity
    store.look_again(name, encoder.dim)
    network, size = encoder.fast.to(device), encoder.rows_at_once(inputs.shape[1:])
    found = np.empty((len(inputs), encoder.dim), np.float32)
    block = np.empty((size, *inputs.shape[1:]), np.float32)
    waiting: list[tuple[int, bytes]] = []  # places and keys of the rows in `block`
    computes = False  # progress is not reported for cached embeddings
    for first, rows, keys in _read_ahead(inputs, size):
        for place, (row, key) in enumerate(zip(rows, keys, strict=True), start=first):
            known = store.find(name, key)
            if known is not None:
                found[place] = known
                continue
            computes = True
            block[len(waiting)] = row
            waiting.append((place, key))
            if len(waiting) == size:
                _embed_block(network, block, waiting, found, device)
                store.add(name, [key for _, key in waiting], found[[place for place, _ in waiting]])
                waiting.clear()
        if progress is not None and computes:
            progress(first + len(rows) - len(waiting), len(inputs))
    if waiting:
        block[len(waiting) :] = block[0]
        _embed_block(network, block, waiting, found, device)
        store.add(name, [key for _, key in waiting], found[[place for place, _ in waiting]])
        if progress is not None:
            progress(len(inputs), len(inputs))
    return found


def _embed_block(
    network: nn.Module, block: np.ndarray, waiting: list[tuple[int, bytes]], found: np.ndarray,
    device: torch.device | str,
) -> None:  # fmt: skip
    z = network(as_tensor(block, device)).float().numpy(force=True)
    found[[place for place, _ in waiting]] = z[: len(waiting)]


def _read_ahead(inputs: Inputs, size: int) -> Iterator[tuple[int, np.ndarray, list[bytes]]]:
    """Blocks of rows in order: the position of the first row, the rows, and their keys."""

    def read(first: int) -> tuple[int, np.ndarray, list[bytes]]:
        rows = np.asarray(inputs[first : first + size])
        return first, rows, [embeddings.key_of(row) for row in rows]

    return map_ahead(read, range(0, len(inputs), size), workers=READERS, ahead=AHEAD)
