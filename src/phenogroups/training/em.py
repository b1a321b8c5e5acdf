"""The loop of every deep method: E-step over the whole cohort, M-step over batches. The only file that knows Fabric."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.swa_utils import update_bn

from phenogroups.clustering.sums import ALONE, Sums
from phenogroups.data.augment import Augmentation
from phenogroups.data.batches import Batch, as_tensor, effective_batch_size, read_in_blocks, training_batches
from phenogroups.data.stored import Inputs
from phenogroups.networks.network import Network
from phenogroups.training.checkpoint import Checkpoint, under
from phenogroups.training.ranks import TIMEOUT, Ranks, Share, answered, current, join, refuse_dropout
from phenogroups.training.run import RunError

Progress = Callable[[dict[str, float]], None]  # is told the epoch, with its fraction, and the mean losses so far
Embed = Callable[..., Tensor]  # embeddings of the subjects at the positions given, or of all
# of the film: subjects at most, frames at most, and numbers in all at most (64 MB)
FILMED, FRAMES, FILM_NUMBERS = 600, 40, 2**24
FILMED_SHARE = 16  # nor more than one in so many that an epoch trains on: before the first E-step, only the film asks
STARTED, ELECTED = "start", "elected"  # names of what is kept: of each start, then of the one that goes on


@dataclass(frozen=True)
class Film:
    """Where some of the subjects lay in the embedding after each of several epochs."""

    rows: np.ndarray  # (filmed,): positions among the subjects trained on
    epochs: np.ndarray  # (frames,): after how many M-steps
    embedding: np.ndarray  # (frames, filmed, dims)


class Trainable(Protocol):
    """The hooks and settings of a deep method that the loop reads."""

    epochs: int
    steps: int
    batch_size: int
    learning_rate: float
    backbone_rate: float
    seed: int
    device: str
    precision: Any
    views: int
    e_step_each_epoch: bool
    warmup: int
    restarts: int
    settle: bool
    passes: int
    beliefs_type: Any

    def augment(self, input_shape: tuple[int, ...]) -> Augmentation: ...
    def encoder_of(self, network: Network) -> nn.Module: ...
    def project(self, network: Network, embedding: Tensor) -> Tensor: ...
    def partners(self, index: Tensor, beliefs: Any) -> Tensor | None: ...
    def after_step(self, network: Network) -> None: ...
    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]: ...
    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Any: ...
    def elect(self, encoders: list[Embed], diagnosis: Tensor, features: Tensor | None) -> tuple[int, Any]: ...
    def pace(self, epoch: int) -> float: ...
    def moved(self, before: Any, after: Any, diagnosis: Tensor) -> float | None: ...
    def converged(self, history: list[dict[str, float]]) -> bool: ...
    def observe(self, network: Network, embedding: Tensor, diagnosis: Tensor, beliefs: Any) -> dict[str, float]: ...


class Together(DDPStrategy):
    """Fabric's processes, devices and connection; how a step is shared is `ranks.Share`'s, not its wrapper's."""

    def setup_module(self, module: nn.Module) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        return module


