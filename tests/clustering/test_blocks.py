"""Vectors by the block: the same as all at once."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score

from phenogroups.clustering import blocks, kmeans, mixture, space
from phenogroups.clustering.kmeans import equal_sizes, first_greatest_, group_means, lloyd, nearest, sinkhorn_kmeans
from phenogroups.clustering.matching import match_centroids
from phenogroups.clustering.mixture import tied_mixture, tied_mixtures
from phenogroups.clustering.sinkhorn import potentials, sinkhorn
from phenogroups.clustering.space import fit_space


@pytest.fixture
def small_blocks(monkeypatch):
    """Of 37 rows, so that a few hundred subjects are many blocks and the last one is not full."""
    spans = blocks.spans
    for module in (blocks, kmeans, mixture):
        monkeypatch.setattr(module, "spans", lambda count, rows=37: spans(count, min(rows, 37)))
    monkeypatch.setattr(space, "QUANTILES_AT_ONCE", 1000)


def clouds(n=500, dims=6, groups=4, apart=2.5, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(groups, n, p=np.arange(1, groups + 1) / np.arange(1, groups + 1).sum())
    return torch.as_tensor(rng.normal(size=(n, dims)) + apart * np.eye(groups, dims)[labels])


def simple_sinkhorn(scores, epsilon, sizes, iterations=20_000, tolerance=1e-8):
    """Sinkhorn's own rounds, all subjects at once."""
    logits, potential = scores / epsilon, torch.zeros_like(sizes)
    for _ in range(iterations):
        reached = torch.log_softmax(logits + potential, dim=1).logsumexp(dim=0) - np.log(len(scores))
        potential = potential + sizes.log() - reached
        if (reached.exp() - sizes).abs().max() < tolerance:
            break
    return torch.softmax(logits + potential, dim=1)


def simple_labels(squared, balanced, epsilon):
    if not balanced:
        return squared.argmin(1)
    k = squared.shape[1]
    proportions = torch.softmax(-squared.clamp_min(1e-300).log(), dim=1)
    return simple_sinkhorn(proportions, epsilon, torch.full((k,), 1 / k, dtype=torch.float64)).argmax(1)


def simple_kmeans(z, centroids, balanced, epsilon, max_iterations):
    """The algorithm as it reads: every distance, every label, every mean anew."""
    labels = None
    for _ in range(max_iterations):
        before, labels = labels, simple_labels(torch.cdist(z, centroids).square(), balanced, epsilon)
        if before is not None and torch.equal(before, labels):
            break
        member = F.one_hot(labels, len(centroids)).to(z)
        centroids = member.T @ z / member.sum(0)[:, None]
    return centroids


def simple_tied_em(z, q, iterations):
    """Posteriors and mean log-likelihood of a tied mixture after so many iterations, by its definition."""
    for _ in range(iterations + 1):
        means = q.T @ z / q.sum(0)[:, None]
        covariance = sum((q[:, k, None] * (z - m)).T @ (z - m) for k, m in enumerate(means)) / len(z)
        covariance = covariance + mixture.JITTER * np.trace(np.cov(z.T, ddof=0)) / z.shape[1] * np.eye(z.shape[1])
        inverse = np.linalg.inv(covariance)
        away = z[:, None] - means
        log_joint = np.log(q.mean(0)) - np.einsum("nkd,de,nke->nk", away, inverse, away) / 2
        log_joint = log_joint - np.linalg.slogdet(2 * np.pi * covariance)[1] / 2
        evidence = logsumexp(log_joint, axis=1, keepdims=True)
        q = np.exp(log_joint - evidence)
    return q, evidence.mean()


@pytest.mark.parametrize("balanced", [False, True])
def test_kmeans_by_blocks_equals_the_simple_one(small_blocks, balanced):
    z = clouds()
    start = z[[0, 1, 2, 3]]
    epsilon = 0.3  # so warm that Sinkhorn takes tens of rounds and not thousands
    expected = simple_kmeans(z, start, balanced, epsilon, 8)
    assign = equal_sizes(z, epsilon) if balanced else nearest(z)
    centroids, inertia = lloyd(z, start, assign, max_iterations=8)
    torch.testing.assert_close(centroids, expected, rtol=0, atol=1e-9)
    assert inertia == pytest.approx(torch.cdist(z, expected).square().amin(1).mean().item())


def test_an_empty_subgroup_starts_again_far_away(small_blocks):
    z = clouds(groups=2, apart=8)
    nowhere = torch.cat([z[:1], torch.full((1, z.shape[1]), 1e3, dtype=z.dtype)])
    _, inertia = lloyd(z, nowhere, nearest(z))
    assert inertia == pytest.approx(lloyd(z, kmeans.kmeans(z, 2), nearest(z))[1])


@pytest.mark.parametrize("clusterer", [kmeans.kmeans, sinkhorn_kmeans])
def test_starts_are_compared_among_some_and_finished_among_all(monkeypatch, small_blocks, clusterer):
    z = clouds(2000, groups=3, apart=8)
    whole = clusterer(z, 3)
    monkeypatch.setattr(kmeans, "SEARCHED", 300)
    assert torch.equal(kmeans.sampled(z), z[::7])  # 286 of 2,000
    order = match_centroids(whole, some := clusterer(z, 3))
    torch.testing.assert_close(some[order], whole, rtol=0, atol=0.05)


