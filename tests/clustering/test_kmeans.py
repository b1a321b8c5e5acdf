from itertools import product

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from phenogroups.clustering.communicator import LOCAL
from phenogroups.clustering.kmeans import (
    _best_of_starts,
    distance_ratio,
    inverse_square_proportions,
    kmeans,
    nearest,
    sinkhorn_kmeans,
    spherical_kmeans,
    squared_distances,
)
from phenogroups.clustering.sinkhorn import sinkhorn


def blobs(sizes, dims=5, apart=6.0, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(len(sizes), dims)) * apart
    return torch.as_tensor(
        np.concatenate([rng.normal(size=(n, dims)) + c for n, c in zip(sizes, centers, strict=True)])
    )


def test_distances_equal_a_direct_sum():
    z, c = torch.randn(20, 4).double(), torch.randn(3, 4).double()
    direct = torch.stack([((z - centroid) ** 2).sum(1) for centroid in c], dim=1)
    torch.testing.assert_close(squared_distances(z, c), direct)


def test_proportions_equal_the_paper_formula_and_are_finite_on_a_centroid():
    d2 = torch.tensor([[1.0, 4.0, 9.0], [0.0, 1.0, 1.0]])
    q = inverse_square_proportions(d2)
    torch.testing.assert_close(q[0], (1 / d2[0]) / (1 / d2[0]).sum())
    torch.testing.assert_close(q[1], torch.tensor([1.0, 0.0, 0.0]))


def inertia(z, centroids):
    return squared_distances(z, centroids).amin(1).mean().item()


def test_several_processes_would_find_what_scikit_learn_finds():
    z = blobs([60, 100, 40])
    ours = _best_of_starts(z, 3, nearest, 10, 0, LOCAL)
    torch.testing.assert_close(ours, kmeans(z, 3))
    theirs = KMeans(3, n_init=10, random_state=0).fit(z.numpy())
    assert inertia(z, ours) * len(z) == pytest.approx(theirs.inertia_)


def test_sizes_become_equal():
    z = blobs([260, 740])
    epsilon = 0.02  # so cold that the rounded plan has the sizes of the plan
    centroids = sinkhorn_kmeans(z, 2, epsilon=epsilon)
    sizes = torch.bincount(sinkhorn(inverse_square_proportions(squared_distances(z, centroids)), epsilon).argmax(1))
    assert (sizes / len(z)).min().item() == pytest.approx(0.5, abs=0.02)


def test_same_seed_same_bits():
    z = blobs([50, 50, 50])
    assert torch.equal(sinkhorn_kmeans(z, 3, seed=4), sinkhorn_kmeans(z, 3, seed=4))


def test_identical_subjects_give_finite_centroids():
    for clusterer in (kmeans, sinkhorn_kmeans):
        assert torch.isfinite(clusterer(torch.ones(10, 3), 2)).all()


def test_on_the_sphere_equals_the_best_of_all_partitions():
    z = torch.nn.functional.normalize(torch.randn(10, 3, generator=torch.Generator().manual_seed(0)).double(), dim=1)
    found = spherical_kmeans(z, 2)
    splits = [torch.tensor(split).bool() for split in product([0, 1], repeat=10)]
    # members of a subgroup have cosines with its direction that sum up to the length of their sum
    best = max((z[split].sum(0).norm() + z[~split].sum(0).norm()).item() for split in splits)
    assert inertia(z, found) == pytest.approx(2 - 2 * best / 10)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2).double())


def test_on_the_sphere_centroids_are_the_directions_of_those_at_the_least_angle():
    z = torch.nn.functional.normalize(blobs([20, 200, 60], apart=1.0), dim=1)
    found = spherical_kmeans(z, 3)
    labels = (z @ found.T).argmax(1)
    for k in range(3):
        mean = z[labels == k].mean(0)
        torch.testing.assert_close(found[k], mean / mean.norm())


def test_distance_ratio_by_hand():
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0], [6.0, 0.0], [1.0, 4.0]])
    subgroup = torch.tensor([-1, -1, 0, 0, 1])
    assert distance_ratio(z, subgroup, 2) == pytest.approx(1.0)  # (1, 0) to (5, 0) and to (1, 4)
    z[4] = torch.tensor([1.0, 8.0])
    assert distance_ratio(z, subgroup, 2) == pytest.approx(2.0)
    assert distance_ratio(z, subgroup, 3) == pytest.approx(2.0)  # an empty subgroup does not count
    assert distance_ratio(z, torch.tensor([1, 1, 0, 0, 1]), 2) is None  # no controls
    assert distance_ratio(z, torch.tensor([-1, -1, 0, 0, 0]), 2) is None  # one subgroup
