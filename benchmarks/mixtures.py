"""Tied mixtures from many starts: ours at once, beside scikit-learn's one after the other.

python benchmarks/mixtures.py. Ratios of processor time by turns in one process on one thread, so that a shared machine
does little harm; the first round warms up.
"""

import warnings
from collections.abc import Callable
from time import process_time

import numpy as np
import torch
from common import OUT
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits
from torch import Tensor

from phenogroups.clustering.mixture import kmeans_start, tied_mixtures

ROUNDS = 3
STARTS = ((500, 10, 2, 25), (1500, 30, 2, 25))  # vectors, axes, subgroups, starts
APART = 1.5  # deviations
TOLERANCE, ITERATIONS = 1e-5, 200


def drawn(count: int, dims: int, k: int, seed: int = 0) -> Tensor:
    """Overlapping clouds."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(count, dims))
    z[np.arange(count), rng.integers(0, k, count)] += APART
    return torch.as_tensor(z)


def of_scikit_learn(z: np.ndarray, starts: np.ndarray) -> None:
    """EM from the same sizes and means, and from the covariance of all vectors."""
    precision = np.linalg.inv(np.cov(z.T, bias=True))
    for q in starts:
        GaussianMixture(
            q.shape[1], covariance_type="tied", tol=TOLERANCE, max_iter=ITERATIONS, weights_init=q.mean(0),
            means_init=q.T @ z / q.sum(0)[:, None], precisions_init=precision,
        ).fit(z)  # fmt: skip


def ratio(slow: Callable[[], object], fast: Callable[[], object]) -> float:
    """Processor time of one over that of the other, median of the rounds."""
    found = []
    for _ in range(ROUNDS + 1):
        began = process_time()
        slow()
        between = process_time()
        fast()
        found.append((between - began) / (process_time() - between))
    return float(np.median(found[1:]))


def main() -> None:
    table = Table("vectors", "axes", "subgroups", "mixtures", "compared", "times as long")
    for count, dims, k, several in STARTS:
        z, rng = drawn(count, dims, k), np.random.default_rng(0)
        axes = [torch.as_tensor(rng.choice(dims, 2, replace=False)) for _ in range(several)]
        starts = torch.stack([kmeans_start(z[:, some], k, seed=i) for i, some in enumerate(axes)])
        times = ratio(
            lambda z=z, starts=starts: of_scikit_learn(z.numpy(), starts.numpy()),
            lambda z=z, starts=starts: tied_mixtures(z, starts, max_iterations=ITERATIONS, tolerance=TOLERANCE),
        )
        table.add_row(*map(str, (count, dims, k, several)), "scikit-learn / tied_mixtures", f"{times:.1f}")
    OUT.print(table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        main()
