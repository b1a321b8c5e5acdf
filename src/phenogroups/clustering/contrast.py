"""The mixture that splits patients but not controls: of many local optima, the one most specific to the disease.

Patients usually can be split in several ways, and the most visible one (boldness, age, scanner) splits the controls
too. Each candidate is judged on its own discriminating axes by how much better K subgroups describe the patients than
one does, minus the same for the controls: what both share cancels. A skewed continuum (boldness again) is described
better by two Gaussians than by one as well, but has no gap; so a gap between subgroups counts extra.

Two axes can also add up to one on which the controls happen not to split: pen and crossbar together, for example. Hence
`shared`: the controls are split by themselves, and what their splits tell of the patients is no subgroup of a disease.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.gap import pair_gaps
from phenogroups.clustering.matching import adjusted_rand
from phenogroups.clustering.mixture import SMALLEST, TiedMixture, kmeans_start, tied_mixture, tied_mixtures

SEARCHED = 1500  # largest number of patients, and of controls, for comparing candidates; the best is fitted on all
CONTROLS_PER_AXIS = 20  # on more axes any split of few controls would have a gap
LIMIT = 2.5  # standard deviations to which coordinates are clipped: a few outliers must not look like a subgroup


def contrastive_mixture(
    patients: Tensor, controls: Tensor, n_subgroups: int, *, seed: int = 0, comm: Communicator = LOCAL
) -> TiedMixture:
    """The most specific of many tied mixtures of the patients, fitted on all of them."""
    found = specific_mixtures(thinned(patients, comm), thinned(controls, comm), n_subgroups, seed=seed)
    if not found:  # every candidate had a subgroup too small to be one
        return tied_mixture(patients, n_subgroups, seed=seed, comm=comm)
    return tied_mixture(patients, n_subgroups, start=found[0].posterior(patients), comm=comm)


def specific_mixtures(
    patients: Tensor, controls: Tensor, n_subgroups: int, *, n_starts: int = 25, seed: int = 0
) -> list[TiedMixture]:
    """Different local optima from `n_starts` starts, the most specific first; found among a sample of the subjects."""
    found = local_optima(thinned(patients), n_subgroups, n_starts=n_starts, seed=seed)
    scores = specificity(found, patients, controls)
    return [found[i] for i in sorted(range(len(found)), key=lambda i: -scores[i])]


def local_optima(z: Tensor, n_subgroups: int, *, n_starts: int = 25, seed: int = 0) -> list[TiedMixture]:
    """Different tied mixtures of `z` (n, D) without a handful of outliers as a subgroup."""
    rng = np.random.default_rng(seed)
    z = z.double()
    starts = []
    for _ in range(n_starts):
        # K-means on a few axes at a time: on all of them it would find the split of the largest variance every time
        axes = rng.choice(z.shape[1], size=min(int(rng.integers(1, 4)), z.shape[1]), replace=False)
        starts.append(kmeans_start(z[:, torch.as_tensor(axes)], n_subgroups, seed=int(rng.integers(2**31))))
    optima = {
        round(mixture.log_likelihood, 3): mixture
        for mixture in tied_mixtures(z, torch.stack(starts))
        if mixture.log_sizes.exp().min() >= SMALLEST
    }
    return list(optima.values())


def specificity(found: list[TiedMixture], patients: Tensor, controls: Tensor) -> list[float]:
    """Nats per subject by which subgroups describe better than none, and by which there are gaps between them.

    Among patients minus among controls, for each mixture. What K subgroups describe better grows with each of their
    K - 1 divisions, and so does what counts of their gaps: the mean gap of all pairs, K - 1 times.
    """
    if not found:
        return []
    among = []
    for z in (thinned(patients).double(), thinned(controls).double()):
        projected = torch.stack([z @ discriminating_axes(mixture) for mixture in found])
        beliefs = torch.stack([mixture.log_posterior(z).exp() for mixture in found])
        scores = torch.stack([z @ mixture.whitening @ mixture.means.T for mixture in found])
        k = beliefs.shape[2]
        gaps = (k - 1) * pair_gaps(scores, F.one_hot(beliefs.argmax(2), k).to(z)).mean(0)
        among.append([gain + gap for gain, gap in zip(gains(projected, beliefs), gaps.tolist(), strict=True)])
    return [patient - control for patient, control in zip(*among, strict=True)]


def shared(candidates: list[Tensor], views: list[tuple[Tensor, Tensor]], *, seed: int = 0) -> Tensor:
    """(candidates,): from 0 to 1, how much of each split of the patients is a split that controls show by themselves.

    In each view (patients, controls), the largest product of agreement (adjusted Rand index) and gap among controls
    over the local optima of mixtures of the controls. Of several views the least counts: what controls show in one
    encoder only is an accident of it. Without the gap, splits that cut the controls anywhere would count, and some of
    them resemble any subgroup. Candidates are posteriors (patients, K).
    """
    return torch.stack([_shared_in(candidates, *view, seed) for view in views]).amin(0)


def _shared_in(candidates: list[Tensor], patients: Tensor, controls: Tensor, seed: int) -> Tensor:
    k = candidates[0].shape[1]
    most = torch.zeros(len(candidates))
    axes = len(controls) // CONTROLS_PER_AXIS  # the first are those along which patients vary most
    if axes == 0:
        return most
    patients, controls = patients[:, :axes].double(), thinned(controls)[:, :axes].double()
    for split in local_optima(controls, k, seed=seed):
        member = F.one_hot(split.log_posterior(controls).argmax(1), k).to(controls)
        wide = pair_gaps((controls @ split.whitening @ split.means.T)[None], member[None]).min().item()
        carried_over = split.log_posterior(patients).argmax(1)
        alike = [adjusted_rand(q.argmax(1), carried_over, k) for q in candidates]
        most = torch.maximum(most, wide * torch.tensor(alike, dtype=most.dtype))
    return most


def discriminating_axes(found: TiedMixture) -> Tensor:
    """(dims, K - 1): where the subgroups differ, and nowhere else."""
    center = found.log_sizes.exp() @ found.means
    _, _, axes = torch.linalg.svd(found.means - center, full_matrices=False)
    return found.whitening @ axes[: len(found.means) - 1].T


def gains(z: Tensor, starts: Tensor) -> list[float]:
    """How much better, per subject, tied mixtures describe each of `z` than one Gaussian; the better of two starts."""
    z = (z - z.mean(1, keepdim=True)) / z.std(1, keepdim=True, correction=0).clamp_min(torch.finfo(z.dtype).tiny)
    z = z.clamp(-LIMIT, LIMIT)
    one = tied_mixtures(z, torch.ones_like(starts[..., :1]), max_iterations=0)
    again = torch.stack([kmeans_start(each, starts.shape[2]) for each in z])
    several = (tied_mixtures(z, start) for start in (starts, again))
    return [
        max(a.log_likelihood, b.log_likelihood) - single.log_likelihood
        for a, b, single in zip(*several, one, strict=True)
    ]


def thinned(z: Tensor, comm: Communicator = LOCAL) -> Tensor:
    """An evenly spaced sample of the rows of all processes, `SEARCHED` at most."""
    return comm.sample(z, SEARCHED)
