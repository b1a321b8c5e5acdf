"""Deep UCSL's own promises, apart from how well it is tuned."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.cluster import DBSCAN, AgglomerativeClustering, Birch, KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from phenogroups.data.augment import AUGMENTATIONS
from phenogroups.data.batches import Batch
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.scores import score
from phenogroups.losses import gate_loss
from phenogroups.methods import METHODS, build_method, settings_of
from phenogroups.methods.deep_ucsl import PAPER, DeepUCSL, cluster_with, harden
from phenogroups.methods.election import vote

QUICK = {"epochs": 2, "steps": 3, "restarts": 1}
PLAIN = {"clusterer": "sinkhorn_kmeans", "components": None, "remove_severity": False, "winsorise": None, "warmup": 0}


def two_clouds(n=60, dims=5, seed=0):
    """Embeddings of n controls and of n patients, who lie aside in two clouds; the diagnosis; the cloud."""
    rng = np.random.default_rng(seed)
    cloud = np.arange(n) % 2
    patients = rng.normal(size=(n, dims)) + np.where(cloud, 8, -8)[:, None] * np.eye(dims)[0] + 5 * np.eye(dims)[1]
    embedding = np.concatenate([rng.normal(size=(n, dims)), patients])
    return torch.tensor(embedding, dtype=torch.float32), torch.arange(2 * n) // n, torch.tensor(cloud)


def agreement(q, cloud) -> float:
    share = (q.argmax(1) == cloud).double().mean().item()
    return max(share, 1 - share)


@pytest.mark.parametrize("clusterer", ["sinkhorn_kmeans", "kmeans"])
def test_pseudo_labels_go_from_soft_to_hard(clusterer):
    embedding, diagnosis, cloud = two_clouds()
    patient = diagnosis == 1

    def q(epoch=0, pseudo_labels="soft_to_hard"):
        method = DeepUCSL(clusterer=clusterer, epochs=10, pseudo_labels=pseudo_labels)
        return method.e_step(embedding, diagnosis, None, epoch).q

    soft, hard = q(pseudo_labels="soft"), q(pseudo_labels="hard")
    assert set(hard[patient].unique().tolist()) == {0, 1}
    assert agreement(hard[patient], cloud) == 1
    assert torch.equal(q(0), soft)
    assert torch.equal(q(10), hard)
    assert torch.equal(q(12), hard)
    torch.testing.assert_close(q(3), 0.7 * soft + 0.3 * hard)
    for epoch in (0, 3, 12):
        assert (q(epoch)[~patient] == 0.5).all()  # a control has no subgroup


def test_hard_from_shortens_the_way():
    assert [DeepUCSL(epochs=10, hard_from=0.5)._softness(epoch) for epoch in (0, 1, 5, 7)] == [1, 0.8, 0, 0]


def test_harden_mixes_with_the_winner():
    q = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
    torch.testing.assert_close(harden(q, 0.5), torch.tensor([[0.85, 0.15], [0.2, 0.8]]))


@pytest.mark.parametrize("clusterer", ["mixture", "sinkhorn_kmeans", KMeans(2, n_init=1, random_state=0)])
def test_subgroups_keep_their_ids_when_the_clusterer_permutes_them(clusterer):
    embedding, diagnosis, _ = two_clouds()
    patient = diagnosis == 1
    method = DeepUCSL(clusterer=clusterer, components=3, remove_severity=False, warm_start=False, pseudo_labels="hard")
    first = method.e_step(embedding, diagnosis, None, 0)
    swapped = replace(first, q=first.q.flip(1))  # as if the last E-step had called A what this one calls B
    again = method.e_step(embedding, diagnosis, swapped, 1)
    assert torch.equal(again.q[patient], swapped.q[patient])
    torch.testing.assert_close(again.centroids, first.centroids.flip(0))
    torch.testing.assert_close(again.log_sizes, first.log_sizes.flip(0))
    still = method.e_step(embedding, diagnosis, first, 1)
    assert torch.equal(still.q, first.q)


def test_scaling_looks_at_patients_only():
    embedding, diagnosis, _ = two_clouds()
    patients = embedding[diagnosis == 1]
    method = DeepUCSL(**PLAIN)
    found = method.e_step(embedding, diagnosis, None, 0)
    torch.testing.assert_close(found.center, patients.mean(0))
    torch.testing.assert_close(found.scale, patients.std(0, correction=0))
    moved = torch.where((diagnosis == 1)[:, None], embedding, 100 * embedding - 7)
    assert torch.equal(method.e_step(moved, diagnosis, None, 0).q, found.q)


@pytest.mark.parametrize(
    "clusterer",
    [
        KMeans(2, n_init=1, random_state=0),
        GaussianMixture(2, random_state=0),
        Birch(n_clusters=2),
        AgglomerativeClustering(2),
        DBSCAN(eps=1.5),
    ],
    ids=lambda c: type(c).__name__,
)
def test_any_clusterer_of_scikit_learn_will_do(clusterer):
    embedding, diagnosis, cloud = two_clouds()
    q = DeepUCSL(clusterer=clusterer).e_step(embedding, diagnosis, None, 0).q[diagnosis == 1]
    torch.testing.assert_close(q.sum(1), torch.ones(len(q)))
    assert agreement(q, cloud) > 0.9


def test_a_fitted_clusterer_needs_not_be_saved(features):
    method = DeepUCSL(**QUICK, clusterer=GaussianMixture(2, random_state=0)).fit(features)
    again = build_method("deep_ucsl", settings_of(method)).restore(method.input_shape_, method.state())
    expected, found = method.predict_cohort(features), again.predict_cohort(features)
    np.testing.assert_array_equal(found.by_centroid, expected.by_centroid)
    np.testing.assert_array_equal(found.subgroup, expected.subgroup)


def test_noise_belongs_everywhere_alike():
    z = torch.cat([torch.randn(40, 2) / 10 + 3, torch.randn(40, 2) / 10 - 3, torch.tensor([[50.0, 0.0]])])
    q = cluster_with(DBSCAN(), z, 3)
    assert q[-1].tolist() == [0.5, 0.5, 0]
    assert q[0].tolist() == [1, 0, 0]
    alone = cluster_with(DBSCAN(eps=1e-9, min_samples=5), z, 2)  # noise, all of it
    torch.testing.assert_close(alone.sum(1), torch.ones(81))


@pytest.mark.parametrize(
    ("clusterer", "words"),
    [
        ("gmm", "Expected clusterer 'mixture', .* or a scikit-learn estimator. Received: 'gmm'"),
        (KMeans(4, n_init=1), "at most 2 subgroups. Received: 4. .* n_subgroups=4"),
    ],
)
def test_a_wrong_clusterer_is_explained(clusterer, words):
    embedding, diagnosis, _ = two_clouds()
    with pytest.raises(ValueError, match=words):
        DeepUCSL(**QUICK, clusterer=clusterer).fit(embedding.numpy(), diagnosis.numpy())


def losses(method, n_controls=3, beliefs=None):
    torch.manual_seed(0)
    network = method.build((4,)).eval()
    diagnosis = torch.tensor([0] * n_controls + [1] * 2)
    batch = Batch((torch.randn(len(diagnosis), 4),), diagnosis, torch.arange(len(diagnosis)))
    with torch.no_grad():
        return network, batch, {name: loss.item() for name, loss in method.losses(network, batch, beliefs).items()}


def test_without_beliefs_everyone_is_undecided():
    network, batch, found = losses(DeepUCSL(class_weights=(1.0, 1.0)))
    with torch.no_grad():
        z = network.encoder(batch.views[0])
        p = network.heads["experts"](z).sigmoid()
        gate = network.heads["gate"](z).log_softmax(1)
    own = torch.where(batch.diagnosis[:, None] == 1, p, 1 - p)
    assert found["classification"] == pytest.approx(-(0.5 * own.log()).sum(1).mean().item(), rel=1e-5)
    each = -(0.5 * gate).sum(1)
    assert found["clustering"] == pytest.approx((each[:3].mean() + each[3:].mean()).item(), rel=1e-5)


def test_class_weights():
    _, _, plain = losses(DeepUCSL(class_weights=(1.0, 1.0)))
    _, _, double = losses(DeepUCSL(class_weights=(2.0, 2.0)))
    _, _, controls = losses(DeepUCSL(class_weights=(1.0, 0.0)))
    _, _, patients = losses(DeepUCSL(class_weights=(0.0, 1.0)))
    for name in plain:
        assert double[name] == pytest.approx(2 * plain[name], rel=1e-5)
        assert controls[name] + patients[name] == pytest.approx(plain[name], rel=1e-5)
    _, _, by_frequency = losses(DeepUCSL())
    expected = 5 / 6 * controls["classification"] + 5 / 4 * patients["classification"]  # 0.5 / share of 3 and of 2 in 5
    assert by_frequency["classification"] == pytest.approx(expected, rel=1e-5)
    assert by_frequency["clustering"] == pytest.approx(plain["clustering"], rel=1e-5)


def test_weights_of_the_terms():
    _, _, plain = losses(DeepUCSL())
    _, _, weighted = losses(DeepUCSL(experts_weight=3.0, gate_weight_patients=0.0, gate_weight_controls=2.0))
    _, _, of_controls = losses(DeepUCSL(gate_weight_patients=0.0))
    assert weighted["classification"] == pytest.approx(3 * plain["classification"], rel=1e-5)
    assert weighted["clustering"] == pytest.approx(2 * of_controls["clustering"], rel=1e-5)


@pytest.mark.parametrize("n_controls", [0, 30])
def test_a_batch_without_one_class_has_finite_losses(n_controls):
    method = DeepUCSL()
    torch.manual_seed(0)
    network = method.build((4,))
    diagnosis = torch.full((30,), int(n_controls == 0))
    batch = Batch((torch.randn(30, 4),), diagnosis, torch.arange(30))
    found = method.losses(network, batch, None)
    sum(found.values()).backward()
    assert all(math.isfinite(loss.item()) for loss in found.values())
    assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)


def test_observes_what_the_paper_draws(features):
    method = DeepUCSL(epochs=3, steps=3, warmup=1).fit(features)
    first, *later = method.history_
    assert {"bound", "gate_entropy_controls"} <= first.keys()
    for row in later:
        assert row["bound"] <= 0
        assert 0 <= row["gate_entropy_controls"] <= 1 + 1e-6
        assert row["distance_ratio"] >= 1
        assert row["size_A"] + row["size_B"] == pytest.approx(1)


def test_observed_distances_by_hand():
    embedding, diagnosis, _ = two_clouds()
    method = DeepUCSL(clusterer="kmeans")
    beliefs = method.e_step(embedding, diagnosis, None, 0)
    torch.manual_seed(0)
    network = method.build((7,))
    network.heads = torch.nn.ModuleDict(method.heads(SimpleNamespace(dim=embedding.shape[1]), (7,)))
    seen = method.observe(network, embedding, diagnosis, beliefs)
    control = embedding[diagnosis == 0].mean(0)
    member = beliefs.q[diagnosis == 1].argmax(1)
    away = [(embedding[diagnosis == 1][member == k].mean(0) - control).norm().item() for k in range(2)]
    assert seen["distance_ratio"] == pytest.approx(max(away) / min(away), rel=1e-4)
    gate = network.heads["gate"](embedding[diagnosis == 0]).softmax(1)
    entropy = -(gate * gate.log()).sum(1).mean().item() / math.log(2)
    assert seen["gate_entropy_controls"] == pytest.approx(entropy, rel=1e-4)


def test_subgroups_are_read_from_the_gate_and_from_the_centroids(features):
    for clusterer in ("mixture", "sinkhorn_kmeans"):
        method = DeepUCSL(**QUICK, clusterer=clusterer).fit(features)
        found = method.predict_cohort(features)
        assert found.by_centroid is not None
        assert not np.array_equal(found.by_centroid, found.subgroup)
        for reading in ("gate", "centroid"):
            assert 0 <= score(features, found, reading=reading).subgroup_bacc <= 1


def test_the_centroids_of_training_give_the_soft_beliefs_of_training():
    embedding, diagnosis, _ = two_clouds()
    method = DeepUCSL(components=3, pseudo_labels="soft")
    beliefs = method.e_step(embedding, diagnosis, None, 0)
    network = method.build((7,))
    network.heads = torch.nn.ModuleDict(method.heads(SimpleNamespace(dim=embedding.shape[1]), (7,)))
    with torch.no_grad():
        by_centroid = method.read(network, embedding, beliefs)["by_centroid"]
    patient = diagnosis == 1
    torch.testing.assert_close(by_centroid[patient], beliefs.q[patient], atol=1e-3, rtol=0)


def heads_of(method, found):
    """Probabilities of experts and gate, in the order of the subgroups."""
    z = torch.from_numpy(found.embedding)
    with torch.no_grad():
        expert, gate = method.network_.heads["experts"](z).sigmoid(), method.network_.heads["gate"](z).softmax(1)
    return expert.numpy()[:, method.by_size_], gate.numpy()[:, method.by_size_]


@pytest.mark.parametrize("kind", ["features", "images"])
def test_diagnosis_is_the_mixture_of_experts(kind, request):
    cohort = request.getfixturevalue(kind)
    method = DeepUCSL(**QUICK).fit(cohort)
    found = method.predict_cohort(cohort)
    expert, gate = heads_of(method, found)
    np.testing.assert_allclose(found.diagnosis, (expert * gate).sum(axis=1), atol=1e-5)


def test_where_subgroups_are_held_controls_are_neutral_as_far_as_they_are_recognised(features):
    """p(c | x) = p(ill | x) p(c | x, ill) + p(well | x) / K."""
    method = DeepUCSL(**QUICK).fit(features)
    found = method.predict_cohort(features)
    _, gate = heads_of(method, found)
    ill = found.diagnosis[:, None]
    assert method.beliefs_.held
    np.testing.assert_allclose(found.subgroup, ill * gate + (1 - ill) / 2, atol=1e-5)


def test_where_subgroups_are_sought_the_gate_itself_is_read(images):
    method = DeepUCSL(**QUICK).fit(images)
    found = method.predict_cohort(images)
    assert not method.beliefs_.held
    np.testing.assert_allclose(found.subgroup, heads_of(method, found)[1], atol=1e-5)


def test_the_papers_recipe(images):
    method = METHODS["deep_ucsl_paper"](epochs=2, batch_size=32).fit(images)
    assert {name: getattr(method, name) for name in PAPER if name != "epochs"} == {
        name: value for name, value in PAPER.items() if name != "epochs"
    }
    assert method.predict_cohort(images).embedding.shape == (120, 128)
    sizes = np.bincount(method.labels_[images.is_patient], minlength=2)
    assert sizes.sum() == images.is_patient.sum()
    balanced = method.beliefs_.q[torch.as_tensor(images.is_patient)].argmax(1).bincount(minlength=2)
    assert abs(int(balanced[0]) - int(balanced[1])) <= 12  # Sinkhorn's sizes are equal


def test_the_vote_takes_what_every_encoder_sees():
    """Encoder 0 sees an accident of its own louder than the disease; the disease is in both."""
    rng = np.random.default_rng(0)
    n = 300
    accident, kind = rng.integers(0, 2, n), rng.integers(0, 2, n)
    first, second = rng.normal(size=(2, 2 * n, 5))
    first[:n, 1] += 9 * accident
    first[:n, 2] += 6 * kind
    second[:n, 3] += 6 * kind
    for z in (first, second):
        z[:n, 0] += 10  # how ill they look
    embeddings = [torch.tensor(z, dtype=torch.float32) for z in (first, second)]
    diagnosis = (torch.arange(2 * n) < n).long()
    alone = DeepUCSL().e_step(embeddings[0], diagnosis, None, 0).q[:n]
    assert agreement(alone, torch.tensor(accident)) > 0.95
    encoders = [lambda rows=slice(None), augmented=False, z=z: z[rows] for z in embeddings]
    encoder, beliefs = DeepUCSL().elect(encoders, diagnosis, None)
    assert agreement(beliefs.q[:n], torch.tensor(kind)) > 0.95
    assert encoder in (0, 1)


def test_encoders_that_each_see_a_part_of_the_kinds_find_all_of_them_together():
    rng = np.random.default_rng(0)
    n, k = 400, 4
    kind = rng.integers(0, k, n)
    embeddings = []
    for encoder, z in enumerate(rng.normal(size=(2, 2 * n, 6))):
        for other in range(1, k):  # one encoder hardly tells the last two apart, the other the first two
            hardly = other == (k - 1 if encoder == 0 else 1)
            z[:n, other] += (2 if hardly else 7) * (kind == other)
        z[:n, 0] += 10
        embeddings.append(torch.tensor(z, dtype=torch.float32))
    views = [(z[:n], z[n:]) for z in embeddings]
    elected = vote(views, k, seed=0)
    assert elected is not None
    assert adjusted_rand_score(kind, elected[1].argmax(1)) > 0.95


def test_the_vote_leaves_out_what_controls_show_by_themselves():
    """A pen splits everybody, and on one axis only the patients, in halves; the disease splits off a tenth of them."""
    rng = np.random.default_rng(0)
    n = 1000
    pen, kind = rng.integers(0, 2, 2 * n), rng.random(n) < 0.1
    embeddings = []
    for z in rng.normal(size=(2, 2 * n, 6)):
        z[:, 1] += 7 * pen
        z[:n, 2] += 7 * pen[:n]
        z[:n, 3] += 7 * kind
        z[:n, 0] += 10
        embeddings.append(torch.tensor(z, dtype=torch.float32))
    diagnosis = (torch.arange(2 * n) < n).long()
    encoders = [lambda rows=slice(None), augmented=False, z=z: z[rows] for z in embeddings]
    _, beliefs = DeepUCSL().elect(encoders, diagnosis, None)
    assert agreement(beliefs.q[:n], torch.tensor(kind)) > 0.95


def test_the_vote_leaves_out_what_augmentation_changes():
    """How far a picture is turned splits the patients in halves, until it is turned anew; the disease is fainter."""
    rng = np.random.default_rng(0)
    n = 1000
    turn, kind = rng.integers(0, 2, n), rng.random(n) < 0.1

    def seen(turned):
        z = rng.normal(size=(2 * n, 6))
        z[:n, 1] += 8 * turned
        z[:n, 2] += 6 * kind
        z[:n, 0] += 10
        return torch.tensor(z, dtype=torch.float32)

    def encoder(plain):
        def see(rows=slice(None), *, augmented=False):
            return (seen(rng.integers(0, 2, n)) if augmented else plain)[rows]

        return see

    diagnosis = (torch.arange(2 * n) < n).long()
    plain = [seen(turn), seen(turn)]
    views = [(z[:n], z[n:]) for z in plain]
    by_plain = vote(views, 2, seed=0)
    assert by_plain is not None
    assert agreement(by_plain[1], torch.tensor(turn)) > 0.95
    _, beliefs = DeepUCSL().elect([encoder(z) for z in plain], diagnosis, None)
    assert agreement(beliefs.q[:n], torch.tensor(kind)) > 0.95


def planted(n=600, apart=6.0, seed=0):
    """A table in which a third of the patients lies `apart` on the second feature."""
    rng = np.random.default_rng(seed)
    ill, kind = np.arange(n) % 2, rng.random(n) < 1 / 3
    inputs = rng.normal(size=(n, 6))
    inputs[:, 0] += 3 * ill
    inputs[:, 1] += apart * (ill & kind)
    return Cohort(inputs.astype(np.float32), ill, truth=np.where(ill, kind, -1).astype(int), name="planted")


def test_training_stops_when_nobody_moves_and_not_before():
    cohort, told = planted(), []
    method = DeepUCSL(epochs=30, steps=5).fit(cohort, progress=told.append)
    assert len(method.history_) < 15
    moved = [row["moved"] for row in method.history_ if "moved" in row]
    assert all(share < method.stop_below for share in moved[-3:-1])  # the last epoch comes after the two quiet ones
    assert told[-1]["epoch"] == method.passes  # the bar ends full
    assert score(cohort, method.predict_cohort(cohort)).subgroup_bacc > 0.95
    assert len(DeepUCSL(epochs=12, steps=5, stop_below=0.0).fit(cohort).history_) == 12


def test_convergence_is_two_quiet_steps_in_a_row():
    method = DeepUCSL(stop_below=0.02)
    quiet, loud = {"moved": 0.01}, {"moved": 0.5}
    assert method.converged([{"epoch": 1}, loud, quiet, quiet])
    for history in ([], [quiet], [quiet, loud], [quiet, quiet, loud], [loud, quiet]):
        assert not method.converged(history)


def test_moved_is_counted_against_the_smallest_subgroup():
    before, after = (
        torch.nn.functional.one_hot(torch.tensor(k), 2).double() for k in ([0] * 80 + [1] * 20, [0] * 82 + [1] * 18)
    )
    beliefs = [SimpleNamespace(q=torch.cat([q, torch.full((7, 2), 0.5)])) for q in (before, after)]
    diagnosis = torch.tensor([1] * 100 + [0] * 7)
    assert DeepUCSL().moved(*beliefs, diagnosis) == pytest.approx(2 / 18)


def test_a_run_says_when_it_found_nothing_stable():
    assert DeepUCSL(epochs=4, steps=10).fit(planted()).caveats() == []
    noise = DeepUCSL(epochs=4, steps=10).fit(planted(apart=0.0))
    assert noise.agreement_ < 0.3
    assert any("Nothing stable was found" in caveat for caveat in noise.caveats())
    noise.history_[-1]["moved"] = 0.5
    assert any("moved 50% as many patients" in caveat for caveat in noise.caveats())


def test_a_table_elects_by_its_features_and_the_paper_by_its_network():
    cohort = planted()
    features, diagnosis = torch.tensor(cohort.inputs), torch.tensor(cohort.diagnosis)
    blind = [lambda rows=slice(None): torch.randn(len(features), 8, generator=torch.Generator().manual_seed(0))[rows]]
    _, beliefs = DeepUCSL().elect(blind, diagnosis, features)
    kind = torch.tensor(cohort.truth[cohort.is_patient])
    assert agreement(beliefs.q[diagnosis == 1], kind) > 0.95
    _, beliefs = DeepUCSL(**PAPER).elect(blind, diagnosis, features)
    assert agreement(beliefs.q[diagnosis == 1], kind) < 0.8


@pytest.mark.parametrize(("patients", "controls", "features"), [(2, 2, 1), (5, 5, 1), (5, 3, 40)])
def test_a_handful_of_patients_is_split_and_not_called_stable(patients, controls, features):
    inputs = np.random.default_rng(0).normal(size=(patients + controls, features)).astype(np.float32)
    method = DeepUCSL(**QUICK).fit(inputs, np.repeat([1, 0], [patients, controls]))
    assert set(method.labels_[:patients]) <= {0, 1}
    assert any("Nothing stable was found" in caveat for caveat in method.caveats())


def test_a_table_keeps_the_subgroups_that_were_elected(monkeypatch):
    """Also where nothing holds them but the promise: patients without groups."""
    cohort, concluded = planted(apart=0.0), []
    e_step = DeepUCSL.e_step

    def watched(*arguments, **options):
        concluded.append(e_step(*arguments, **options))
        return concluded[-1]

    monkeypatch.setattr(DeepUCSL, "e_step", watched)
    method = DeepUCSL(epochs=5, steps=5, stop_below=0.0).fit(cohort)
    patient = torch.as_tensor(cohort.is_patient)
    first, *later = (beliefs.q[patient].argmax(1) for beliefs in concluded)
    assert len(later) >= 4
    assert all(torch.equal(labels, first) for labels in later)
    assert all(bool(beliefs.held) for beliefs in concluded)
    assert not torch.equal(concluded[0].centroids, concluded[-1].centroids)  # they are looked for in each embedding
    assert {row["moved"] for row in method.history_ if "moved" in row} == {0.0}
    # images are not held: their embedding is what is being learned
    assert not bool(DeepUCSL().e_step(*two_clouds()[:2], None, 0).held)


def test_dropout_of_a_table_is_of_training_alone(features):
    method = DeepUCSL(**QUICK).fit(features)
    dropout = [m for m in method.network_.modules() if isinstance(m, torch.nn.Dropout)]
    assert [m.p for m in dropout] == [0.5]
    first, again = (method.predict_cohort(features) for _ in range(2))
    np.testing.assert_array_equal(first.subgroup, again.subgroup)
    np.testing.assert_array_equal(first.embedding, again.embedding)
    x = torch.from_numpy(features.inputs)
    encoder = method.network_.encoder
    with torch.no_grad():
        np.testing.assert_allclose(first.embedding, encoder.eval()(x).numpy(), rtol=1e-5, atol=1e-5)
        encoder.train()
        assert not torch.equal(encoder(x), encoder(x))


def test_settling_takes_its_statistics_without_dropout():
    """What batch normalisation after the dropout expects is what prediction shows it: dropout alone would double it."""
    cohort = planted()
    method = DeepUCSL(**QUICK, recalibrate_batch_norm=True).fit(cohort)
    encoder = method.network_.encoder.eval()
    *before, last, _ = encoder.layers
    x = (torch.from_numpy(cohort.inputs) - encoder.mean) / encoder.scale
    with torch.no_grad():
        for layer in before:
            x = layer(x)
    spread = (last.running_var / x.var(0)).median().item()
    assert spread == pytest.approx(1, abs=0.05)
    assert ((last.running_mean - x.mean(0)).abs() / x.std(0)).max() < 0.05


def test_mixed_precision_finds_the_same(features):
    full, mixed = (DeepUCSL(**QUICK, precision=p).fit(features).history_[-1] for p in ("32-true", "bf16-mixed"))
    assert mixed["classification"] != full["classification"]  # rounded to eight bits
    assert mixed["classification"] == pytest.approx(full["classification"], rel=0.05)


@pytest.mark.parametrize(("shape", "name"), [((9,), "none"), ((1, 8, 8), "digits"), ((1, 8, 8, 8), "volumes")])
def test_inputs_of_each_kind_have_an_augmentation(shape, name):
    assert DeepUCSL().augment(shape) == AUGMENTATIONS[name]


def test_a_table_needs_one_network_where_its_first_subgroups_are_found_without(features):
    assert DeepUCSL(restarts=3).networks(is_table=True) == 1
    assert DeepUCSL(restarts=3).networks(is_table=False) == 3
    assert DeepUCSL(restarts=3, clusterer="kmeans").networks(is_table=True) == 3
    assert DeepUCSL(restarts=3, warmup=0).networks(is_table=False) == 1
    one, three = (DeepUCSL(**{**QUICK, "restarts": restarts}).fit(features).state() for restarts in (1, 3))
    assert all(torch.equal(one[name], three[name]) for name in one)


def test_the_gate_ends_at_its_own_best():
    """Fitted to the last beliefs: controls are undecided on average, and its loss is smaller than by gradient steps."""
    cohort = drawn_digits(200, sizes=(0.8, 0.2))
    x, y = torch.tensor(cohort.inputs), torch.tensor(cohort.diagnosis)
    losses = {}
    for refit in (False, True):
        method = DeepUCSL(epochs=3, steps=10, restarts=1, refit_gate=refit).fit(cohort)
        with torch.no_grad():
            gate = method.network_.heads["gate"](method.network_.encoder(x))
        q = method.beliefs_.q
        losses[refit] = sum(gate_loss(gate, q, (y == who).float()).item() for who in (0, 1))
        if refit:
            assert gate.softmax(1)[y == 0].mean(0)[0].item() == pytest.approx(0.5, abs=0.02)
            assert gate.softmax(1)[y == 1].mean(0)[0].item() == pytest.approx(q[y == 1].mean(0)[0].item(), abs=0.02)
    assert losses[True] < losses[False]
