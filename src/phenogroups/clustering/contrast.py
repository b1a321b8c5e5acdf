"""The mixture that splits patients but not controls: among many local optima, the one most specific to the disease.

Patients usually can be split in several ways, and the most visible one (boldness, age, scanner) splits the controls
too. Each candidate is judged on its own discriminating axes by how much better K subgroups describe the patients than
one does, minus the same for the controls: what both share cancels.
"""

import numpy as np
import torch
from torch import Tensor

from phenogroups.clustering.kmeans import sinkhorn_kmeans, squared_distances
from phenogroups.clustering.mixture import TiedMixture, tied_mixture

SEARCHED = 1500  # patients and controls among whom candidates are compared; the winner is fitted on all
SMALLEST = 0.02  # a subgroup with a smaller share of the patients is a handful of outliers
LIMIT = 2.5  # deviations beyond which a subject counts no more: a few far away must not look like a subgroup


def contrastive_mixture(patients: Tensor, controls: Tensor, n_subgroups: int, *, seed: int = 0) -> TiedMixture:
    """The most specific of many tied mixtures of the patients, fitted on all of them."""
    found = specific_mixtures(patients, controls, n_subgroups, seed=seed)
    if not found:  # every candidate had a subgroup too small to be one
        return tied_mixture(patients, n_subgroups, seed=seed)
    return tied_mixture(patients, n_subgroups, start=found[0].log_posterior(patients.double()).exp())


def specific_mixtures(
    patients: Tensor, controls: Tensor, n_subgroups: int, *, n_starts: int = 25, seed: int = 0
) -> list[TiedMixture]:
    """Different local optima from `n_starts` starts, the most specific first; found among a sample of the subjects."""
    rng = np.random.default_rng(seed)
    some, others = _thinned(patients), _thinned(controls)
    found: dict[float, tuple[float, TiedMixture]] = {}
    for _ in range(n_starts):
        # K-means on a few axes at a time: on all of them it would find the loudest split again and again
        axes = rng.choice(some.shape[1], size=min(int(rng.integers(1, 4)), some.shape[1]), replace=False)
        view = some[:, torch.as_tensor(axes)]
        start = sinkhorn_kmeans(view, n_subgroups, balance=0, n_starts=1, seed=int(rng.integers(2**31)))
        labels = squared_distances(view, start.centroids).argmin(dim=1)
        mixture = tied_mixture(some, n_subgroups, start=_one_hot(labels, n_subgroups))
        optimum = round(mixture.log_likelihood, 3)
        if mixture.log_sizes.exp().min() >= SMALLEST and optimum not in found:
            found[optimum] = (specificity(mixture, some, others), mixture)
    return [mixture for _, mixture in sorted(found.values(), key=lambda pair: -pair[0])]


def specificity(found: TiedMixture, patients: Tensor, controls: Tensor) -> float:
    """Mean log-likelihood that subgroups gain over none, among patients minus among controls."""
    patients, controls = _thinned(patients), _thinned(controls)
    center = found.log_sizes.exp() @ found.means
    _, _, axes = torch.linalg.svd(found.means - center, full_matrices=False)
    axes = found.whitening @ axes[: len(found.means) - 1].T  # where the subgroups differ, and nowhere else
    gains = (gain(z @ axes, found.log_posterior(z).exp()) for z in (patients, controls))
    return next(gains) - next(gains)


def gain(z: Tensor, start: Tensor) -> float:
    """How much better, per subject, a tied mixture describes `z` than one Gaussian; the better of two starts."""
    z = (z - z.mean(0)) / z.std(0, correction=0).clamp_min(torch.finfo(z.dtype).tiny)
    z = z.clamp(-LIMIT, LIMIT)
    one = tied_mixture(z, 1, start=torch.ones(len(z), 1)).log_likelihood
    k = start.shape[1]
    clusters = sinkhorn_kmeans(z, k, balance=0, n_starts=1)
    again = _one_hot(squared_distances(z, clusters.centroids).argmin(dim=1), k)
    return max(tied_mixture(z, k, start=s).log_likelihood for s in (start, again)) - one


def _thinned(z: Tensor) -> Tensor:
    return z[:: -(-len(z) // SEARCHED)].double()


def _one_hot(labels: Tensor, k: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, k).double()
