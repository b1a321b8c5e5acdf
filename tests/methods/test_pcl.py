"""PCL's own promises."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from phenogroups.data.batches import Batch
from phenogroups.losses import info_nce
from phenogroups.methods import PCL
from phenogroups.methods.pcl import Concentrated, concentrations
from phenogroups.methods.registry import in_current_names
from phenogroups.networks.network import teacher_of


def test_concentrations_equal_a_direct_loop():
    g = torch.Generator().manual_seed(0)
    z = F.normalize(torch.randn(60, 5, generator=g).double(), dim=1)
    found = PCL(n_subgroups=3, temperature=0.2, alpha=5.0).e_step(z, torch.ones(60), None, 0)
    phi = []
    for k, centroid in enumerate(found.centroids):
        members = [z[i] for i in range(60) if found.q[i, k] == 1]
        apart = sum(math.dist(member.tolist(), centroid.tolist()) for member in members)
        phi.append(apart / (len(members) * math.log(len(members) + 5)))
    assert len(set(phi)) == 3
    expected = [0.2 * value / (sum(phi) / 3) for value in phi]
    assert found.phi.tolist() == pytest.approx(expected)


def test_concentrations_of_the_lonely_and_of_equals_are_neither_zero_nor_infinite():
    distance, own = torch.tensor([0.5, 0.4, 0.3, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 1, 2, 2])
    phi = concentrations(distance, own, 4, 10, 0.1)  # three members, one, two equal ones, none
    assert phi.mean().item() == pytest.approx(0.1)
    assert phi[1] == phi[3] == phi[0]
    assert 0 < phi[2] < phi[0]
    torch.testing.assert_close(concentrations(torch.zeros(6), own, 4, 10, 0.1), torch.full((4,), 0.1))


@pytest.fixture
def batch() -> Batch:
    views = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(0))
    return Batch(tuple(views), torch.ones(12, dtype=torch.long), torch.arange(20, 32))


def test_losses_by_hand(batch):
    torch.manual_seed(0)
    method = PCL(n_subgroups=3, temperature=0.2)
    network = method.build((6,)).eval()
    own = torch.arange(40) % 3
    phi = torch.tensor([0.1, 0.2, 0.3])
    beliefs = Concentrated(F.one_hot(own, 3).float(), F.normalize(torch.randn(3, 128), dim=1), phi)
    with torch.no_grad():
        before, found = (method.losses(network, batch, known) for known in (None, beliefs))
        views = [F.normalize(network.heads["projection"](network.encoder(view)), dim=1) for view in batch.views]
    assert before == {"contrast": found["contrast"]}
    assert found["contrast"] == info_nce(*views, 0.2)
    total = 0.0
    for h in views:
        for h_i, i in zip(h, batch.index, strict=True):
            likeness = [math.exp((h_i @ c).item() / t.item()) for c, t in zip(beliefs.centroids, phi, strict=True)]
            total -= math.log(likeness[own[i]] / sum(likeness))
    assert found["prototypes"].item() == pytest.approx(total / 24, rel=1e-4)


def test_prototypes_come_after_the_warm_up(features):
    history = PCL(epochs=3, steps=2, pretext=2 / 3).fit(features).history_
    assert [row.get("prototypes") is not None for row in history] == [False, False, True]
    assert all("contrast" in row for row in history)


def test_a_training_shorter_than_the_warm_up_still_has_subgroups(features):
    method = PCL(epochs=1, steps=2, pretext=1.0).fit(features)
    assert set(method.labels_) == {-1, 0, 1}


def test_what_is_read_is_the_teachers(features):
    method = PCL(epochs=2, steps=3, pretext=0.5).fit(features)
    teacher, found = teacher_of(method.network_), method.predict_cohort(features)
    assert not any(weight.requires_grad for weight in teacher.parameters())
    with torch.no_grad():
        z = teacher.encoder(torch.tensor(features.inputs))
        h = F.normalize(teacher.projection(z), dim=1)
        student = method.network_.encoder(torch.tensor(features.inputs))
    np.testing.assert_allclose(found.embedding, z, atol=1e-5)
    assert not torch.allclose(z, student, atol=1e-3)
    expected = (h @ method.beliefs_.centroids.T / method.beliefs_.phi).softmax(1)
    np.testing.assert_allclose(found.subgroup, expected[:, method.by_size_], atol=1e-4)


@pytest.mark.parametrize(("epochs", "warmup"), [(75, 35), (10, 5), (50, 23)])
def test_the_warm_up_is_a_share_of_the_epochs(epochs, warmup):
    assert PCL(epochs=epochs).warmup == warmup
    assert in_current_names({"epochs": epochs, "warmup": warmup}, "pcl") == {
        "epochs": epochs, "pretext": pytest.approx(warmup / epochs),
    }  # fmt: skip
    assert "warmup" in in_current_names({"epochs": epochs, "warmup": 1}, "deep_ucsl")