def launch(devices: int | None = None, nodes: int | None = None, device: str = "auto") -> Sums:
    """Start or join the processes that train together.

    Call it at the beginning of a script: the other processes on this machine run the same script. Under torchrun they
    are started already, and torchrun says how many there are.

    Parameters
    ----------
    devices
        Number of processes on each machine, by default 1.
    nodes
        Number of machines, by default 1.
    device
        Accelerator of Fabric: ``auto``, ``cpu``, ``gpu`` or ``mps``.

    Returns
    -------
    Sums
        The communicator: `rank` is the number of this process, `world` the number of processes.

    Examples
    --------
    >>> from phenogroups import launch
    >>> processes = launch()
    >>> processes.rank, processes.world
    (0, 1)
    """
    if (devices is not None and devices < 1) or (nodes is not None and nodes < 1):
        raise ValueError(f"Expected at least one process on one machine. Received: {devices} on {nodes}.")
    if TorchElasticEnvironment.detect():
        here, all_of_them = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
        if (devices or here, nodes or all_of_them // here) != (here, all_of_them // here):
            raise ValueError(
                f"Expected as many processes as torchrun started, {here} on each of {all_of_them // here} machines. "
                f"Received: {devices or here} on each of {nodes or all_of_them // here}. Leave out the numbers."
            )
        devices, nodes = here, all_of_them // here
    devices, nodes = devices or 1, nodes or 1
    if devices * nodes > 1 and current() is ALONE:
        with answered(devices * nodes):
            fabric = Fabric(accelerator=device, devices=devices, num_nodes=nodes, strategy=Together(timeout=TIMEOUT))
            fabric.launch()
            join(Ranks(fabric.device, devices, nodes))
    return current()


def _fabric(method: "Trainable") -> Fabric:
    """This process's device and precision, among those launched."""
    ranks, how = current(), {"accelerator": method.device, "precision": method.precision}
    if isinstance(ranks, Ranks):
        ranks.meet()
        fabric = Fabric(devices=ranks.devices, num_nodes=ranks.nodes, strategy=Together(timeout=TIMEOUT), **how)
    else:
        fabric = Fabric(devices=1, **how)
    fabric.launch()
    return fabric


def expectation_maximisation(
    method: Trainable,
    build: Callable[[], Network],
    inputs: Inputs,
    diagnosis: np.ndarray,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[Network, Any, list[dict[str, float]], Film]:
    """Train from scratch; the network, the last beliefs, one row of history per epoch and the film of them.

    Several networks may be started (`restarts`); after their warm-up and first E-step one is elected to go on.
    What `checkpoint` kept of an interrupted training is gone on from, to the same bits on the same machine and threads.
    """
    fabric = _fabric(method)
    labels = torch.as_tensor(diagnosis, device=fabric.device)
    progress = progress if current().rank == 0 else None
    # everything random below is drawn from generators seeded here; the caller's own are left as they were
    with torch.random.fork_rng():
        courses = [Course(method, fabric, build, inputs, labels, i, progress) for i in range(method.restarts)]
        checkpoint = checkpoint or Checkpoint()
        best = go_on(courses, checkpoint)
        if best is None:
            for course in courses:
                while course.epoch < min(method.warmup, method.epochs):
                    course.m_step()
                    course.keep(checkpoint, f"{STARTED}{course.attempt}")
            best = elect(courses)
            best.keep(checkpoint, ELECTED)
            checkpoint.drop(STARTED)
        while best.epoch < method.epochs and not best.finished:
            best.m_step()
            best.keep(checkpoint, ELECTED)
        if method.settle:
            best.settle()
        best.e_step(anew=True)
    for course in courses:
        course.share.end()
    beliefs = replace(best.beliefs, **{f.name: getattr(best.beliefs, f.name).cpu() for f in fields(best.beliefs)})
    return best.network.eval().cpu(), beliefs, best.history, best.film()


def warmed_up(
    method: Trainable, build: Callable[[], Network], inputs: Inputs, diagnosis: np.ndarray, attempt: int,
    progress: Progress | None = None,
) -> Tensor:  # fmt: skip
    """Embeddings (subjects, dims) by one network that has learned the diagnosis alone, for a single epoch.

    The same that `expectation_maximisation` starts from, so that nothing in them hangs on a number of subgroups.
    """
    fabric = _fabric(method)
    with torch.random.fork_rng():
        course = Course(
            method, fabric, build, inputs, torch.as_tensor(diagnosis, device=fabric.device), attempt, progress
        )
        course.m_step()
        course.share.end()
        return course.sums.gather(course.clustered()).cpu()


class Course:
    """One network on its way: what it has become, what is believed, and what was seen so far."""

    def __init__(
        self, method: Trainable, fabric: Fabric, build: Callable[[], Network], inputs: Inputs, labels: Tensor,
        attempt: int, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.method, self.fabric, self.inputs, self.labels = method, fabric, inputs, labels
        self.attempt, self.progress = attempt, progress
        self.epoch = 0  # M-steps done
        self.beliefs: Any = None  # until the first E-step
        self.believed_at = -1  # epoch of the last E-step
        self.finished = False  # whether nothing would change any more
        self.history: list[dict[str, float]] = []
        self._embedding: Tensor | None = None
        self._seed()
        self.network = build()
        # what was learned elsewhere must not be lost
        rate = method.backbone_rate if self.network.encoder.has_learned else 1.0
        optimizer = torch.optim.Adam(
            [
                {"params": self.network.encoder.parameters(), "rate": rate},
                {"params": self.network.heads.parameters(), "rate": 1.0},
            ],
            lr=method.learning_rate,
        )
        self._wrapped, self._optimizer = fabric.setup(self.network, optimizer)
        self._batch = effective_batch_size(len(inputs), method.batch_size)
        self.sums = current()
        self._own = self.sums.shard(len(inputs))  # subjects whom this process embeds and holds beliefs about
        if self.sums.world > 1:
            _refuse_too_few(self._batch, self.sums.world)
            if inputs.ndim > 2:  # of a table all processes draw the same masks
                refuse_dropout(self.network.encoder)
        # of a table all processes compute all: a step costs less than telling, and is the same to the bit
        self.share = Share(self.network, self.sums, self._batch, len(inputs), apart=inputs.ndim > 2)
        self._steps = max(len(inputs) // self._batch, method.steps)
        self._augmentation = method.augment(inputs.shape[1:])
        seen = max(self._steps * self._batch // FILMED_SHARE, 1)
        filmed = min(len(inputs), FILMED, seen, max(FILM_NUMBERS // (FRAMES * self.network.encoder.dim), 1))
        # drawn by a generator of its own: being filmed changes nothing of the training
        self._filmed = np.sort(np.random.default_rng(method.seed).choice(len(inputs), filmed, replace=False))
        self._frames: dict[int, np.ndarray] = {}  # epoch -> embeddings of the filmed

    def _seed(self) -> None:
        """By epoch, so that what an epoch draws does not depend on how the course got there."""
        torch.manual_seed((self.method.seed * 1009 + self.attempt) * 100_003 + self.epoch)

    def e_step(self, *, anew: bool = False) -> None:
        """Conclude from the network as it is now, unless that was done."""
        if self.believed_at == self.epoch and not anew:
            return
        self._seed()
        before = self.beliefs
        self.beliefs = self.method.e_step(self.clustered(), self.labels[self._own], before, self.epoch)
        self.believed_at = self.epoch
        if before is not None and self.history:
            moved = self.method.moved(before, self.beliefs, self.labels[self._own])
            self.history[-1] |= {} if moved is None else {"moved": moved}

    def m_step(self) -> None:
        """One epoch of gradient steps under the beliefs, after the E-step that is due before it."""
        method, began = self.method, time.perf_counter()
        if method.e_step_each_epoch and self.epoch >= method.warmup:
            self.e_step()
            self.finished = method.converged(self.history)
        self._seed()
        self._embedding = None
        sums: dict[str, Tensor] = {}
        self.share.follow_first()
        self.network.train()
        batches = training_batches(
            self.inputs, self.labels, size=self._batch, steps=self._steps, views=method.views,
            partners=lambda index: method.partners(index, self.beliefs), augmentation=self._augmentation,
            rows=self.share.rows, device=self.fabric.device,
        )  # fmt: skip
        for group in self._optimizer.param_groups:
            # what is settled early is still finished at the slow pace of the last epoch
            pace = method.pace(method.epochs - 1 if self.finished else self.epoch)
            group["lr"] = method.learning_rate * pace * group["rate"]
        for step, batch in enumerate(batches, start=1):
            batch, beliefs = self.share.batch(batch, self.beliefs)
            losses = self._wrapped(partial(method.losses, batch=batch, beliefs=beliefs))
            self._optimizer.zero_grad(set_to_none=True)
            self.fabric.backward(torch.stack(list(losses.values())).sum())
            self.share.add_gradients()
            self._optimizer.step()
            method.after_step(self.network)
            for name, loss in losses.items():
                sums[name] = sums.get(name, torch.zeros_like(loss)) + loss.detach()
            if self.progress is not None and (step % 5 == 0 or step == self._steps):
                means = {name: total.item() / step for name, total in sums.items()}
                self.progress({"epoch": self._shown_epoch(step / self._steps), **means})
        seen = {name: total.item() / self._steps for name, total in sums.items()}
        _refuse_divergence(seen, self.epoch, method.learning_rate)
        self.epoch += 1
        if self.epoch == method.epochs or (method.e_step_each_epoch and self.epoch >= method.warmup):
            seen |= method.observe(self.network, self.embedding(), self.labels[self._own], self.beliefs)
        self.history.append({"epoch": self.epoch, "seconds": time.perf_counter() - began, **seen})
        self._record()

    def _record(self) -> None:
        """One frame of the film; when there are too many, every other is cut, the newest never."""
        rows = torch.as_tensor(self._filmed)
        self._frames[self.epoch] = self.embedding(rows).numpy(force=True).astype(np.float32)
        if len(self._frames) > FRAMES:
            newest = len(self._frames) - 1
            self._frames = {
                epoch: frame for i, (epoch, frame) in enumerate(self._frames.items()) if i % 2 == 0 or i == newest
            }

    def film(self) -> Film:
        return Film(self._filmed, np.array(list(self._frames)), np.stack(list(self._frames.values())))

    def settle(self) -> None:
        """Take the statistics of batch normalisation from plain inputs: those of training are of augmented ones."""
        # who would be left over alone is left out: one row has no deviation
        whole = (self.inputs[i : i + self._batch] for i in range(0, len(self.inputs) - 1, self._batch))
        own = (rows[self.sums.shard(len(rows))] if self.share.apart else rows for rows in whole)
        with torch.no_grad(), without_dropout(self._encoder):
            update_bn((as_tensor(rows, self.fabric.device) for rows in own), self._encoder)
        self._embedding = None  # the network sees everybody a little differently now

    def embedding(self, rows: Tensor | None = None) -> Tensor:
        """Of this process's own subjects, or of all those at `rows`, by the network as it is now."""
        if rows is not None and (self._embedding is None or self.sums.world > 1):
            own = rows[self.sums.shard(len(rows))]
            return self.sums.gather(embed(self._encoder, self.inputs[own.cpu().numpy()]))
        if self._embedding is None:
            self._embedding = embed(self._encoder, self.inputs[self._own])
        return self._embedding if rows is None else self._embedding[rows]

    @torch.no_grad()
    def clustered(self, rows: Tensor | None = None) -> Tensor:
        """What the E-step sees of them."""
        self.network.eval()
        return self.method.project(self.network, self.embedding(rows))

    @property
    def _encoder(self) -> nn.Module:
        return self.method.encoder_of(self.network)

    def keep(self, checkpoint: Checkpoint, name: str) -> None:
        """All that the next epoch starts from. What it draws is seeded by its number, and so is its learning rate."""
        if checkpoint.folder is None or not self.fabric.is_global_zero:
            return
        beliefs = {} if self.beliefs is None else {f.name: getattr(self.beliefs, f.name) for f in fields(self.beliefs)}
        moments = self._optimizer.state_dict()["state"]
        tensors = {
            **{f"network.{name}": value for name, value in self.network.state_dict().items()},
            **{f"optimizer.{i}.{name}": value for i, of_weight in moments.items() for name, value in of_weight.items()},
            **{f"beliefs.{name}": value for name, value in beliefs.items()},
            **{f"frame.{epoch}": torch.from_numpy(frame) for epoch, frame in self._frames.items()},
        }
        notes = {
            **{name: getattr(self, name) for name in ("attempt", "epoch", "believed_at", "finished", "history")},
            "strides": {name: value.stride() for name, value in beliefs.items()},
            "precision": self.fabric.strategy.precision.state_dict(),  # the scale of losses in 16 bits
            # what the method says of itself, such as how far its first subgroups were agreed on
            "method": {k: v for k, v in vars(self.method).items() if k.endswith("_") and isinstance(v, float)},
        }
        checkpoint.save(name, tensors, notes)

    def go_on(self, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Become what was kept."""
        self.network.load_state_dict(under("network.", tensors))
        weights = [weight for group in self._optimizer.param_groups for weight in group["params"]]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in under("optimizer.", tensors).items():
            i, _, moment = name.partition(".")
            weight = weights[int(i)]
            same = torch.empty_like(weight).copy_(value) if value.shape == weight.shape else value  # as it lies
            moments.setdefault(int(i), {})[moment] = same
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": moments})
        self.epoch, self.believed_at = int(notes["epoch"]), int(notes["believed_at"])
        self.finished, self.history = bool(notes["finished"]), [dict(row) for row in notes["history"]]
        if self.believed_at >= 0:
            beliefs = under("beliefs.", tensors)
            # numbers must lie as they did: matrix products round differently for different strides
            laid = {k: as_it_lay(v.to(self.fabric.device), notes["strides"][k]) for k, v in beliefs.items()}
            self.beliefs = self.method.beliefs_type(**laid)
        frames = {int(epoch): frame.numpy() for epoch, frame in under("frame.", tensors).items()}
        self._frames = dict(sorted(frames.items()))
        self.fabric.strategy.precision.load_state_dict(notes["precision"])
        vars(self.method).update({k: float(v) for k, v in notes["method"].items() if k.endswith("_")})

    def _shown_epoch(self, done: float) -> float:
        """Epochs of all starts so far, for a bar that never goes back."""
        if self.finished:  # whatever was left to do is skipped
            return self.method.passes - 1 + done
        earlier = self.attempt if self.epoch < self.method.warmup else self.method.restarts - 1
        return earlier * self.method.warmup + self.epoch + done


@contextmanager
def without_dropout(network: nn.Module) -> Iterator[None]:
    """Within, dropout lets everything through, also while batch normalisation takes its statistics in training mode."""
    drops = {module: module.p for module in network.modules() if isinstance(module, _DropoutNd)}
    for module in drops:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in drops.items():
            module.p = p


def as_it_lay(value: Tensor, stride: list[int]) -> Tensor:
    if 0 in stride:  # repeated without being copied
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)


def go_on(courses: list[Course], checkpoint: Checkpoint) -> Course | None:
    """Take every course to where it was kept; the elected one, if that was done."""
    elected = checkpoint.load(ELECTED)
    kept = [elected] if elected else [checkpoint.load(f"{STARTED}{course.attempt}") for course in courses]
    went_on = None
    try:
        for tensors, notes in filter(None, kept):
            went_on = courses[notes["attempt"]]
            went_on.go_on(tensors, notes)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RunError(
            f"Expected in {checkpoint.folder} what this method keeps. Received: {error}. Start without --resume."
        ) from error
    if went_on is not None:
        start = "" if elected else f" of start {went_on.attempt + 1} of {len(courses)}"
        checkpoint.say(f"Going on after epoch {went_on.epoch} of {went_on.method.epochs}{start}.")
    return went_on if elected else None


def elect(courses: list[Course]) -> Course:
    """The course that goes on, with the beliefs it goes on with."""
    first = courses[0]
    if not first.method.e_step_each_epoch or first.epoch < first.method.warmup:
        return first
    features = None
    if first.inputs.ndim == 2:  # a table: subgroups can be looked for before any network sees it
        features = as_tensor(first.inputs[first._own], first.fabric.device)
    first._seed()
    chosen, beliefs = first.method.elect([course.clustered for course in courses], first.labels[first._own], features)
    courses[chosen].beliefs, courses[chosen].believed_at = beliefs, courses[chosen].epoch
    return courses[chosen]


def _refuse_too_few(batch: int, world: int) -> None:
    if batch < world:
        raise ValueError(
            f"Expected at least one subject of every batch for each of {world} processes. Received: batches of "
            f"{batch}. Start fewer processes."
        )


def _refuse_divergence(losses: dict[str, float], epoch: int, learning_rate: float) -> None:
    broken = [name for name, value in losses.items() if not np.isfinite(value)]
    if broken:
        raise FloatingPointError(
            f"Expected finite losses. Received: {', '.join(broken)} not finite in epoch {epoch + 1}. "
            f"Lower the learning rate (now {learning_rate}) or look for extreme input values."
        )


@torch.no_grad()
def read_all(encoder: nn.Module, inputs: Inputs, read: Callable[[Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `read` makes of the embeddings of all subjects, from plain inputs, in order, on the CPU."""
    encoder.eval()
    device = next(encoder.parameters()).device
    return read_in_blocks(inputs, lambda x: read(encoder(x).float()), device)


def on_device(encoder: nn.Module, device: str) -> nn.Module:
    """The encoder where Fabric's accelerator of this name has its memory."""
    return Fabric(accelerator=device, devices=1).to_device(encoder)


def embed(encoder: nn.Module, inputs: Inputs) -> Tensor:
    """(subjects, dims), on the encoder's device."""
    z = read_all(encoder, inputs, lambda z: {"embedding": z})["embedding"]
    return z.to(next(encoder.parameters()).device)
