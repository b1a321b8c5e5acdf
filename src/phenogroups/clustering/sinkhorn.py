"""Sinkhorn-Knopp: the assignment nearest to given scores among those with given subgroup sizes (Cuturi 2013)."""

import torch
from torch import Tensor

from phenogroups.clustering.sums import ALONE, Sums


def sinkhorn(
    scores: Tensor,
    epsilon: float = 0.05,
    sizes: Tensor | None = None,
    iterations: int = 100,
    tolerance: float = 1e-6,
    sums: Sums = ALONE,
) -> Tensor:
    """SK(scores, epsilon): rows sum to one, column k to n * sizes[k] (equal sizes by default).

    Only the K column potentials are iterated, so one round is one softmax and one mean over subjects.
    """
    (_, count), k = sums.places(len(scores)), scores.shape[1]
    equal = torch.full((k,), 1 / k, dtype=torch.float64, device=scores.device)
    target = equal if sizes is None else sizes.double()
    logits = scores / epsilon
    potential = torch.zeros_like(target)
    for _ in range(iterations):
        # log-mean over subjects: a column that no subject wants must not become log(0)
        wanted = torch.log_softmax(logits + potential.to(logits), dim=1).double().logsumexp(dim=0)
        reached = sums.stack(wanted).logsumexp(dim=0) - torch.log(target.new_tensor(count))
        potential = potential + target.log() - reached
        if (reached.exp() - target).abs().max() < tolerance:
            break
    return torch.softmax(logits + potential.to(logits), dim=1)
