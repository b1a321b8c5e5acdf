import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from phenogroups.clustering.mixture import tied_mixture


def stretched(n=600, share=0.2, seed=0):
    """Two subgroups apart along a quiet axis; a loud axis is shared, so that K-means would follow it."""
    rng = np.random.default_rng(seed)
    truth = (rng.random(n) < share).astype(int)
    z = rng.normal(size=(n, 3)) * [8.0, 1.0, 1.0]
    z[:, 1] += 5 * truth
    return torch.as_tensor(z), truth


def test_equals_scikit_learn_from_the_same_start():
    z, truth = stretched()
    start = torch.nn.functional.one_hot(torch.as_tensor(truth), 2).double() * 0.8 + 0.1
    ours = tied_mixture(z, 2, start=start, max_iterations=2000, tolerance=1e-10)
    means = (start.T @ z / start.sum(0)[:, None]).numpy()
    theirs = GaussianMixture(2, covariance_type="tied", means_init=means, tol=1e-10, max_iter=2000).fit(z.numpy())
    np.testing.assert_allclose(ours.log_posterior(z).exp().numpy(), theirs.predict_proba(z.numpy()), atol=2e-3)
    assert ours.log_likelihood == pytest.approx(theirs.score(z.numpy()), abs=1e-3)


def test_finds_the_quiet_axis():
    z, truth = stretched()
    start = torch.nn.functional.one_hot((z[:, 1] > 2).long(), 2).double()
    labels = tied_mixture(z, 2, start=start).log_posterior(z).argmax(1).numpy()
    assert adjusted_rand_score(truth, labels) > 0.9


def test_likelihood_never_falls():
    z, _ = stretched(200)
    start = torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(1)
    seen = [tied_mixture(z, 2, start=start, max_iterations=n).log_likelihood for n in range(1, 30)]
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(seen))


def test_a_constant_direction_is_harmless():
    z, _ = stretched(100)
    z[:, 2] = 3.0
    assert torch.isfinite(tied_mixture(z, 2).log_posterior(z)).all()
