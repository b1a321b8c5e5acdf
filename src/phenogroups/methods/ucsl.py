"""UCSL: patients are clustered only in the directions that tell them from controls (Louiset et al. 2021).

The symbols are the paper's: q is Q(c | x, y), expert k is p(y | x, c=k). The M-step fits an expert for each cluster, a
hyperplane between its patients and controls; the E-step clusters the patients in the space of the experts' directions.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from phenogroups.clustering.consensus import consensus_labels, resemblance
from phenogroups.clustering.dpp import dpp_start
from phenogroups.clustering.gaussians import Gaussians, equal_clouds, gaussian_mixture
from phenogroups.clustering.hyperplanes import Hyperplanes, balanced, fit_coordinates, fit_hyperplanes
from phenogroups.clustering.kmeans import kmeans, squared_distances
from phenogroups.data.batches import as_tensor
from phenogroups.methods.adjustable import Adjustable
from phenogroups.methods.settings import AtLeast, Shape

Maximization = Literal["logistic", "max_margin"]
Clustering = Literal["gaussian_mixture", "k_means"]
Start = Literal["gaussian_mixture", "dpp", "k_means"]
Weighting = Literal["uniform", "soft", "hard"]

# Default C. Pixels are many and correlated: a weaker penalty overfits the training subjects. The squared hinge is eight
# times as steep as the logistic loss.
STRENGTH = {"logistic": 0.01, "max_margin": 0.001}
SEARCH_TOLERANCE = 1e-3  # of the experts in the runs of the consensus
FINAL_STABILITY = 0.95  # of the run that starts from the consensus
START_AXES = 10  # principal axes of the first mixture: full covariances of more have too many parameters
PARALLEL = 1e-2  # singular values below this share of the largest are dropped


@dataclass(frozen=True)
class LinearUCSL:
    """What prediction needs, for any vectors: embeddings as well as features or pixels."""

    center: Annotated[Tensor, Shape("dims")]
    basis: Annotated[Tensor, Shape("dims", "axes")]  # of the space in which patients were clustered
    means: Annotated[Tensor, Shape("subgroups", "axes")]  # of the Gaussians in that space, as the next two
    whitening: Annotated[Tensor, Shape("subgroups", "axes", "axes")]
    log_heights: Annotated[Tensor, Shape("subgroups")]
    weights: Annotated[Tensor, Shape("dims", "subgroups")]  # of the experts
    intercepts: Annotated[Tensor, Shape("subgroups")]

    def project(self, z: Tensor) -> Tensor:
        """(n, axes)"""
        return (z.double() - self.center) @ self.basis

    def read(self, z: Tensor) -> dict[str, Tensor]:
        """Subgroups by the clusters, diagnosis by the experts: p(y | x) = sum_k p(c=k | x) p(y | x, c=k)."""
        q = Gaussians(self.means, self.whitening, self.log_heights).posterior(self.project(z))
        experts = Hyperplanes(self.weights, self.intercepts).scores(z.double())
        return {"subgroup": q, "diagnosis": (q * experts.sigmoid()).sum(1).clamp(0, 1), "experts": experts}


@dataclass(frozen=True)
class EStep:
    """What one E-step concludes."""

    basis: Tensor  # (dims, axes)
    clusters: Gaussians
    q: Tensor  # (subjects, subgroups)


@dataclass(frozen=True)
class Steps:
    """The two steps of the EM for these subjects."""

    z: Tensor  # (subjects, dims)
    diagnosis: Tensor  # (subjects,)
    n_subgroups: int
    maximization: Maximization
    clustering: Clustering
    negative_weighting: Weighting
    positive_weighting: Literal["hard", "soft"]
    strength: float

    @property
    def is_patient(self) -> Tensor:
        return self.diagnosis == 1

    def climb(
        self, beliefs: list[Tensor], *, stability: float, iterations: int, tolerance: float = 1e-4
    ) -> list[EStep]:
        """EM from several beliefs q, side by side, each until the adjusted Rand index of two E-steps is above this."""
        beliefs = list(beliefs)
        found: dict[int, EStep] = {}
        moving, experts = list(range(len(beliefs))), None
        for _ in range(iterations):
            experts = self.m_step([beliefs[run] for run in moving], experts, tolerance)
            stable = []
            for i, run in enumerate(moving):
                found[run] = self.e_step(experts[self._columns(i)], beliefs[run])
                stable.append(self._agreement(beliefs[run], found[run].q) > stability)
                beliefs[run] = found[run].q
            if all(stable):
                break
            experts = experts[torch.cat([self._columns(i) for i, done in enumerate(stable) if not done])]
            moving = [run for run, done in zip(moving, stable, strict=True) if not done]
        return [found[run] for run in range(len(beliefs))]

    def _agreement(self, q: Tensor, other: Tensor) -> float:
        return adjusted_rand_score(*(each[self.is_patient].argmax(1).numpy() for each in (q, other)))

    def _columns(self, run: int) -> Tensor:
        """Of experts that stand side by side."""
        return torch.arange(run * self.n_subgroups, (run + 1) * self.n_subgroups)

    def m_step(self, beliefs: list[Tensor], start: Hyperplanes | None = None, tolerance: float = 1e-4) -> Hyperplanes:
        """The experts of every q."""
        weights = torch.cat([balanced(self.weigh(q), self.diagnosis) for q in beliefs], dim=1)
        loss = "logistic" if self.maximization == "logistic" else "squared_hinge"
        return fit_hyperplanes(
            self.z, self.diagnosis, weights, loss=loss, strength=self.strength, start=start, tolerance=tolerance
        )

    def weigh(self, q: Tensor) -> Tensor:
        """(subjects, subgroups): how much each counts for each expert.

        Controls who look like a cluster's patients (as old, as bold) are those who teach its expert to ignore that.
        """
        weights = {"soft": q, "hard": self._one_hot(q.argmax(1)), "uniform": torch.full_like(q, 1 / self.n_subgroups)}
        of_controls = weights[self.negative_weighting]
        alone = of_controls[~self.is_patient].sum(0) < 1
        # a cluster that no control resembles is contrasted with all of them
        of_controls = torch.where(alone, weights["uniform"], of_controls)
        return torch.where(self.is_patient[:, None], weights[self.positive_weighting], of_controls)

    def e_step(self, experts: Hyperplanes, q: Tensor) -> EStep:
        basis = orthonormal(experts.weights)
        seen = self.z @ basis
        cluster = gaussian_mixture if self.clustering == "gaussian_mixture" else equal_clouds
        clusters = cluster(seen[self.is_patient], q[self.is_patient])
        return EStep(basis, clusters, clusters.posterior(seen))

    def start(self, kind: Start, rng: np.random.Generator) -> Tensor:
        """A first q."""
        patients = self.z[self.is_patient]
        if kind == "dpp":
            q = self.z.new_full((len(self.z), self.n_subgroups), 1 / self.n_subgroups)
            q[self.is_patient] = self._one_hot(dpp_start(self.z, self.diagnosis, self.n_subgroups, rng))
            return q
        if kind == "k_means":
            seed = int(rng.integers(2**31))
            centroids = kmeans(patients, self.n_subgroups, n_starts=1, seed=seed)
            return self._one_hot(squared_distances(self.z, centroids).argmin(1))
        seen, patients = self.z[:, :START_AXES], patients[:, :START_AXES]
        some = patients[torch.as_tensor(rng.choice(len(patients), size=self.n_subgroups, replace=False))]
        return gaussian_mixture(patients, self._one_hot(squared_distances(patients, some).argmin(1))).posterior(seen)

    def _one_hot(self, labels: Tensor) -> Tensor:
        return one_hot(labels, self.n_subgroups).to(self.z)


def fit_ucsl(
    z: Tensor,
    diagnosis: Tensor,
    n_subgroups: int,
    *,
    maximization: Maximization = "logistic",
    clustering: Clustering = "gaussian_mixture",
    start: Start = "gaussian_mixture",
    negative_weighting: Weighting = "soft",
    positive_weighting: Literal["hard", "soft"] = "hard",
    strength: float | None = None,
    stability: float = 0.85,
    iterations: int = 10,
    n_consensus: int = 10,
    components: int | None = None,
    seed: int = 0,
) -> LinearUCSL:
    """UCSL on vectors z (n, dims), whatever they are: what several runs agree on, refined by one more."""
    device, x, diagnosis, rng = z.device, z.cpu().double(), diagnosis.cpu(), np.random.default_rng(seed)
    coordinates = fit_coordinates(x, components)
    steps = Steps(
        coordinates(x), diagnosis, n_subgroups, maximization, clustering, negative_weighting, positive_weighting,
        STRENGTH[maximization] if strength is None else strength,
    )  # fmt: skip
    starts = [steps.start(start, rng) for _ in range(n_consensus)]
    runs = steps.climb(starts, stability=stability, iterations=iterations, tolerance=SEARCH_TOLERANCE)
    labels = torch.stack([run.q.argmax(1) for run in runs], dim=1).numpy()
    of_patients = labels[steps.is_patient.numpy()]
    agreed = consensus_labels(of_patients, n_subgroups, seed=seed)
    q = torch.as_tensor(resemblance(labels, of_patients, agreed, n_subgroups))
    (found,) = steps.climb([q], stability=max(stability, FINAL_STABILITY), iterations=iterations)
    experts = coordinates.in_features(steps.m_step([found.q]))
    learned = (
        coordinates.center, coordinates.basis @ found.basis, *vars(found.clusters).values(), *vars(experts).values()
    )  # fmt: skip
    return LinearUCSL(*(tensor.to(device) for tensor in learned))


def orthonormal(directions: Tensor) -> Tensor:
    """(dims, axes): a basis of what these directions (dims, K) span, whatever their order: their singular vectors."""
    axes, lengths, _ = torch.linalg.svd(normalize(directions, dim=0), full_matrices=False)
    return axes[:, : max(int((lengths > PARALLEL * lengths[0]).sum()), 1)]


@dataclass(eq=False, repr=False)
class UCSL(Adjustable, name="ucsl", presets={"ucsl_max_margin": {"maximization": "max_margin"}}):
    """
    Parameters
    ----------
    maximization
        Loss by which experts are fitted.
    clustering
        How patients are clustered in the space of the experts' directions.
    start
        How the first clusters are found.
    negative_weighting
        How controls are weighted for each expert: all alike, or by the clusters.
    positive_weighting
        How patients are weighted for each expert.
    strength
        Inverse strength C of the penalty on the experts; None: 0.01 (logistic) or 0.001 (max_margin).
    stability
        Adjusted Rand index of two E-steps above which a run ends.
    iterations
        Largest number of iterations of a run.
    n_consensus
        Number of runs whose consensus is taken.
    components
        Number of principal components of the features that are used; None: all, without loss.

    Examples
    --------
    >>> from phenogroups import METHODS, drawn_table
    >>> cohort = drawn_table(80)
    >>> method = METHODS["ucsl"](n_consensus=3).fit(cohort)
    >>> method.predict_subgroup_proba(cohort).shape
    (80, 2)
    """

    maximization: Maximization = "logistic"
    clustering: Clustering = "gaussian_mixture"
    start: Start = "gaussian_mixture"
    negative_weighting: Weighting = "soft"
    positive_weighting: Literal["hard", "soft"] = "hard"
    strength: float | None = None
    stability: float = 0.85
    iterations: Annotated[int, AtLeast(1)] = 10
    n_consensus: Annotated[int, AtLeast(1)] = 10
    components: Annotated[int | None, AtLeast(1)] = None

    beliefs_type: ClassVar[type] = LinearUCSL

    def e_step(self, vectors: np.ndarray, diagnosis: np.ndarray) -> LinearUCSL:
        return fit_ucsl(as_tensor(vectors), torch.as_tensor(diagnosis), **self.rules())

    def read(self, vectors: Tensor, beliefs: LinearUCSL) -> dict[str, Tensor]:
        return {"embedding": beliefs.project(vectors).float(), **beliefs.read(vectors)}
