"""Cohorts for methods that see by lines."""

from collections.abc import Callable

import numpy as np
import pytest

from phenogroups.data.cohort import Cohort


@pytest.fixture(scope="session")
def planted() -> Callable[..., Cohort]:
    """Patients depart from controls in one of K directions; another, which all share, is far louder."""

    def draw(n: int = 600, *, n_subgroups: int = 2, dims: int = 20, shift: float = 4, seed: int = 0) -> Cohort:
        rng = np.random.default_rng(seed)
        ill, truth = np.arange(n) % 2, rng.integers(0, n_subgroups, n)
        x = rng.normal(size=(n, dims))
        x[np.arange(n), truth] += shift * ill
        x[:, n_subgroups] *= 6
        rotation, _ = np.linalg.qr(np.random.default_rng(7).normal(size=(dims, dims)))  # no feature is a direction
        return Cohort((x @ rotation).astype(np.float32), ill, truth=truth)

    return draw
