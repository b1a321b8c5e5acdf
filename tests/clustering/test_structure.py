"""Steps from one subgroup to the next, and the surrogates beside them."""

import numpy as np
import pytest
import torch
from scipy.stats import gamma

from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.structure import (
    climb,
    gap_between,
    grow,
    path,
    split_at_random,
    steps,
    upper_tail,
    without_more_groups,
)


def clouds(counts, apart=7.0, dims=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    z = rng.normal(size=(len(labels), dims))
    z[np.arange(len(labels)), labels % dims] += apart * (labels > 0)
    return torch.as_tensor(z), labels


def test_climbing_is_the_em_of_a_tied_mixture():
    z, labels = clouds([60, 40], apart=3)
    start = torch.nn.functional.one_hot(torch.as_tensor(labels), 2).float() * 0.8 + 0.1
    q, level = climb(z.float()[None], start[None], 4)
    slow = tied_mixture(z, 2, start=start.double(), max_iterations=3)
    np.testing.assert_allclose(q[0], slow.log_posterior(z).exp(), atol=2e-3)
    one, base = climb(z.float()[None], torch.ones(1, 100, 1), 1)
    single = tied_mixture(z, 1, start=torch.ones(100, 1).double())
    assert (level - base).item() == pytest.approx(slow.log_likelihood - single.log_likelihood, abs=2e-3)
    assert (one == 1).all()


def test_a_split_shares_out_one_subgroup_and_keeps_the_others():
    z, _ = clouds([30, 30])
    q = torch.rand(2, 60, 2).softmax(2)
    split = split_at_random(torch.stack([z, z]).float(), q, 3, np.random.default_rng(0))
    assert split.shape == (2, 6, 60, 3)
    torch.testing.assert_close(split.sum(3), torch.ones(2, 6, 60))
    torch.testing.assert_close(split[:, :3, :, 1], q[:, None, :, 1].expand(2, 3, 60))
    torch.testing.assert_close(split[:, :3, :, 0] + split[:, :3, :, 2], q[:, None, :, 0].expand(2, 3, 60))
    assert ((split[..., 2] == 0) | (split[..., 2] > 0)).all()
    assert (split[..., 2].sum(2) > 0).all()


def test_a_subgroup_of_outliers_is_none():
    z, _ = clouds([200, 2], apart=40)
    start = torch.ones(1, 202, 1)
    _, base = climb(z.float()[None], start, 1)
    _, q = grow(z.float()[None], start, base, 20, 3, np.random.default_rng(0))
    assert (q.mean(1).min() == 0) or q[0].mean(0).min() >= 0.02


def test_the_least_gap_is_of_the_closest_two():
    z, labels = clouds([100, 100, 100], apart=9)
    member = torch.nn.functional.one_hot(torch.as_tensor(labels), 3).float()
    three = gap_between(z.float()[None], member[None])
    half = member.clone()
    half[labels == 2, 2] = (torch.arange(100) % 2).float()  # the third cut in two at random: no gap there
    four = torch.cat([half, (member[:, 2] - half[:, 2])[:, None]], 1)
    assert three > 0.2
    assert gap_between(z.float()[None], four[None]) < 0.05


def test_surrogates_keep_covariance_and_subgroups_and_lose_the_rest():
    rng = np.random.default_rng(0)
    z, _ = clouds([300, 300], apart=8, dims=3)
    z = z @ torch.as_tensor(rng.normal(size=(3, 3)))
    alone, labels = without_more_groups(z.float(), torch.ones(600, 1), 40, rng)
    assert alone.shape == (40, 600, 3)
    assert (labels == 0).all()
    np.testing.assert_allclose(np.cov(alone.flatten(0, 1).T), np.cov(z.T), rtol=0.1, atol=0.1)
    two = path(z, 2)[0][None]
    assert gap_between(z.float()[None], two) > 0.2
    false = [path(one, 2)[0][None] for one in alone[:5]]
    assert max(gap_between(one[None], q).item() for one, q in zip(alone[:5], false, strict=True)) < 0.15
    kept, labels = without_more_groups(z.float(), two[0], 2, rng)
    member = torch.nn.functional.one_hot(labels, 2).float()
    assert gap_between(kept[:1], member[None]) > 0.2


@pytest.mark.parametrize("counts", [[300], [150, 150], [60, 240], [120, 100, 80]])
def test_steps_stop_gaining_where_groups_end(counts):
    z, labels = clouds(counts)
    found = steps(z, 4, surrogates=9, seed=1)
    real = [step.subgroups for step in found if step.p <= 0.01 and step.gap > 0.03]
    assert max(real, default=1) == len(counts)
    if len(counts) > 1:
        step = found[len(counts) - 2]
        members = step.q.argmax(1).numpy()
        assert len(set(zip(members.tolist(), labels.tolist(), strict=True))) <= len(counts) + 2
        again = steps(z, 4, surrogates=9, seed=1)
        assert [s.gain for s in again] == [s.gain for s in found]


def test_the_tail_is_that_of_a_gamma_law_and_never_surer_than_it_can_be():
    values = gamma.rvs(4, scale=0.5, size=4000, random_state=0)
    assert upper_tail(4.0, values) == pytest.approx(gamma.sf(4.0, 4, scale=0.5), rel=0.2)
    assert upper_tail(100.0, values) == 0.001
    assert upper_tail(0.0, np.zeros(19)) == 1
    assert upper_tail(0.1, np.zeros(19)) == 0.05
