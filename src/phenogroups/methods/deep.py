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
from phenogroups.data.stored import Inputs
from phenogroups.methods.prediction import Prediction
from phenogroups.methods.settings import AtLeast
from phenogroups.methods.with_encoder import WithEncoder, build_restored
from phenogroups.networks.architectures import MLP
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.encoders import build_encoder, encoder_of_file, has_weights
from phenogroups.networks.network import Network
from phenogroups.training.checkpoint import Checkpoint, with_prefix, without_prefix
from phenogroups.training.em import Embed, Progress, expectation_maximisation
from phenogroups.training.embedding import embed, read_all
from phenogroups.training.fine_tuning import fine_tune, hold_out, in_words

RISE, LOWEST = 10 / 75, 0.01  # of the schedule warmup_cosine: share of the epochs, last learning rate over the highest


@dataclass(eq=False, repr=False)
class DeepMethod(WithEncoder):
    """A method with a network, trained by the EM loop of `phenogroups.training.em`.

    A subclass supplies the hooks `heads`, `losses`, `e_step` and `read`; the others have defaults.

    Parameters
    ----------
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
        Number of subjects per gradient step; fewer in a small cohort, unless `steps` is 1.
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
        The result of the last E-step.
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
    restarts: ClassVar[int] = 1  # largest number of networks that are warmed up; one of them is trained further
    stop_below: ClassVar[float] = 0.0  # stop one epoch after two E-steps moved a smaller share
    beliefs_type: ClassVar[type]  # the dataclass of tensors that `e_step` returns

    # hooks that a method file supplies
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

    def finish(self, network: Network, embedding: Tensor, diagnosis: Tensor, beliefs: Any) -> None:
        """Called once, after the last E-step, with the embeddings of plain inputs."""

    def learning_rate_factor(self, epoch: int) -> float:
        """The factor of the learning rate in this epoch, by its schedule."""
        if self.schedule == "warmup_cosine":
            rise = max(round(RISE * self.epochs), 1)
            down = (epoch - rise) / max(self.epochs - rise, 1)
            return (epoch + 1) / rise if epoch < rise else LOWEST + (1 - LOWEST) * cosine(down)
        return 1.0 if self.schedule == "constant" else cosine(epoch / self.epochs)

    def networks(self, *, is_table: bool) -> int:
        """Number of networks that are warmed up for these inputs."""
        return self.restarts

    def elect(self, encoders: list[Embed], diagnosis: Tensor, features: Tensor | None) -> tuple[int, Any]:
        """The warmed-up network that is trained further, by its index, and its first beliefs.

        `features` are those of a table; None for images.
        """
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
        """Number of networks that are warmed up, for the inputs of `fit`; before it, the largest possible number."""
        is_table = self.frozen_encoder_ is not None or len(getattr(self, "input_shape_", ())) == 1
        return self.networks(is_table=is_table)

    @property
    def passes(self) -> int:
        """Number of epochs over all warmed-up networks, for progress bars."""
        return self.epochs + (self.starts - 1) * min(self.warmup, self.epochs)

    def epoch_in_words(self, done: float, last: float | None = None) -> str:
        """The epoch, counted as in the setting `epochs` and history.csv, after this number of `passes`.

        `last` is the epoch with which training stops early.
        """
        if last is not None:
            return f"epoch {last:.0f}/{self.epochs}, the last: hardly any patient changes subgroup"
        warmup = min(self.warmup, self.epochs)
        start = min(int(done / warmup), self.starts - 1) if warmup else self.starts - 1
        if start and done == start * warmup:  # the end of this start, not the beginning of the next
            start -= 1
        epoch = max(math.ceil(done - start * warmup), 1)
        is_one_of_several = self.starts > 1 and epoch <= warmup
        return (f"start {start + 1} of {self.starts}, " if is_one_of_several else "") + f"epoch {epoch}/{self.epochs}"

    @property
    def read_type(self) -> type:
        """The dataclass of the beliefs that `read` gets once the method is fitted."""
        return self.beliefs_type

    def choose_frozen_encoder(self, inputs: Inputs) -> Encoder | None:
        """The pretrained encoder by which inputs are embedded once; None if the encoder is trained instead."""
        name = self.encoder_for(inputs)
        if has_weights(name, self.weights):
            return None if self.fine_tune == "throughout" else self.build_frozen_encoder(inputs)
        if self.fine_tune is True:
            raise ValueError(
                f"Expected an encoder with weights to fine-tune. Received: {name!r}, which starts from random weights "
                "and is trained anyway. Leave fine_tune out, or name weights."
            )
        return None

    def build(
        self, input_shape: tuple[int, ...], inputs: Inputs | None = None, saved: Mapping[str, Tensor] | None = None
    ) -> Network:
        """A new network, scaled for these inputs if they are features; `saved` are tensors that are loaded later.

        With a frozen encoder, it is a network on its embeddings.
        """
        name, weights = self.encoder, self.weights
        if self.frozen_encoder_ is not None:
            name, weights, input_shape = "mlp", None, (self.frozen_encoder_.dim,)
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
        of_embeddings = self.frozen_encoder_ is not None and len(input_shape) == 1  # the setting is about images
        if self.augmentation == "auto" or of_embeddings:
            of_features = "none" if self.views == 1 else "features"  # a loss of two equal views is constant
            return resolve_augmentation({1: of_features, 3: "digits", 4: "volumes"}[len(input_shape)])
        chosen = resolve_augmentation(self.augmentation)
        return chosen if chosen.kernel_seed is None else replace(chosen, kernel_seed=self.seed)

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        trained = self.trained_on(cohort)
        self._train(trained.inputs, trained.diagnosis, progress, checkpoint)

    def trained_on(self, cohort: Cohort) -> Cohort:
        """The subjects of a training cohort on whom the network is trained."""
        return cohort if self.needs_controls else cohort.patients

    def _train(
        self, inputs: Inputs, diagnosis: np.ndarray, progress: Progress | None, checkpoint: Checkpoint | None
    ) -> None:
        self.frozen_encoder_, self.fine_tuning_ = self.choose_frozen_encoder(inputs), []
        rows = held_out = None
        if self.frozen_encoder_ is not None and self.fine_tune and self.needs_controls:
            if self.comm.world_size > 1:
                raise ValueError("Expected one process to fine-tune an encoder. Received: several. Start one.")
            rows, held_out = hold_out(diagnosis, self.seed)
        # a frozen encoder is applied once; everything that follows uses the table of its embeddings
        features = inputs
        if self.frozen_encoder_ is not None:
            features = self.embed_cohort(self.frozen_encoder_, inputs, self.device)
        known = diagnosis if rows is None else diagnosis[rows]
        self.network_, self.beliefs_, self.history_, self.film_ = expectation_maximisation(
            self, features if rows is None else features[rows], known, progress, checkpoint
        )
        if rows is not None:
            self.film_ = replace(self.film_, rows=rows[self.film_.rows])
            self._fine_tune((inputs[rows], known), (inputs[held_out], diagnosis[held_out]), progress)

    def _fine_tune(
        self, train: tuple[Inputs, np.ndarray], held_out: tuple[Inputs, np.ndarray], progress: Progress | None
    ) -> None:
        before = cast(Encoder, self.frozen_encoder_)
        self.frozen_encoder_, self.network_, self.fine_tuning_ = fine_tune(
            self, before, self.network_, self.beliefs_, train, held_out, progress
        )
        if self.frozen_encoder_ is not before:  # the same beliefs, with centroids in the new embedding
            with torch.no_grad():
                z = self.project(self.network_, embed(self.encoder_of(self.network_), self._embedded(train[0])))
            self.beliefs_ = self.e_step(z, torch.as_tensor(train[1]), self.beliefs_, self.epochs)

    def remarks(self) -> list[str]:
        return [in_words(self.fine_tuning_)] if self.fine_tune is True and hasattr(self, "fine_tuning_") else []

    @property
    def whole_encoder(self) -> nn.Module:
        """From inputs to embeddings, with gradients: the frozen encoder, if there is one, and the trained one."""
        trained = self.encoder_of(self.network_)
        return trained if self.frozen_encoder_ is None else nn.Sequential(self.frozen_encoder_.fast, trained)

    def _reorder(self, order: np.ndarray) -> None:
        super()._reorder(order)
        names = {f"size_{subgroup_letter(k)}": f"size_{subgroup_letter(was)}" for k, was in enumerate(order)}
        self.history_ = [row | {now: row[was] for now, was in names.items() if was in row} for row in self.history_]

    def _predict(self, inputs: Inputs) -> Prediction:
        def read(z: Tensor) -> dict[str, Tensor]:
            return {"embedding": z, **self.read(self.network_, z, self.beliefs_)}

        return Prediction.of_tensors(read_all(self.encoder_of(self.network_), inputs, read))

    def tensors(self) -> dict[str, Tensor]:
        # q is about training subjects, and prediction does not need it
        beliefs = with_prefix("beliefs.", {name: value for name, value in vars(self.beliefs_).items() if name != "q"})
        return {**self.encoder_tensors(), **with_prefix("network.", self.network_.state_dict()), **beliefs}

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        tensors = self.restore_encoder(tensors)
        saved = without_prefix("network.", tensors)
        of_encoder = without_prefix("encoder.", saved)
        network = build_restored(lambda: self.build(self.input_shape_, saved=of_encoder), saved)
        self.network_ = network.eval()
        known = without_prefix("beliefs.", tensors)
        if "q" in {f.name for f in fields(self.read_type)}:
            known["q"] = torch.empty(0, self.n_subgroups)
        self.beliefs_ = self.read_type(**known)

    def predict_blank(self) -> dict[str, Tensor]:
        encoder: Any = self.encoder_of(self.network_)
        z = torch.zeros(1, encoder.dim)
        with torch.no_grad():
            return {"embedding": z, **self.read(self.network_, z, self.beliefs_)}


def cosine(done: float) -> float:
    """Half a cosine, from 1 at `done` = 0 to 0 at `done` = 1."""
    return 0.5 * (1 + math.cos(math.pi * done))
