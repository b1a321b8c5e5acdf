"""Distances to the training subjects, and the limit beyond which a subject is a stranger."""

import numpy as np
import pytest
import torch
from scipy.stats import beta
from sklearn.covariance import EmpiricalCovariance

from phenogroups.clustering import familiar
from phenogroups.clustering.familiar import beyond_limit, fit_familiar


def cloud(count, dims=12, seed=0):
    """Correlated columns of different units."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(dims, dims)) * np.logspace(-2, 2, dims)
    return torch.as_tensor(rng.normal(size=(count, dims)) @ mix + 5)


def test_with_all_axes_it_is_the_distance_of_mahalanobis():
    z, new = cloud(300), cloud(50, seed=1) * 1.3
    found = fit_familiar(z, np.arange(300))
    expected = np.sqrt(EmpiricalCovariance().fit(z.numpy()).mahalanobis(new.numpy()))
    np.testing.assert_allclose(found.strangeness(new) * found.limit, expected, rtol=1e-4)


@pytest.mark.parametrize(("subjects", "dims"), [(30, 12), (200, 12), (200, 500)])
def test_few_new_subjects_of_the_same_kind_are_strangers(subjects, dims):
    marked = []
    for seed in range(5):
        found = fit_familiar(cloud(subjects, dims, seed), np.arange(subjects))
        marked.append((found.strangeness(cloud(400, dims, 100 + seed)) > 1).double().mean().item())
        assert (found.strangeness(cloud(50, dims, 200) * 5) > 1).double().mean() > 0.95
    assert np.mean(marked) <= 0.05


@pytest.mark.parametrize("subjects", [59, 92, 93, 100, 300, 1000])
def test_the_limit_marks_more_than_a_twentieth_in_at_most_a_twentieth_of_models(subjects):
    # the share of new subjects within the largest distance but k has a beta distribution
    allowed = beyond_limit(subjects)
    too_low = [beta.cdf(0.95, subjects - k, k + 1) for k in (allowed, allowed + 1)]
    assert too_low[0] <= 0.05
    assert too_low[1] > 0.05


def test_rows_of_a_group_are_held_out_together(monkeypatch):
    seen = []
    original = familiar._fit
    monkeypatch.setattr(familiar, "_fit", lambda z: seen.append(z) or original(z))
    z = torch.repeat_interleave(cloud(40), 2, dim=0)
    fit_familiar(z, np.repeat(np.arange(40), 2))
    for part in seen:  # either both copies of a subject or none
        _, counts = torch.unique(part, dim=0, return_counts=True)
        assert (counts == 2).all()
    assert len(seen) == familiar.FOLDS + 1


def test_a_column_that_never_varied_counts():
    z = cloud(100)
    z[:, 3] = 2.0
    found = fit_familiar(z, np.arange(100))
    other = z.clone()
    other[:, 3] = 900.0
    assert (found.strangeness(other) > 1).all()
    assert (found.strangeness(z) > 1).double().mean() < 0.05


@pytest.mark.parametrize("subjects", [2, 3, 7])
def test_a_handful_or_a_single_group_is_measured_too(subjects):
    z = cloud(subjects)
    for group in (np.arange(subjects), np.zeros(subjects)):
        found = fit_familiar(z, group).strangeness(z)
        assert found.isfinite().all()
