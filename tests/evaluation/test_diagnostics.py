"""The paper's diagnostics by hand-made predictions."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from phenogroups.evaluation.diagnostics import Diagnostics, diagnostics
from phenogroups.methods import DeepUCSL, MixtureOfExperts, Prediction
from phenogroups.methods.ucsl import UCSL

ILL = np.array([0, 0, 1, 1, 1, 1])


def made(subgroup, embedding=None, experts=None):
    embedding = np.zeros((len(subgroup), 2)) if embedding is None else np.asarray(embedding, float)
    return Prediction(np.asarray(subgroup, float), None, embedding, experts=experts)


HARD = [[0.5, 0.5], [0.5, 0.5], [1, 0], [1, 0], [0, 1], [0, 1]]


def test_distance_ratio_is_of_the_farthest_to_the_nearest_subgroup():
    at = [[-1, 0], [1, 0], [0, 2], [0, 4], [0, -1], [0, -1]]  # controls around 0, subgroups at 3 and at 1
    assert diagnostics(ILL, made(HARD, at)).distance_ratio == pytest.approx(3)
    swapped = made(np.array(HARD)[:, ::-1], at)
    assert diagnostics(ILL, swapped).distance_ratio == pytest.approx(3)
    assert diagnostics(ILL, made(HARD)).distance_ratio is None  # a subgroup that lies on the controls


def test_gate_entropy_is_of_controls_only():
    assert diagnostics(ILL, made(HARD)).gate_entropy_controls == pytest.approx(1)
    sure = np.array(HARD)
    sure[:2] = [[1, 0], [0.5, 0.5]]
    assert diagnostics(ILL, made(sure)).gate_entropy_controls == pytest.approx(0.5)
    three = np.full((6, 3), [0.2, 0.3, 0.5])
    expected = -sum(p * np.log(p) for p in (0.2, 0.3, 0.5)) / np.log(3)
    assert diagnostics(ILL, made(three)).gate_entropy_controls == pytest.approx(expected)


@pytest.mark.parametrize(
    ("experts", "expected"),
    [
        ([[-1, -1], [-1, -1], [1, -1], [1, -1], [-1, 1], [-1, 1]], 0.5),  # each knows its own, and only that
        ([[-1, -1], [-1, -1], [1, 1], [1, 1], [1, 1], [1, 1]], 0.0),  # all know all
        ([[-1, -1], [-1, -1], [-1, 1], [-1, 1], [1, -1], [1, -1]], -0.5),  # each knows the other's
    ],
)
def test_expert_specialisation(experts, expected):
    assert diagnostics(ILL, made(HARD, experts=np.array(experts))).expert_specialisation == pytest.approx(expected)


def test_expert_specialisation_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    ill, experts, q = rng.integers(0, 2, 300), rng.normal(size=(300, 4)), rng.dirichlet([1] * 4, 300)
    gaps = []
    for k in range(4):
        who = (ill == 0) | (q.argmax(1) == k)
        b = [balanced_accuracy_score(ill[who], experts[who, j] > 0) for j in range(4)]
        gaps.append(b[k] - np.mean([b[j] for j in range(4) if j != k]))
    found = diagnostics(ill, made(q, experts=experts)).expert_specialisation
    assert found == pytest.approx(np.mean(gaps))


def test_the_error_of_specialisation_is_its_spread_over_samples_of_patients():
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(400):
        q = np.eye(2)[rng.integers(0, 2, 80)]
        experts = np.where(rng.random((80, 2)) < 0.5 + 0.2 * q, 1.0, -1.0)
        drawn.append(diagnostics(np.arange(80) < 60, made(q, experts=experts)))
    spread = np.std([one.expert_specialisation for one in drawn])
    assert np.mean([one.specialisation_error for one in drawn]) == pytest.approx(spread, rel=0.1)
    alone = np.array(HARD)[[0, 2, 4]]
    assert diagnostics(ILL[[0, 2, 4]], made(alone, experts=np.ones((3, 2)))).specialisation_error is None


def test_what_is_undefined_is_none():
    assert diagnostics(np.ones(6), made(HARD)) == Diagnostics()
    empty = diagnostics(ILL, made(np.tile([0.9, 0.1], (6, 1)), experts=np.zeros((6, 2))))
    assert empty.distance_ratio is None
    assert empty.expert_specialisation is None
    assert empty.gate_entropy_controls is not None
    assert diagnostics(ILL, made(HARD)).expert_specialisation is None  # a method without experts
    with pytest.raises(ValueError, match="each of 5 subjects"):
        diagnostics(ILL[:5], made(HARD))


@pytest.mark.parametrize("method", [DeepUCSL, MixtureOfExperts, UCSL])
def test_methods_with_experts_bring_their_log_odds(method, features):
    settings = {"n_consensus": 2} if method is UCSL else {"epochs": 2, "steps": 3}
    found = method(**settings).fit(features).predict_cohort(features)
    assert found.experts is not None
    assert found[:7].experts.shape == (7, 2)
    gate = found.subgroup
    if method is DeepUCSL:  # on a table, its gate is of patients only, and p(c | x) follows from the diagnosis
        ill = found.diagnosis[:, None]
        gate = (gate - (1 - ill) / 2) / ill
    by_experts = (gate * torch.as_tensor(found.experts).sigmoid().numpy()).sum(1)
    np.testing.assert_allclose(found.diagnosis, by_experts, atol=1e-4)
    assert diagnostics(features.diagnosis, found).expert_specialisation is not None


def test_the_same_numbers_as_training_saw(features):
    method = DeepUCSL(epochs=3, steps=10, restarts=1, recalibrate_batch_norm=False).fit(
        features
    )  # settling would come after
    found, last = method.predict_cohort(features), method.history_[-1]
    seen = diagnostics(features.diagnosis, found)
    assert seen.gate_entropy_controls == pytest.approx(last["gate_entropy_controls"], abs=1e-5)
