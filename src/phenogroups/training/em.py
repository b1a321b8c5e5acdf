"""The loop of every deep method: E-step over the whole cohort, M-step over batches."""

import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from phenogroups.clustering.communicator import lost_process_explained
from phenogroups.data.batches import as_tensor, effective_batch_size, shuffled_passes, training_batches
from phenogroups.data.stored import Inputs
from phenogroups.networks.hugging_face import HUGGING_FACE
from phenogroups.networks.network import Network
from phenogroups.training.checkpoint import Checkpoint, resume_training, save_epoch
from phenogroups.training.distributed import (
    LEAST_ROWS,
    average_buffers,
    build_fabric,
    communicator,
    divided_batch_size,
    synchronise_batch_norm,
)
from phenogroups.training.embedding import embed, without_dropout
from phenogroups.training.film import Film, FilmRecorder

if TYPE_CHECKING:
    from phenogroups.methods.deep import DeepMethod

# called with the epoch and its fraction, the mean losses so far, and `last`: the epoch with which training stops early
Progress = Callable[[dict[str, float]], None]
# returns embeddings of the subjects at the positions given, or of all; with augmented=True of new views of them
Embed = Callable[..., Tensor]


def expectation_maximisation(
    method: "DeepMethod", inputs: Inputs, diagnosis: np.ndarray, progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Network, Any, list[dict[str, float]], Film]:  # fmt: skip
    """Train from scratch; returns the network, the last beliefs, one row of history per epoch and the film.

    Several networks may be started (`DeepMethod.networks`); after their warm-up one is elected and trained further.
    Training resumes from the files of `checkpoint`, bit for bit on the same machine and number of threads.
    """
    fabric, checkpoint = _fabric(method), checkpoint or Checkpoint()
    labels = torch.as_tensor(diagnosis, device=fabric.device)
    # the generators are seeded below; the state of the caller's generators is restored at the end
    with torch.random.fork_rng():
        trainers = [Trainer(method, fabric, inputs, labels, i, progress) for i in range(method.starts)]
        best = resume_training(trainers, checkpoint)
        if best is None:
            for trainer in trainers:
                while trainer.epoch < min(method.warmup, method.epochs):
                    trainer.m_step()
                    save_epoch(trainer, checkpoint, elected=False)
            best = elect(trainers)
            save_epoch(best, checkpoint, elected=True)
        while best.epoch < method.epochs and not best.finished:
            best.m_step()
            save_epoch(best, checkpoint, elected=True)
        if method.recalibrate_batch_norm:
            best.recalibrate_batch_norm()
        best.e_step(again=True)
        method.finish(best.network, best.embedding(), best.labels[best.own], best._own_beliefs())
    beliefs = replace(best.beliefs, **{f.name: getattr(best.beliefs, f.name).cpu() for f in fields(best.beliefs)})
    return best.network.eval().cpu(), beliefs, best.history, best.film.film()


def embed_after_one_epoch(method: "DeepMethod", inputs: Inputs, diagnosis: np.ndarray, attempt: int) -> Tensor:
    """Embeddings (subjects, dims) by one network that was trained for a single epoch, on the diagnosis alone.

    `expectation_maximisation` begins with the same epoch, which does not depend on the number of subgroups.
    """
    fabric = _fabric(method)
    labels = torch.as_tensor(diagnosis, device=fabric.device)
    with torch.random.fork_rng():
        trainer = Trainer(method, fabric, inputs, labels, attempt)
        trainer.m_step()
        return trainer.comm.gather(trainer.clustered()).cpu()


def _fabric(method: "DeepMethod") -> Fabric:
    # a model of Hugging Face may have weights that its embedding does not depend on
    unused = method.frozen_encoder_ is None and method.encoder.startswith(HUGGING_FACE)
    return build_fabric(method.device, method.precision, find_unused_parameters=unused)


