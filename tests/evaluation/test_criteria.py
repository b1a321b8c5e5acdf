"""Criteria for the number of subgroups against other people's code, and where they must point."""

import numpy as np
import pytest
import torch
from sklearn.metrics import davies_bouldin_score, silhouette_score
from sklearn.mixture import GaussianMixture

from phenogroups.evaluation.criteria import bic, dec_loss, dec_ratio, experts_accuracy, separation, x_means


@pytest.fixture
def three():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 80)
    z = rng.normal(size=(240, 3))
    z[np.arange(240), labels] += 9
    return z, labels


def test_separation_is_that_of_scikit_learn(three):
    z, labels = three
    expected = {"silhouette": silhouette_score(z, labels), "davies_bouldin": davies_bouldin_score(z, labels)}
    assert separation(z, labels) == pytest.approx(expected)
    assert np.isnan(separation(z, labels * 0)["silhouette"])


def test_bic_is_that_of_scikit_learn_per_patient(three):
    z, labels = three
    q = torch.nn.functional.one_hot(torch.as_tensor(labels), 3).double()
    same = GaussianMixture(3, covariance_type="tied", means_init=[z[labels == k].mean(0) for k in range(3)]).fit(z)
    assert bic(torch.as_tensor(z), q) == pytest.approx(same.bic(z) / len(z), abs=1e-3)


def test_x_means_splits_until_every_cluster_is_one_cloud(three):
    z, _ = three
    assert x_means(z, 1) == 2
    assert x_means(z, 3) == 3
    assert x_means(z, 2) == 3


def test_dec_loss_by_its_definition(three):
    z, _ = three
    centroids = z[[0, 100]]
    q = np.array([[1 / (1 + np.sum((x - c) ** 2)) for c in centroids] for x in z])
    q /= q.sum(1, keepdims=True)
    p = q**2 / q.sum(0)
    p /= p.sum(1, keepdims=True)
    expected = sum(p[i, j] * np.log(p[i, j] / q[i, j]) for i in range(240) for j in range(2)) / 240
    assert dec_loss(z, centroids) == pytest.approx(expected)
    assert 0.5 < dec_ratio(z, 3) < 2


def test_two_experts_see_what_one_cannot():
    """Patients on both sides of the controls: no single hyperplane tells them apart, one for each side does."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    is_patient, side = np.arange(600) < 300, np.where(np.arange(600) % 2, 6.0, -6.0)
    x[is_patient, 0] += side[is_patient]
    right = np.stack([side[is_patient] > 0, side[is_patient] < 0], axis=1).astype(float)
    assert experts_accuracy(x, is_patient, right) > 0.95
    assert experts_accuracy(x, is_patient, np.ones((300, 1))) < 0.7
