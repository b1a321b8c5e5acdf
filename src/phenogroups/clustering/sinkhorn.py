"""Sinkhorn-Knopp: the assignment nearest to given scores among those with given subgroup sizes (Cuturi 2013)."""

import torch
from torch import Tensor


def sinkhorn(
    scores: Tensor, epsilon: float = 0.05, sizes: Tensor | None = None, iterations: int = 100, tolerance: float = 1e-6
) -> Tensor:
    """SK(scores, epsilon): rows sum to one, column k to n * sizes[k] (equal sizes by default).

    Only the K column potentials are iterated, so one round is one softmax and one mean over subjects.
    """
    count, k = scores.shape
    target = torch.full((k,), 1 / k, dtype=scores.dtype, device=scores.device) if sizes is None else sizes
    logits = scores / epsilon
    potential = torch.zeros_like(target)
    for _ in range(iterations):
        # log-mean over subjects: a column that no subject wants must not become log(0)
        reached = torch.log_softmax(logits + potential, dim=1).logsumexp(dim=0) - torch.log(target.new_tensor(count))
        potential = potential + target.log() - reached
        if (reached.exp() - target).abs().max() < tolerance:
            break
    return torch.softmax(logits + potential, dim=1)
