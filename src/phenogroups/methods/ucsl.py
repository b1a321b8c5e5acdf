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
from phenogroups.clustering.hyperplanes import Hyperplanes, Loss, balanced, fit_coordinates, fit_hyperplanes
from phenogroups.clustering.kmeans import kmeans, squared_distances
from phenogroups.data.batches import as_tensor
from phenogroups.methods.settings import AtLeast, Shape
from phenogroups.methods.without_network import Adjustable

Maximization = Literal["logistic", "max_margin"]
Clustering = Literal["gaussian_mixture", "k_means"]
Start = Literal["gaussian_mixture", "dpp", "k_means"]
Weighting = Literal["uniform", "soft", "hard"]

# Loss and default C. Pixels are many and correlated: a weaker penalty overfits the training subjects. The squared hinge
# is eight times as steep as the logistic loss.
LOSSES: dict[Maximization, tuple[Loss, float]] = {
    "logistic": ("logistic", 0.01),
    "max_margin": ("squared_hinge", 0.001),
}
SEARCH_TOLERANCE = 1e-3  # of the experts in the runs of the consensus
FINAL_STABILITY = 0.95  # of the run that starts from the consensus
START_AXES = 10  # principal axes of the first mixture: full covariances of more have too many parameters
PARALLEL = 1e-2  # singular values below this share of the largest are dropped


@dataclass(frozen=True)
class LinearUCSL:
    """The tensors that prediction needs, for any vectors: embeddings as well as features or pixels."""

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
    """The result of one E-step."""

    basis: Tensor  # (dims, axes)
    clusters: Gaussians
    q: Tensor  # (subjects, subgroups)


@dataclass(frozen=True)
class Steps:
    """The two steps of the EM for these subjects."""

    z: Tensor  # (subjects, dims)
    diagnosis: Tensor  # (subjects,)
    settings: "UCSL"

    @property
    def is_patient(self) -> Tensor:
        return self.diagnosis == 1

    @property
    def n_subgroups(self) -> int:
        return self.settings.n_subgroups

    def climb(self, beliefs: list[Tensor], *, stability: float, tolerance: float = 1e-4) -> list[EStep]:
        """EM from several beliefs q, each until the adjusted Rand index of two E-steps is above `stability`."""
        beliefs = list(beliefs)
        found: dict[int, EStep] = {}
        moving, experts = list(range(len(beliefs))), None
        for _ in range(self.settings.iterations):
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
        """The columns of the experts of one run."""
        return torch.arange(run * self.n_subgroups, (run + 1) * self.n_subgroups)

    def m_step(self, beliefs: list[Tensor], start: Hyperplanes | None = None, tolerance: float = 1e-4) -> Hyperplanes:
        """The experts of every q."""
        weights = torch.cat([balanced(self.weigh(q), self.diagnosis) for q in beliefs], dim=1)
        loss, default_strength = LOSSES[self.settings.maximization]
        strength = default_strength if self.settings.strength is None else self.settings.strength
        return fit_hyperplanes(
            self.z, self.diagnosis, weights, loss=loss, strength=strength, start=start, tolerance=tolerance
        )

    def weigh(self, q: Tensor) -> Tensor:
        """(subjects, subgroups): weight of each subject for each expert.

        From controls who are similar to a cluster's patients, as in age, its expert learns to ignore that similarity.
        """
        weights = {"soft": q, "hard": self._one_hot(q.argmax(1)), "uniform": torch.full_like(q, 1 / self.n_subgroups)}
        of_controls = weights[self.settings.negative_weighting]
        alone = of_controls[~self.is_patient].sum(0) < 1
        # a cluster that no control is similar to is contrasted with all controls
        of_controls = torch.where(alone, weights["uniform"], of_controls)
        return torch.where(self.is_patient[:, None], weights[self.settings.positive_weighting], of_controls)

    def e_step(self, experts: Hyperplanes, q: Tensor) -> EStep:
        basis = orthonormal(experts.weights)
        projected = self.z @ basis
        cluster = gaussian_mixture if self.settings.clustering == "gaussian_mixture" else equal_clouds
        clusters = cluster(projected[self.is_patient], q[self.is_patient])
        return EStep(basis, clusters, clusters.posterior(projected))

    def start(self, rng: np.random.Generator) -> Tensor:
        """A first q."""
        patients = self.z[self.is_patient]
        if self.settings.start == "dpp":
            q = self.z.new_full((len(self.z), self.n_subgroups), 1 / self.n_subgroups)
            q[self.is_patient] = self._one_hot(dpp_start(self.z, self.diagnosis, self.n_subgroups, rng))
            return q
        if self.settings.start == "k_means":
            seed = int(rng.integers(2**31))
            centroids = kmeans(patients, self.n_subgroups, n_starts=1, seed=seed)
            return self._one_hot(squared_distances(self.z, centroids).argmin(1))
        z, patients = self.z[:, :START_AXES], patients[:, :START_AXES]
        some = patients[torch.as_tensor(rng.choice(len(patients), size=self.n_subgroups, replace=False))]
        return gaussian_mixture(patients, self._one_hot(squared_distances(patients, some).argmin(1))).posterior(z)

    def _one_hot(self, labels: Tensor) -> Tensor:
        return one_hot(labels, self.n_subgroups).to(self.z)


def fit_ucsl(z: Tensor, diagnosis: Tensor, settings: "UCSL") -> LinearUCSL:
    """UCSL on any vectors z (n, dims): the consensus of several runs, refined by one more run."""
    seed, n_subgroups = settings.seed, settings.n_subgroups
    device, x, diagnosis, rng = z.device, z.cpu().double(), diagnosis.cpu(), np.random.default_rng(seed)
    coordinates = fit_coordinates(x, settings.components)
    steps = Steps(coordinates(x), diagnosis, settings)
    starts = [steps.start(rng) for _ in range(settings.n_consensus)]
    runs = steps.climb(starts, stability=settings.stability, tolerance=SEARCH_TOLERANCE)
    labels = torch.stack([run.q.argmax(1) for run in runs], dim=1).numpy()
    of_patients = labels[steps.is_patient.numpy()]
    agreed = consensus_labels(of_patients, n_subgroups, seed=seed)
    q = torch.as_tensor(resemblance(labels, of_patients, agreed, n_subgroups))
    (found,) = steps.climb([q], stability=max(settings.stability, FINAL_STABILITY))
    experts = coordinates.in_features(steps.m_step([found.q]))
    learned = (
        coordinates.center, coordinates.basis @ found.basis, *vars(found.clusters).values(), *vars(experts).values()
    )  # fmt: skip
    return LinearUCSL(*(tensor.to(device) for tensor in learned))


def orthonormal(directions: Tensor) -> Tensor:
    """(dims, axes): singular vectors of these directions (dims, K), which do not depend on their order."""
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
        return fit_ucsl(as_tensor(vectors), torch.as_tensor(diagnosis), self)

    def read(self, vectors: Tensor, beliefs: LinearUCSL) -> dict[str, Tensor]:
        return {"embedding": beliefs.project(vectors).float(), **beliefs.read(vectors)}
