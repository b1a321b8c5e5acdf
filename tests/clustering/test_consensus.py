"""What several labelings agree on."""

import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score

from phenogroups.clustering import consensus
from phenogroups.clustering.consensus import co_assignment, consensus_labels, resemblance


def labelings(n: int, runs: int, k: int, *, wrong: float = 0.2, left_out: float = 0.0, seed: int = 0):
    """The truth, and runs that each call it by other numbers, err in places and leave some out."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    labels = np.stack([rng.permutation(k)[truth] for _ in range(runs)], axis=1)
    labels = np.where(rng.random(labels.shape) < wrong, rng.integers(0, k, labels.shape), labels)
    return truth, np.where(rng.random(labels.shape) < left_out, -1, labels)


def test_co_assignment_against_a_double_loop():
    _, labels = labelings(30, 7, 3, left_out=0.3)
    found = co_assignment(labels, labels[:20])
    for i in range(30):
        for j in range(20):
            both = [(a, b) for a, b in zip(labels[i], labels[j], strict=True) if a >= 0 and b >= 0]
            assert found[i, j] == pytest.approx(sum(a == b for a, b in both) / max(len(both), 1))


def test_two_who_are_left_out_together_do_not_agree():
    labels = np.array([[0, -1, 0], [1, -1, 1], [-1, -1, -1], [0, 0, -1]])
    np.testing.assert_array_equal(co_assignment(labels), [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]])


@pytest.mark.parametrize("left_out", [0.0, 0.2])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_truth_behind_noisy_runs_is_found(k, left_out):
    truth, labels = labelings(400, 15, k, left_out=left_out)
    found = consensus_labels(labels, k)
    assert adjusted_rand_score(truth, found) > 0.95
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, consensus_labels(labels, k))


def test_the_same_as_scikit_learn_on_all_pairs():
    _, labels = labelings(300, 10, 2, wrong=0.3)
    spectral = SpectralClustering(2, affinity="precomputed", random_state=0, assign_labels="kmeans")
    assert adjusted_rand_score(consensus_labels(labels, 2), spectral.fit_predict(co_assignment(labels))) > 0.97


def test_equal_rows_count_as_often_as_they_occur():
    _, labels = labelings(200, 4, 3, wrong=0.4)
    apart = consensus._spectral(co_assignment(labels), np.ones(len(labels)), 3, 0)
    assert adjusted_rand_score(consensus_labels(labels, 3), apart) == 1


def test_rare_rows_follow_the_common_ones(monkeypatch):
    truth, labels = labelings(500, 12, 3)
    monkeypatch.setattr(consensus, "MOST_ROWS", 40)
    assert adjusted_rand_score(truth, consensus_labels(labels, 3)) > 0.9


def test_thousands_of_subjects():
    truth, labels = labelings(8_000, 20, 2, wrong=0.5)
    assert adjusted_rand_score(truth, consensus_labels(labels, 2)) > 0.9


def test_fewer_subgroups_where_runs_tell_fewer_apart():
    assert len(np.unique(consensus_labels(np.zeros((10, 3), dtype=int), 3))) == 1
    assert len(np.unique(consensus_labels(np.repeat([[0, 1], [1, 0]], 5, axis=0), 3))) == 2
    assert len(consensus_labels(np.full((4, 2), -1), 2)) == 4


def test_resemblance_is_the_mean_co_assignment_with_the_members():
    _, labels = labelings(80, 6, 3, left_out=0.2)
    agreed = np.arange(50) % 3
    found = resemblance(labels, labels[:50], agreed, 4)
    mean = np.stack([co_assignment(labels, labels[:50][agreed == k]).mean(axis=1) for k in range(3)], axis=1)
    np.testing.assert_allclose(found[:, :3], mean / mean.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(found[:, 3], 0)  # nobody is in the fourth
    np.testing.assert_allclose(resemblance(np.array([[-1] * 6]), labels[:50], agreed, 4), 0.25)


@pytest.mark.parametrize("wrong", [np.zeros(5, int), np.zeros((5, 2)), np.full((5, 2), -2), np.zeros((0, 2), int)])
def test_other_than_labels_are_refused(wrong):
    with pytest.raises(ValueError, match=r"Expected labels \(subjects, runs\)"):
        consensus_labels(wrong, 2)
