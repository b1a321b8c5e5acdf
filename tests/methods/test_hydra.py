"""HYDRA: a polytope around the controls."""

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.scores import score
from phenogroups.methods import HYDRA, PlainKMeans
from phenogroups.methods.hydra import alternate, fit_faces


@parametrize_with_checks([HYDRA(n_consensus=2)])
def test_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("n_subgroups", [2, 3])
def test_planted_subgroups_that_kmeans_misses(planted, n_subgroups):
    train, test = planted(n_subgroups=n_subgroups), planted(n_subgroups=n_subgroups, seed=1)
    found = score(test, HYDRA(n_subgroups).fit(train).predict_cohort(test))
    assert found.subgroup_bacc > 0.9
    assert found.class_bacc > 0.9
    assert score(test, PlainKMeans(n_subgroups).fit(train).predict_cohort(test)).subgroup_bacc < 0.65


def test_another_seed_is_another_start(planted):
    cohort = planted(200)
    faces = [HYDRA(n_consensus=1, seed=seed).fit(cohort).beliefs_.weights for seed in (0, 0, 1)]
    assert torch.equal(faces[0], faces[1])
    assert not torch.equal(faces[0], faces[2])


def test_controls_lie_inside_all_faces_and_every_patient_outside_of_one(planted):
    cohort = planted(200, shift=12)
    method = HYDRA(strength=100.0).fit(cohort)
    scores = method.transform(cohort)
    assert (scores[~cohort.is_patient] < 0).all()
    assert (scores[cohort.is_patient].max(axis=1) > 0).all()
    np.testing.assert_array_equal(method.predict(cohort), cohort.diagnosis)
    np.testing.assert_array_equal(method.predict_subgroup(cohort), scores[:, method.by_size_].argmax(axis=1))


def test_diagnosis_rises_with_the_best_score_from_below_to_above_one_half(planted):
    cohort = planted()
    method = HYDRA(n_consensus=5).fit(cohort)
    best = method.transform(cohort).max(axis=1)
    ill = method.predict_proba(cohort)[:, 1]
    order = np.argsort(best)
    assert (np.diff(ill[order]) >= 0).all()
    assert ill[order[0]] < 0.1
    assert ill[order[-1]] > 0.9


def test_nobody_moves_at_the_end(planted):
    cohort = planted()
    z, diagnosis = torch.as_tensor(cohort.inputs).double(), torch.as_tensor(cohort.diagnosis)
    starts = torch.randint(2, (300, 3), generator=torch.Generator().manual_seed(0))
    labels = alternate(z, diagnosis, starts, 2, 0.25)
    again = alternate(z, diagnosis, labels, 2, 0.25)
    assert (labels == again).double().mean() > 0.99


def test_a_face_that_nobody_chose_gets_back_whom_the_other_holds_inside():
    diagnosis, few = torch.arange(100) % 2, torch.arange(50) < 4
    z = torch.randn(100, 1, generator=torch.Generator().manual_seed(0)).double()
    z[diagnosis == 1] += torch.where(few, -5, 5)[:, None]  # on both sides of the controls
    nobody = torch.zeros(50, 1, dtype=torch.long)
    assert (fit_faces(z, diagnosis, nobody, 2, 0.25).scores(z)[:, 1] == -1).all()
    torch.testing.assert_close(alternate(z, diagnosis, nobody, 2, 0.25)[:, 0], few.long())


@pytest.mark.parametrize("rows", [slice(None), slice(7)])
def test_odd_inputs(rows):
    """Features of which most are constant or copies, and fewer patients than features; then hardly anybody."""
    rng = np.random.default_rng(0)
    inputs = np.repeat(rng.normal(size=(24, 3)), 20, axis=1)
    inputs[:, 10:50] = 1
    cohort = Cohort(inputs.astype(np.float32), np.arange(24) % 2)[rows]
    for some in (cohort, Cohort(np.ones_like(cohort.inputs), cohort.diagnosis)):
        found = HYDRA(3, n_consensus=3).fit(some).predict_cohort(some)
        assert np.isfinite(found.subgroup).all()
        assert np.isfinite(found.diagnosis).all()


def test_an_embedding_is_as_good_as_features(planted):
    train, test = planted(), planted(seed=1)
    polytope = HYDRA(n_consensus=3).e_step(train.inputs, train.diagnosis)
    found = polytope.read(torch.as_tensor(test.inputs))
    assert ((found["diagnosis"] > 0.5).numpy() == test.is_patient).mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "words"), [({"n_consensus": 0}, "n_consensus of at least 1"), ({"strength": 0.0}, "strength above 0")]
)
def test_wrong_settings_are_refused(planted, settings, words):
    with pytest.raises(ValueError, match=words):
        HYDRA(**settings).fit(planted(40))
