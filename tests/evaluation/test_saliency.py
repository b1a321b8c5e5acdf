"""What drives a subgroup: against formulas where there are any, and on drawn sevens, whose difference is known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.saliency import (
    REFERENCES,
    _log_odds,
    _patches,
    beats_random_maps,
    expected_gradients,
    map_score,
    occlusion,
    saliency,
    smoothed,
    some_patients,
)
from phenogroups.methods import PlainKMeans, SupervisedSubgroups


def test_expected_gradients_of_a_linear_gate_are_its_weights_times_the_way():
    torch.manual_seed(0)
    gate = nn.Linear(6, 1)

    def read(network, z, beliefs):
        return {"subgroup": torch.cat([-z, z], dim=1).sigmoid()}

    order = np.array([0, 1])
    method = SimpleNamespace(whole_encoder=gate, network_=None, beliefs_=None, by_size_=order, read=read)
    rng = np.random.default_rng(0)
    own, others = rng.normal(size=6).astype(np.float32), rng.normal(size=(30, 6)).astype(np.float32)
    expected = gate.weight.detach().numpy()[0] * (own - others.mean(axis=0))
    np.testing.assert_allclose(expected_gradients(method, own, others, 1), expected, rtol=1e-4)
    np.testing.assert_allclose(expected_gradients(method, own, others, 0), -expected, rtol=1e-4)
    method.by_size_ = order[::-1]  # the subgroup of most patients is first, whichever the gate has first
    np.testing.assert_allclose(expected_gradients(method, own, others, 0), expected, rtol=1e-4)
    method.read = lambda *_: {"subgroup": torch.ones(30, 2)}  # no way back to the input
    assert expected_gradients(method, own, others, 1) is None


def test_occlusion_of_features_is_the_fall_of_the_log_odds(features):
    method = PlainKMeans().fit(features)
    row, mean = int(np.flatnonzero(features.is_patient)[0]), features.patients.inputs.mean(axis=0)
    found = occlusion(method, features, row, 0, mean)
    before = _log_odds(method, features, row, features.inputs[[row]], 0)[0]
    for j in range(6):
        changed = features.inputs[[row]].copy()
        changed[0, j] = mean[j]
        p = float(method.predict_cohort(Cohort(changed, [0])).subgroup[0, 0])
        assert found[j] == pytest.approx(before - np.log(p / (1 - p)), abs=1e-4)
    references = features.inputs[some_patients(features, REFERENCES)]
    assert (saliency(method, features, row, 0, references) >= 0).all()


@pytest.mark.parametrize("sides", [(32, 32), (7, 19), (12, 9, 30)])
def test_patches_reach_every_pixel(sides):
    covered = np.zeros(sides)
    for patch in _patches(sides):
        covered[patch] += 1
    assert covered.min() >= 1


def test_the_map_lies_on_the_crossbar():
    """A network that tells the forms of a seven apart must be seen to look at the crossbar: three times as chance."""
    asked = {"n": 240, "size": 24, "patients": 1.0, "seed": 0}
    cohort, without_marks = (drawn_digits(**asked, marks=marks) for marks in (True, False))
    marks = (cohort.inputs - without_marks.inputs)[:, 0] > 0.2
    method = SupervisedSubgroups(epochs=4, augmentation="none").fit(cohort)
    right = method.predict_subgroup(cohort) == cohort.truth
    assert right.mean() > 0.95
    references = cohort.inputs[some_patients(cohort, REFERENCES)]
    shares = []
    for row in np.flatnonzero(right & (cohort.truth == 1))[:8]:
        found = saliency(method, cohort, row, 1, references)
        shares.append(found[marks[row]].sum() / found.sum() / marks[row].mean())
    assert np.mean(shares) > 3


class LooksAtOnePlace:
    """The odds of subgroup 1 are the brightness of one corner of the image."""

    def predict_cohort(self, cohort: Cohort) -> SimpleNamespace:
        corner = np.asarray(cohort.inputs)[(slice(None), 0, *[slice(5)] * (cohort.inputs.ndim - 2))]
        p = 1 / (1 + np.exp(-corner.reshape(len(corner), -1).mean(axis=1)))
        return SimpleNamespace(subgroup=np.column_stack([1 - p, p]))


@pytest.mark.parametrize("shape", [(16, 16), (12, 16, 14)])
def test_a_map_passes_where_it_map_score(shape):
    cohort = Cohort(np.ones((1, 1, *shape), np.float32), [1])
    good, bad = np.zeros(shape), np.zeros(shape)
    good[(slice(5),) * len(shape)] = bad[(slice(7, 12),) * len(shape)] = 1
    nothing = np.zeros((1, *shape), np.float32)
    assert map_score(LooksAtOnePlace(), cohort, 0, 1, smoothed(good), nothing) > 0.9
    assert map_score(LooksAtOnePlace(), cohort, 0, 1, smoothed(bad), nothing) < 0.5
    assert map_score(LooksAtOnePlace(), cohort, 0, 1, np.zeros(shape), nothing) == 0  # it marks no place


@pytest.mark.parametrize("count", [1, 2, 3])
def test_maps_that_mark_nothing_pass_in_one_of_twenty(count):
    shares = np.random.default_rng(0).random((20_000, count))
    assert np.mean([beats_random_maps(some) for some in shares]) == pytest.approx(0.05, abs=0.006)
    assert beats_random_maps(np.ones(count))
    assert not beats_random_maps(np.ones(0))


def test_a_smoothed_map_keeps_its_sum_and_loses_its_grain():
    grain = np.random.default_rng(0).random((48, 48))
    assert smoothed(grain).sum() == pytest.approx(grain.sum(), rel=0.02)
    assert np.abs(np.diff(smoothed(grain))).mean() < np.abs(np.diff(grain)).mean() / 5
    assert smoothed(grain[0]).tolist() == grain[0].tolist()  # features have no neighbours