class Trainer:
    """One network in training, with its optimizer, its beliefs and its history."""

    def __init__(
        self, method: "DeepMethod", fabric: Fabric, inputs: Inputs, labels: Tensor, attempt: int,
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.method, self.fabric, self.inputs, self.labels = method, fabric, inputs, labels
        self.attempt, self.comm = attempt, communicator()
        self.progress = progress if self.comm.rank == 0 else None
        self.epoch = 0  # M-steps done
        self.beliefs: Any = None  # about all subjects; None until the first E-step
        self.believed_at = -1  # epoch of the last E-step
        self.finished = False  # whether the method has converged
        self.history: list[dict[str, float]] = []
        self.own = self.comm.shard(len(inputs))  # subjects that this process embeds and clusters
        self._embedding: Tensor | None = None  # of these subjects
        self._seed()
        self.network = method.build(inputs.shape[1:], inputs)
        # a pretrained encoder has a lower learning rate, so that its weights stay close to the pretrained ones
        rate = method.backbone_rate if self.network.encoder.has_learned else 1.0
        self.optimizer = torch.optim.Adam(
            [
                {"params": self.network.encoder.parameters(), "rate": rate},
                {"params": self.network.heads.parameters(), "rate": 1.0},
            ],
            lr=method.learning_rate,
            fused=True,  # one pass over the weights
        )
        synchronise_batch_norm(self.network, self.comm, fabric.device)
        self._wrapped, self.optimizer = fabric.setup(self.network, self.optimizer)
        asked = effective_batch_size(len(inputs), method.batch_size, method.steps)
        self.batch_size = divided_batch_size(asked, self.comm)
        self.steps = max(len(inputs) // self.batch_size, method.steps)
        self._augmentation = method.augment(inputs.shape[1:])
        self.film = FilmRecorder(len(inputs), self.steps * self.batch_size, self.network.encoder.dim, method.seed)

    def _seed(self) -> None:
        """Seed by epoch, so that an epoch draws the same random numbers after a resumption."""
        torch.manual_seed((self.method.seed * 1009 + self.attempt) * 100_003 + self.epoch)

    def e_step(self, *, again: bool = False) -> None:
        """Update the beliefs by the current network, unless they are up to date; `again` updates them in any case."""
        if self.believed_at == self.epoch and not again:
            return
        self._seed()
        before, labels = self._own_beliefs(), self.labels[self.own]
        after = self.method.e_step(self.clustered(), labels, before, self.epoch)
        self.set_beliefs(after)
        if before is not None and self.history:
            moved = self.method.moved(before, after, labels)
            self.history[-1] |= {} if moved is None else {"moved": moved}

    def set_beliefs(self, beliefs: Any) -> None:
        """Set the beliefs; those of all processes about their own subjects are gathered."""
        has_q = self.comm.world_size > 1 and hasattr(beliefs, "q")
        self.beliefs = replace(beliefs, q=self.comm.gather(beliefs.q)) if has_q else beliefs
        self.believed_at = self.epoch

    def _own_beliefs(self) -> Any:
        """The beliefs with the rows of q of the subjects of this process."""
        if self.comm.world_size == 1 or not hasattr(self.beliefs, "q"):
            return self.beliefs
        return replace(self.beliefs, q=self.beliefs.q[self.own])

    def m_step(self) -> None:
        """One epoch of gradient steps under the beliefs, after the E-step that is due before it."""
        method, began = self.method, time.perf_counter()
        if method.e_step_each_epoch and self.epoch >= method.warmup:
            self.e_step()
            self.finished = method.converged(self.history)
        self._embedding = None
        # a training that stops early ends at the low learning rate of the last epoch too
        factor = method.learning_rate_factor(method.epochs - 1 if self.finished else self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = method.learning_rate * factor * group["rate"]
        self.network.train()
        totals: dict[str, Tensor] = {}
        batches = training_batches(
            self.inputs, self.labels, self._passes(), views=method.views, augmentation=self._augmentation,
            partners=lambda index: method.partners(index, self.beliefs), device=self.fabric.device,
        )  # fmt: skip
        for step, batch in enumerate(batches, start=1):
            with lost_process_explained(self.comm.world_size):
                losses = self._wrapped(partial(method.losses, batch=batch, beliefs=self.beliefs))
                self.optimizer.zero_grad(set_to_none=True)
                self.fabric.backward(torch.stack(list(losses.values())).sum())
            self.optimizer.step()
            method.after_step(self.network)
            for name, loss in losses.items():
                totals[name] = totals.get(name, torch.zeros_like(loss)) + loss.detach()
            if self.progress is not None and (step % 5 == 0 or step == self.steps):
                means = {name: total.item() / step for name, total in totals.items()}
                last = {"last": float(self.epoch + 1)} if self.finished else {}
                self.progress({"epoch": self._shown_epoch(step / self.steps), **means, **last})
        average_buffers(self.network, self.comm)
        whole = self.comm.all_reduce(torch.stack(list(totals.values()))) / (self.steps * self.comm.world_size)
        row = dict(zip(totals, whole.tolist(), strict=True))
        _refuse_divergence(row, self.epoch, method.learning_rate)
        self.epoch += 1
        if self.epoch == method.epochs or (method.e_step_each_epoch and self.epoch >= method.warmup):
            row |= method.observe(self.network, self.embedding(), self.labels[self.own], self._own_beliefs())
        self.history.append({"epoch": self.epoch, "seconds": time.perf_counter() - began, **row})
        self.film.record(self.epoch, self.embedding)

    def _passes(self) -> Iterable[list[Tensor]]:
        """The subjects of this process in every batch of the next epoch, by passes over the cohort."""
        self._seed()
        passes = shuffled_passes(len(self.inputs), self.batch_size, self.steps)
        if self.comm.world_size == 1:
            return passes
        passes = list(passes)
        # until here, all processes draw the same numbers; for augmentation and dropout, each has its own seed
        torch.manual_seed(int(torch.randint(2**62, (self.comm.world_size,))[self.comm.rank]))
        return [[index[self.comm.shard(self.batch_size)] for index in batches] for batches in passes]

    def recalibrate_batch_norm(self) -> None:
        """Recompute the statistics of batch normalisation on plain inputs: in training, inputs are augmented."""
        rank, world_size = self.comm.rank, self.comm.world_size
        # the last rows are left out where a process would get too few for a deviation
        starts = range(0, len(self.inputs) - LEAST_ROWS * world_size + 1, self.batch_size)
        rows = (self.inputs[i + rank : i + self.batch_size : world_size] for i in starts)
        with torch.no_grad(), without_dropout(self._encoder):
            update_bn((as_tensor(some, self.fabric.device) for some in rows), self._encoder)
        average_buffers(self._encoder, self.comm)
        self._embedding = None

    def embedding(self, rows: Tensor | None = None, *, augmented: bool = False) -> Tensor:
        """Embeddings by the current network of the subjects of this process, or of all those at `rows`.

        Of plain inputs, or of new views of those at `rows`.
        """
        if rows is not None and augmented:
            own = rows[self.comm.shard(len(rows))]
            return self.comm.gather(embed(self._encoder, self.inputs[own.cpu().numpy()], self._augmentation))
        if rows is not None and (self._embedding is None or self.comm.world_size > 1):
            own = rows[self.comm.shard(len(rows))]
            return self.comm.gather(embed(self._encoder, self.inputs[own.cpu().numpy()]))
        if self._embedding is None:
            self._embedding = embed(self._encoder, self.inputs[self.own])
        return self._embedding if rows is None else self._embedding[rows]

    @torch.no_grad()
    def clustered(self, rows: Tensor | None = None, *, augmented: bool = False) -> Tensor:
        """The projected embeddings that the E-step clusters."""
        self.network.eval()
        return self.method.project(self.network, self.embedding(rows, augmented=augmented))

    @property
    def _encoder(self) -> nn.Module:
        return self.method.encoder_of(self.network)

    def _shown_epoch(self, done: float) -> float:
        """Epochs of all starts so far, for a progress bar that never goes back."""
        if self.finished:  # the remaining epochs are skipped
            return self.method.passes - 1 + done
        earlier = self.attempt if self.epoch < self.method.warmup else self.method.starts - 1
        return earlier * self.method.warmup + self.epoch + done


def elect(trainers: list[Trainer]) -> Trainer:
    """The trainer whose network is trained further, with its first beliefs."""
    first = trainers[0]
    if not first.method.e_step_each_epoch or first.epoch < first.method.warmup:
        return first
    features = None
    if first.inputs.ndim == 2:  # subgroups can be searched in the features of a table themselves
        features = as_tensor(first.inputs[first.own], first.fabric.device)
    first._seed()
    chosen, beliefs = first.method.elect([each.clustered for each in trainers], first.labels[first.own], features)
    trainers[chosen].set_beliefs(beliefs)
    return trainers[chosen]


def _refuse_divergence(losses: dict[str, float], epoch: int, learning_rate: float) -> None:
    broken = [name for name, value in losses.items() if not np.isfinite(value)]
    if broken:
        raise FloatingPointError(
            f"Expected finite losses. Received: {', '.join(broken)} not finite in epoch {epoch + 1}. "
            f"Lower the learning rate (now {learning_rate}) or look for extreme input values."
        )
