"""The first split of a table: found whatever the units, and elected for what is of the illness."""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from phenogroups.clustering.first_split import (
    FAR_BETTER,
    SMALL,
    FirstSplit,
    agreement,
    consensus,
    elect,
    first_split,
    held_out_scores,
    similarity,
    weights,
)
from phenogroups.clustering.gap import gap
from phenogroups.clustering.held_out import Judge, Judgement, judgement
from phenogroups.clustering.significance import p_gap, p_shuffled
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn_brains import drawn_brains
from phenogroups.data.examples.drawn_table import drawn_table


def parts(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """Patients and controls."""
    ill = torch.as_tensor(cohort.is_patient)
    inputs = torch.as_tensor(np.asarray(cohort.inputs))
    return inputs[ill], inputs[~ill]


def labels_of(split: FirstSplit, patients: Tensor) -> np.ndarray:
    return split.posterior(patients).argmax(1).numpy()


def balanced_accuracy(found: np.ndarray, truth: np.ndarray, k: int = 2) -> float:
    """Of the best naming of the subgroups."""
    right = np.array([[np.mean(found[truth == j] == i) for j in range(k)] for i in range(k)])
    return max(float(np.mean([right[i, j] for j, i in enumerate(names)])) for names in permutations(range(k)))


def otherwise_given(everybody: Tensor, how: str) -> Tensor:
    """(features, features): what the same features are multiplied by to be given in another way."""
    rng = np.random.default_rng(5)
    features = everybody.shape[1]
    if how == "scaled":
        return 100 * torch.eye(features)
    if how == "rotated":
        return torch.as_tensor(np.linalg.qr(rng.normal(size=(features, features)))[0]).float()
    if how == "own units":
        return torch.diag(torch.as_tensor(np.exp(rng.normal(0, 2, features)))).float()
    return torch.linalg.svd(everybody - everybody.mean(0), full_matrices=False)[2].T  # all principal components


@pytest.fixture(scope="module", params=[2, 3])
def as_given(request) -> tuple[Cohort, int, np.ndarray]:
    cohort = drawn_table(300, 16, request.param, separation=6.0, seed=1)
    patients, controls = parts(cohort)
    labels = labels_of(first_split(patients, controls, request.param), patients)
    assert balanced_accuracy(labels, cohort.truth[cohort.is_patient], request.param) >= 0.95
    return cohort, request.param, labels


@pytest.mark.parametrize("how", ["scaled", "rotated", "own units", "principal components"])
def test_the_same_split_however_the_features_are_given(as_given, how):
    cohort, k, labels = as_given
    patients, controls = parts(cohort)
    turned = otherwise_given(torch.cat([patients, controls]), how)
    patients, controls = patients @ turned, controls @ turned
    assert adjusted_rand_score(labels, labels_of(first_split(patients, controls, k), patients)) >= 0.9


@pytest.mark.parametrize("sizes", [(0.5, 0.5), (0.1, 0.9), (0.9, 0.1), (1 / 3, 1 / 3, 1 / 3), (0.2, 0.3, 0.5)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_clear_gap_is_found_whatever_the_sizes(sizes, seed):
    k = len(sizes)
    cohort = drawn_table(600, 16, k, sizes=sizes, separation=8.0, seed=seed)
    patients, controls = parts(cohort)
    split = first_split(patients, controls, k, seed=seed)
    assert split.judgement.has_gap
    assert split.judgement.smallest == pytest.approx(min(sizes), abs=0.02)
    assert balanced_accuracy(labels_of(split, patients), cohort.truth[cohort.is_patient], k) >= 0.95


def with_two_scanners(seed: int, of_controls: float, n: int = 300) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Patients, controls, the kind of each patient, and which scanner saw them, which is far louder.

    The second scanner saw half of the patients, and `of_controls` of the controls.
    """
    rng = np.random.default_rng(seed)
    ill, kind = np.arange(n) % 2 == 1, rng.random(n) < 0.5
    scanner = rng.random(n) < np.where(ill, 0.5, of_controls)
    x = rng.normal(size=(n, 12))
    x[:, 0] += 4 * ill
    x[:, 1] += 15 * scanner
    x[:, 2] += 6 * (ill & kind)
    x = torch.as_tensor(x @ np.linalg.qr(rng.normal(size=(12, 12)))[0]).float()
    return x[ill], x[~ill], kind[ill].astype(int), scanner[ill].astype(int)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_controls_show_as_well_is_not_elected(seed):
    patients, controls, kind, scanner = with_two_scanners(seed, of_controls=0.5)
    labels = labels_of(first_split(patients, controls, 2, seed=seed), patients)
    assert balanced_accuracy(labels, kind) >= 0.95
    assert balanced_accuracy(labels, scanner) < 0.65
    # the scanner is loud enough to win: only the controls speak against it
    patients, controls, _, scanner = with_two_scanners(seed, of_controls=0.0)
    assert balanced_accuracy(labels_of(first_split(patients, controls, 2, seed=seed), patients), scanner) >= 0.95


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("subgroups", [1, 2])
def test_a_few_outliers_are_no_subgroup(subgroups, together):
    cohort = drawn_table(400, 16, subgroups, separation=6.0, seed=3)
    patients, controls = parts(cohort)
    rng = np.random.default_rng(0)
    rows = rng.choice(len(patients), 4, replace=False)  # 2 %
    away = rng.normal(size=(1 if together else 4, 16))
    patients[rows] += torch.as_tensor(60 * away / np.linalg.norm(away, axis=1, keepdims=True)).float()
    split = first_split(patients, controls, 2)
    assert split.judgement.smallest > 0.3
    assert split.judgement.has_gap == (subgroups == 2)
    if subgroups == 2:
        others = np.setdiff1d(np.arange(len(patients)), rows)
        found, truth = labels_of(split, patients)[others], cohort.truth[cohort.is_patient][others]
        assert balanced_accuracy(found, truth) >= 0.95


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("subgroups", [0, 1])  # spread evenly along one axis, or not at all
def test_patients_without_groups_have_no_gap(subgroups, seed):
    for k in (2, 3):
        split = first_split(*parts(drawn_table(300, 16, subgroups, seed=seed)), k, seed=seed)
        assert not split.judgement.has_gap
        assert split.judgement.smallest > 0.5 / k  # so they are cut into about equal parts


EVERYBODY = torch.arange(200)
HALVES, THIRDS = EVERYBODY % 2, (EVERYBODY % 3 == 0).long()


def judged(gap: float = 0.0, *, smallest: float = 0.4) -> Judgement:
    """Of a split into two parts: as `of_smaller` follows from the others."""
    return Judgement(gap, gap / (2 * smallest), smallest, gap, gap / (2 * smallest))


def by_gap(candidates: list[Judgement]) -> int:
    """The winner where all spaces agree, because all found the same split."""
    return elect(candidates, np.ones(len(candidates)))


def test_the_widest_gap_is_elected_where_all_spaces_agree():
    candidates = [judged(0.15), judged(0.25), judged()]
    assert by_gap(candidates) == 1
    assert by_gap(candidates[::-1]) == 1


def test_a_gap_counts_from_some_width_on():
    assert judged(0.15).has_gap
    assert not judged(0.02, smallest=0.05).has_gap  # much of the smaller subgroup, but few of all
    assert not judged(0.06, smallest=0.4).has_gap  # more of all, but little of the smaller subgroup


def test_a_narrow_gap_of_one_pair_is_outweighed_by_the_wide_gaps_of_others():
    alike = Judgement(0.05, 0.06, 0.2, mean_gap=0.4, mean_of_smaller=0.45)  # two of the kinds resemble each other
    assert alike.has_gap
    cut = Judgement(0.11, 0.15, 0.2, mean_gap=0.2, mean_of_smaller=0.25)  # one kind in two, and two in one
    assert by_gap([cut, alike]) == 1
    assert not Judgement(-0.01, -0.01, 0.2, mean_gap=0.4, mean_of_smaller=0.45).has_gap  # one pair has none at all
    assert not Judgement(0.03, 0.03, 0.2, mean_gap=0.1, mean_of_smaller=0.12).has_gap


@pytest.mark.parametrize("seed", [0, 1])
def test_kinds_that_resemble_each_other_are_told_apart_rather_than_variants_of_one(seed):
    """3 and 9 are more alike than ones with and without a foot."""
    x, digit = load_digits(return_X_y=True)
    is_patient = np.isin(digit, (1, 3, 9))
    sides = (torch.as_tensor(x[side]).double() for side in (is_patient, ~is_patient))
    found = first_split(*sides, 3, seed=seed).labels.numpy()
    assert balanced_accuracy(found, np.searchsorted((1, 3, 9), digit[is_patient]), 3) >= 0.9


def test_of_two_gaps_the_one_that_other_spaces_find_again_is_elected():
    labels = [HALVES, THIRDS, changed(THIRDS, 4, 0), changed(THIRDS, 4, 1)]
    agreed = agreement(similarity(labels), np.arange(4))
    assert elect([judged(0.2), judged(0.17), judged(0.16), judged(0.16)], agreed) == 1
    # a far wider gap that is found again in part is enough
    labels[1] = changed(HALVES, 40, 2)
    agreed = agreement(similarity(labels), np.arange(4))
    assert elect([judged(0.6), judged(0.1), judged(0.16), judged(0.16)], agreed) == 0


def test_a_narrow_gap_that_no_other_space_shows_does_not_count():
    labels = [HALVES, THIRDS, changed(THIRDS, 4, 0), changed(THIRDS, 4, 1)]
    narrow = judged(0.04, smallest=0.1)
    assert narrow.has_gap
    assert elect([narrow, judged(), judged(), judged()], agreement(similarity(labels), np.arange(4))) == 1
    assert elect([narrow, judged(), judged(), judged()], np.ones(4)) == 0


def test_once_there_is_a_gap_the_widest_counts_though_its_share_of_the_smaller_part_is_less():
    unequal, equal = judged(0.10, smallest=0.3), judged(0.13, smallest=0.5)
    assert unequal.has_gap
    assert not equal.has_gap
    assert by_gap([unequal, equal]) == 1


def test_a_small_subgroup_must_be_far_better_supported():
    small = SMALL / 2
    larger = judged(0.1, smallest=0.2)
    assert larger.has_gap
    assert by_gap([larger, judged(0.9 * FAR_BETTER * 0.1, smallest=small)]) == 0
    assert by_gap([larger, judged(1.1 * FAR_BETTER * 0.1, smallest=small)]) == 1
    assert by_gap([larger, judged(0.11, smallest=1.1 * SMALL)]) == 1  # not small: wider is enough
    # what is no gap yet weighs against a small subgroup all the same
    no_gap = judged(0.03, smallest=0.4)
    assert not no_gap.has_gap
    assert by_gap([no_gap, judged(0.08, smallest=small)]) == 0
    assert by_gap([no_gap, judged(0.1, smallest=small)]) == 1


def changed(labels: Tensor, count: int, seed: int) -> Tensor:
    """The same split but for some patients."""
    moved = torch.as_tensor(np.random.default_rng(seed).choice(len(labels), count, replace=False))
    labels = labels.clone()
    labels[moved] = 1 - labels[moved]
    return labels


def test_agreement_is_that_of_the_best_split_of_each_other_space():
    labels = [HALVES, THIRDS, changed(HALVES, 10, 0), THIRDS, changed(THIRDS, 10, 1)]
    spaces = np.array([0, 0, 1, 1, 2])
    index = [[adjusted_rand_score(a, b) for b in labels] for a in labels]
    assert agreement(similarity(labels), spaces) == pytest.approx(
        [
            (index[0][2] + index[0][4]) / 2,
            (index[1][3] + index[1][4]) / 2,
            (index[2][0] + index[2][4]) / 2,
            (index[3][1] + index[3][4]) / 2,
            (index[4][1] + index[4][3]) / 2,
        ]
    )
    assert agreement(similarity(labels[:2]), spaces[:2]).tolist() == [1, 1]  # one space


def test_without_a_gap_the_split_that_other_spaces_find_again_is_elected():
    unsteady = [changed(HALVES, 40, seed) for seed in (2, 3, 4)]
    labels = [*unsteady, changed(THIRDS, 4, 0), THIRDS, changed(THIRDS, 4, 1)]
    assert elect([judged()] * 6, agreement(similarity(labels), np.array([0, 1, 2, 0, 1, 2]))) == 4


def test_without_a_gap_small_subgroups_do_not_count():
    small = judged(smallest=SMALL / 2)
    labels = [THIRDS, changed(THIRDS, 2, 0), changed(THIRDS, 2, 1), changed(HALVES, 30, 0), changed(HALVES, 30, 1)]
    agreed = agreement(similarity(labels), np.array([0, 1, 2, 0, 1]))
    assert elect([judged()] * 5, agreed) == 0
    assert elect([small, small, small, judged(), judged()], agreed) >= 3
    assert elect([small, small, small, small, judged()], agreed) == 4
    assert elect([small] * 4 + [judged(smallest=0.6 * SMALL)], agreed) == 4  # none is usable: the most equal


@pytest.mark.parametrize("seed", [0, 1])
def test_subgroups_of_other_sizes_that_overlap_are_found(seed):
    cohort = drawn_table(800, 16, 3, sizes=(0.1, 0.2, 0.7), separation=4.0, seed=seed)
    patients, controls = parts(cohort)
    split = first_split(patients, controls, 3, seed=seed)
    assert not split.judgement.has_gap
    assert balanced_accuracy(labels_of(split, patients), cohort.truth[cohort.is_patient], 3) >= 0.85


def test_a_seed_decides_everything():
    cohort = drawn_table(300, 16, 0, seed=2)  # no gap: nothing in the data makes two runs alike
    patients, controls = parts(cohort)
    first, again = (first_split(patients, controls, 2, seed=7) for _ in range(2))
    assert first.judgement == again.judgement
    assert torch.equal(first.posterior(patients), again.posterior(patients))


def test_who_was_not_searched_is_split_as_well():
    patients, controls = parts(drawn_table(600, 16, 2, separation=6.0, seed=4))
    split = first_split(patients[::2], controls, 2)
    q = split.posterior(patients)
    assert q.dtype == patients.dtype
    assert torch.equal(q[::2], split.posterior(patients[::2]))
    whole = first_split(patients, controls, 2)
    assert adjusted_rand_score(labels_of(split, patients), labels_of(whole, patients)) >= 0.95


def test_a_silent_and_a_repeated_feature_change_nothing():
    patients, controls = parts(drawn_table(300, 16, 2, separation=6.0, seed=4))
    labels = labels_of(first_split(patients, controls, 2), patients)
    more = [torch.cat([x, torch.full((len(x), 1), 7.0), x[:, :3]], dim=1) for x in (patients, controls)]
    assert adjusted_rand_score(labels, labels_of(first_split(more[0], more[1], 2), more[0])) >= 0.9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_regions_of_a_brain_that_say_much_the_same_are_no_hindrance(seed):
    """Whitening all 24 means of regions makes their noise as loud as the lesions: 0.57 to 0.75."""
    side = 16
    cohort = drawn_brains(400, size=side, seed=seed)
    place = (np.indices((side,) * 3) - (side - 1) / 2) / (side / 2)
    shell = np.digitize(
        np.sqrt(sum((place[i] / axis) ** 2 for i, axis in enumerate((0.68, 0.82, 0.66)))), [0.5, 0.8, 1.05]
    )
    octant = np.tensordot((4, 2, 1), place > 0, 1)
    regions = [(shell == i) & (octant == j) for i in range(3) for j in range(8)]
    table = torch.as_tensor(np.stack([cohort.inputs[:, 0, region].mean(axis=1) for region in regions], axis=1))
    ill = torch.as_tensor(cohort.is_patient)
    labels = labels_of(first_split(table[ill], table[~ill], 2), table[ill])
    assert balanced_accuracy(labels, cohort.truth[cohort.is_patient]) >= 0.95


def test_splits_that_agree_count_together():
    apart = drawn_table(300, 12, 2, separation=8, seed=0)
    cloud = drawn_table(300, 12, 1, seed=0)
    found = {}
    for name, cohort in (("apart", apart), ("cloud", cloud)):
        x, ill = torch.as_tensor(cohort.inputs), torch.as_tensor(cohort.is_patient)
        found[name] = first_split(x[ill], x[~ill], 2).different
    assert 1 <= found["apart"] < 10 < found["cloud"]


def test_a_split_is_tested_by_scores_of_everybody_who_was_held_out():
    patients, controls = parts(drawn_table(160, 8, 2, separation=6.0, seed=3))
    split = first_split(patients, controls, 2)
    scores = held_out_scores(split, patients, controls)
    assert scores is not None
    assert (len(scores.patients), len(scores.controls)) == (len(patients), len(controls))
    assert (scores.labels == split.labels).float().mean() > 0.9  # with the same ids


def test_discriminants_that_fit_noise_do_not_score_what_they_were_fitted_to():
    rng = np.random.default_rng(0)
    patients, controls = (torch.as_tensor(rng.normal(size=(60, 40))).double() for _ in range(2))
    labels = torch.as_tensor(rng.integers(0, 2, 60))
    scores = Judge(patients, controls, 2, seed=0, axes=50).held_out(lambda ill, _: labels[ill])
    assert scores is not None
    assert (scores.labels == labels).float().mean() < 0.7  # discriminants of all patients would be right about all


def test_controls_are_not_several_groups_because_several_discriminants_scored_them():
    """One part in ten is split along another axis, in which controls lie far from its middle."""
    rng = np.random.default_rng(0)
    labels = torch.arange(200) % 2
    patients = torch.as_tensor(rng.normal(size=(200, 2)))
    patients[:, 0] += 6 * labels - 3
    controls = torch.as_tensor(rng.normal(size=(200, 2))) + torch.tensor([0.0, 12.0]).double()
    judge = Judge(patients, controls, 2, seed=0, axes=8)
    other = (patients[:, 1] > 0).long()
    calls = iter(range(10))
    scores = judge.held_out(lambda ill, _: (other if next(calls) == 3 else labels)[ill])
    assert scores is not None
    assert gap(scores.pair(0, 1)[1][None], torch.ones(1, 200).double()).item() < 0.05
    assert judgement([scores], labels, 2).gap > 0.2


def test_everybody_is_scored_by_all_parts_and_controls_are_centred():
    rng = np.random.default_rng(0)
    labels = torch.arange(100) % 2
    patients = torch.as_tensor(rng.normal(size=(100, 3))) + 4 * labels[:, None]
    controls = torch.as_tensor(rng.normal(size=(80, 3))) + 2
    judge = Judge(patients, controls, 2, seed=0, axes=8)
    found = judge.held_out(lambda ill, _: labels[ill])
    assert found is not None
    fitted = found.part[:100] != 4
    toward, offset = judge._discriminants(judge.patients[fitted], labels[fitted])
    expected = torch.cat([judge.patients, judge.controls]) @ toward + offset
    torch.testing.assert_close(found.scores[:, 4], expected)
    of_part = torch.nonzero(found.part == 4).flatten()
    torch.testing.assert_close(found.everybody[of_part], expected[of_part])
    healthy = of_part[of_part >= 100]
    torch.testing.assert_close(found.controls[healthy - 100], expected[healthy] - expected[100:].mean(0))
    middle = torch.stack([judge.patients[fitted][labels[fitted] == k].mean(0) for k in range(2)]).mean(0)
    first, second = middle @ toward + offset
    torch.testing.assert_close(first, second)  # the difference is 0 in the middle between the subgroups


def test_a_subgroup_of_one_is_not_tested():
    patients, controls = parts(drawn_table(60, seed=0))
    labels = torch.zeros(len(patients), dtype=torch.long)
    labels[0] = 1
    judge = Judge(patients.double(), controls.double(), 2, seed=0, axes=8)
    assert judge.held_out(lambda ill, _: labels[ill]) is None
    assert judge.held_out(lambda *_: None) is None
    assert judge(labels) == Judgement(0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_small_subgroup_of_a_small_cohort_passes_the_test(seed):
    sides = parts(drawn_table(240, subgroups=2, sizes=(0.2, 0.8), separation=6.0, seed=seed))
    assert p_gap(held_out_scores(first_split(*sides, 2), *sides)) <= 0.01


@pytest.mark.parametrize("seed", range(4))
def test_patients_named_at_random_have_no_gap_of_their_own(seed):
    """What everybody shows is found in patients; scored by their own search, it would be wider than in controls."""
    rng = np.random.default_rng(seed)
    everybody = torch.as_tensor(rng.normal(size=(240, 16)) + 5 * rng.integers(0, 2, (240, 1)) * np.eye(16)[0])
    split = first_split(everybody[:120], everybody[120:], 2, seed=seed)
    assert p_shuffled(held_out_scores(split, everybody[:120], everybody[120:], seed=seed)) > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_what_several_splits_agree_on_is_better_than_each_of_them(seed):
    rng = np.random.default_rng(seed)
    truth = torch.arange(300) % 3
    splits = [torch.where(torch.as_tensor(rng.random(300) < 0.35), torch.as_tensor(rng.integers(0, 3, 300)), truth)]
    for _ in range(8):
        wrong = torch.as_tensor(rng.random(300) < 0.35)
        names = torch.as_tensor(rng.permutation(3))  # ids need not be the same
        splits.append(names[torch.where(wrong, torch.as_tensor(rng.integers(0, 3, 300)), truth)])
    found = consensus(splits, np.ones(9), splits[0])
    assert max((split == truth).float().mean() for split in splits[:1]) < 0.85
    assert (found == truth).float().mean() > 0.95  # with the ids of the first


def test_a_consensus_without_one_of_the_subgroups_is_not_taken():
    start = torch.tensor([0] * 50 + [1] * 50)
    others = [torch.tensor([0] * 98 + [1] * 2)] * 30
    assert consensus([start, *others], np.array([0.01] + [1.0] * 30), start).equal(start)


def test_spaces_count_alike_in_the_consensus_and_small_subgroups_not_at_all():
    judged = [Judgement(0.0, 0.0, 0.3, 0.0, 0.0)] * 3 + [Judgement(0.0, 0.0, 0.01, 0.0, 0.0)]
    found = weights(judged, np.array([0.8, 0.4, 0.1, 0.9]), np.array(["a", "a", "b", "b"]))
    assert found == pytest.approx([16 / 17, 1 / 17, 1, 0])


def test_overlapping_subgroups_are_the_consensus_and_separate_ones_are_elected():
    overlapping, separate = (parts(drawn_table(400, subgroups=2, separation=s, seed=0)) for s in (2.5, 9.0))
    found = first_split(*separate, 2)
    assert found.judgement.has_gap
    assert found.labels.equal(found.elected.labels)
    assert not first_split(*overlapping, 2).labels.equal(first_split(*overlapping, 2).elected.labels)
