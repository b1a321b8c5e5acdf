"""Logistic regression on an embedding against direct minimisation of its objective."""

import pytest
import torch
import torch.nn.functional as F

from phenogroups.clustering.linear import membership_layer


@pytest.mark.parametrize("k", [2, 3])
def test_memberships_are_fitted_as_by_gradient_descent(k):
    torch.manual_seed(0)
    z = torch.randn(300, 5).double() * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0]) + 3
    q = (z[:, :k] * torch.tensor([1.0, 0.1, 10.0])[:k]).softmax(1)
    weight = torch.rand(300).double() + 0.5
    weights, bias = membership_layer(z, q, weight, strength=0.1)
    assert weights.shape == (k, 5)
    assert bias.shape == (k,)

    scaled = (z - z.mean(0)) / z.std(0, correction=0)

    def objective(layer, offset):
        each = F.cross_entropy(scaled @ layer.T + offset, q, reduction="none")
        # two opposite rows are one logit, whose penalty is of their difference
        size = (layer[1] - layer[0]).square().sum() if k == 2 else layer.square().sum()
        return (weight * each).sum() + size / (2 * 0.1)

    layer, offset = torch.zeros(k, 5).double().requires_grad_(), torch.zeros(k).double().requires_grad_()
    search = torch.optim.LBFGS([layer, offset], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure():
        search.zero_grad()
        loss = objective(layer, offset)
        loss.backward()
        return loss

    search.step(closure)
    expected = (scaled @ layer.T + offset).softmax(1)
    torch.testing.assert_close((z @ weights.T + bias).softmax(1), expected, rtol=0, atol=2e-3)
