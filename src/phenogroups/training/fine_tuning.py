"""Fine-tuning: a frozen encoder is trained after the subgroups are found, as long as that improves the diagnosis.

Beliefs are fixed, so that subgroups cannot drift. Batch normalisation keeps its statistics, because batches of large
images are too small to estimate them.
"""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from phenogroups.data.batches import shuffled_passes, training_batches
from phenogroups.data.stored import Inputs
from phenogroups.networks.encoders import Encoder
from phenogroups.networks.network import Network
from phenogroups.training.em import Progress

if TYPE_CHECKING:
    from phenogroups.methods.deep import DeepMethod

LEAST_ROWS, MOST_ROWS = 8, 64  # of a batch
BATCHES = 4  # a training batch has so many of the encoder's fastest batches of prediction, at most

SURE = 2  # standard errors by which held-out losses must improve: a few dozen subjects improve easily by chance

Judge = Callable[[Encoder, Network], np.ndarray]  # the loss of the diagnosis of each held-out subject


def fine_tune(
    method: "DeepMethod", eyes: Encoder, network: Network, beliefs: Any, inputs: Inputs, diagnosis: np.ndarray, *,
    epochs: int, seed: int, device: torch.device, judge: Judge, progress: Progress | None,
) -> tuple[Encoder, Network, list[dict[str, float]]]:  # fmt: skip
    """The frozen encoder and the network of the epoch that the judge finds best, or as given; and one row per epoch."""
    frozen = judge(eyes, network)
    best, rows = (eyes, network), [{"fine_tuned": 0.0, "held_out_loss": float(frozen.mean()), "kept": 1.0}]
    eyes, network = deepcopy(eyes).to(device), deepcopy(network).to(device).eval()
    eyes.requires_grad_(True)
    beliefs = replace(beliefs, **{k: v.to(device) for k, v in vars(beliefs).items() if isinstance(v, Tensor)})
    labels = torch.as_tensor(diagnosis, device=device)
    size = min(max(LEAST_ROWS, min(BATCHES * eyes.rows_at_once(inputs.shape[1:]), MOST_ROWS)), len(inputs))
    steps = len(inputs) // size
    weights = [weight for part in (eyes, network) for weight in part.parameters()]
    optimizer = torch.optim.Adam(weights, lr=method.learning_rate * method.backbone_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * epochs)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for epoch in range(1, epochs + 1):
            began, total = time.perf_counter(), 0.0
            batches = training_batches(
                inputs, labels, shuffled_passes(len(inputs), size, steps), views=method.views,
                partners=lambda index: method.partners(index, beliefs), augmentation=method.augment(inputs.shape[1:]),
                device=device,
            )  # fmt: skip
            for step, batch in enumerate(batches, start=1):
                # the network gets embeddings as before, now with gradients to the encoder
                seen = replace(batch, views=tuple(eyes(view) for view in batch.views))
                loss = torch.stack(list(method.losses(network, seen, beliefs).values())).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                method.after_step(network)
                schedule.step()
                total += loss.item()
                if progress is not None:
                    done = (epoch - 1 + step / steps) / epochs
                    progress({"epoch": method.passes - 1 + done, "fine-tuning": total / step})
            candidate = deepcopy(eyes).cpu().freeze(), deepcopy(network).cpu().eval()
            losses = judge(*candidate)
            so_far = min(row["held_out_loss"] for row in rows if row["kept"])
            kept = is_better(losses, frozen) and losses.mean() < so_far
            best = candidate if kept else best
            rows.append(
                {"fine_tuned": float(epoch), "loss": total / steps, "held_out_loss": float(losses.mean()),
                 "kept": float(kept), "seconds": time.perf_counter() - began}
            )  # fmt: skip
    return *best, rows


def is_better(losses: np.ndarray, before: np.ndarray) -> bool:
    """Whether the losses of the same subjects are lower by more than chance may bring."""
    gain = before - losses
    return bool(gain.mean() > SURE * gain.std(ddof=1) / np.sqrt(len(gain)))