@pytest.mark.parametrize("epsilon", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("sharpness", [0.3, 3.0])
def test_newtons_potentials_are_sinkhorns(epsilon, sharpness):
    g = torch.Generator().manual_seed(0)
    scores = (sharpness * torch.randn(400, 5, dtype=torch.float64, generator=g)).softmax(1)
    sizes = torch.tensor([0.1, 0.15, 0.2, 0.25, 0.3], dtype=torch.float64)
    expected = simple_sinkhorn(scores, epsilon, sizes)
    torch.testing.assert_close(sinkhorn(scores, epsilon, sizes, tolerance=1e-9), expected, rtol=0, atol=1e-5)


def test_potentials_stop_no_earlier_than_they_say():
    g = torch.Generator().manual_seed(1)
    logits = [10 * torch.rand(4, n, dtype=torch.float64, generator=g) for n in (50, 300, 7)]
    target = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    together = torch.cat(logits, 1)
    for tolerance in (1e-2, 1e-3, 1e-4, 1e-6, 1e-8):
        found = potentials(logits, target, tolerance=tolerance)
        reached = (together + found[:, None]).softmax(0).mean(1)
        assert (reached - target).abs().max() < tolerance


def test_the_first_of_equals_is_greatest():
    values = -torch.tensor([[1.0, 2.0, 3.0, 0.0], [1.0, 1.0, 3.0, 5.0], [4.0, 1.0, 2.0, 0.0]])
    assert first_greatest_(values).tolist() == [0, 1, 2, 0]
    many = torch.randn(7, 500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first_greatest_(many.clone()), many.argmax(0))


def test_group_means_are_means(small_blocks):
    z, labels = clouds(), torch.arange(500) % 3
    means, sizes = group_means(z, labels, 4)
    torch.testing.assert_close(means[:3], torch.stack([z[labels == k].mean(0) for k in range(3)]))
    assert means[3].eq(0).all()
    assert sizes.tolist() == [167, 167, 166, 0]


@pytest.mark.parametrize("shared", [True, False])
def test_tied_mixtures_by_blocks_equal_the_definition(small_blocks, shared):
    z = clouds() + 100  # far from the origin, where products lose digits
    g = torch.Generator().manual_seed(0)
    starts = torch.rand(3, 500, 2, dtype=torch.float64, generator=g).mul(3).softmax(2)
    fits = tied_mixtures(z if shared else z.expand(3, -1, -1).clone(), starts, max_iterations=5, tolerance=-1)
    for fit, start in zip(fits, starts, strict=True):
        q, likelihood = simple_tied_em(z.numpy(), start.numpy(), 5)
        np.testing.assert_allclose(fit.log_posterior(z).exp(), q, atol=1e-6)
        assert fit.log_likelihood == pytest.approx(likelihood, abs=1e-9)
    single = fits[0].posterior(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, fits[0].log_posterior(z).exp().float(), rtol=0, atol=1e-3)


def test_starts_that_climb_for_longer_are_not_mixed_up(small_blocks):
    z = clouds()
    starts = torch.stack([torch.rand(500, 2, generator=torch.Generator().manual_seed(i)).softmax(1) for i in range(6)])
    together = tied_mixtures(z, starts.double())
    for fit, start in zip(together, starts, strict=True):
        (alone,) = tied_mixtures(z, start[None].double())
        assert fit.log_likelihood == pytest.approx(alone.log_likelihood, abs=1e-10)


def test_a_mixture_of_many_starts_from_a_sample(monkeypatch):
    z = clouds(1500, groups=2, apart=6)
    whole = tied_mixture(z, 2)
    monkeypatch.setattr(kmeans, "SEARCHED", 400)
    some = tied_mixture(z, 2)
    assert some.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-3)
    assert adjusted_rand_score(some.posterior(z).argmax(1), whole.posterior(z).argmax(1)) > 0.98


@pytest.mark.parametrize("scaler", ["standard", "robust", "none"])
def test_a_space_by_blocks_equals_one_fitted_at_once(small_blocks, scaler):
    z = clouds() * torch.tensor([1.0, 2, 3, 4, 5, 6]) + 3
    is_patient = torch.arange(500) % 3 > 0
    patients, controls = z[is_patient], z[~is_patient]
    settings = {"scaler": scaler, "remove_severity": True, "winsorise": 2.0, "components": 3}
    found = fit_space(z, is_patient, **settings)
    if scaler == "standard":
        center, scale = patients.mean(0), patients.std(0, correction=0)
    elif scaler == "robust":
        low, center, high = patients.quantile(torch.tensor([0.25, 0.5, 0.75]).double(), dim=0)
        scale = high - low
    else:
        center, scale = torch.zeros(6).double(), torch.ones(6).double()
    away = F.normalize(-((controls - center) / scale).mean(0), dim=0)
    seen = (patients - center) / scale
    seen = (seen - (seen @ away)[:, None] * away).clamp(-2, 2)
    torch.testing.assert_close(found.center, center)
    torch.testing.assert_close(found.scale, scale)
    torch.testing.assert_close(found.severity, away)
    _, _, axes = torch.linalg.svd(seen - seen.mean(0), full_matrices=False)
    torch.testing.assert_close((axes[:3] @ found.basis).abs(), torch.eye(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found(z, is_patient), seen @ found.basis)
    torch.testing.assert_close(found(z)[is_patient], found(z, is_patient))
