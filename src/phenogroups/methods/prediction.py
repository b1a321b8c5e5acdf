"""What a method says of some subjects."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

DECIDED = 2 / 3  # share of several runs that must put a subject into the same subgroup


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
