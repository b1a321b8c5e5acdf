"""What every method is: a dataclass of settings that is also a scikit-learn estimator."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.matching import largest_first
from phenogroups.data.augment import Augmentation, resolve_augmentation
from phenogroups.data.batches import Batch
from phenogroups.data.cohort import Cohort, CohortError, subgroup_letter
from phenogroups.data.embeddings import keeping_embeddings
from phenogroups.data.stored import Inputs
from phenogroups.data.untrusted import check_types
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
from phenogroups.training.distributed import communicator, on_device
from phenogroups.training.em import Embed, Progress, expectation_maximisation
from phenogroups.training.embedding import embed, embed_once, read_all
from phenogroups.training.fine_tuning import fine_tune

LEAST = {  # of settings that count
    "n_subgroups": 2, "epochs": 1, "batch_size": 2, "restarts": 1, "warmup": 0, "n_starts": 1, "components": 1,
    "neighbours": 1, "latent": 1, "fine_tune_epochs": 1, "n_consensus": 1, "iterations": 1, "backbone_rate": 0,
    "runs": 2,
}  # fmt: skip
APART = 10  # of so many subjects, one judges whether fine-tuning helped
DECIDED = 2 / 3  # share of several runs that must put a subject into the same subgroup

EYES = "eyes."  # before the names of a frozen encoder's tensors in a model file
MEANS, ORDER = "subgroup_means", "subgroup_order"  # names of these tensors in a model file
BY_SUBGROUP = ("centroids", "means", "log_sizes", "log_heights", "phi")  # beliefs that have a row for each subgroup


@dataclass(frozen=True)
class Prediction:
    """All that evaluation and report know of a method's view of some subjects."""

    subgroup: np.ndarray  # (n, subgroups): probabilities, for controls too
    diagnosis: np.ndarray | None  # (n,): probability of being a patient; None without a diagnosis head
    embedding: np.ndarray  # (n, dims)
    by_centroid: np.ndarray | None = None  # (n, subgroups): read from the centroids instead of the gate
    experts: np.ndarray | None = None  # (n, subgroups): log-odds of being a patient, by the expert of each subgroup
    agreement: np.ndarray | None = None  # (n,): share of the runs whose likeliest subgroup is this one; of one run: 1

    def __post_init__(self) -> None:
        if self.agreement is None:
            object.__setattr__(self, "agreement", np.ones(len(self.subgroup)))

    @property
    def confidence(self) -> np.ndarray:
        """(n,): probability of the likeliest subgroup."""
        return self.subgroup.max(axis=1)

    @property
    def undecided(self) -> np.ndarray:
        """(n,): True for whom runs put into different subgroups; nobody, if there was one run."""
        return np.asarray(self.agreement) < DECIDED

    @classmethod
    def of_tensors(cls, found: dict[str, Tensor]) -> "Prediction":
        arrays: dict[str, Any] = {name: values.numpy() for name, values in found.items()}
        return cls(**{"diagnosis": None, **arrays})

    def in_order(self, order: np.ndarray) -> "Prediction":
        """With the subgroup that is number `order[k]` here as number k."""
        by_subgroup = {name: getattr(self, name) for name in ("subgroup", "by_centroid", "experts")}
        return replace(self, **{k: np.take(v, order, axis=1) for k, v in by_subgroup.items() if v is not None})

    def __getitem__(self, rows: Any) -> "Prediction":
        some: dict[str, Any] = {name: None if values is None else values[rows] for name, values in vars(self).items()}
        return Prediction(**some)


