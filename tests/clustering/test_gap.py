import numpy as np
import pytest
import torch

from phenogroups.clustering.gap import deviations_apart, filled, gap, pair_gaps


def test_valleys_are_filled_and_nothing_else():
    valley = torch.tensor([[0.0, 3.0, 1.0, 2.0, 0.5], [0.0, 1.0, 2.0, 1.0, 0.0]])
    np.testing.assert_array_equal(filled(valley), [[0, 3, 2, 2, 0.5], [0, 1, 2, 1, 0]])


def test_a_gap_is_a_gap_and_a_continuum_has_none():
    rng = np.random.default_rng(0)
    apart = torch.as_tensor(np.concatenate([rng.normal(-4, 1, 500), rng.normal(4, 1, 500)]))[None]
    even = torch.as_tensor(rng.uniform(-1, 1, 1000))[None]
    skewed = torch.as_tensor(rng.exponential(size=1000))[None]
    weight = torch.ones(1, 1000).double()
    assert gap(apart, weight) > 0.3
    assert gap(even, weight) < 0.02
    assert gap(skewed, weight) < 0.02
    only_left = weight.clone()
    only_left[:, 500:] = 0  # whoever weighs nothing makes no gap
    assert gap(apart, only_left) < 0.02
    assert gap(torch.ones(1, 5), torch.ones(1, 5)) == 0


def test_a_smaller_group_is_behind_a_gap():
    rng = np.random.default_rng(0)
    groups = torch.as_tensor(np.concatenate([rng.normal(size=1000), rng.normal(5, 1, size=200)]))[None]
    assert gap(groups, torch.ones_like(groups)) > 0.03


def test_each_pair_has_a_gap():
    scores = torch.tensor([[0.0, 10, 11]]).repeat(1, 300, 1) * torch.eye(3).repeat_interleave(100, 0)
    scores = scores + torch.randn(1, 300, 3, generator=torch.Generator().manual_seed(0))
    q = torch.eye(3).repeat_interleave(100, 0)[None]
    pairs = [gap(scores[..., a] - scores[..., b], q[..., a] + q[..., b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert pair_gaps(scores, q).equal(torch.stack(pairs))


@pytest.mark.parametrize("n", [60, 200, 1000])
@pytest.mark.parametrize("apart", [4.0, 6.0])
def test_two_normal_distributions_are_as_far_apart_as_they_were_drawn(apart, n):
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(400, n)) + apart * (np.arange(n) < n / 2)
    gaps = gap(torch.as_tensor(drawn), torch.ones(400, n).double())
    assert deviations_apart(gaps.mean().item(), n) == pytest.approx(apart, abs=0.3)


def test_no_gap_is_two_deviations_and_the_same_gap_of_fewer_values_is_more():
    assert deviations_apart(-0.1, 100) == deviations_apart(0.0, 100) == deviations_apart(0.0, 0) == 2
    assert deviations_apart(0.001, 100) < 3
    assert deviations_apart(0.15, 60) > deviations_apart(0.15, 600) + 0.5
    assert deviations_apart(0.9, 100) == 12
