"""Whether a person's images agree: by counting pairs, against shuffled images, and what is said of it."""

import numpy as np
import pytest
from scipy.stats import kstest

from phenogroups.evaluation.persons import persons_agreement


def test_agreement_is_the_share_of_pairs_averaged_over_persons():
    person = np.array(["a", "a", "b", "b", "b", "alone", "c", "c"])
    subgroup = np.array([0, 0, 0, 1, 1, 1, 2, 1])
    found = persons_agreement(subgroup, person)
    assert found is not None
    assert (found.persons, found.images) == (3, 7)
    assert found.value == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert persons_agreement(np.array([0, 1]), np.array(["a", "b"])) is None


def test_chance_is_that_two_images_drawn_at_random_agree():
    rng = np.random.default_rng(0)
    subgroup = rng.choice(3, 200, p=[0.6, 0.3, 0.1])
    found = persons_agreement(subgroup, np.arange(200) // 2)
    assert found is not None
    counts = np.bincount(subgroup)
    assert found.by_chance == pytest.approx((counts * (counts - 1)).sum() / (200 * 199), abs=0.005)
    assert found.low <= found.value <= found.high


def test_p_of_images_that_have_nothing_to_do_with_the_person_is_uniform():
    p = [persons_agreement(np.random.default_rng(s).integers(0, 2, 80), np.arange(80) // 2, s) for s in range(60)]
    # ties are common among so few pairs: p is a little too large, never too small
    assert kstest([one.p for one in p if one is not None], "uniform", alternative="greater").pvalue > 0.01


def test_persons_who_agree_are_described_and_others_are_warned_of():
    person = np.arange(40) // 2
    same = persons_agreement(np.random.default_rng(0).integers(0, 2, 20)[person], person)
    assert same is not None
    assert same.warnings() == []
    assert "in 100% of pairs" in same.sentence()
    parted = persons_agreement(np.arange(40) % 2, person)  # one image of everybody in each subgroup
    assert parted is not None
    (said,) = parted.warnings()
    assert said.startswith(
        "20 persons have several images (40). Two images of the same person are in the same subgroup"
    )
    assert "in 0% of pairs" in said
    assert "describe the image" in said


def test_a_few_persons_are_not_warned_of():
    few = persons_agreement(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    assert few is not None
    assert few.warnings() == []
    assert "too few to say" in few.sentence()
