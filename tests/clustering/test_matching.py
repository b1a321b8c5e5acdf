"""Matching against brute force over all permutations."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from phenogroups.clustering.matching import largest_first, match_centroids, match_labels, match_members


def is_permutation(order) -> bool:
    return sorted(int(k) for k in order) == list(range(len(order)))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10_000))
def test_centroids_are_matched_as_brute_force_does(n_subgroups, dimensions, seed):
    generator = torch.Generator().manual_seed(seed)
    previous, current = torch.randn(2, n_subgroups, dimensions, generator=generator)

    def cost(order) -> float:
        return float((previous - current[list(order)]).square().sum())

    order = match_centroids(previous, current)
    assert is_permutation(order)
    assert cost(order.tolist()) == pytest.approx(min(map(cost, permutations(range(n_subgroups)))), rel=1e-5)


def test_moved_centroids_are_found_again():
    previous = torch.eye(4)
    shuffle = torch.tensor([2, 0, 3, 1])
    order = match_centroids(previous, previous[shuffle] + 0.01)
    assert torch.equal(previous[shuffle][order], previous)
    assert order.dtype == torch.long


def test_identical_centroids_give_a_permutation():
    assert is_permutation(match_centroids(torch.zeros(5, 3), torch.zeros(5, 3)))
    assert is_permutation(match_centroids(torch.randn(5, 3), torch.ones(5, 3)))


def test_unrelated_centroids_give_a_permutation():
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        previous, current = torch.randn(2, 5, 512, generator=generator)
        assert is_permutation(match_centroids(previous, current))


def test_centroids_may_require_gradients():
    assert is_permutation(match_centroids(torch.eye(3, requires_grad=True), torch.eye(3)))


def test_centroids_are_refused_by_name():
    with pytest.raises(ValueError, match=r"one shape.*\(2, 3\) and \(3, 3\)"):
        match_centroids(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match="finite centroids"):
        match_centroids(torch.tensor([[0.0], [torch.nan]]), torch.zeros(2, 1))


def test_members_take_their_ids_along_wherever_they_went():
    before = torch.tensor([0, 0, 1, 1, 1, 2])
    centroids = torch.tensor([[9.0, 0.0], [0.0, 9.0], [-9.0, 0.0]])
    now = torch.tensor([2, 2, 0, 0, 2, 1])  # one of the second subgroup left it
    assert match_members(before, centroids[now] + 0.1, centroids).tolist() == [2, 0, 1]
    assert is_permutation(match_members(torch.zeros(6, dtype=torch.long), centroids[now], centroids))


@given(st.integers(1, 4), st.data())
def test_labels_are_matched_as_brute_force_does(n_subgroups, data):
    ids = st.integers(0, n_subgroups - 1)
    pairs = data.draw(st.lists(st.tuples(ids, ids), min_size=1, max_size=25))
    predicted, truth = np.array(pairs).T
    predicted = np.append(predicted, 0)
    truth = np.append(truth, n_subgroups - 1)  # every class up to the last counts as a class
    mapping = match_labels(predicted, truth, n_subgroups)
    assert is_permutation(mapping)

    def recall(order) -> float:
        right = np.asarray(order)[predicted] == truth
        return float(np.mean([right[truth == k].mean() for k in np.unique(truth)]))

    assert recall(mapping) == pytest.approx(max(map(recall, permutations(range(n_subgroups)))))


def test_balanced_accuracy_is_maximised_not_accuracy():
    truth = np.repeat([0, 1], [90, 10])
    predicted = np.concatenate([np.repeat([0, 1], [50, 40]), np.repeat([0, 1], [10, 0])])
    # accuracy would keep 0 -> 0 (50 of 100 right); recalls 40/90 and 10/10 are better than 50/90 and 0/10
    mapping = match_labels(predicted, truth, 2)
    assert mapping.tolist() == [1, 0]
    assert balanced_accuracy_score(truth, mapping[predicted]) == pytest.approx((40 / 90 + 1) / 2)


def test_an_empty_subgroup_shifts_nobody():
    predicted, truth = np.array([0, 0, 2, 2, 2, 2]), np.array([0, 0, 1, 1, 2, 2])
    mapping = match_labels(predicted, truth, 3)
    assert is_permutation(mapping)
    assert mapping[0] == 0
    assert mapping[2] in (1, 2)


def test_fewer_truths_leave_subgroups_unmatched():
    predicted, truth = np.array([0, 1, 1, 2, 2, 2]), np.array([0, 0, 0, 1, 1, 1])
    assert match_labels(predicted, truth, 3).tolist() == [-1, 0, 1]


def test_more_truths_than_subgroups():
    predicted, truth = np.array([0, 0, 1, 1, 1]), np.array([3, 3, 0, 0, 1])
    assert match_labels(predicted, truth, 2).tolist() == [3, 0]


def test_unknown_truth_is_left_out():
    predicted, truth = np.array([0, 1, 0, 0, 0]), np.array([1, 0, -1, -1, -1])
    assert match_labels(predicted, truth, 2).tolist() == [1, 0]
    assert match_labels(predicted, np.full(5, -1), 2).tolist() == [-1, -1]
    assert match_labels(np.array([], dtype=int), np.array([], dtype=int), 2).tolist() == [-1, -1]


def test_labels_are_refused_by_name():
    with pytest.raises(ValueError, match="Expected predicted subgroups 0 to 1"):
        match_labels(np.array([0, 2]), np.array([0, 1]), 2)
    with pytest.raises(ValueError, match="one truth per subject"):
        match_labels(np.array([0, 1]), np.array([0]), 2)


def posteriors(sizes, sure=0.9, seed=0) -> torch.Tensor:
    """Of so many patients in each subgroup, in random order."""
    labels = torch.as_tensor(np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)))
    q = torch.full((len(labels), len(sizes)), (1 - sure) / (len(sizes) - 1), dtype=torch.float64)
    return q.scatter(1, labels[:, None], sure)


def test_the_largest_subgroup_comes_first():
    assert largest_first(posteriors([10, 40, 20, 30])).tolist() == [1, 3, 2, 0]


@given(st.permutations(range(4)), st.lists(st.integers(0, 12), min_size=4, max_size=4), st.integers(0, 10_000))
def test_the_order_does_not_hang_on_the_numbers_that_subgroups_had(shuffle, sizes, seed):
    q = torch.softmax(torch.randn(sum(sizes) + 4, 4, generator=torch.Generator().manual_seed(seed)), dim=1).double()
    q = torch.cat([q, posteriors([size + 1 for size in sizes], seed=seed)])
    order = [shuffle[k] for k in largest_first(q[:, shuffle])]
    assert order == largest_first(q).tolist()


def test_a_patient_between_two_subgroups_renames_nobody():
    """If everybody counted for one subgroup, this patient would decide."""
    q = posteriors([0, 30, 30])[:, 1:]
    q[:30] += torch.tensor([0.01, -0.01])
    for share in (0.5 - 1e-7, 0.5 + 1e-7):
        between = torch.cat([q, torch.tensor([[share, 1 - share]])])
        assert largest_first(between).tolist() == [0, 1]
        assert largest_first(between.flip(1)).tolist() == [1, 0]


def test_of_equal_sizes_that_of_earlier_patients_comes_first():
    q = torch.tensor([[0.2, 0.8], [0.8, 0.2], [0.8, 0.2], [0.2, 0.8]])
    assert largest_first(q).tolist() == [1, 0]
    assert largest_first(q.flip(0)).tolist() == [1, 0]
    assert largest_first(q.flip(1)).tolist() == [0, 1]
    rounded = q * (1 + 1e-6 * torch.randn(q.shape, generator=torch.Generator().manual_seed(0)))
    assert largest_first(rounded).tolist() == [1, 0]
