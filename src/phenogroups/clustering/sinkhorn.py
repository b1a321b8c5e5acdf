"""Sinkhorn-Knopp: the assignment nearest to given scores among those with given subgroup sizes (Cuturi 2013)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from phenogroups.clustering.blocks import summed
from phenogroups.clustering.communicator import LOCAL, Communicator

# damping of Newton's steps, relative to the target: first value, factors of growth and decay, value that counts as none
FIRST_DAMPING, DAMPED, EASED, LEAST_DAMPING = 0.01, 4, 8, 1e-6


def sinkhorn(
    scores: Tensor,
    epsilon: float = 0.05,
    sizes: Tensor | None = None,
    iterations: int = 100,
    tolerance: float = 1e-6,
    comm: Communicator = LOCAL,
) -> Tensor:
    """SK(scores, epsilon): rows sum to one, column k to n * sizes[k] (equal sizes by default)."""
    logits = scores.mT / epsilon
    target = torch.full((len(logits),), 1 / len(logits)) if sizes is None else sizes
    found = potentials([logits], target, iterations=iterations, tolerance=tolerance, comm=comm)
    return torch.softmax(logits + found.to(logits)[:, None], dim=0).mT


def potentials(
    logits: Sequence[Tensor],  # blocks (subgroups, rows): subgroups first, along which torch is fast then
    target: Tensor,  # (subgroups,): shares of all subjects
    start: Tensor | None = None,
    *,
    iterations: int = 100,
    tolerance: float = 1e-6,
    comm: Communicator = LOCAL,
) -> Tensor:
    """(subgroups,): the potentials that, added to the logits, make the mean of all softmaxes equal to `target`.

    Sinkhorn's iterations maximise a concave function of these K numbers (the semi-dual of optimal transport) slowly.
    Newton's method needs a few steps. They are damped where they overshoot: if all assignments are nearly one-hot, the
    curvature vanishes.
    """
    target = target.cpu().double()
    _, count = comm.offset_and_total(sum(block.shape[1] for block in logits))
    potential = torch.zeros_like(target) if start is None else start
    best, step, damping = _Point(potential, target, target.diag(), torch.inf), torch.zeros_like(target), 0.0
    for _ in range(iterations):
        reached, curvature = _shares(logits, potential, count, comm)
        gap = target - reached
        error = gap.abs().max().item()
        if error < tolerance:
            return potential
        if error < best.error or gap @ step >= 0:  # nearer, or still uphill; not a number is neither
            best = _Point(potential, gap, curvature, error)
            damping = damping / EASED if damping > LEAST_DAMPING else 0.0
        else:
            damping = max(damping * DAMPED, FIRST_DAMPING)
        # a constant added to all potentials changes nothing, so this direction has no curvature: the ones add some
        damped = (best.curvature + damping * target.diag() if damping else best.curvature) + 1 / len(target)
        step = torch.linalg.solve_ex(damped, best.gap).result
        potential = best.potential + step
        reach = (step.max() - step.min()).item()
        # bound on the remaining error: |d2 q_k| <= q_k (1 - q_k) reach^2 along the step, whose mean is a curvature
        bend = math.exp(2 * reach) * reach**2 / 2 * best.curvature.diagonal().max().item() if reach < 1 else torch.inf
        if (best.gap - best.curvature @ step).abs().max().item() + bend < tolerance:
            return potential
    return best.potential


class _Point(NamedTuple):
    potential: Tensor  # (subgroups,)
    gap: Tensor  # (subgroups,): of the shares to their target
    curvature: Tensor  # (subgroups, subgroups): how the shares answer to the potentials
    error: float  # greatest gap


def _shares(logits: Sequence[Tensor], potential: Tensor, count: int, comm: Communicator) -> tuple[Tensor, Tensor]:
    """Mean of the softmax, and of its derivative by the potentials."""

    def of_block(block: Tensor) -> tuple[Tensor, Tensor]:
        q = torch.softmax(block + potential.to(block)[:, None], dim=0)
        # the shares must be exact; the curvature only directs the next step and is faster in single precision
        return q.sum(1, dtype=torch.float64), q @ q.mT

    shares, products = (total / count for total in summed(map(of_block, logits), comm))
    return shares, torch.diag(shares) - products
