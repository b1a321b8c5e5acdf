"""Gaussian clouds against scikit-learn's mixture."""

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch.nn.functional import one_hot

from phenogroups.clustering.gaussians import equal_clouds, gaussian_mixture


@pytest.fixture(scope="module")
def clouds():
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    z = rng.normal(size=(300, 2)) * np.array([[1, 0.3], [0.3, 1], [0.6, 0.6]])[labels] + 4 * np.eye(3, 2)[labels]
    return torch.as_tensor(z), torch.as_tensor(labels)


def test_the_posterior_is_that_of_scikit_learn(clouds):
    z, labels = clouds
    found = gaussian_mixture(z, one_hot(labels, 3).double())
    oracle = GaussianMixture(3, random_state=0, tol=1e-6, max_iter=1000).fit(z.numpy()).predict_proba(z.numpy())
    same = found.posterior(z)[:, :, None] - torch.as_tensor(oracle)[:, None]
    assert same.abs().amax(0).amin(1).max() < 0.05  # each of ours is one of theirs


@pytest.mark.parametrize("cluster", [gaussian_mixture, equal_clouds])
def test_clouds_are_found_from_a_rough_start_and_no_subgroup_stays_empty(clouds, cluster):
    z, labels = clouds
    rough = one_hot(torch.where(torch.arange(300) % 4 == 0, (labels + 1) % 3, labels), 3).double()
    assert (cluster(z, rough).posterior(z).argmax(1) == labels).double().mean() > 0.95
    nobody = torch.zeros(300, 3).double()
    nobody[:, 0] = 1  # two subgroups have nobody
    found = cluster(z, nobody).posterior(z)
    assert torch.bincount(found.argmax(1), minlength=3).min() > 0
    torch.testing.assert_close(found.sum(1), torch.ones(300).double())


@pytest.mark.parametrize("cluster", [gaussian_mixture, equal_clouds])
@pytest.mark.parametrize("z", [torch.zeros(9, 2), torch.eye(9)[:, :1], torch.arange(3)[:, None]])
def test_hardly_any_different_subjects(cluster, z):
    found = cluster(z.double(), torch.full((len(z), 3), 1 / 3).double()).posterior(z.double())
    assert found.isfinite().all()
