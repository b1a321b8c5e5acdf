"""Hyperplanes against scikit-learn's, and the coordinates that lose nothing."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from phenogroups.clustering.hyperplanes import balanced, fit_coordinates, fit_hyperplanes


@pytest.fixture(scope="module")
def subjects():
    rng = torch.Generator().manual_seed(0)
    diagnosis = torch.arange(300) % 3 % 2
    z = torch.randn(300, 6, generator=rng).double() * torch.arange(1, 7)
    z[:, 0] += 2 * diagnosis
    weights = torch.rand(300, 3, generator=rng).double()
    return z, diagnosis, weights


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_each_is_that_of_scikit_learn(subjects, loss, strength):
    z, diagnosis, weights = subjects
    found = fit_hyperplanes(z, diagnosis, weights, loss=loss, strength=strength, tolerance=1e-7)
    for k in range(3):
        if loss == "logistic":
            oracle = LogisticRegression(C=strength, tol=1e-8, max_iter=1000)
        else:  # liblinear penalises the intercept too, the less the greater its scaling
            oracle = LinearSVC(C=strength, dual=False, tol=1e-10, intercept_scaling=1e3)
        oracle.fit(z.numpy(), diagnosis.numpy(), weights[:, k].numpy())
        np.testing.assert_allclose(found.weights[:, k], oracle.coef_[0], atol=1e-4)
        np.testing.assert_allclose(found.intercepts[k], oracle.intercept_[0], atol=1e-3)


def test_an_earlier_solution_leads_to_the_same(subjects):
    z, diagnosis, weights = subjects
    cold = fit_hyperplanes(z, diagnosis, weights, loss="logistic", tolerance=1e-7)
    start = fit_hyperplanes(z, diagnosis, weights.flip(0), loss="squared_hinge")
    warm = fit_hyperplanes(z, diagnosis, weights, loss="logistic", tolerance=1e-7, start=start)
    torch.testing.assert_close(warm.weights, cold.weights, atol=1e-5, rtol=1e-4)


def test_balanced_classes_weigh_the_same(subjects):
    _, diagnosis, weights = subjects
    weights = torch.where((diagnosis == 1)[:, None] & (torch.arange(3) == 2), 0, weights)  # no patient in the third
    found = balanced(weights, diagnosis)
    of_patients, of_controls = found[diagnosis == 1].sum(0), found[diagnosis == 0].sum(0)
    torch.testing.assert_close(of_patients[:2], of_controls[:2])
    torch.testing.assert_close(found.sum(0)[:2], weights.sum(0)[:2])
    assert of_patients[2] == 0
    assert found.isfinite().all()


@pytest.mark.parametrize("shape", [(60, 10), (10, 60)])
def test_all_axes_together_lose_nothing(shape):
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=rng).double() * torch.rand(shape[1], generator=rng) + 5
    x[:, 3], x[:, 4] = 1.5, x[:, 5]  # a constant and a copy
    diagnosis, weights = torch.arange(len(x)) % 2, torch.ones(len(x), 1).double()
    coordinates = fit_coordinates(x)
    assert coordinates.basis.shape[1] == min(shape[1] - 2, shape[0] - 1)
    scale = x.std(0, correction=0)
    scale[3] = 1
    z = (x - x.mean(0)) / scale
    plain = fit_hyperplanes(z, diagnosis, weights, loss="logistic", tolerance=1e-8)
    turned = fit_hyperplanes(coordinates(x), diagnosis, weights, loss="logistic", tolerance=1e-8)
    torch.testing.assert_close(turned.scores(coordinates(x)), plain.scores(z), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(coordinates.in_features(turned).scores(x), turned.scores(coordinates(x)))


def test_components_are_the_longest_axes():
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(2)).double()
    all_axes, some = fit_coordinates(x)(x), fit_coordinates(x, 3)(x)
    torch.testing.assert_close(some, all_axes[:, :3])
    assert (all_axes.var(0).diff() < 0).all()


def test_a_strength_of_nothing_is_refused(subjects):
    with pytest.raises(ValueError, match=r"strength above 0\. Received: 0"):
        fit_hyperplanes(*subjects, loss="logistic", strength=0)
