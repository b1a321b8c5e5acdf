"""The first subgroups of Deep UCSL: a vote of several encoders, or the split of a table's features.

A split that only one encoder finds comes from its random weights.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phenogroups.clustering.communicator import LOCAL, Communicator
from phenogroups.clustering.contrast import shared, specific_mixtures, specificity, thinned
from phenogroups.clustering.first_split import FirstSplit, first_split
from phenogroups.clustering.matching import adjusted_rand
from phenogroups.clustering.mixture import SMALLEST, TiedMixture, tied_mixtures

CANDIDATES = 5  # splits that each encoder proposes
INVARIANT = 0.5  # adjusted Rand index from which a split does not depend on the augmentation

View = tuple[Tensor, Tensor]  # embeddings of the same patients and controls by one encoder


def specificities(q: Tensor, patients: Tensor, controls: Tensor, comm: Communicator = LOCAL) -> list[float]:
    """How much more each of several splits (splits, patients, K) separates these patients than controls."""
    found = tied_mixtures(patients, q, max_iterations=0, comm=comm)
    return specificity(found, thinned(patients, comm), thinned(controls, comm))


def vote(
    views: list[View], n_subgroups: int, seed: int, augmented: list[tuple[Tensor, Tensor]] | None = None
) -> tuple[int, Tensor, float] | None:
    """The split that is most specific to patients in what several encoders see; None if no encoder proposes one.

    Proposals have errors of the encoder that they come from, so that a mixture of the coordinates of all encoders side
    by side begins at each of them. What several see stands out there, but so may an accident that is loud in one: both
    the specificity side by side and that in each encoder count. `augmented` are two augmented views of the patients, by
    each encoder: splits that depend on what the augmentation changes lose.

    Returns the encoder in which it is most specific, the posteriors of the patients, and its agreement with the
    encoders that did not propose it.
    """
    proposed = [_proposals(*view, n_subgroups, seed) for view in views]
    of_encoder = [i for i, splits in enumerate(proposed) for _ in splits]
    if not of_encoder:
        return None
    patients, controls = (torch.cat(side, dim=1) for side in zip(*views, strict=True))
    starts = torch.stack([F.one_hot(q.argmax(1), n_subgroups) for splits in proposed for q in splits])
    found = zip(tied_mixtures(patients, starts), of_encoder, strict=True)
    # side by side too, a handful of outliers is no subgroup
    found = [(mixture, i) for mixture, i in found if mixture.log_sizes.exp().min() >= SMALLEST]
    if not found:
        return None
    joint, of_encoder = map(list, zip(*found, strict=True))
    candidates = [mixture.log_posterior(patients.double()).exp() for mixture in joint]
    by_encoder = torch.tensor([specificities(torch.stack(candidates), *view) for view in views])
    together = torch.tensor(specificity(joint, patients, controls))
    # roots, so that one encoder with large values does not decide alone
    alone, together = by_encoder.clamp_min(0).sqrt().mean(dim=0), together.clamp_min(0).sqrt()
    votes = (alone * together).sqrt() * (1 - shared(candidates, views, seed=seed))
    if augmented is not None:
        votes = votes * invariance(joint, *(torch.cat(each, dim=1) for each in zip(*augmented, strict=True)))
    winner = int(votes.argmax())
    q = candidates[winner]
    others = [splits for i, splits in enumerate(proposed) if i != of_encoder[winner]]
    best = [max((_agreement(q, other) for other in splits), default=0.0) for splits in others]
    return int(by_encoder[:, winner].argmax()), q, float(np.mean(best))


def invariance(found: list[TiedMixture], first: Tensor, second: Tensor) -> Tensor:
    """(mixtures,): how alike each divides two augmented views of the same subjects; 1 from an agreement of a half on.

    The augmentation says what is no kind of illness, such as how far a picture is turned. Errors of single subjects
    count for nothing, because a split of young encoders has many.
    """
    alike = [_agreement(each.log_posterior(first.double()), each.log_posterior(second.double())) for each in found]
    return (torch.tensor(alike) / INVARIANT).clamp(0, 1)


def _proposals(patients: Tensor, controls: Tensor, n_subgroups: int, seed: int) -> list[Tensor]:
    """The most specific splits in one embedding, as posteriors of the patients."""
    found = specific_mixtures(thinned(patients), thinned(controls), n_subgroups, seed=seed)
    return [mixture.log_posterior(patients.double()).exp() for mixture in found[:CANDIDATES]]


def split_features(patients: Tensor, controls: Tensor, n_subgroups: int, seed: int) -> tuple[FirstSplit, float]:
    """The split of a table's patients, and its mean agreement with the splits of two halves of the cohort.

    The agreement is 0 where the halves are too small to be split.
    """
    split, agreement = first_split(patients, controls, n_subgroups, seed=seed), 0.0
    if len(patients) // 2 >= 2 * n_subgroups and len(controls) // 2 >= 2:
        halves = (first_split(patients[i::2], controls[i::2], n_subgroups, seed=seed) for i in (0, 1))
        q = split.posterior(patients)
        agreement = float(np.mean([_agreement(q, half.posterior(patients)) for half in halves]))
    return split, agreement


def _agreement(a: Tensor, b: Tensor) -> float:
    return adjusted_rand(a.argmax(1), b.argmax(1), a.shape[1])
