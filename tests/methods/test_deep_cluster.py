"""The own promises of DeepCluster and of its weakly supervised kin: clusters of one epoch, classes of the next."""

import math
from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from phenogroups.clustering.kmeans import sinkhorn_kmeans
from phenogroups.data.batches import Batch
from phenogroups.methods import METHODS, DeepCluster, WSDeepCluster, load
from phenogroups.methods.deep_cluster import Prototypes
from phenogroups.methods.reading import Centroids
from phenogroups.methods.ws_deep_cluster import Classes

N = 60


def two_clouds() -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of patients in two clouds and of controls between them; the diagnosis."""
    g = torch.Generator().manual_seed(0)
    diagnosis = torch.arange(N) % 3 % 2  # controls, patients, controls
    side = torch.where(torch.arange(N) % 2 == 0, 4.0, -4.0)
    z = torch.randn(N, 5, generator=g)
    z[:, :3] += (side * diagnosis)[:, None]
    return z, diagnosis


@pytest.fixture
def batch() -> Batch:
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    return Batch((x,), torch.arange(12) % 2, torch.arange(20, 32))


def test_centroids_are_directions_and_their_members_nearest():
    z = F.normalize(two_clouds()[0], dim=1)
    found = DeepCluster(n_subgroups=3).e_step(z, torch.ones(N), None, 0)
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(3))
    own = found.q.argmax(1)
    assert set(found.q.unique().tolist()) == {0, 1}
    for i in range(N):
        cosines = [(z[i] @ c).item() for c in found.centroids]
        assert cosines[own[i]] == max(cosines)


def test_the_e_step_sees_projections_of_length_one(features, monkeypatch):
    seen = []
    e_step = DeepCluster.e_step
    monkeypatch.setattr(DeepCluster, "e_step", lambda self, z, *rest: seen.append(z) or e_step(self, z, *rest))
    method = DeepCluster(epochs=2, steps=2).fit(features)
    assert len(seen) == 3  # before each epoch and at the end
    for z in seen:
        assert z.shape == (features.is_patient.sum(), 128)
        torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
    assert all(row["moved"] >= 0 for row in method.history_)
    # what is predicted is what the last E-step concluded
    concluded = method.beliefs_.q[:, method.by_size_].argmax(1)
    np.testing.assert_array_equal(concluded, method.labels_[features.is_patient])


def test_loss_of_deep_cluster_by_hand(batch):
    torch.manual_seed(0)
    method = DeepCluster(n_subgroups=3, temperature=0.2)
    network = method.build((6,)).eval()
    own = torch.arange(40) % 3
    beliefs = Prototypes(F.one_hot(own, 3).float(), F.normalize(torch.randn(3, 128), dim=1))
    with torch.no_grad():
        found = method.losses(network, batch, beliefs)["clustering"].item()
        h = network.heads["projection"](network.encoder(batch.views[0]))
    total = 0.0
    for h_i, i in zip(h, batch.index, strict=True):
        likeness = [math.exp((h_i @ c / h_i.norm()).item() / 0.2) for c in beliefs.centroids]
        total -= math.log(likeness[own[i]] / sum(likeness))
    assert found == pytest.approx(total / 12, rel=1e-4)


def test_controls_have_a_class_of_their_own_and_patients_never_that():
    z, diagnosis = two_clouds()
    q = WSDeepCluster(n_subgroups=2).e_step(z, diagnosis, None, 0).q
    assert q.shape == (N, 3)
    torch.testing.assert_close(q.sum(1), torch.ones(N))
    assert (q[diagnosis == 0, 2] == 1).all()
    assert (q[diagnosis == 1, 2] == 0).all()
    subgroup, cloud = q[diagnosis == 1].argmax(1), (torch.arange(N) % 2)[diagnosis == 1]
    assert torch.equal(subgroup, cloud) or torch.equal(subgroup, 1 - cloud)


def test_controls_do_not_change_the_patients_subgroups():
    z, diagnosis = two_clouds()
    far = z * torch.tensor([100.0, 100.0, 100.0, 1.0, 1.0]) - 7  # scaled by these, the clouds would be lost
    moved = torch.where(diagnosis[:, None] == 1, z, far)
    first, second = (WSDeepCluster().e_step(embedding, diagnosis, None, 0).q for embedding in (z, moved))
    assert torch.equal(first, second)


@pytest.mark.parametrize("method", [DeepCluster(n_subgroups=2), WSDeepCluster(n_subgroups=2)])
def test_subgroups_keep_their_ids(method):
    z, diagnosis = two_clouds()
    if isinstance(method, DeepCluster):
        z, diagnosis = F.normalize(z, dim=1), torch.ones_like(diagnosis)
    first = method.e_step(z, diagnosis, None, 0)
    order = [1, 0, *range(2, first.q.shape[1])]
    swapped = replace(first, q=first.q[:, order])  # as if the last E-step had called A what this one calls B
    assert torch.equal(method.e_step(z, diagnosis, swapped, 1).q, swapped.q)
    assert torch.equal(method.e_step(z, diagnosis, first, 1).q, first.q)


def test_loss_of_the_classes_by_hand(batch):
    torch.manual_seed(0)
    method = WSDeepCluster(n_subgroups=2)
    network = method.build((6,)).eval()
    label = torch.where(torch.arange(40) % 2 == 0, 2, torch.arange(40) % 4 // 2)  # in the batch, the even are controls
    with torch.no_grad():
        found = method.losses(network, batch, Classes(F.one_hot(label, 3).float()))["classification"].item()
        p = network.heads["classes"](network.encoder(batch.views[0])).softmax(1)
    each = [-math.log(p[row, label[i]]) for row, i in enumerate(batch.index)]
    assert found == pytest.approx((np.mean(each[0::2]) + np.mean(each[1::2])) / 2, rel=1e-4)


def test_diagnosis_and_subgroup_are_read_from_the_same_classes(features):
    method = WSDeepCluster(n_subgroups=3, epochs=2, steps=5).fit(features)
    found = method.predict_cohort(features)
    with torch.no_grad():
        p = method.network_.heads["classes"](torch.tensor(found.embedding)).softmax(1).numpy()
    np.testing.assert_allclose(found.diagnosis, 1 - p[:, 3], atol=1e-6)
    of_patients = p[:, method.by_size_]
    np.testing.assert_allclose(found.subgroup, of_patients / of_patients.sum(axis=1, keepdims=True), atol=1e-5)


def test_pseudo_labels_of_ws_deep_cluster_are_those_of_the_papers_appendix(features):
    """Patients [Q, 0] with Q = SK(proportions), of equal sizes; controls [0, ..., 0, 1]."""
    method, ill = WSDeepCluster(scaler="none"), torch.as_tensor(features.is_patient)
    z = torch.tensor(features.inputs)
    q = method.e_step(z, ill.long(), None, 0).q
    assert q[~ill].tolist() == [[0, 0, 1]] * int((~ill).sum())
    torch.testing.assert_close(q[ill].sum(0), torch.tensor([30.0, 30, 0]), rtol=1e-3, atol=0)
    assert ((q[ill, :2] > 0.02) & (q[ill, :2] < 0.98)).any()  # soft
    centroids = sinkhorn_kmeans(z[ill], 2, seed=0)
    near = 1 / (z[ill][:, None] - centroids).square().sum(2)
    cost = -(near / near.sum(1, keepdim=True)).double().numpy()
    expected = ot.sinkhorn(np.full(60, 1 / 60), np.full(2, 0.5), cost, 0.05, numItermax=100_000, stopThr=1e-7)
    np.testing.assert_allclose(q[ill, :2].numpy(), 60 * expected, atol=1e-3)


@pytest.mark.parametrize("name", ["deep_cluster", "pcl", "scan"])
def test_subgroups_can_be_read_by_kmeans_of_the_representation(name, features, tmp_path):
    """The paper's text; the published code reads the heads, which stays the default."""
    by_head, by_kmeans = (
        METHODS[name](epochs=2, steps=3, reading=reading).fit(features) for reading in ("head", "kmeans")
    )
    np.testing.assert_array_equal(by_head.transform(features), by_kmeans.transform(features))
    z = by_kmeans.transform(features.patients)
    scaled = (z - z.mean(0)) / np.where(z.std(0) > 1e-6, z.std(0), 1)
    expected = KMeans(2, n_init=10, random_state=0, max_iter=100, tol=0).fit_predict(scaled)
    assert adjusted_rand_score(expected, by_kmeans.predict_subgroup(features.patients)) > 0.9
    assert type(by_kmeans.beliefs_) is Centroids
    by_kmeans.save(tmp_path / "model")
    np.testing.assert_array_equal(
        load(tmp_path / "model").predict_subgroup(features), by_kmeans.predict_subgroup(features)
    )
    assert METHODS[name]().reading == "head"
