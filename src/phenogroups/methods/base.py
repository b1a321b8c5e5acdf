"""What every method is: a dataclass of settings that is also a scikit-learn estimator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.familiar import fit_familiar
from phenogroups.clustering.matching import largest_first
from phenogroups.data.batches import read_in_blocks
from phenogroups.data.cohort import CONTROL, PATIENT, Cohort, CohortError
from phenogroups.data.columns import patient_value
from phenogroups.data.stored import Inputs
from phenogroups.methods.documentation import complete_docstring
from phenogroups.methods.prediction import Prediction
from phenogroups.methods.registry import METHODS, from_json, register
from phenogroups.methods.saving import Saved
from phenogroups.methods.settings import AtLeast, check_limits
from phenogroups.networks.image_statistics import image_statistics
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.distributed import communicator
from phenogroups.training.em import Progress
from phenogroups.training.embedding import embed_once

KNOWN = 1000  # largest number of training subjects that a new subject is compared with
Assign = Callable[[np.ndarray], np.ndarray]  # from vectors (n, dims) to the subgroup of each (n,)


@dataclass(eq=False, repr=False)
class Method(Saved, ClassifierMixin, TransformerMixin, BaseEstimator):
    """The base class of methods, which find subgroups among patients.

    It is a scikit-learn estimator: the constructor records the settings, `fit` learns, and the names of what is learned
    end in `_`. A subclass documents its own settings in its docstring; those of its parents are added. With a name
    (``class SimCLR(DeepMethod, name="simclr")``) it is registered in `METHODS` as soon as it is defined.

    Parameters
    ----------
    n_subgroups
        Number of subgroups to look for among the patients.
    seed
        Seed of all random numbers. On one machine with one number of threads, the same seed gives the same bits.

    Attributes
    ----------
    labels_ : ndarray of shape (n_subjects,)
        Subgroup of each training patient, the largest being 0; -1 for controls.
    subgroup_means_ : ndarray of shape (n_subgroups, n_dims)
        Mean embedding of the training patients of each subgroup; NaN for an empty one.
    classes_ : ndarray of shape (2,)
        Values of the diagnosis, sorted as scikit-learn expects: 0 (control) and 1 (patient), or the two values of y.
    patient_
        The one of them that means patient.

    Examples
    --------
    >>> from phenogroups import METHODS, drawn_table
    >>> from phenogroups.methods import Method
    >>> method = METHODS["kmeans"](n_subgroups=3)
    >>> isinstance(method, Method)
    True
    >>> sorted(set(method.fit(drawn_table(80)).labels_.tolist()))
    [-1, 0, 1, 2]
    """

    n_subgroups: Annotated[int, AtLeast(2)] = 2
    seed: int = 0

    needs_controls: ClassVar[bool] = True  # whether the method learns from the diagnosis
    reads_truth: ClassVar[bool] = False  # whether it learns from the known subgroups, as only an upper bound may
    supports_distributed: ClassVar[bool] = False  # whether several processes can train it together
    settings_of_its_own: ClassVar[tuple[str, ...]] = ()  # a recipe for another method does not change these

    def __init_subclass__(
        cls, name: str | None = None, presets: Mapping[str, Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> None:
        """Complete the docstring; register the class under `name`, and with other defaults under those of `presets`."""
        super().__init_subclass__(**kwargs)
        complete_docstring(cls, name)
        if name is not None:
            register(name, cls, presets or {})

    def fit(
        self, X: Cohort | ArrayLike, y: ArrayLike | None = None, *, patient: Any = None,
        progress: Progress | None = None, checkpoint: Checkpoint | None = None,
    ) -> Self:  # fmt: skip
        """Find subgroups among the patients.

        Parameters
        ----------
        X
            A cohort, or inputs of shape (n_subjects, n_features), (n_subjects, channels, height, width) or
            (n_subjects, channels, depth, height, width).
        y
            Diagnosis of each subject where X is no cohort. Of two numbers the greater means patient. Of two words one
            must mean control: control, healthy, normal, unaffected, ctrl, ctl, con, HC, CN, NC, TD or HV; the other
            then means patient. Other words are refused unless `patient` is given.
        patient
            The value of y that means patient, such as "AD" where y has "AD" and "MCI".
        progress
            Called with a dict several times in every epoch: `epoch` and the mean of each loss so far.
        checkpoint
            Saves every epoch, so that an interrupted training can be resumed; `discover` makes one.

        Returns
        -------
        Method
            The method itself, fitted.
        """
        self.fit_predict_cohort(X, y, patient=patient, progress=progress, checkpoint=checkpoint)
        return self

    def fit_predict_cohort(
        self, X: Cohort | ArrayLike, y: ArrayLike | None = None, *, patient: Any = None,
        progress: Progress | None = None, checkpoint: Checkpoint | None = None,
    ) -> Prediction:  # fmt: skip
        """Fit, and return the prediction of the training subjects, which fitting computes anyway.

        Parameters
        ----------
        X, y, patient, progress, checkpoint
            As in `fit`.

        Returns
        -------
        Prediction
            Of the training subjects. Of several processes, each returns the prediction of its own subjects.
        """
        self.check_settings()
        if self.comm.world_size > 1:
            self.require_distributed_support()
        cohort = self._training_cohort(X, y, patient)
        cohort.require(self.n_subgroups, controls=self.needs_controls)
        self._set_input_shape(cohort.input_shape)
        self.by_size_ = np.arange(self.n_subgroups)  # in the order of fitting, until their sizes are known
        self._fit(cohort, progress, checkpoint)
        own = cohort if self.comm.world_size == 1 else cohort[self.comm.shard(len(cohort))]
        found = self.predict_cohort(own)
        if not self.reads_truth:  # known subgroups keep the order of their names
            self._reorder(largest_first(torch.as_tensor(found.subgroup[own.is_patient]), self.comm))
            found = found.in_order(self.by_size_)
        labels = np.where(own.is_patient, found.subgroup.argmax(axis=1), -1)
        self.labels_ = self.comm.gather(torch.as_tensor(labels)).numpy()
        self.subgroup_means_ = means_of(found.embedding, labels, self.n_subgroups, self.comm)
        known = cohort[np.unique(np.linspace(0, len(cohort) - 1, KNOWN).astype(int))]
        self.novelty_ = fit_familiar(self._descriptors(known.inputs), known.group, seed=self.seed)
        return found

    def _reorder(self, order: np.ndarray) -> None:
        """Renumber the subgroups: subgroup k is `order[k]` of the network, the beliefs and `read`."""
        self.by_size_ = order

    @property
    def comm(self) -> Communicator:
        """The communicator of the processes that train together; each embeds and clusters its own subjects."""
        return communicator()

    def require_distributed_support(self) -> None:
        """Raise where several processes cannot train this method together."""
        if not self.supports_distributed:
            able = ", ".join(name for name, make in METHODS.items() if make().supports_distributed)
            raise ValueError(
                f"Expected a method that several processes can train together: {able}. Received: "
                f"{type(self).__name__} with these settings. Choose one of those, or start one process."
            )

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates that a prediction needs."""
        return ()

    @property
    def by_lite0(self) -> bool:
        """Whether the encoder lite0, which was trained at 224 pixels a side, embeds images that suit it."""
        return False

    def check_covariates(self, who: Cohort) -> None:
        """Raise where the covariates that a prediction needs are missing, without reading inputs."""

    @property
    def makes_controls_uniform(self) -> bool:
        """Whether who is recognised as a control has equal probabilities of all subgroups by design."""
        return False

    def caveats(self) -> list[str]:
        """Warnings about the subgroups that were found, in plain sentences."""
        return []

    def remarks(self) -> list[str]:
        """Notes about the training, in plain sentences."""
        return []

    def vectors(self, cohort: Cohort) -> np.ndarray | None:
        """(subjects, dims): features, or embeddings by the frozen encoder; None where the encoder is trained."""
        inputs = self._embedded(self._inputs(cohort))
        return np.asarray(inputs) if inputs.ndim == 2 else None

    def refit(self, vectors: np.ndarray, diagnosis: np.ndarray, seed: int) -> Assign | None:
        """Find subgroups in these vectors alone; returns a function that assigns vectors to them.

        None where that would take the training of a network.
        """
        return None

    def _embedded(self, inputs: Inputs) -> Inputs:
        """The inputs, or their embeddings (n, dims) where a frozen encoder embeds them."""
        return inputs if self.frozen_encoder_ is None else embed_once(self.frozen_encoder_, inputs)

    def predict_cohort(self, X: Cohort | ArrayLike) -> Prediction:
        """Predict subgroup, diagnosis and embedding together.

        Parameters
        ----------
        X
            A cohort, or inputs as in `fit`. A diagnosis is not read.

        Returns
        -------
        Prediction
            Subgroup and diagnosis probabilities and the embedding of these subjects.
        """
        check_is_fitted(self)
        return self._predict(self._embedded(self._inputs(X))).in_order(self.by_size_)

    def predict(self, X: Cohort | ArrayLike) -> np.ndarray:
        """Predict the diagnosis of each subject: one of `classes_`."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Cohort | ArrayLike) -> np.ndarray:
        """Predict the probability of each of `classes_`, control and patient: an array of shape (n_subjects, 2)."""
        ill = self.predict_cohort(X).diagnosis
        if ill is None:
            raise AttributeError(f"{type(self).__name__} has no diagnosis head: it was trained on patients only.")
        columns = [1 - ill, ill] if self.patient_ == self.classes_[-1] else [ill, 1 - ill]
        return np.stack(columns, axis=1)

    def predict_subgroup(self, X: Cohort | ArrayLike) -> np.ndarray:
        """Predict the likeliest subgroup of each subject, from 0 on."""
        return self.predict_subgroup_proba(X).argmax(axis=1)

    def predict_subgroup_proba(self, X: Cohort | ArrayLike) -> np.ndarray:
        """Predict the probability of each subgroup: an array of shape (n_subjects, n_subgroups)."""
        return self.predict_cohort(X).subgroup

    def transform(self, X: Cohort | ArrayLike) -> np.ndarray:
        """Embed subjects: an array of shape (n_subjects, n_dims)."""
        return self.predict_cohort(X).embedding

    def strangeness(self, X: Cohort | ArrayLike) -> np.ndarray:
        """Measure how unlike all training subjects each subject is, patients and controls alike.

        Parameters
        ----------
        X
            A cohort, or inputs as in `fit`. A diagnosis is not read.

        Returns
        -------
        ndarray of shape (n_subjects,)
            Mahalanobis distance to the training subjects: of the features of a table, of the embedding by a frozen
            encoder, and otherwise of brightness, roughness and histogram of an image. Above 1, a subject is unlike
            those of training; 3 % of held-out training subjects were. NaN if an earlier version saved the model.
        """
        check_is_fitted(self)
        inputs = self._inputs(X)
        if self.novelty_ is None:
            return np.full(len(inputs), np.nan)
        return self.novelty_.strangeness(self._descriptors(inputs)).numpy()

    def _descriptors(self, inputs: Inputs) -> Tensor:
        """(n, numbers): features, embeddings or image statistics, by which new subjects are compared with training."""
        inputs = self._embedded(inputs)
        if inputs.ndim == 2:
            return torch.tensor(np.asarray(inputs))
        return read_in_blocks(inputs, lambda x: {"statistics": image_statistics(x)})["statistics"]

    def check_settings(self) -> None:
        """Raise where a setting is not of its declared type or below its limit, before anything is read or trained."""
        check_limits(self)

    # settings as JSON holds them, for recipes and the command line
    @classmethod
    def setting_names(cls) -> list[str]:
        """Names of the settings, as recipes and the command line give them."""
        return [f.name for f in fields(cls)]

    @classmethod
    def parse_settings(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the constructor from settings that came as JSON."""
        return {name: from_json(value) for name, value in settings.items()}

    def settings_for_json(self) -> dict[str, Any]:
        """All settings by the names that `parse_settings` takes."""
        return self.get_params(deep=False)

    # hooks that a method supplies, beside those of `Saved`
    def _fit(self, cohort: Cohort, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define _fit().")

    def _predict(self, inputs: Inputs) -> Prediction:
        """From inputs, or from their embeddings by the frozen encoder."""
        raise NotImplementedError(f"{type(self).__name__} must define _predict().")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.transformer_tags.preserves_dtype = ["float32"]  # networks compute in float32
        return tags

    def _training_cohort(self, X: Any, y: Any, patient: Any) -> Cohort:
        if isinstance(X, Cohort):
            self.classes_, self.patient_ = np.array([CONTROL, PATIENT]), PATIENT
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
        self.patient_ = patient_value(self.classes_.tolist(), patient)
        return Cohort(X, np.where(np.asarray(y) == self.patient_, PATIENT, CONTROL))

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
        # the constructor of a cohort checks the inputs
        return inputs if isinstance(X, Cohort) else Cohort(inputs, np.zeros(len(inputs))).inputs


complete_docstring(Method)


def means_of(embedding: np.ndarray, labels: np.ndarray, n_subgroups: int, comm: Communicator = LOCAL) -> np.ndarray:
    """(subgroups, dims): mean embedding of the patients of each subgroup; NaN for an empty one."""
    return np.stack([comm.mean(torch.as_tensor(embedding[labels == k])).float().numpy() for k in range(n_subgroups)])


def predict_together(method: Method, cohort: Cohort, found: Prediction | None = None) -> Prediction | None:
    """The prediction of all subjects on the process of rank 0, where each process predicts its own; None on others.

    `found` is the prediction of the subjects of this process, if it is known already.
    """
    comm = method.comm
    if len(cohort) < comm.world_size:
        return None if comm.rank else found or method.predict_cohort(cohort)
    found = found or method.predict_cohort(cohort[comm.shard(len(cohort))])
    rows = {name: comm.gather_on_first(torch.as_tensor(v)) for name, v in vars(found).items() if v is not None}
    return None if comm.rank else Prediction.of_tensors({name: v for name, v in rows.items() if v is not None})
