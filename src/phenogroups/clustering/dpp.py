"""Determinantal point processes: samples whose members differ from each other (Kulesza & Taskar 2011)."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

CANDIDATES = 200  # differences between a patient and a control among which a start chooses
RIDGE = 1e-6  # of their kernel: differences in fewer directions than asked for must not be impossible to draw


def sample_k_dpp(kernel: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of `size` different items, drawn with probability proportional to det(kernel[S, S])."""
    values, vectors = np.linalg.eigh(kernel)
    values = np.where(values > len(values) * np.finfo(values.dtype).eps * np.abs(values).max(initial=0), values, 0)
    if not 1 <= size <= (values > 0).sum():
        raise ValueError(
            f"Expected a sample of 1 to {(values > 0).sum()} items, the rank of the kernel. Received: {size}. "
            "Ask for fewer, or add a ridge to the kernel."
        )
    # a kernel k-DPP is a mixture of projections onto `size` of its eigenvectors
    basis = vectors[:, _choose_eigenvectors(values / values.max(), size, rng)]
    chosen = np.empty(size, dtype=np.int64)
    for i in range(size):
        left = np.square(basis).sum(axis=1)
        chosen[i] = rng.choice(len(left), p=left / left.sum())
        taken = basis[chosen[i]] / np.sqrt(left[chosen[i]])
        basis = basis - np.outer(basis @ taken, taken)
        basis[chosen[: i + 1]] = 0  # by rounding alone could an item come twice
    return chosen


def _choose_eigenvectors(values: np.ndarray, size: int, rng: np.random.Generator) -> list[int]:
    """Positions drawn with probability proportional to the product of their eigenvalues."""
    e = elementary_symmetric_polynomials(values, size)
    chosen: list[int] = []
    for n in range(len(values), 0, -1):
        missing = size - len(chosen)
        if missing and rng.random() * e[missing, n] < values[n - 1] * e[missing - 1, n - 1]:
            chosen.append(n - 1)
    return chosen


def elementary_symmetric_polynomials(values: np.ndarray, size: int) -> np.ndarray:
    """(size + 1, n + 1): e[l, n] is the sum over all subsets of l among the first n values of their products."""
    e = np.zeros((size + 1, len(values) + 1))
    e[0] = 1
    for n, value in enumerate(values, start=1):
        e[1:, n] = e[1:, n - 1] + value * e[:-1, n - 1]
    return e


def dpp_start(z: Tensor, diagnosis: Tensor, n_subgroups: int, rng: np.random.Generator) -> Tensor:
    """A first subgroup of each patient: of K different ways to depart from a control, the one that is most its own.

    HYDRA's start (Varol et al. 2017): the ways are drawn by a k-DPP with their cosines as the kernel.
    """
    patients, controls = z[diagnosis == 1], z[diagnosis == 0]
    some = [torch.as_tensor(rng.integers(len(who), size=CANDIDATES)) for who in (patients, controls)]
    departures = normalize(patients[some[0]] - controls[some[1]], dim=1)
    kernel = (departures @ departures.T).numpy(force=True) + RIDGE * np.eye(CANDIDATES)
    chosen = departures[torch.as_tensor(sample_k_dpp(kernel, n_subgroups, rng))]
    return (normalize(patients - controls.mean(0), dim=1) @ chosen.T).argmax(1)
