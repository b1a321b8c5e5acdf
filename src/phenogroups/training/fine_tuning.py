"""Fine-tuning: a frozen encoder is trained after the subgroups are found, and kept if that improves the diagnosis.

Beliefs are fixed, so that subgroups cannot drift. Batch normalisation keeps its statistics, because batches of large
images are too small to estimate them. The diagnosis is judged on training subjects who are held out.
"""

import time
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from phenogroups.data.batches import shuffled_passes, training_batches
from phenogroups.data.embeddings import keeping_embeddings
from phenogroups.data.stored import Inputs
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.network import Network
from phenogroups.training.distributed import on_device
from phenogroups.training.em import Progress
from phenogroups.training.embedding import embed_once, read_all

if TYPE_CHECKING:
    from phenogroups.methods.deep import DeepMethod

HELD_OUT = 10  # one subject in ten is held out
LEAST_ROWS, MOST_ROWS = 8, 64  # of a batch
BATCHES = 4  # a training batch has at most so many of the encoder's fastest batches of prediction
STANDARD_ERRORS = 2  # by which held-out losses must improve: for a few dozen subjects, chance improves them easily

Rows = list[dict[str, float]]  # one for each epoch, the first for the frozen encoder


def hold_out(diagnosis: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, and rows held out: a tenth of each class, at least one."""
    rng = np.random.default_rng(seed)
    classes = [rng.permutation(np.flatnonzero(diagnosis == kind)) for kind in np.unique(diagnosis)]
    if min(map(len, classes)) < 2:
        raise ValueError(
            "Expected at least two subjects of either class to fine-tune, one to train on and one held out. Received: "
            f"{', '.join(str(len(rows)) for rows in classes)}. Add subjects, or leave fine_tune out."
        )
    held_out = np.sort(np.concatenate([rows[: max(len(rows) // HELD_OUT, 1)] for rows in classes]))
    return np.setdiff1d(np.arange(len(diagnosis)), held_out), held_out


def fine_tune(
    method: "DeepMethod", encoder: Encoder, network: Network, beliefs: Any, train: tuple[Inputs, np.ndarray],
    held_out: tuple[Inputs, np.ndarray], progress: Progress | None,
) -> tuple[Encoder, Network, Rows]:  # fmt: skip
    """The encoder and the network of the epoch with the lowest held-out loss, or as given; `train` and `held_out` are
    inputs and diagnosis.
    """

    def losses_of(encoder: Encoder, network: Network) -> np.ndarray:
        """Log-losses of the held-out subjects; with so few, the accuracy would change in large steps."""
        with keeping_embeddings(None):  # each of these encoders is used once
            z = embed_once(encoder, held_out[0])
        read = read_all(method.encoder_of(network), z, lambda z: method.read(network, z, of_frozen))
        return balanced_log_losses(read["diagnosis"].numpy(), held_out[1])

    of_frozen, epochs, (inputs, diagnosis) = beliefs, method.fine_tune_epochs, train
    frozen = losses_of(encoder, network)
    best, rows = (encoder, network), [{"fine_tuned": 0.0, "held_out_loss": float(frozen.mean()), "kept": 1.0}]
    device = next(on_device(nn.Linear(1, 1), method.device).parameters()).device
    encoder, network = deepcopy(encoder).to(device), deepcopy(network).to(device).eval()
    encoder.requires_grad_(True)
    beliefs = replace(beliefs, **{k: v.to(device) for k, v in vars(beliefs).items() if isinstance(v, Tensor)})
    labels = torch.as_tensor(diagnosis, device=device)
    size = min(max(LEAST_ROWS, min(BATCHES * encoder.rows_at_once(inputs.shape[1:]), MOST_ROWS)), len(inputs))
    steps = len(inputs) // size
    weights = [weight for part in (encoder, network) for weight in part.parameters()]
    optimizer = torch.optim.Adam(weights, lr=method.learning_rate * method.backbone_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * epochs)
    with torch.random.fork_rng():
        torch.manual_seed(method.seed)
        for epoch in range(1, epochs + 1):
            began, total = time.perf_counter(), 0.0
            batches = training_batches(
                inputs, labels, shuffled_passes(len(inputs), size, steps), views=method.views,
                partners=lambda index: method.partners(index, beliefs), augmentation=method.augment(inputs.shape[1:]),
                device=device,
            )  # fmt: skip
            for step, batch in enumerate(batches, start=1):
                # the network gets embeddings as before, now with gradients to the encoder
                embedded = replace(batch, views=tuple(encoder(view) for view in batch.views))
                loss = torch.stack(list(method.losses(network, embedded, beliefs).values())).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                method.after_step(network)
                schedule.step()
                total += loss.item()
                if progress is not None:
                    done = (epoch - 1 + step / steps) / epochs
                    progress({"epoch": method.passes - 1 + done, "fine-tuning": total / step})
            candidate = deepcopy(encoder).cpu().freeze(), deepcopy(network).cpu().eval()
            losses = losses_of(*candidate)
            lowest = min(row["held_out_loss"] for row in rows if row["kept"])
            kept = is_better(losses, frozen) and losses.mean() < lowest
            best = candidate if kept else best
            rows.append(
                {"fine_tuned": float(epoch), "loss": total / steps, "held_out_loss": float(losses.mean()),
                 "kept": float(kept), "seconds": time.perf_counter() - began}
            )  # fmt: skip
    return *best, rows


def balanced_log_losses(p: np.ndarray, diagnosis: np.ndarray) -> np.ndarray:
    """(n,): log-losses weighted so that their mean is the mean over both classes; p is the probability of a patient."""
    right = np.clip(np.where(diagnosis == 1, p, 1 - p).astype(np.float64), 1e-7, 1)
    shares = np.bincount(diagnosis, minlength=2) / len(diagnosis)
    return -np.log(right) / shares[diagnosis] / np.count_nonzero(shares)


def is_better(losses: np.ndarray, before: np.ndarray) -> bool:
    """Whether the losses of the same subjects are lower by more than chance may bring."""
    gain = before - losses
    return bool(gain.mean() > STANDARD_ERRORS * gain.std(ddof=1) / np.sqrt(len(gain)))


def in_words(rows: Rows) -> str:
    """What came of the fine-tuning, in one sentence."""
    if not rows:
        return "The encoder was not fine-tuned: this method does not tell the diagnosis, which decides on that."
    losses = [row["held_out_loss"] for row in rows]
    best = max(i for i, row in enumerate(rows) if row["kept"])
    judged = f"log-loss {losses[0]:.3f} before, {losses[best] if best else min(losses[1:]):.3f} after"
    if best == 0:
        return (
            f"Fine-tuning the encoder did not improve the diagnosis of a tenth of the training subjects kept apart "
            f"by more than chance may bring ({judged}), so the encoder was left as it was."
        )
    return (
        f"The encoder was fine-tuned for {best} epoch{'s' * (best > 1)}: that improved the diagnosis of a tenth of "
        f"the training subjects kept apart ({judged})."
    )
