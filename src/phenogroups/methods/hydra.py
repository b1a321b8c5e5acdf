"""HYDRA: controls lie inside a polytope, and every patient leaves it through one of its K faces (Varol et al. 2017)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from phenogroups.clustering.consensus import consensus_labels
from phenogroups.clustering.dpp import dpp_start
from phenogroups.clustering.hyperplanes import Hyperplanes, balanced, fit_coordinates, fit_hyperplanes
from phenogroups.clustering.linear import logistic_hyperplane
from phenogroups.data.batches import as_tensor
from phenogroups.methods.settings import AtLeast, Shape
from phenogroups.methods.without_network import Adjustable

MOST_ALTERNATIONS = 50
SEARCH_TOLERANCE = 1e-3  # of the faces while patients still move


@dataclass(frozen=True)
class Polytope:
    weights: Annotated[Tensor, Shape("dims", "subgroups")]  # a column for each face
    intercepts: Annotated[Tensor, Shape("subgroups")]
    slope: Annotated[Tensor, Shape()]  # of the logit of the diagnosis in the best score of a subject
    offset: Annotated[Tensor, Shape()]

    def scores(self, z: Tensor) -> Tensor:
        """(n, faces): above 0 outside of a face, in units of its margin."""
        return Hyperplanes(self.weights, self.intercepts).scores(z.double())

    def read(self, z: Tensor) -> dict[str, Tensor]:
        """Subgroups by the softmax of the scores, so that the best face is the likeliest; diagnosis by the best one."""
        scores = self.scores(z)
        ill = (self.slope * scores.max(1).values + self.offset).sigmoid()
        return {"subgroup": scores.softmax(1), "diagnosis": ill}


def alternate(z: Tensor, diagnosis: Tensor, labels: Tensor, n_subgroups: int, strength: float) -> Tensor:
    """Subgroups (patients, runs) after fitting faces and moving patients to their best face, until no patient moves."""
    patients, labels = z[diagnosis == 1], labels.clone()
    moving = torch.arange(labels.shape[1])
    faces = None
    for _ in range(MOST_ALTERNATIONS):
        before = labels[:, moving]
        faces = fit_faces(z, diagnosis, before, n_subgroups, strength, start=faces, tolerance=SEARCH_TOLERANCE)
        labels[:, moving] = faces.scores(patients).unflatten(1, (-1, n_subgroups)).argmax(2)
        moved = (labels[:, moving] != before).any(0)
        if not moved.any():
            break
        moving, faces = moving[moved], faces[moved.repeat_interleave(n_subgroups)]
    return labels


def fit_faces(
    z: Tensor, diagnosis: Tensor, labels: Tensor, n_subgroups: int, strength: float, *,
    start: Hyperplanes | None = None, tolerance: float = 1e-4,
) -> Hyperplanes:  # fmt: skip
    """A face for every run and subgroup: its patients against all controls, of weight 1 / K at each of K faces.

    `labels` are of shape (patients, runs).
    """
    weights = z.new_full((len(z), labels.shape[1], n_subgroups), 1 / n_subgroups)
    weights[diagnosis == 1] = one_hot(labels, n_subgroups).to(z)
    weights = weights.flatten(1)
    faces = fit_hyperplanes(
        z, diagnosis, balanced(weights, diagnosis), loss="squared_hinge", strength=strength, start=start,
        tolerance=tolerance,
    )  # fmt: skip
    # a face without patients gets the constant score -1: it attracts patients whom all other faces score lower
    unused = weights[diagnosis == 1].sum(0) == 0
    return Hyperplanes(torch.where(unused, 0, faces.weights), torch.where(unused, -1, faces.intercepts))


@dataclass(eq=False, repr=False)
class HYDRA(Adjustable, name="hydra"):
    """
    Parameters
    ----------
    strength
        Inverse strength C of the penalty on the faces.
    n_consensus
        Number of runs whose consensus is taken.
    components
        Number of principal components of the features that are used; None: all, without loss.
    """

    strength: float = 0.25
    n_consensus: Annotated[int, AtLeast(1)] = 20
    components: Annotated[int | None, AtLeast(1)] = None

    beliefs_type: ClassVar[type] = Polytope

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> Polytope:
        """The faces of the consensus of several runs, which are fitted together."""
        x, y, rng = as_tensor(vectors).double(), torch.as_tensor(diagnosis), np.random.default_rng(self.seed)
        coordinates = fit_coordinates(x, self.components)
        z = coordinates(x)
        starts = torch.stack([dpp_start(z, y, self.n_subgroups, rng) for _ in range(self.n_consensus)], dim=1)
        labels = alternate(z, y, starts, self.n_subgroups, self.strength)
        agreed = torch.as_tensor(consensus_labels(labels.numpy(), self.n_subgroups, seed=self.seed))
        faces = coordinates.in_features(fit_faces(z, y, agreed[:, None], self.n_subgroups, self.strength))
        # Platt's scaling, as margins are no probabilities
        best = logistic_hyperplane(faces.scores(x).max(1, keepdim=True).values, y)
        return Polytope(faces.weights, faces.intercepts, best.weights[0], best.intercept)

    def read(self, vectors: Tensor, beliefs: Polytope) -> dict[str, Tensor]:
        # one axis per face, in the order of fitting; `by_size_` maps subgroups to faces
        return {"embedding": beliefs.scores(vectors).float(), **beliefs.read(vectors)}
