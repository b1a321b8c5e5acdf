import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from phenogroups.data.batches import Batch
from phenogroups.methods import SCAN
from phenogroups.methods.scan import Neighbours, consistency_loss, entropy_of_mean, nearest, self_labelling_loss


@pytest.fixture
def logits():
    g = torch.Generator().manual_seed(0)
    return torch.randn(9, 3, generator=g).double(), torch.randn(9, 3, generator=g).double()


def test_neighbours_are_those_of_a_brute_force_search():
    z = torch.randn(37, 5, generator=torch.Generator().manual_seed(0))
    found = nearest(z, 4, rows=10)
    for i in range(37):
        cosine = {j: float(z[i] @ z[j] / (z[i].norm() * z[j].norm())) for j in range(37) if j != i}
        assert set(found[i].tolist()) == set(sorted(cosine, key=lambda j: -cosine[j])[:4])


def test_a_length_is_no_similarity():
    z = torch.tensor([[1.0, 0.0], [100.0, 1.0], [0.9, 0.5], [0.0, 1.0]])
    assert nearest(z, 1).flatten().tolist() == [1, 0, 1, 2]


def test_losses_equal_the_paper_sums(logits):
    a, b = logits
    p, q = a.softmax(1), b.softmax(1)
    agreement = [sum(p[i, k].item() * q[i, k].item() for k in range(3)) for i in range(9)]
    assert consistency_loss(a, b).item() == pytest.approx(-sum(map(math.log, agreement)) / 9)
    mean = [p[:, k].mean().item() for k in range(3)]
    assert entropy_of_mean(a).item() == pytest.approx(-sum(m * math.log(m) for m in mean))


def test_only_the_sure_are_labels_and_clusters_count_alike(logits):
    sure = torch.tensor([[9.0, 0, 0]] * 3 + [[0, 9.0, 0]] + [[1.0, 0, 0]] * 5)
    learner = logits[0].requires_grad_()
    log_p = learner.log_softmax(1)
    expected = -(log_p[:3, 0].mean() + log_p[3, 1]) / 2
    loss = self_labelling_loss(sure, learner, 0.99)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, learner)
    assert gradient[4:].abs().max() == 0


def test_where_nobody_is_sure_nothing_is_learned(logits):
    learner = logits[0].requires_grad_()
    loss = self_labelling_loss(torch.zeros(9, 3), learner, 0.99)
    loss.backward()
    assert loss.item() == 0
    assert learner.grad.abs().max() == 0


@pytest.mark.parametrize(("weight", "clusters"), [(0.0, 1), (5.0, 2)])
def test_entropy_keeps_the_clusters_from_becoming_one(weight, clusters):
    torch.manual_seed(0)
    z = torch.randn(60, 2) * 0.3
    z[30:, 0] += 2
    partner = torch.cat([torch.randperm(30), 30 + torch.randperm(30)])
    head = nn.Linear(2, 2)
    nn.init.constant_(head.bias, 0)
    head.bias.data[0] = 3  # nearly everybody in one cluster to begin with
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(200):
        a, b = head(z), head(z[partner])
        optimizer.zero_grad()
        (consistency_loss(a, b) - weight * entropy_of_mean(a)).backward()
        optimizer.step()
    labels = head(z).argmax(1)
    assert len(labels.unique()) == clusters
    if clusters == 2:
        assert len(labels[:30].unique()) == len(labels[30:].unique()) == 1


def stages(method) -> str:
    words = {"contrast": "p", "consistency": "c", "self_labelling": "s"}
    return "".join(letter for row in method.history_ for word, letter in words.items() if word in row)


@pytest.mark.parametrize(("epochs", "order"), [(1, "c"), (2, "pc"), (3, "ppc"), (4, "ppcs"), (10, "pppppcccss")])
def test_the_stages_follow_each_other(features, epochs, order):
    method = SCAN(epochs=epochs, steps=2).fit(features)
    assert stages(method) == order
    assert len(method.beliefs_.neighbours) == 0  # of training subjects: not for the model file


def test_neighbours_are_mined_once_when_the_pretext_ends(features, monkeypatch):
    seen = []
    monkeypatch.setattr("phenogroups.methods.scan.nearest", lambda *a: seen.append(a) or nearest(*a))
    SCAN(epochs=6, steps=2).fit(features)
    assert [(len(z), count) for z, count in seen] == [(60, 3)]  # the patients only, and few neighbours of few


def test_a_neighbour_is_drawn_among_those_mined():
    method, index = SCAN(), torch.tensor([2, 0, 2])
    beliefs = Neighbours(torch.tensor([[1, 2], [0, 2], [0, 1]]), torch.tensor(False))
    torch.manual_seed(0)
    drawn = torch.stack([method.partners(index, beliefs) for _ in range(50)])
    assert [set(column.tolist()) for column in drawn.T] == [{0, 1}, {1, 2}, {0, 1}]
    assert method.partners(index, None) is None
    assert method.partners(index, replace(beliefs, self_labelling=torch.tensor(True))) is None


def test_the_last_view_is_the_neighbour_s(features, monkeypatch):
    inputs, met = torch.tensor(features.patients.inputs), 0

    def watched(self, network, batch, beliefs):
        nonlocal met
        if len(batch.views) == 3:
            met += 1
            near = inputs[beliefs.neighbours[batch.index]]  # (n, neighbours, features)
            assert (near == batch.views[-1][:, None]).all(2).any(1).all()
        return plain(self, network, batch, beliefs)

    plain = SCAN.losses
    monkeypatch.setattr(SCAN, "losses", watched)
    SCAN(epochs=4, steps=2, augmentation="none").fit(features)
    assert met == 2


def test_prediction_is_the_cluster_head(features):
    method = SCAN(epochs=2, steps=2).fit(features)
    found = method.predict_cohort(features)
    weights, bias = (p.detach().numpy() for p in method.network_.heads["cluster"].parameters())
    logits = found.embedding @ weights.T + bias
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found.subgroup, expected, rtol=1e-4)


def test_a_patient_is_compared_with_the_neighbour_and_then_with_itself(features):
    method = SCAN(epochs=2, steps=2, threshold=0.5).fit(features)  # low, so that somebody is sure
    network, views = method.network_.eval(), torch.randn(3, 20, 6, generator=torch.Generator().manual_seed(0))
    own, again, neighbour = (network.heads["cluster"](network.encoder(view)) for view in views)
    near, patients, index = torch.zeros(20, 1, dtype=torch.long), torch.ones(20), torch.arange(20)
    stage = Neighbours(near, torch.tensor(False))
    found = method.losses(network, Batch(tuple(views), patients, index), stage)
    torch.testing.assert_close(found["consistency"], consistency_loss(own, neighbour))
    torch.testing.assert_close(found["entropy"], -5 * entropy_of_mean(own))
    stage = replace(stage, self_labelling=torch.tensor(True))
    found = method.losses(network, Batch(tuple(views[:2]), patients, index), stage)
    torch.testing.assert_close(found["self_labelling"], self_labelling_loss(own, again, 0.5))
    assert found["self_labelling"] > 0
