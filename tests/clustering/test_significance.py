"""Whether gaps between subgroups could be chance, or of a diagnosis named at random; and patients without groups."""

import numpy as np
import pytest
import torch
from scipy.stats import gamma

from phenogroups.clustering.gap import gap
from phenogroups.clustering.held_out import HeldOut
from phenogroups.clustering.significance import p_gap, p_shuffled, upper_tail
from phenogroups.clustering.surrogates import without_groups


def scored(patients, labels, controls):
    """By the same discriminants."""
    both = torch.cat([patients, controls])
    return HeldOut(both[:, None], torch.zeros(len(both), dtype=torch.long), labels)


def of_two(patients, controls):
    """A split into two subgroups along one axis."""
    rng = np.random.default_rng(0)
    ill, well = (torch.as_tensor(draw(rng)) for draw in (patients, controls))
    scores = [torch.stack([-x, x], dim=1) for x in (ill, well)]
    return scored(scores[0], (ill > 0).long(), scores[1])


def apart(rng):
    return rng.normal(size=150) + 5 * (np.arange(150) % 2) - 2.5


def cloud(rng):
    return rng.normal(size=150)


@pytest.mark.parametrize(
    ("patients", "controls", "by_chance", "at_random"),
    [(apart, cloud, False, False), (cloud, cloud, True, True), (apart, apart, True, True)],
)
def test_only_what_patients_alone_have_is_significant(patients, controls, by_chance, at_random):
    found = of_two(patients, controls)
    assert (p_gap(found) > 0.01) == by_chance
    assert (p_shuffled(found) > 0.01) == at_random


def test_an_even_spread_is_no_gap():
    assert p_gap(of_two(lambda rng: rng.uniform(-3, 3, 150), cloud)) > 0.05


def test_false_alarms_are_about_as_rare_as_p_says():
    rng = np.random.default_rng(1)
    found = [p_gap(of_two(lambda _: rng.normal(size=100), lambda _: rng.normal(size=100)), seed=i) for i in range(60)]
    assert np.mean(np.array(found) <= 0.05) <= 0.15


def test_a_split_that_was_elected_among_many_pays_for_all_of_them():
    def near(rng):
        return rng.normal(size=150) + 3 * (np.arange(150) % 2)

    p = {n: p_gap(of_two(near, cloud), different=n) for n in (1, 3, 10**6)}
    assert 0.001 < p[1] < 1 / 3
    assert p[3] == pytest.approx(3 * p[1])
    assert p[10**6] == 1


def test_controls_whom_other_discriminants_scored_elsewhere_are_no_groups():
    rng = np.random.default_rng(0)
    patients, controls = (torch.as_tensor(draw(rng)) for draw in (apart, cloud))
    both = torch.cat([torch.stack([-x, x], dim=1) for x in (patients, controls)])
    away = torch.zeros(300, 2, 2).double()
    away[150:, 1] = torch.tensor([-6.0, 6.0])  # the discriminants of the second part see all controls elsewhere
    labels, part = (patients > 0).long(), torch.arange(300) % 2
    moved = HeldOut(both[:, None] + away, part, labels)
    assert p_gap(moved) <= 0.01
    assert p_shuffled(moved) <= 0.01
    pooled = scored(moved.patients, labels, moved.everybody[150:])
    assert p_gap(pooled) > 0.01
    assert p_shuffled(pooled) > 0.01


def test_every_pair_must_have_a_gap():
    rng = np.random.default_rng(0)
    labels = torch.arange(300) % 3
    scores = torch.as_tensor(rng.normal(size=(300, 3))) + 6 * torch.eye(3)[labels]
    merged = torch.as_tensor(rng.normal(size=(300, 3))) + 6 * torch.eye(3)[labels.clamp(max=1)]
    controls = torch.as_tensor(rng.normal(size=(300, 3)))
    assert p_gap(scored(scores, labels, controls)) <= 0.01
    assert p_gap(scored(merged, labels, controls)) > 0.01
    assert p_gap(None) == p_shuffled(None) == 1  # a subgroup was too small for discriminants


def test_surrogates_keep_covariance_and_lose_groups():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(600, 3))
    z[:300, 0] += 8
    z = torch.as_tensor(z @ rng.normal(size=(3, 3))).float()
    alike = without_groups(z, 40, rng)
    assert alike.shape == (40, 600, 3)
    np.testing.assert_allclose(np.cov(alike.flatten(0, 1).T), np.cov(z.T), rtol=0.1, atol=0.1)
    axis = torch.linalg.svd(z - z.mean(0), full_matrices=False)[2][0]
    assert gap((z @ axis)[None], torch.ones(1, 600)) > 0.2
    assert gap(alike @ axis, torch.ones(40, 600)).max() < 0.1


def test_the_tail_is_that_of_a_gamma_law_or_of_ranks():
    values = gamma.rvs(4, scale=0.5, size=4000, random_state=0)
    assert upper_tail(4.0, values) == pytest.approx(gamma.sf(4.0, 4, scale=0.5), rel=0.2)
    assert 0 <= upper_tail(100.0, values) < 1e-6
    assert upper_tail(0.0, np.zeros(19)) == 1
    assert upper_tail(0.1, np.zeros(19)) == 0.05
