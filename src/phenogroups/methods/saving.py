"""The model file: its tensors, and how a fitted method is restored from them; what does not fit together is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from phenogroups.clustering.familiar import Familiar
from phenogroups.data.cohort import CONTROL, PATIENT
from phenogroups.methods.registry import MEANS, name_of, settings_of
from phenogroups.methods.settings import check_shapes
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.image_statistics import number_of_statistics
from phenogroups.training.checkpoint import with_prefix, without_prefix
from phenogroups.training.distributed import communicator
from phenogroups.training.run import check_writable, new_run_folder, write_model

if TYPE_CHECKING:
    from phenogroups.methods.base import Method

ORDER = "subgroup_order"
NOVELTY = "familiar."  # before the names of the tensors by which new subjects are compared with those of training


class Saved:
    """The part of `Method` that writes a fitted method and restores it."""

    n_subgroups: int
    input_shape_: tuple[int, ...]
    classes_: np.ndarray
    patient_: Any
    by_size_: np.ndarray  # (subgroups,): for each subgroup, its position in the network, the beliefs and `read`
    subgroup_means_: np.ndarray | None
    novelty_: Familiar | None  # compares new subjects with those of training
    frozen_encoder_: Encoder | None = None  # the pretrained encoder by which images are embedded once

    # hooks that a method supplies
    def tensors(self) -> dict[str, Tensor]:
        """The learned tensors that prediction needs."""
        raise NotImplementedError(f"{type(self).__name__} must define tensors().")

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define _restore().")

    def predict_blank(self) -> dict[str, Tensor]:
        """Fields of a Prediction for an input of zeros, to check the sizes of restored tensors."""
        raise NotImplementedError(f"{type(self).__name__} must define predict_blank().")

    # the same for every method
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted method into a folder that `phenogroups.load` reads: tensors and settings, no code.

        The values of y and the names of features are saved; attributes of training subjects such as `labels_` are not.

        Parameters
        ----------
        folder
            Folder to write: `model.safetensors` and `recipe.json`, as in a run folder.
        overwrite
            Whether to replace a saved model or a finished run in that folder; otherwise it is refused.

        Examples
        --------
        >>> import phenogroups
        >>> cohort = phenogroups.drawn_table(80)
        >>> model = phenogroups.METHODS["kmeans"]().fit(cohort)
        >>> model.save("my-model")
        >>> bool((phenogroups.load("my-model").predict_subgroup(cohort) == model.predict_subgroup(cohort)).all())
        True
        """
        check_is_fitted(self)
        check_writable(folder, overwrite=overwrite)
        method = cast("Method", self)
        recipe = {"method": name_of(method), "settings": settings_of(method), "input_shape": list(self.input_shape_)}
        recipe |= {"classes": self.classes_.tolist(), "patient": np.asarray(self.patient_).item()}
        if hasattr(self, "feature_names_in_"):
            recipe["feature_names"] = self.feature_names_in_.tolist()
        if communicator().rank == 0:
            with new_run_folder(folder) as partial:
                write_model(partial, recipe, self.state())

    def restore_names(self, recipe: Mapping[str, Any]) -> None:
        """Restore the values of y and the names of features where `save` wrote them: a run folder has neither."""
        classes, patient, names = (recipe.get(key) for key in ("classes", "patient", "feature_names"))
        if classes is not None:
            is_plain = isinstance(patient, str | int | float) and isinstance(classes, list)
            if not is_plain or len(classes) > 2 or patient not in classes or classes != sorted({*classes}):
                raise ValueError(f"Expected one or two values of y, and the patients' value. Received: {classes}.")
            self.classes_, self.patient_ = np.array(classes), patient
        if names is not None:
            if [type(name) for name in names] != [str] * self.input_shape_[0] or len(self.input_shape_) > 1:
                raise ValueError(f"Expected names of the features of {self.input_shape_}. Received: {len(names)}.")
            self.feature_names_in_ = np.array(names, dtype=object)

    def restore(self, input_shape: tuple[int, ...], tensors: dict[str, Tensor]) -> Self:
        """Restore a fitted method from the tensors of `state`."""
        self.classes_, self.patient_ = np.array([CONTROL, PATIENT]), PATIENT
        self._set_input_shape(input_shape)
        # model files of earlier versions have neither
        self.subgroup_means_ = tensors[MEANS].numpy() if MEANS in tensors else None
        novelty = without_prefix(NOVELTY, tensors)
        own = {MEANS, ORDER, *with_prefix(NOVELTY, novelty)}
        self._restore({name: value for name, value in tensors.items() if name not in own})
        self._check_sizes(self.predict_blank())
        self.novelty_ = self._restored_novelty(novelty) if novelty else None
        as_learned = torch.arange(self.n_subgroups)
        order = tensors.get(ORDER, as_learned)
        if order.dtype != torch.int64 or not torch.equal(order.sort().values, as_learned):
            raise ValueError(f"Expected {ORDER} of {self.n_subgroups} subgroups. Received: {order}.")
        self.by_size_ = order.numpy()
        return self

    def state(self) -> dict[str, Tensor]:
        """All tensors of the model file, from which `restore` makes a fitted method."""
        own = {MEANS: torch.as_tensor(self.subgroup_means_), ORDER: torch.as_tensor(self.by_size_)}
        novelty = {} if self.novelty_ is None else vars(self.novelty_)
        return {**self.tensors(), **own, **with_prefix(NOVELTY, novelty)}

    def _check_sizes(self, blank: dict[str, Tensor]) -> None:
        """Raise where the sizes of restored tensors do not fit the settings; `blank` is of `predict_blank`."""
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
        beliefs = getattr(self, "beliefs_", None)
        if beliefs is not None:
            check_shapes(beliefs, subgroups=self.n_subgroups)
        if not all(values.is_floating_point() for values in blank.values()):
            raise ValueError("Expected tensors of floating numbers. Received: others.")

    def _restored_novelty(self, tensors: dict[str, Tensor]) -> Familiar:
        """The detector of unfamiliar subjects; raises where its tensors do not fit the inputs."""
        found = Familiar(**tensors)
        if len(self.input_shape_) == 1:
            dims = self.input_shape_[0]
        else:
            frozen = self.frozen_encoder_
            dims = number_of_statistics(self.input_shape_) if frozen is None else frozen.dim
        axes = len(found.deviations)
        sizes = {"center": (dims,), "scale": (dims,), "axes": (dims, axes), "deviations": (axes,)}
        for name, value in tensors.items():
            if value.dtype != torch.float64 or tuple(value.shape) != sizes.get(name, ()):
                raise ValueError(f"Expected {NOVELTY}{name} of shape {sizes.get(name, ())}. Received: {value.shape}.")
        return found

    def _set_input_shape(self, input_shape: tuple[int, ...]) -> None:
        self.input_shape_ = tuple(input_shape)
        if len(self.input_shape_) == 1:
            self.n_features_in_ = self.input_shape_[0]
