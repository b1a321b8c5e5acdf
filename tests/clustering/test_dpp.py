"""Diverse samples: exactly as likely as their determinants say."""

from itertools import combinations
from math import prod

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from phenogroups.clustering.dpp import dpp_start, elementary_symmetric_polynomials, sample_k_dpp


def kernel_of(items: int, rank: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(items, rank))
    return vectors @ vectors.T


def test_elementary_symmetric_polynomials_are_sums_over_subsets():
    values = np.array([0.5, 2.0, 0.0, 3.0, 1.5])
    e = elementary_symmetric_polynomials(values, 3)
    for size in range(4):
        for n in range(6):
            expected = sum(prod(subset) for subset in combinations(values[:n], size))
            assert e[size, n] == pytest.approx(expected)


@pytest.mark.parametrize(("rank", "draws"), [(6, 20_000), (3, 4_000)])  # a rank of 3 just allows samples of 3
def test_samples_are_as_likely_as_their_determinants(rank, draws):
    kernel, rng = kernel_of(6, rank), np.random.default_rng(1)
    subsets = list(combinations(range(6), 3))
    seen = dict.fromkeys(subsets, 0)
    for _ in range(draws):
        seen[tuple(sorted(sample_k_dpp(kernel, 3, rng).tolist()))] += 1
    likely = np.array([max(np.linalg.det(kernel[np.ix_(s, s)]), 0) for s in subsets])
    assert chisquare(list(seen.values()), draws * likely / likely.sum()).pvalue > 0.01


def test_members_are_different_and_the_same_for_the_same_generator():
    kernel = kernel_of(40, 12)
    draw = [[sample_k_dpp(kernel, 8, np.random.default_rng(seed)).tolist() for seed in range(20)] for _ in range(2)]
    assert draw[0] == draw[1]
    assert all(len(set(chosen)) == 8 for chosen in draw[0])


def test_no_two_of_the_same_direction():
    twice = np.repeat(np.eye(3), 2, axis=0)
    for seed in range(50):
        chosen = sample_k_dpp(twice @ twice.T, 3, np.random.default_rng(seed))
        assert sorted(chosen // 2) == [0, 1, 2]


@pytest.mark.parametrize(("rank", "size"), [(2, 3), (4, 0), (4, 7)])
def test_impossible_samples_are_refused(rank, size):
    with pytest.raises(ValueError, match=f"1 to {rank} items, the rank of the kernel. Received: {size}"):
        sample_k_dpp(kernel_of(6, rank), size, np.random.default_rng(0))


def test_a_start_follows_the_ways_in_which_patients_depart():
    diagnosis = torch.arange(200) % 2
    way = torch.arange(200) // 2 % 2
    z = 0.1 * torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).double()
    z[torch.arange(200), way] += 3.0 * diagnosis
    labels = dpp_start(z, diagnosis, 2, np.random.default_rng(0))
    assert (labels == way[diagnosis == 1]).double().mean() in (0, 1)


def test_a_start_where_there_are_fewer_directions_than_subgroups():
    diagnosis = torch.arange(20) % 2
    for z in (diagnosis[:, None].double(), torch.zeros(20, 4).double()):
        labels = dpp_start(z, diagnosis, 3, np.random.default_rng(0))
        assert labels.shape == (10,)
        assert 0 <= labels.min() <= labels.max() < 3
