"""The prediction of a method for some subjects."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

DECIDED = 2 / 3  # share of the runs of a consensus that must assign a subject to the same subgroup


@dataclass(frozen=True)
class Prediction:
    """The prediction of a method for n subjects, on which evaluation and report are based.

    Parameters
    ----------
    subgroup
        Probability of each subgroup, of shape (n, n_subgroups); for controls too.
    diagnosis
        Probability of being a patient, of shape (n,); None if the method has no diagnosis head.
    embedding
        Embedding, of shape (n, n_dims).
    by_centroid
        Probability of each subgroup by the distance to its centroid instead of by the gate, of shape (n, n_subgroups).
    experts
        Log-odds of being a patient by the expert of each subgroup, of shape (n, n_subgroups).
    agreement
        Share of the runs of a consensus that assign the same subgroup, of shape (n,); 1 for a single run.

    Examples
    --------
    >>> import numpy as np
    >>> from phenogroups import Prediction
    >>> found = Prediction(np.array([[0.9, 0.1], [0.4, 0.6]]), None, np.zeros((2, 3)))
    >>> found.confidence
    array([0.9, 0.6])
    >>> len(found[:1].subgroup)
    1
    """

    subgroup: np.ndarray
    diagnosis: np.ndarray | None
    embedding: np.ndarray
    by_centroid: np.ndarray | None = None
    experts: np.ndarray | None = None
    agreement: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.agreement is None:
            object.__setattr__(self, "agreement", np.ones(len(self.subgroup)))

    @property
    def confidence(self) -> np.ndarray:
        """Probability of the likeliest subgroup, of shape (n,)."""
        return self.subgroup.max(axis=1)

    @property
    def undecided(self) -> np.ndarray:
        """True where fewer than two thirds of the runs assign the same subgroup, of shape (n,)."""
        return np.asarray(self.agreement) < DECIDED

    @classmethod
    def of_tensors(cls, found: dict[str, Tensor]) -> "Prediction":
        """A prediction from tensors by field; the diagnosis may be missing."""
        arrays: dict[str, Any] = {name: values.numpy() for name, values in found.items()}
        return cls(**{"diagnosis": None, **arrays})

    def in_order(self, order: np.ndarray) -> "Prediction":
        """The same prediction with its subgroups reordered: subgroup k of the result is `order[k]` of this one."""
        by_subgroup = {name: getattr(self, name) for name in ("subgroup", "by_centroid", "experts")}
        return replace(self, **{k: np.take(v, order, axis=1) for k, v in by_subgroup.items() if v is not None})

    def __getitem__(self, rows: Any) -> "Prediction":
        fields: dict[str, Any] = {k: None if values is None else values[rows] for k, values in vars(self).items()}
        return Prediction(**fields)
