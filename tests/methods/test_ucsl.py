"""UCSL: clusters in the directions of the disease."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.scores import score
from phenogroups.methods import UCSL, PlainKMeans
from phenogroups.methods.ucsl import LinearUCSL, Steps, fit_ucsl, orthonormal


@parametrize_with_checks([UCSL(n_consensus=2)])
def test_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_subgroups": 3},
        {"maximization": "max_margin"},
        {"clustering": "k_means"},
        {"start": "dpp", "positive_weighting": "soft"},
        {"start": "k_means", "negative_weighting": "hard"},
        {"start": "dpp", "negative_weighting": "uniform"},
        {"components": 15},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_planted_subgroups_that_kmeans_misses(planted, settings):
    k = settings.get("n_subgroups", 2)
    train, test = planted(n_subgroups=k), planted(n_subgroups=k, seed=1)
    found = score(test, UCSL(**settings).fit(train).predict_cohort(test))
    assert found.subgroup_bacc > 0.9
    assert found.class_bacc > 0.9
    assert score(test, PlainKMeans(k).fit(train).predict_cohort(test)).subgroup_bacc < 0.65


def test_another_seed_is_another_start(planted):
    cohort = planted(200)
    weights = [UCSL(n_consensus=1, seed=seed).fit(cohort).beliefs_.weights for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_on_vectors_of_any_kind_and_from_its_tensors_alone(planted):
    train, test = planted(), planted(seed=1)
    z, new = torch.as_tensor(train.inputs), torch.as_tensor(test.inputs)
    model = fit_ucsl(z, torch.as_tensor(train.diagnosis), UCSL(n_consensus=3))
    assert all(isinstance(getattr(model, f.name), torch.Tensor) for f in fields(model))
    found = LinearUCSL(**vars(model)).read(new)
    torch.testing.assert_close(found["subgroup"].sum(1), torch.ones(len(new)).double())
    assert ((found["diagnosis"] > 0.5).numpy() == test.is_patient).mean() > 0.9
    method = UCSL(n_consensus=3).fit(train)
    np.testing.assert_allclose(method.predict_subgroup_proba(test), found["subgroup"], atol=1e-6)


def test_diagnosis_is_that_of_the_experts_as_far_as_each_is_concerned(planted):
    model = UCSL(n_consensus=2).fit(planted()).beliefs_
    z = torch.as_tensor(planted(seed=1).inputs)
    found, experts = model.read(z), (z.double() @ model.weights + model.intercepts).sigmoid()
    torch.testing.assert_close(found["diagnosis"], (found["subgroup"] * experts).sum(1))


def steps(z: torch.Tensor, diagnosis: torch.Tensor, n_subgroups: int, **settings) -> Steps:
    return Steps(z, diagnosis, UCSL(n_subgroups, **settings))


def test_weights_of_patients_and_controls():
    diagnosis = torch.tensor([1, 1, 0, 0])
    q = torch.tensor([[0.4, 0.3, 0.3], [0.1, 0.45, 0.45], [0.6, 0.4, 0.0], [0.5, 0.5, 0.0]]).double()
    z, third = torch.zeros(4, 2).double(), 1 / 3
    hard_soft = steps(z, diagnosis, 3).weigh(q)
    # hard is one of the subgroups even where none has half; no control resembles the third, so all oppose it
    expected = [[1, 0, 0], [0, 1, 0], [0.6, third, third], [0.5, third, third]]
    torch.testing.assert_close(hard_soft, torch.tensor(expected).double())
    soft_uniform = steps(z, diagnosis, 3, positive_weighting="soft", negative_weighting="uniform").weigh(q)
    torch.testing.assert_close(soft_uniform[:2], q[:2])
    torch.testing.assert_close(soft_uniform[2:], torch.full((2, 3), third).double())


def test_an_expert_without_patients_or_a_cluster_without_anybody_goes_on(planted):
    cohort = planted(100)
    em = steps(torch.as_tensor(cohort.inputs).double(), torch.as_tensor(cohort.diagnosis), 3, iterations=2)
    nobody = torch.zeros(100, 3).double()
    nobody[:, 0] = 1
    (found,) = em.climb([nobody], stability=0.85)
    assert found.q.isfinite().all()
    assert torch.bincount(found.q[em.is_patient].argmax(1), minlength=3).min() > 0


def test_the_basis_is_orthonormal_in_any_order_and_without_parallels():
    directions = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)).double()
    basis = orthonormal(torch.cat([directions, 5 * directions[:, :1]], dim=1))
    torch.testing.assert_close(basis.T @ basis, torch.eye(3).double())
    torch.testing.assert_close(basis @ (basis.T @ directions), directions)
    other = orthonormal(directions[:, [2, 0, 1]])
    torch.testing.assert_close(other @ other.T, basis @ basis.T)
    assert orthonormal(torch.zeros(4, 2).double()).shape == (4, 1)


@pytest.mark.parametrize("start", ["gaussian_mixture", "dpp", "k_means"])
@pytest.mark.parametrize("clustering", ["gaussian_mixture", "k_means"])
def test_odd_inputs(start, clustering):
    """Features of which most are constant or copies, and fewer patients than features; then hardly anybody."""
    rng = np.random.default_rng(0)
    inputs = np.repeat(rng.normal(size=(24, 3)), 20, axis=1)
    inputs[:, 10:50] = 1
    cohort = Cohort(inputs.astype(np.float32), np.arange(24) % 2)
    for some in (cohort, cohort[:7], Cohort(np.ones_like(inputs), cohort.diagnosis)):
        found = UCSL(3, start=start, clustering=clustering, n_consensus=3).fit(some).predict_cohort(some)
        assert np.isfinite(found.subgroup).all()
        assert np.isfinite(found.diagnosis).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_consensus": 0}, "n_consensus of at least 1"),
        ({"components": 0}, "components of at least 1"),
        ({"start": "random"}, "Expected start as"),
        ({"strength": -1.0}, "strength above 0"),
    ],
)
def test_wrong_settings_are_refused(planted, settings, words):
    with pytest.raises(ValueError, match=words):
        UCSL(**settings).fit(planted(40))