@dataclass(eq=False, repr=False)
class Method(ClassifierMixin, TransformerMixin, BaseEstimator):
    """`fit` a cohort or arrays, then ask for diagnosis, subgroup and embedding. What is learned ends in `_`."""

    n_subgroups: int = 2  # how many subgroups are looked for among the patients
    seed: int = 0  # same seed, same bits, on one machine with one number of threads

    needs_controls: ClassVar[bool] = True  # whether the diagnosis is learned from
    reads_truth: ClassVar[bool] = False  # whether it is told the known subgroups, as only an upper bound may be
    supports_distributed: ClassVar[bool] = False  # whether several processes can train it together

    def fit(
        self, X: Cohort | ArrayLike, y: ArrayLike | None = None, *, progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Self:  # fmt: skip
        """Learn from a cohort, or from inputs X and diagnosis y: of its two values, the greater is the patient.

        `checkpoint` keeps every epoch, so that whoever is interrupted can go on; `discover` makes one.
        """
        self.fit_predict_cohort(X, y, progress=progress, checkpoint=checkpoint)
        return self

    def fit_predict_cohort(
        self, X: Cohort | ArrayLike, y: ArrayLike | None = None, *, progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Prediction:  # fmt: skip
        """`fit`, and the prediction of the training subjects that it makes anyway: this process's own, of several."""
        self.check_settings()
        if self.comm.world_size > 1:
            self.require_distributed_support()
        cohort = self._training_cohort(X, y)
        cohort.require(self.n_subgroups, controls=self.needs_controls)
        self._accept(cohort.input_shape)
        self.by_size_ = np.arange(self.n_subgroups)  # as learned, until their sizes are known
        self._fit(cohort, progress, checkpoint)
        own = cohort if self.comm.world_size == 1 else cohort[self.comm.shard(len(cohort))]
        found = self.predict_cohort(own)
        if not self.reads_truth:  # known subgroups keep the order of their names
            self._number(largest_first(torch.as_tensor(found.subgroup[own.is_patient]), self.comm))
            found = found.in_order(self.by_size_)
        labels = np.where(own.is_patient, found.subgroup.argmax(axis=1), -1)
        self.labels_ = self.comm.gather(torch.as_tensor(labels)).numpy()
        self.subgroup_means_ = means_of(found.embedding, labels, self.n_subgroups, self.comm)
        return found

    def _number(self, order: np.ndarray) -> None:
        """From now on subgroup k is the one that is `order[k]` in what was learned: in network, beliefs and `read`."""
        self.by_size_ = order

    @property
    def comm(self) -> Communicator:
        """That of the processes that train together: in E-steps, each has the embeddings of its own subjects only."""
        return communicator()

    def require_distributed_support(self) -> None:
        """Raise where several processes cannot train this method together."""
        if not self.supports_distributed:
            from phenogroups.methods import METHODS  # here, as the table of methods names this one too

            able = ", ".join(name for name, make in METHODS.items() if make().supports_distributed)
            raise ValueError(
                f"Expected a method that several processes can train together: {able}. Received: "
                f"{type(self).__name__} with these settings. Choose one of those, or one process."
            )

    @property
    def covariates(self) -> tuple[str, ...]:
        """What must be known of a subject beside its input."""
        return ()

    @property
    def by_lite0(self) -> bool:
        """Whether images that suit it are seen by the encoder lite0, which was trained at a size of its own."""
        return False

    def check_covariates(self, who: Cohort) -> None:
        """Raise where these subjects lack what must be known of them; their inputs are not looked at."""

    def caveats(self) -> list[str]:
        """What a reader must know before believing the subgroups, in plain sentences; none is good news."""
        return []

    def remarks(self) -> list[str]:
        """What else a reader may want to know of the training, in plain sentences."""
        return []

    def predict_cohort(self, X: Cohort | ArrayLike) -> Prediction:
        """Everything the method says of these subjects; their diagnosis is not looked at."""
        check_is_fitted(self)
        return self._predict(self._inputs(X)).in_order(self.by_size_)

    def predict(self, X: Cohort | ArrayLike) -> np.ndarray:
        patient = self.predict_proba(X).argmax(axis=1)
        return self.classes_[patient]

    def predict_proba(self, X: Cohort | ArrayLike) -> np.ndarray:
        """(n, 2): probability of control and of patient."""
        ill = self.predict_cohort(X).diagnosis
        if ill is None:
            raise AttributeError(f"{type(self).__name__} has no diagnosis head: it was trained on patients only.")
        return np.stack([1 - ill, ill], axis=1)

    def predict_subgroup(self, X: Cohort | ArrayLike) -> np.ndarray:
        return self.predict_subgroup_proba(X).argmax(axis=1)

    def predict_subgroup_proba(self, X: Cohort | ArrayLike) -> np.ndarray:
        return self.predict_cohort(X).subgroup

    def transform(self, X: Cohort | ArrayLike) -> np.ndarray:
        """The embedding (n, dims)."""
        return self.predict_cohort(X).embedding

    def restore(self, input_shape: tuple[int, ...], tensors: dict[str, Tensor]) -> Self:
        """Become fitted again from what `state` gave."""
        self.classes_ = np.array([0, 1])
        self._accept(input_shape)
        # earlier versions wrote neither
        self.subgroup_means_ = tensors[MEANS].numpy() if MEANS in tensors else None
        self._restore({name: value for name, value in tensors.items() if name not in (MEANS, ORDER)})
        self._check_sizes(self.blank())
        as_learned = torch.arange(self.n_subgroups)
        order = tensors.get(ORDER, as_learned)
        if order.dtype != torch.int64 or not torch.equal(order.sort().values, as_learned):
            raise ValueError(f"Expected {ORDER} of {self.n_subgroups} subgroups. Received: {order}.")
        self.by_size_ = order.numpy()
        return self

    def state(self) -> dict[str, Tensor]:
        """What the model file holds, and `restore` takes."""
        own = {MEANS: torch.as_tensor(self.subgroup_means_), ORDER: torch.as_tensor(self.by_size_)}
        return {**self.tensors(), **own}

    def check_settings(self) -> None:
        """Raise where a setting is not of its declared type, before anything is read or trained."""
        check_types(self)
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in LEAST and value is not None and value < LEAST[f.name]:
                raise ValueError(f"Expected {f.name} of at least {LEAST[f.name]}. Received: {value!r}.")

    # what a method supplies
    def tensors(self) -> dict[str, Tensor]:
        """Everything learned that prediction needs, for the model file."""
        raise NotImplementedError(f"{type(self).__name__} must say which tensors it learned.")

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        raise NotImplementedError(f"{type(self).__name__} must say how it is restored.")

    def blank(self) -> dict[str, Tensor]:
        """Fields of a Prediction of one blank subject, without a look at inputs: whether what was restored fits."""
        raise NotImplementedError(f"{type(self).__name__} must say what it makes of a blank subject.")

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        raise NotImplementedError(f"{type(self).__name__} must say how it is fitted.")

    def _predict(self, inputs: Inputs) -> Prediction:
        raise NotImplementedError(f"{type(self).__name__} must say how it predicts.")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.transformer_tags.preserves_dtype = ["float32"]  # networks think in float32
        return tags

    def _accept(self, input_shape: tuple[int, ...]) -> None:
        self.input_shape_ = tuple(input_shape)
        if len(self.input_shape_) == 1:
            self.n_features_in_ = self.input_shape_[0]

    def _check_sizes(self, blank: dict[str, Tensor]) -> None:
        """Raise where a restored model does not speak of as many subgroups as its settings do."""
        by_subgroup = (1, self.n_subgroups)
        expected = {"subgroup": by_subgroup, "by_centroid": by_subgroup, "experts": by_subgroup, "diagnosis": (1,)}
        expected["embedding"] = (1, blank["embedding"].shape[-1])
        sizes = {name: tuple(values.shape) for name, values in blank.items()}
        if self.subgroup_means_ is not None:
            expected[MEANS] = (self.n_subgroups, blank["embedding"].shape[-1])
            sizes[MEANS] = self.subgroup_means_.shape
        for name, size in sizes.items():
            if size != expected[name]:
                raise ValueError(f"Expected {name} of shape {expected[name]}. Received: {size}.")
        beliefs = vars(self.beliefs_) if hasattr(self, "beliefs_") else {}
        for name, values in beliefs.items():
            if name in BY_SUBGROUP and (values.ndim == 0 or len(values) != self.n_subgroups):
                raise ValueError(f"Expected {name} of {self.n_subgroups} subgroups. Received: {tuple(values.shape)}.")
        if not all(values.is_floating_point() for values in blank.values()):
            raise ValueError("Expected tensors of floating numbers. Received: others.")

    def _training_cohort(self, X: Any, y: Any) -> Cohort:
        if isinstance(X, Cohort):
            self.classes_ = np.array([0, 1])
            return X
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None: the diagnosis of every subject.")
        if np.asarray(X).ndim in (4, 5):
            X, y = np.asarray(X), np.asarray(y)
        else:
            X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            raise CohortError(
                "Only binary classification is supported. The type of the target is multiclass: expected two values of "
                f"diagnosis (control, patient). Received: {len(self.classes_)} classes. Recode or drop the others."
            )
        patient = y == self.classes_[-1] if len(self.classes_) == 2 else np.full(len(y), True)
        return Cohort(X, patient.astype(np.int64))

    def _inputs(self, X: Any) -> Inputs:
        if isinstance(X, Cohort):
            inputs = X.inputs
        elif len(self.input_shape_) == 1:
            inputs = validate_data(self, X, dtype=np.float32, reset=False)
        else:
            inputs = np.asarray(X)
        if inputs.shape[1:] != self.input_shape_:
            raise CohortError(
                f"Expected inputs of shape {self.input_shape_} per subject, as in training. "
                f"Received: {inputs.shape[1:]}. Prepare them as the training cohort was."
            )
        # whoever comes without a diagnosis is checked at the same door
        return inputs if isinstance(X, Cohort) else Cohort(inputs, np.zeros(len(inputs))).inputs


@dataclass(eq=False, repr=False)
class DeepMethod(Method):
    """A method with a network: supplies the hooks of the EM loop in `phenogroups.training.em`."""

    encoder: str = "auto"  # a name in networks.encoders, hf:NAME, or auto: mlp, light or lite0, by the inputs
    weights: str | None = (
        None  # of the encoder: a file, imagenet (for resnet18), random, or None: its own if it has any
    )
    fine_tune: bool | Literal["throughout"] = False  # whether an encoder with weights learns; throughout: as published
    fine_tune_epochs: int = 2  # of fine-tuning after the subgroups are found, at most
    backbone_rate: float = 0.1  # learning rate of an encoder with weights that learns, as a share of the heads'
    augmentation: str | Augmentation = "auto"  # a name in data.augment or its numbers
    epochs: int = 6  # E-steps and M-steps, at most
    steps: int = 40  # at least so many gradient steps per epoch: small cohorts are passed several times
    batch_size: int = 256
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"  # of the learning rate
    recalibrate_batch_norm: bool = True  # take its statistics from plain inputs at the end
    device: str = "auto"  # as Fabric's accelerator: auto, cpu, gpu, mps
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"  # as Fabric's precision

    views: ClassVar[int] = 1  # augmented versions of each input per batch
    e_step_each_epoch: ClassVar[bool] = True  # False: one E-step, at the end
    warmup: ClassVar[int] = 0  # epochs before the first E-step; beliefs are None until then
    restarts: ClassVar[int] = 1  # networks that are started; one is elected to go on after its first E-step
    stop_below: ClassVar[float] = 0.0  # share of the smallest subgroup that still moves; twice below: one epoch more
    beliefs_type: ClassVar[type]  # the dataclass of tensors that `e_step` returns
    # of what was fitted: the frozen encoder whose embeddings were trained on. No annotation: it is no setting
    eyes_ = cast(Encoder | None, None)

    # the hooks: what a method file supplies
    def heads(self, encoder: Encoder, input_shape: tuple[int, ...]) -> dict[str, nn.Module]:
        raise NotImplementedError

    def losses(self, network: Network, batch: Batch, beliefs: Any) -> dict[str, Tensor]:
        raise NotImplementedError

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int) -> Any:
        raise NotImplementedError

    def encoder_of(self, network: Network) -> nn.Module:
        """The encoder that embeds for E-steps and predictions, where a network has several."""
        return network.encoder

    def project(self, network: Network, embedding: Tensor) -> Tensor:
        """What of an embedding the E-step sees."""
        return embedding

    def partners(self, index: Tensor, beliefs: Any) -> Tensor | None:
        """Of each subject of a batch, another one whose view joins it as the last of `Batch.views`."""
        return None

    def after_step(self, network: Network) -> None:
        """What follows every gradient step."""

    def learning_rate_factor(self, epoch: int) -> float:
        """What the learning rate is multiplied with in this epoch: its schedule."""
        return 1.0 if self.schedule == "constant" else cosine(epoch / self.epochs)

    def elect(self, encoders: list[Embed], diagnosis: Tensor, features: Tensor | None) -> tuple[int, Any]:
        """Which of several starts goes on after the warm-up, and with which beliefs; `features` if they are a table."""
        return 0, self.e_step(encoders[0](), diagnosis, None, self.warmup)

    def moved(self, before: Any, after: Any, diagnosis: Tensor) -> float | None:
        """How many patients an E-step put into another subgroup, as a share of the smallest; None: it does not say."""
        was, now = (beliefs.q[diagnosis == 1].argmax(1) for beliefs in (before, after))
        smallest = self.comm.all_reduce(torch.bincount(now, minlength=self.n_subgroups)).min().clamp_min(1)
        return (self.comm.all_reduce((was != now).sum()) / smallest).item()

    def converged(self, history: list[dict[str, float]]) -> bool:
        """Whether the last two E-steps moved hardly anybody, so that one more epoch is enough."""
        last = [row["moved"] for row in history if "moved" in row][-2:]
        return len(last) == 2 and max(last) < self.stop_below

    def read(self, network: Network, embedding: Tensor, beliefs: Any) -> dict[str, Tensor]:
        """Fields of a Prediction from a batch of embeddings."""
        raise NotImplementedError

    def observe(self, network: Network, embedding: Tensor, diagnosis: Tensor, beliefs: Any) -> dict[str, float]:
        """What history.csv shows of an epoch beside its losses."""
        return {}

    # the same for every deep method
    @property
    def passes(self) -> int:
        """Epochs of all starts together, as progress counts them."""
        return self.epochs + (self.restarts - 1) * min(self.warmup, self.epochs)

    @property
    def by_lite0(self) -> bool:
        return is_lite0(self.encoder, self.weights)

    def encoder_for(self, inputs: Inputs) -> str:
        """The name of the encoder that sees these inputs."""
        return default_encoder(inputs.shape[1:], self.weights, inputs) if self.encoder == "auto" else self.encoder

    def look(self, inputs: Inputs) -> Encoder | None:
        """The eyes: an encoder that has learned elsewhere and stays as it is; None if the encoder itself is trained."""
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
        with torch.random.fork_rng():  # weights are drawn before they are replaced
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
            name = default_encoder(input_shape, weights, inputs)
        encoder = build_encoder(name, input_shape, weights, saved)
        if inputs is not None:
            encoder.check_inputs(inputs)
        # each feature has its own units
        if isinstance(encoder, MLP) and inputs is not None and not has_weights(name, weights):
            encoder.fit_scaling(torch.tensor(np.asarray(inputs)))
        return Network(encoder, self.heads(encoder, input_shape))

    def augment(self, input_shape: tuple[int, ...]) -> Augmentation:
        of_embeddings = self.eyes_ is not None and len(input_shape) == 1  # what is asked for is of images
        if self.augmentation == "auto" or of_embeddings:
            of_features = "none" if self.views == 1 else "features"  # equal views would teach nothing
            return resolve_augmentation({1: of_features, 3: "digits", 4: "volumes"}[len(input_shape)])
        return resolve_augmentation(self.augmentation)

    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        seen = self.trained_on(cohort)
        self._train(seen.inputs, seen.diagnosis, progress, checkpoint)

    def trained_on(self, cohort: Cohort) -> Cohort:
        """Those of a training cohort whom the network sees, in its order."""
        return cohort if self.needs_controls else cohort.patients

    def _train(
        self, inputs: Inputs, diagnosis: np.ndarray, progress: Progress | None, checkpoint: Checkpoint | None
    ) -> None:
        self.eyes_ = self.look(inputs)
        # what does not learn need not be asked again: all that follows works on the table of its embeddings
        seen = inputs if self.eyes_ is None else self.see(self.eyes_, inputs)
        self.fine_tuning_, judges = [], None
        if self.eyes_ is not None and self.fine_tune and self.needs_controls:
            rows, judges = some_apart(diagnosis, self.seed)  # nobody may judge who was learned from
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
        """Let the eyes learn under the beliefs found, as far as `others` are then diagnosed better."""
        if self.comm.world_size > 1:
            raise ValueError("Expected one process to fine-tune an encoder. Received: several. Start one.")

        def judge(eyes: Encoder, network: Network) -> np.ndarray:
            """Log-losses, either class counting half: of so few, accuracy would take steps of several percent."""
            with keeping_embeddings(None):  # of weights that nobody will see again
                z = embed_once(eyes, others)
            p = read_all(self.encoder_of(network), z, lambda z: self.read(network, z, self.beliefs_))["diagnosis"]
            return balanced_log_losses(p.numpy(), told)

        before = cast(Encoder, self.eyes_)
        self.eyes_, self.network_, self.fine_tuning_ = fine_tune(
            self, before, self.network_, self.beliefs_, inputs, diagnosis, epochs=self.fine_tune_epochs,
            seed=self.seed, device=next(on_device(nn.Linear(1, 1), self.device).parameters()).device, judge=judge,
            progress=progress,
        )  # fmt: skip
        if self.eyes_ is not before:  # centroids where the embeddings now are, from the same beliefs
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
    def whole_encoder(self) -> nn.Module:
        """From inputs to embeddings, with gradients: the eyes, if there are any, and what was trained."""
        trained = self.encoder_of(self.network_)
        return trained if self.eyes_ is None else nn.Sequential(self.eyes_.fast, trained)

    def _number(self, order: np.ndarray) -> None:
        super()._number(order)
        names = {f"size_{subgroup_letter(k)}": f"size_{subgroup_letter(was)}" for k, was in enumerate(order)}
        self.history_ = [row | {now: row[was] for now, was in names.items() if was in row} for row in self.history_]

    def _predict(self, inputs: Inputs) -> Prediction:
        found = read_all(
            self.encoder_of(self.network_), inputs if self.eyes_ is None else embed_once(self.eyes_, inputs),
            lambda z: {"embedding": z, **self.read(self.network_, z, self.beliefs_)},
        )  # fmt: skip
        return Prediction.of_tensors(found)

    def tensors(self) -> dict[str, Tensor]:
        beliefs = {f"beliefs.{f.name}": getattr(self.beliefs_, f.name) for f in fields(self.beliefs_)}
        beliefs.pop("beliefs.q", None)  # of the training subjects; prediction does not need them
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
        with torch.device("meta"):  # without memory: what the recipe asks for may be larger than what the file holds
            require_tensors(self.build(self.input_shape_, saved=of_encoder).state_dict(), saved)
        network = self.build(self.input_shape_, saved=of_encoder)
        network.load_state_dict(saved)
        self.network_ = network.eval()
        known = without_prefix("beliefs.", tensors)
        if "q" in {f.name for f in fields(self.beliefs_type)}:
            known["q"] = torch.empty(0, self.n_subgroups)
        self.beliefs_ = self.beliefs_type(**known)

    def blank(self) -> dict[str, Tensor]:
        encoder: Any = self.encoder_of(self.network_)
        z = torch.zeros(1, encoder.dim)
        with torch.no_grad():
            return {"embedding": z, **self.read(self.network_, z, self.beliefs_)}


def some_apart(diagnosis: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and a tenth of either class, one at least, to judge by."""
    rng = np.random.default_rng(seed)
    classes = [rng.permutation(np.flatnonzero(diagnosis == kind)) for kind in np.unique(diagnosis)]
    if min(map(len, classes)) < 2:
        raise ValueError(
            f"Expected at least two subjects of either class to fine-tune: one learns, one judges. Received: "
            f"{', '.join(str(len(rows)) for rows in classes)}. Bring more, or leave fine_tune out."
        )
    apart = np.sort(np.concatenate([rows[: max(len(rows) // APART, 1)] for rows in classes]))
    return np.setdiff1d(np.arange(len(diagnosis)), apart), apart


def balanced_log_losses(p: np.ndarray, diagnosis: np.ndarray) -> np.ndarray:
    """(n,): whose mean is that of the classes' mean log-losses; p is the probability of being a patient."""
    right = np.clip(np.where(diagnosis == 1, p, 1 - p).astype(np.float64), 1e-7, 1)
    shares = np.bincount(diagnosis, minlength=2) / len(diagnosis)
    return -np.log(right) / shares[diagnosis] / np.count_nonzero(shares)


def restored_encoder(name: str, input_shape: tuple[int, ...], saved: Mapping[str, Tensor]) -> Encoder:
    """A frozen encoder from its tensors, without a look at any other file."""
    name = encoder_of_file(input_shape, saved) if name == "auto" else name
    with torch.device("meta"):
        require_tensors(build_encoder(name, input_shape, saved=saved).state_dict(), saved)
    encoder = build_encoder(name, input_shape, saved=saved)
    encoder.load_state_dict(saved)
    return encoder.freeze()


def require_tensors(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors given are those expected, by name, shape and type."""
    missing, strange = (
        [name for name in expected if name not in given],
        [name for name in given if name not in expected],
    )
    if missing or strange:
        raise ValueError(
            f"Expected the {len(expected)} tensors of the network. Received: {len(missing)} missing "
            f"({', '.join(missing[:3])}), {len(strange)} others ({', '.join(strange[:3])})."
        )
    for name, like in expected.items():
        if given[name].shape != like.shape or given[name].dtype != like.dtype:
            raise ValueError(
                f"Expected {name} of shape {tuple(like.shape)}, {like.dtype}. Received: a size mismatch, "
                f"{tuple(given[name].shape)}, {given[name].dtype}."
            )


def means_of(embedding: np.ndarray, labels: np.ndarray, n_subgroups: int, comm: Communicator = LOCAL) -> np.ndarray:
    """(subgroups, dims): mean embedding of the patients in each; of an empty one, nowhere (NaN)."""
    return np.stack([comm.mean(torch.as_tensor(embedding[labels == k])).float().numpy() for k in range(n_subgroups)])


def predict_together(method: Method, cohort: Cohort, found: Prediction | None = None) -> Prediction | None:
    """What all processes say together, each of its own subjects, on the first of them; None on others.

    `found` is the prediction of this process's own subjects, if it is known already.
    """
    comm = method.comm
    if len(cohort) < comm.world_size:
        return None if comm.rank else found or method.predict_cohort(cohort)
    found = found or method.predict_cohort(cohort[comm.shard(len(cohort))])
    rows = {name: comm.gather_on_first(torch.as_tensor(v)) for name, v in vars(found).items() if v is not None}
    return None if comm.rank else Prediction.of_tensors({name: v for name, v in rows.items() if v is not None})


def cosine(done: float) -> float:
    """From 1 to 0 as `done` goes from 0 to 1, slowly at both ends."""
    return 0.5 * (1 + math.cos(math.pi * done))
