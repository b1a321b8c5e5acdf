"""Methods with a network: the hooks that the loop of `phenogroups.training.em` calls."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from phenogroups.data.augment import Augmentation, resolve_augmentation
from phenogroups.data.batches import Batch
from phenogroups.data.cohort import Cohort, subgroup_letter
from phenogroups.data.embeddings import keeping_embeddings
from phenogroups.data.stored import Inputs
from phenogroups.methods.base import Method
from phenogroups.methods.fine_tuning import balanced_log_losses, some_apart
from phenogroups.methods.prediction import Prediction
from phenogroups.methods.restoring import require_tensors, restored_encoder
from phenogroups.methods.settings import AtLeast
from phenogroups.networks.encoders import (
    MLP,
    Encoder,
    build_encoder,
    default_encoder,
    encoder_of_file,
    has_weights,
    is_lite0,
)
from phenogroups.networks.network import Network
from phenogroups.training.checkpoint import Checkpoint, without_prefix
from phenogroups.training.distributed import on_device
from phenogroups.training.em import Embed, Progress, expectation_maximisation
from phenogroups.training.embedding import embed, embed_once, read_all
from phenogroups.training.fine_tuning import fine_tune

RISE, LOWEST = 10 / 75, 0.01  # of the schedule warmup_cosine: share of the epochs, last learning rate over the highest
EYES = "eyes."  # before the names of a frozen encoder's tensors in a model file


@dataclass(eq=False, repr=False)
class DeepMethod(Method):
    """A method with a network, trained by the EM loop of `phenogroups.training.em`.

    A subclass supplies the hooks `heads`, `losses`, `e_step` and `read`; the others have defaults.

    Parameters
    ----------
    encoder
        A name in `phenogroups.networks.encoders`, ``hf:NAME`` for a model of transformers, or ``auto``: ``mlp``,
        ``light`` or ``lite0``, by the inputs.
    weights
        First weights of the encoder: a file, ``imagenet`` (for ``resnet18``), ``random``, or None: its own if it has
        any.
    fine_tune
        Whether an encoder with pretrained weights is trained. True: once the subgroups are found, kept only if held-out
        diagnosis improves; ``throughout``: from the first epoch on, as published.
    fine_tune_epochs
        Largest number of epochs of fine-tuning.
    backbone_rate
        Learning rate of a pretrained encoder that is trained, as a share of that of the heads.
    augmentation
        A name in `phenogroups.data.augment`, or an `Augmentation`.
    epochs
        Largest number of epochs, each of one E-step and one M-step.
    steps
        Smallest number of gradient steps per epoch; a small cohort is passed over several times.
    batch_size
        Number of subjects per gradient step.
    learning_rate
        Largest learning rate of Adam.
    schedule
        How the learning rate changes over the epochs: as half a cosine, not at all, or up for the first ten of 75
        epochs and then as half a cosine down to a hundredth (the published SimCLR of MNIST).
    recalibrate_batch_norm
        Whether the statistics of batch normalisation are recalibrated on inputs without augmentation at the end.
    device
        Accelerator of Fabric: ``auto``, ``cpu``, ``gpu``, ``cuda`` or ``mps``.
    precision
        Precision of Fabric.

    Attributes
    ----------
    network_ : Network
        The trained encoder and heads.
    beliefs_ : dataclass of tensors
        What the last E-step concluded.
    history_ : list of dict
        Losses and diagnostics of every epoch.

    Examples
    --------
    >>> from phenogroups import DeepUCSL, drawn_table
    >>> from phenogroups.methods import DeepMethod
    >>> method = DeepUCSL(epochs=2, steps=2).fit(drawn_table(80))
    >>> isinstance(method, DeepMethod), len(method.history_)
    (True, 2)
    """

    encoder: str = "auto"
    weights: str | None = None
    fine_tune: bool | Literal["throughout"] = False
    fine_tune_epochs: Annotated[int, AtLeast(1)] = 2
    backbone_rate: Annotated[float, AtLeast(0)] = 0.1
    augmentation: str | Augmentation = "auto"
    epochs: Annotated[int, AtLeast(1)] = 6
    steps: int = 40
    batch_size: Annotated[int, AtLeast(2)] = 256
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "constant", "warmup_cosine"] = "cosine"
    recalibrate_batch_norm: bool = True
    device: str = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"

    views: ClassVar[int] = 1  # augmented versions of each input per batch
    e_step_each_epoch: ClassVar[bool] = True  # False: one E-step, at the end
    warmup: ClassVar[int] = 0  # epochs before the first E-step; beliefs are None until then
    restarts: ClassVar[int] = 1  # most networks that are warmed up; one of them is trained further
    stop_below: ClassVar[float] = 0.0  # stop one epoch after two E-steps moved a smaller share
    beliefs_type: ClassVar[type]  # the dataclass of tensors that `e_step` returns
    # the pretrained encoder whose embeddings the network is trained on; without annotation, as it is no setting
    eyes_ = cast(Encoder | None, None)

    # the hooks: what a method file supplies
    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        """The modules beside the encoder, by name."""
        raise NotImplementedError

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        """The losses of a batch by name; their sum is minimised, and each is a column of history.csv."""
        raise NotImplementedError

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Any:
        """The beliefs about all subjects, from their embeddings and the previous beliefs (None at first)."""
        raise NotImplementedError

    def encoder_of(self, network: Network) -> nn.Module:
        """The encoder whose embeddings E-steps and predictions use, where a network has several."""
        return network.encoder

    def project(self, network: Network, embedding: Tensor) -> Tensor:
        """The projection of embeddings that E-steps use."""
        return embedding

    def partners(self, index: Tensor, beliefs: Any) -> Tensor | None:
        """Index of another subject for each subject of a batch; its view becomes the last of `Batch.views`."""
        return None

    def after_step(self, network: Network) -> None:
        """Called after every gradient step."""

    def learning_rate_factor(self, epoch: int) -> float:
        """What the learning rate is multiplied with in this epoch: its schedule."""
        if self.schedule == "warmup_cosine":
            rise = max(round(RISE * self.epochs), 1)
            down = (epoch - rise) / max(self.epochs - rise, 1)
            return (epoch + 1) / rise if epoch < rise else LOWEST + (1 - LOWEST) * cosine(down)
        return 1.0 if self.schedule == "constant" else cosine(epoch / self.epochs)

    def networks(self, *, is_table: bool) -> int:
        """Number of networks that are warmed up for these inputs."""
        return self.restarts

    def elect(self, encoders: list[Embed], diagnosis: Tensor, features: Tensor | None) -> tuple[int, Any]:
        """Which warmed-up network is trained further, and with which beliefs; `features` are those of a table."""
        return 0, self.e_step(encoders[0](), diagnosis, None, self.warmup)

    def moved(self, before: Any, after: Any, diagnosis: Tensor) -> float | None:
        """Number of patients whom an E-step moved, as a share of the smallest subgroup; None if it is unknown."""
        was, now = (beliefs.q[diagnosis == 1].argmax(1) for beliefs in (before, after))
        smallest = self.comm.all_reduce(torch.bincount(now, minlength=self.n_subgroups)).min().clamp_min(1)
        return (self.comm.all_reduce((was != now).sum()) / smallest).item()

    def converged(self, history: list[dict[str, float]]) -> bool:
        """Whether the last two E-steps both moved a share below `stop_below`."""
        last = [row["moved"] for row in history if "moved" in row][-2:]
        return len(last) == 2 and max(last) < self.stop_below

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        """Fields of a Prediction from a batch of embeddings."""
        raise NotImplementedError

    def observe(self, network: Network, embedding: Tensor, diagnosis: Tensor, beliefs: Any) -> dict[str, float]:
        """Diagnostics of an epoch, which history.csv shows beside its losses."""
        return {}

    # the same for every deep method
    @property
    def starts(self) -> int:
        """Number of networks that are warmed up: for the inputs of `fit`; before it, the most there can be."""
        is_table = self.eyes_ is not None or len(getattr(self, "input_shape_", ())) == 1
        return self.networks(is_table=is_table)

    @property
    def passes(self) -> int:
        """Number of epochs over all warmed-up networks, for progress bars."""
        return self.epochs + (self.starts - 1) * min(self.warmup, self.epochs)

    def epoch_in_words(self, done: float, last: float | None = None) -> str:
        """Which epoch is meant by a number of passes, counted as the setting `epochs` and history.csv count.

        `last` is the epoch with which training stops early.
        """
        if last is not None:
            return f"epoch {last:.0f}/{self.epochs}, the last: hardly any patient changes subgroup"
        warmup = min(self.warmup, self.epochs)
        start = min(int(done / warmup), self.starts - 1) if warmup else self.starts - 1
        if start and done == start * warmup:  # just ended, and not yet the next start's
            start -= 1
        epoch = max(math.ceil(done - start * warmup), 1)
        is_one_of_several = self.starts > 1 and epoch <= warmup
        return (f"start {start + 1} of {self.starts}, " if is_one_of_several else "") + f"epoch {epoch}/{self.epochs}"

    @property
    def read_type(self) -> type:
        """The dataclass of what `read` is given once the method is fitted."""
        return self.beliefs_type

    @property
    def by_lite0(self) -> bool:
        return is_lite0(self.encoder, self.weights)

    def encoder_for(self, inputs: Inputs) -> str:
        """Name of the encoder for these inputs."""
        return self.encoder_by_default(inputs.shape[1:], inputs) if self.encoder == "auto" else self.encoder

    def encoder_by_default(self, input_shape: tuple[int, ...], inputs: Inputs | None = None) -> str:
        """Name of the encoder that `auto` means for these inputs."""
        return default_encoder(input_shape, self.weights, inputs)

    def look(self, inputs: Inputs) -> Encoder | None:
        """The pretrained encoder, frozen; None if the encoder is trained instead."""
        name = self.encoder_for(inputs)
        if not has_weights(name, self.weights):
            if self.fine_tune is True:
                raise ValueError(
                    f"Expected an encoder with weights to fine-tune. Received: {name!r}, which starts from random "
                    "weights and learns anyway. Leave fine_tune out, or name weights."
                )
            return None
        if self.fine_tune == "throughout":
            return None
        with torch.random.fork_rng():  # initial weights are drawn before they are replaced
            eyes = build_encoder(name, inputs.shape[1:], self.weights)
        eyes.check_inputs(inputs)
        return eyes.freeze()

    def see(self, eyes: Encoder, inputs: Inputs) -> np.ndarray:
        """The embeddings of all subjects by the eyes, a table to train on; each process computes a part of it."""
        own = inputs[self.comm.shard(len(inputs))]
        device = next(on_device(eyes, self.device).parameters()).device
        z = embed_once(eyes, own, device)
        eyes.cpu()
        return self.comm.gather(torch.from_numpy(z)).numpy()

    def build(
        self, input_shape: tuple[int, ...], inputs: Inputs | None = None, saved: Mapping[str, Tensor] | None = None
    ) -> Network:
        """A new network, scaled for these inputs if they are features; `saved` is what its encoder is then given.

        With eyes, it is one for their embeddings.
        """
        name, weights = self.encoder, self.weights
        if self.eyes_ is not None:
            name, weights, input_shape = "mlp", None, (self.eyes_.dim,)
        elif name == "auto" and saved is not None:
            name = encoder_of_file(input_shape, saved)
        elif name == "auto":
            name = self.encoder_by_default(input_shape, inputs)
        encoder = build_encoder(name, input_shape, weights, saved)
        if inputs is not None:
            encoder.check_inputs(inputs)
        # features have different units
        if isinstance(encoder, MLP) and inputs is not None and not has_weights(name, weights):
            encoder.fit_scaling(torch.tensor(np.asarray(inputs)))
        return Network(encoder, self.heads(encoder, input_shape))

    def augment(self, input_shape: tuple[int, ...]) -> Augmentation:
        """The augmentation for inputs of this shape."""
        of_embeddings = self.eyes_ is not None and len(input_shape) == 1  # the setting is about images
        if self.augmentation == "auto" or of_embeddings:
            of_features = "none" if self.views == 1 else "features"  # two equal views would teach nothing
            return resolve_augmentation({1: of_features, 3: "digits", 4: "volumes"}[len(input_shape)])
        chosen = resolve_augmentation(self.augmentation)
        return chosen if chosen.kernel_seed is None else replace(chosen, kernel_seed=self.seed)

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        seen = self.trained_on(cohort)
        self._train(seen.inputs, seen.diagnosis, progress, checkpoint)

    def trained_on(self, cohort: Cohort) -> Cohort:
        """The subjects of a training cohort on whom the network is trained."""
        return cohort if self.needs_controls else cohort.patients

    def _train(
        self, inputs: Inputs, diagnosis: np.ndarray, progress: Progress | None, checkpoint: Checkpoint | None
    ) -> None:
        self.eyes_ = self.look(inputs)
        # a frozen encoder is applied once; everything that follows uses the table of its embeddings
        seen = inputs if self.eyes_ is None else self.see(self.eyes_, inputs)
        self.fine_tuning_, judges = [], None
        if self.eyes_ is not None and self.fine_tune and self.needs_controls:
            rows, judges = some_apart(diagnosis, self.seed)  # judged on subjects who were not trained on
            seen, diagnosis, every, inputs, told = seen[rows], diagnosis[rows], inputs, inputs[rows], diagnosis[judges]
        self.network_, self.beliefs_, self.history_, self.film_ = expectation_maximisation(
            self, lambda: self.build(seen.shape[1:], seen), seen, diagnosis, progress, checkpoint
        )
        if judges is not None:
            self.film_ = replace(self.film_, rows=rows[self.film_.rows])
            self._fine_tune(inputs, diagnosis, every[judges], told, progress)

    def _fine_tune(
        self, inputs: Inputs, diagnosis: np.ndarray, others: Inputs, told: np.ndarray, progress: Progress | None
    ) -> None:
        """Fine-tune the encoder under fixed beliefs; an epoch is kept if it improves the diagnosis of `others`."""
        if self.comm.world_size > 1:
            raise ValueError("Expected one process to fine-tune an encoder. Received: several. Start one.")

        def judge(eyes: Encoder, network: Network) -> np.ndarray:
            """Log-losses, both classes weighted alike; accuracy on so few subjects would change in large steps."""
            with keeping_embeddings(None):  # these weights are used once
                z = embed_once(eyes, others)
            p = read_all(self.encoder_of(network), z, lambda z: self.read(network, z, self.beliefs_))["diagnosis"]
            return balanced_log_losses(p.numpy(), told)

        before = cast(Encoder, self.eyes_)
        self.eyes_, self.network_, self.fine_tuning_ = fine_tune(
            self, before, self.network_, self.beliefs_, inputs, diagnosis, epochs=self.fine_tune_epochs,
            seed=self.seed, device=next(on_device(nn.Linear(1, 1), self.device).parameters()).device, judge=judge,
            progress=progress,
        )  # fmt: skip
        if self.eyes_ is not before:  # the same beliefs, with centroids in the new embedding
            with torch.no_grad():
                z = embed(self.encoder_of(self.network_), embed_once(self.eyes_, inputs))
                z = self.project(self.network_, z)
            self.beliefs_ = self.e_step(z, torch.as_tensor(diagnosis), self.beliefs_, self.epochs)

    def remarks(self) -> list[str]:
        if self.fine_tune is not True or not hasattr(self, "fine_tuning_"):
            return []
        if not self.fine_tuning_:
            return ["The encoder was not fine-tuned: this method does not tell the diagnosis, which decides on that."]
        losses = [row["held_out_loss"] for row in self.fine_tuning_]
        best = max(i for i, row in enumerate(self.fine_tuning_) if row["kept"])
        judged = f"log-loss {losses[0]:.3f} before, {losses[best] if best else min(losses[1:]):.3f} after"
        if best == 0:
            return [
                f"Fine-tuning the encoder did not improve the diagnosis of a tenth of the training subjects kept apart "
                f"by more than chance may bring ({judged}), so the encoder was left as it was."
            ]
        return [
            f"The encoder was fine-tuned for {best} epoch{'s' * (best > 1)}: that improved the diagnosis of a tenth of "
            f"the training subjects kept apart ({judged})."
        ]

    @property
    def frozen_encoder(self) -> Encoder | None:
        return self.eyes_

    @property
    def whole_encoder(self) -> nn.Module:
        """From inputs to embeddings, with gradients: the frozen encoder, if there is one, and the trained one."""
        trained = self.encoder_of(self.network_)
        return trained if self.eyes_ is None else nn.Sequential(self.eyes_.fast, trained)

    def _number(self, order: np.ndarray) -> None:
        super()._number(order)
        names = {f"size_{subgroup_letter(k)}": f"size_{subgroup_letter(was)}" for k, was in enumerate(order)}
        self.history_ = [row | {now: row[was] for now, was in names.items() if was in row} for row in self.history_]

    def vectors(self, cohort: Cohort) -> np.ndarray | None:
        return super().vectors(cohort) if self.eyes_ is None else embed_once(self.eyes_, self._inputs(cohort))

    def _predict(self, inputs: Inputs) -> Prediction:
        found = read_all(
            self.encoder_of(self.network_), inputs if self.eyes_ is None else embed_once(self.eyes_, inputs),
            lambda z: {"embedding": z, **self.read(self.network_, z, self.beliefs_)},
        )  # fmt: skip
        return Prediction.of_tensors(found)

    def tensors(self) -> dict[str, Tensor]:
        beliefs = {f"beliefs.{f.name}": getattr(self.beliefs_, f.name) for f in fields(self.beliefs_)}
        beliefs.pop("beliefs.q", None)  # beliefs about training subjects, which prediction does not need
        eyes = {} if self.eyes_ is None else self.eyes_.state_dict()
        return {
            **{f"{EYES}{name}": value.contiguous() for name, value in eyes.items()},
            **{f"network.{name}": value for name, value in self.network_.state_dict().items()},
            **beliefs,
        }

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        of_eyes = without_prefix(EYES, tensors)
        self.eyes_ = restored_encoder(self.encoder, self.input_shape_, of_eyes) if of_eyes else None
        saved = without_prefix("network.", tensors)
        of_encoder = without_prefix("encoder.", saved)
        with torch.device("meta"):  # takes no memory: a wrong recipe may ask for a network far larger than the file
            require_tensors(self.build(self.input_shape_, saved=of_encoder).state_dict(), saved)
        network = self.build(self.input_shape_, saved=of_encoder)
        network.load_state_dict(saved)
        self.network_ = network.eval()
        known = without_prefix("beliefs.", tensors)
        if "q" in {f.name for f in fields(self.read_type)}:
            known["q"] = torch.empty(0, self.n_subgroups)
        self.beliefs_ = self.read_type(**known)

    def blank(self) -> dict[str, Tensor]:
        encoder: Any = self.encoder_of(self.network_)
        z = torch.zeros(1, encoder.dim)
        with torch.no_grad():
            return {"embedding": z, **self.read(self.network_, z, self.beliefs_)}


def cosine(done: float) -> float:
    """Half a cosine, from 1 at `done` = 0 to 0 at `done` = 1."""
    return 0.5 * (1 + math.cos(math.pi * done))
