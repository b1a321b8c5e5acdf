"""Candidates for the first split of the patients of a table: several spaces, and several clusterers in each.

No single space or clusterer is right everywhere (docs/deep_ucsl.md). The spaces are:

- Units of healthy variation: the principal axes of everybody, whitened by the covariance of the controls, in which a
  distance says how unusual a difference would be among controls. The covariance is shrunk towards that of everybody or
  of the patients and not towards a multiple of the identity, so that it follows any change of scale or rotation of the
  features.
- Standardised features without the axis from controls to patients.

In each, cuts into equal parts and spectral clustering of the graph of nearest neighbours, which finds parts of any size
and shape; in some of them also K-means and local optima of mixtures.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.cluster import SpectralClustering
from torch import Tensor

from phenogroups.clustering.contrast import local_optima
from phenogroups.clustering.kmeans import kmeans, sinkhorn_kmeans, squared_distances
from phenogroups.clustering.mixture import kmeans_start, tied_mixtures

WHOLE = 100  # features up to which no axis is left out before whitening, if there are enough subjects
SUBJECTS_PER_AXIS = 4
CONTROLS_PER_AXIS = 16  # among the principal axes of everybody that are whitened where there are more features, ...
FEWEST_AXES, MOST_AXES, MORE = 20, 50, 1.5  # ... so many of them, and so many times as many in other spaces
LEADING = (5, 10)  # principal axes of everybody that are whitened besides all of them, where there are fewer features
PATIENT_AXES = (10, 20)  # of these, the axes along which patients vary most
SHRINKAGE = 0.3  # of the controls' covariance
STARTS, OPTIMA = 4, 12  # of K-means, and of mixtures that begin on a few axes, in each space
NEIGHBOURS, FEW_NEIGHBOURS, FEW = 40, 20, 300  # of each patient in the graph, and of each where patients are few
FEWEST = 10  # patients of whom a graph is made


@dataclass(frozen=True)
class Axes:
    """How many principal axes of everybody are whitened; it depends on the size of the cohort alone."""

    whole: bool  # whether no axis is left out, in some of the spaces
    counts: tuple[int, ...]

    @classmethod
    def of(cls, patients: Tensor, controls: Tensor) -> "Axes":
        features = patients.shape[1]
        # whitening all axes of features that say much the same makes their noise as loud as what they say
        if features <= min(WHOLE, (len(patients) + len(controls)) // SUBJECTS_PER_AXIS):
            return cls(True, (*(count for count in LEADING if count < features), features))
        fewer = min(max(len(controls) // CONTROLS_PER_AXIS, FEWEST_AXES), MOST_AXES)
        return cls(False, (fewer, round(MORE * fewer)))


@dataclass(frozen=True)
class Space:
    name: str
    center: Tensor  # (features,)
    basis: Tensor  # (features, axes)
    searched: bool  # whether gaps are looked for here

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.center.to(x.device)) @ self.basis.to(x.device)


def spaces(patients: Tensor, controls: Tensor, axes: Axes) -> Iterator[Space]:
    everybody = torch.cat([patients, controls])
    each = 1 / deviation(everybody)
    # with all axes, whitening undoes any scale: the same space from the features as given and standardised
    scales = {"standardised": each} if axes.whole else {"as given": torch.ones_like(each), "standardised": each}
    for given, scale in scales.items():
        center, principal = principal_axes(everybody, scale, max(axes.counts))
        for count in axes.counts:
            for towards, target in (("everybody", everybody), ("patients", patients)):
                seen = ((x - center) @ principal[:, :count] for x in (controls, target))
                whitened = principal[:, :count] @ healthy_units(*seen)
                _, main = principal_axes((patients - center) @ whitened, None, max(PATIENT_AXES))
                for most in PATIENT_AXES:
                    last = most == max(PATIENT_AXES)
                    if last or most < main.shape[1]:
                        name = f"{given}, {count} axes, shrunk towards {towards}, {most} of the patients"
                        searched = last and count >= principal.shape[1]
                        yield Space(name, center, whitened @ main[:, :most], searched)
    # standardised by the patients, without severity: the first thing that varies among patients is how ill they are
    scale = 1 / deviation(patients)
    toward = F.normalize((patients.mean(0) - controls.mean(0)) * scale, dim=0)
    without = torch.diag(scale) - torch.outer(scale * toward, toward)
    _, principal = principal_axes(patients @ without, None, max(PATIENT_AXES))
    yield Space("without severity", patients.mean(0), without @ principal, True)


def healthy_units(controls: Tensor, target: Tensor) -> Tensor:
    """(axes, axes): whitening by the covariance of the controls, shrunk towards that of others."""
    within = torch.cov(target.T)
    if len(controls) > 1:  # one control has no covariance
        within = (1 - SHRINKAGE) * torch.cov(controls.T) + SHRINKAGE * within
    values, vectors = torch.linalg.eigh(torch.atleast_2d(within))
    return vectors / values.clamp_min(1e-9 * values.max().clamp_min(1e-30)).sqrt()


def principal_axes(x: Tensor, scale: Tensor | None, most: int) -> tuple[Tensor, Tensor]:
    """Centre (features,), and the leading axes (features, axes) that `scale` is part of; silent axes are left out."""
    center = x.mean(0)
    scale = torch.ones_like(center) if scale is None else scale
    away = (x - center) * scale
    values, vectors = torch.linalg.eigh(away.T @ away)
    loud = int((values > 1e-10 * values.max().clamp_min(1e-30)).sum())
    return center, scale[:, None] * vectors.flip(1)[:, : max(min(most, loud), 1)]


def deviation(x: Tensor) -> Tensor:
    found = x.std(0)
    return torch.where(found > 1e-12 * x.abs().amax(0).clamp_min(1e-30), found, torch.ones_like(found))


def clusterers(z: Tensor, k: int, seed: int, *, searched: bool) -> dict[str, Callable[[], list[Tensor]]]:
    """By name, what splits the patients `z` of one space; each returns the labels of its splits."""
    found = {"equal parts": lambda: [_nearest(z, sinkhorn_kmeans(z, k, n_starts=STARTS, seed=seed))]}
    if searched:
        found["K-means"] = lambda: [_nearest(z, kmeans(z, k, n_starts=STARTS, seed=seed))]
    if len(z) >= FEWEST:
        found["neighbours"] = lambda: [neighbour_clusters(z, k, seed)]
    if searched:
        found["mixtures"] = lambda: mixtures(z, k, seed)
    return found


def _nearest(z: Tensor, centroids: Tensor) -> Tensor:
    return squared_distances(z, centroids).argmin(1)


def mixtures(z: Tensor, k: int, seed: int) -> list[Tensor]:
    """Labels by the likeliest tied mixture, and by local optima."""
    starts = torch.stack([kmeans_start(z, k, seed=seed * STARTS + i) for i in range(STARTS)])
    likeliest = max(tied_mixtures(z, starts), key=lambda fit: fit.log_likelihood)
    found = [likeliest, *local_optima(z, k, n_starts=OPTIMA, seed=seed)]
    return [mixture.log_posterior(z.double()).argmax(1) for mixture in found]


def neighbour_clusters(z: Tensor, k: int, seed: int) -> Tensor:
    """Labels by spectral clustering of the graph of nearest neighbours (Ng et al. 2001, Damle et al. 2019)."""
    count = min(NEIGHBOURS if len(z) >= FEW else FEW_NEIGHBOURS, len(z) // 2)
    clusterer = SpectralClustering(
        k, affinity="nearest_neighbors", n_neighbors=count, assign_labels="cluster_qr", random_state=seed,
        eigen_solver="lobpcg",  # of 3,000 patients 15 times as fast as ARPACK, with the same labels
    )  # fmt: skip
    with warnings.catch_warnings():
        # a graph in several parts is an answer as well: the parts; nor do labels need eigenvectors to the last digit
        warnings.simplefilter("ignore", UserWarning)
        return torch.as_tensor(clusterer.fit_predict(z.numpy())).long()
