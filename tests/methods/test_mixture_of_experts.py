import math

import numpy as np
import pytest
import torch

from phenogroups.evaluation.scores import score
from phenogroups.methods import MixtureOfExperts


@pytest.fixture(scope="module")
def fitted(features):
    return MixtureOfExperts(n_subgroups=3, epochs=3, steps=10).fit(features)


@torch.no_grad()
def test_the_loss_is_a_brute_force_sum_of_probabilities(fitted, features):
    network, rows = fitted.network_.eval(), np.r_[0:20, 21:40:2]  # 10 controls, 20 patients
    x, y = torch.tensor(features.inputs[rows]), torch.tensor(features.diagnosis[rows])
    batch = type("Batch", (), {"views": (x,), "diagnosis": y})
    z = network.encoder(x)
    gate, experts = network.heads["gate"](z).softmax(1), network.heads["experts"](z).sigmoid()
    of_class = {0: [], 1: []}
    for i in range(30):
        ill = sum(gate[i, k].item() * experts[i, k].item() for k in range(3))
        of_class[int(y[i])].append(-math.log(ill if y[i] else 1 - ill))
    expected = (np.mean(of_class[0]) + np.mean(of_class[1])) / 2  # both classes alike
    assert fitted.losses(network, batch, None)["classification"].item() == pytest.approx(expected, rel=1e-3)


def test_the_subgroup_is_the_gate_and_the_diagnosis_the_mixture(fitted, features):
    found = fitted.predict_cohort(features)
    with torch.no_grad():
        z = torch.tensor(found.embedding)
        gate = fitted.network_.heads["gate"](z).softmax(1)
        ill = (gate * fitted.network_.heads["experts"](z).sigmoid()).sum(1)
    np.testing.assert_allclose(found.subgroup, gate[:, fitted.by_size_], rtol=1e-5)
    np.testing.assert_allclose(found.diagnosis, ill, rtol=1e-4, atol=1e-6)


def test_the_diagnosis_is_learned(fitted, features):
    assert score(features, fitted.predict_cohort(features)).class_bacc > 0.9
