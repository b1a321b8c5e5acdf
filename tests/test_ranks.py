"""Several processes find what one finds; whoever is left alone says so. Run as a script, this is one of them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from closeness import ABSOLUTE, RELATIVE
from phenogroups.clustering.contrast import contrastive_mixture
from phenogroups.clustering.kmeans import sinkhorn_kmeans
from phenogroups.clustering.matching import adjusted_rand, match_centroids, match_members
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.clustering.space import fit_space
from phenogroups.clustering.sums import ALONE, Sums
from phenogroups.data.augment import AUGMENTATIONS, Part
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.methods import METHODS, build_method, load
from phenogroups.methods.base import predict_together
from phenogroups.networks.encoders import light
from phenogroups.networks.network import Network
from phenogroups.training import ranks
from phenogroups.training.em import launch
from phenogroups.training.ranks import shared_norm

WORKER = Path(__file__).with_name("py")
DISCOVER = ["--subgroups", "2", "--held-out", "0.2", "--set", "epochs=2", "steps=2", "restarts=1"]
THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
QUICK = {"epochs": 2, "steps": 2, "pseudo_labels": "soft"}
MOVES = {"rotation": 20, "crop": 0.5, "erosion": 0.4, "blur": 0.5, "noise": 0.5, "cutout": 0.5}
KMEANS = {"clusterer": "sinkhorn_kmeans"}
FITS = {  # name: cohort, method, settings
    "images": ("images", "deep_ucsl", {**QUICK, "restarts": 2}),
    "images by K-means": ("images", "deep_ucsl", {**QUICK, "restarts": 1, **KMEANS}),
    "patients last": ("patients last", "deep_ucsl", {**QUICK, "restarts": 1, "augmentation": MOVES}),
    "table": ("table", "deep_ucsl", {**QUICK, "restarts": 2}),
    "table by K-means": ("table", "deep_ucsl", {**QUICK, "restarts": 1, **KMEANS}),
    "two views": ("images", "byol", {"epochs": 1, "steps": 2}),
    "prototypes": ("images", "deep_cluster", {"epochs": 2, "steps": 2}),
}


def cohorts() -> dict[str, Cohort]:
    """Odd numbers of subjects, so that shards are unequal; in one, the first half has no patients."""
    images = drawn_digits(61, size=12, seed=1)
    rng = np.random.default_rng(0)
    ill, subgroup = np.arange(121) % 2, rng.integers(0, 2, 121)
    table = rng.normal(size=(121, 6)).astype(np.float32)
    table[:, 0] += 3 * ill
    table[:, 1] += ill * np.where(subgroup, 3, -3)
    last = images[np.argsort(images.diagnosis, kind="stable")]
    return {"images": images, "table": Cohort(table, ill), "patients last": last}


def fitted(name: str, sums: Sums) -> dict[str, np.ndarray]:
    of, method, settings = FITS[name]
    cohort = cohorts()[of]
    model = build_method(method, settings).fit(cohort)
    found = predict_together(model, cohort)
    q = sums.gather(model.beliefs_.q)[:, model.by_size_] if hasattr(model.beliefs_, "q") else torch.empty(0)
    seen = [[row[key] for key in row if key != "seconds"] for row in model.history_[-1:]]
    everything = {"q": q.numpy(), "labels": model.labels_, "means": model.subgroup_means_, "history": np.array(seen)}
    if found is not None:
        everything |= {"subgroup": found.subgroup, "embedding": found.embedding}
    return everything


def clustered(sums: Sums) -> dict[str, np.ndarray]:
    """Everything that clustering does by sums, on rows of which each process has some; uneven on purpose."""
    rng = torch.Generator().manual_seed(0)
    cloud = torch.randint(3, (203,), generator=rng)
    z = torch.randn(203, 5, generator=rng) + 6 * torch.nn.functional.one_hot(cloud, 5)
    patient = torch.arange(203) % 3 > 0
    cut = [0, 31, 203] if sums.world == 2 else [0, 203]
    own = slice(cut[sums.rank], cut[sums.rank + 1])
    z, patient, cloud = z[own], patient[own], cloud[own]
    space = fit_space(z, patient, remove_severity=True, winsorise=2.0, components=3, sums=sums)
    scores = torch.softmax(z[:, :3], dim=1)
    kmeans = sinkhorn_kmeans(z, 3, n_starts=2, sums=sums)
    # centroids that nobody is nearest to must start again at those farthest away, wherever they are
    lost = sinkhorn_kmeans(z, 3, balance=0, start=torch.tensor([[0.0] * 5, [1e3] * 5, [2e3] * 5]), sums=sums)
    mixture = tied_mixture(z, 3, n_starts=2, sums=sums)
    contrast = contrastive_mixture(z[patient], z[~patient], 3, sums=sums)
    found = {
        "space": space(z), "basis": space.basis, "sinkhorn": sinkhorn(scores, sums=sums),
        "kmeans": kmeans.centroids, "lost": lost.centroids, "mixture": mixture.log_posterior(z.double()).exp(),
        "contrast": contrast.log_posterior(z.double()).exp(),
        "matched": kmeans.centroids[match_members(cloud, z, kmeans.centroids, sums)],
        "rand": torch.tensor(adjusted_rand(cloud, scores.argmax(1), 3, sums)),
        "sample": sums.sample(z, 50),
    }  # fmt: skip
    of_subjects = ("space", "sinkhorn", "mixture", "contrast")
    return {name: (sums.gather(v) if name in of_subjects else v).numpy() for name, v in found.items()}


def gradients(sums: Sums) -> dict[str, np.ndarray]:
    """Of a loss that looks at pairs of subjects, through an encoder with batch normalisation and a head."""
    torch.manual_seed(0)
    x = torch.randn(33, 1, 12, 12).double()
    network = Network(light((1, 12, 12)), {"head": torch.nn.Linear(128, 2)}).double().train()
    share = ranks.Share(network, sums, len(x), len(x), apart=True)
    z = network.encoder(x[share.rows])
    (network.heads["head"](z) @ network.heads["head"](z).T).logsumexp(1).mean().backward()
    share.add_gradients()
    share.end()
    found = {name: weight.grad for name, weight in network.named_parameters()} | dict(network.encoder.named_buffers())
    return {name: value.numpy() for name, value in found.items() if value is not None}


def computed(sums: Sums) -> dict[str, dict[str, np.ndarray]]:
    found = {name: fitted(name, sums) for name in FITS}
    return found | {"clustering": clustered(sums), "gradients": gradients(sums)}


def train_and_die() -> None:
    """The second process dies in the midst of an epoch, without a word."""
    add = ranks.Share.add_gradients

    def last(self: ranks.Share) -> None:
        if self.sums.rank == 1:
            os._exit(0)
        add(self)

    ranks.Share.add_gradients = last
    build_method("deep_ucsl", QUICK).fit(cohorts()["images"])


def main() -> None:
    """What every process runs: PROCESSES and a folder, into which the first one writes."""
    processes, what = sys.argv[1:3]
    sums = launch(int(processes))
    found = computed(sums)
    try:
        build_method("kmeans", {}).fit(cohorts()["table"])
    except ValueError as error:
        found["refused"] = {"message": np.array(str(error))}
    began = time.monotonic()
    try:
        train_and_die()
    except ranks.RanksError as error:
        found["died"] = {"message": np.array(str(error)), "seconds": np.array(time.monotonic() - began)}
    if sums.rank == 0:
        for name, arrays in found.items():
            np.savez(Path(what) / f"{name}.npz", allow_pickle=False, **arrays)


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("", 0))
        return str(found.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    return inherited | THREADS | {"MASTER_PORT": free_port(), "MASTER_ADDR": "127.0.0.1"} | more


def run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def one() -> dict[str, dict[str, np.ndarray]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the others have: sums of gradients are rounded in another order by more
    found = computed(ALONE)
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("two")
    done = run(__file__, 2, folder)
    assert done.returncode == 0, done.stderr
    return {path.stem: dict(np.load(path, allow_pickle=False)) for path in folder.glob("*.npz")}


@pytest.mark.parametrize("name", FITS)
def test_two_processes_find_what_one_finds(one, two, name):
    assert np.array_equal(one[name]["labels"], two[name]["labels"])
    for what, expected in one[name].items():
        found = two[name][what]
        # A table is computed whole by both; what a model predicts is promised to 1e-5
        if name.startswith("table") and what != "history":
            np.testing.assert_allclose(found, expected, rtol=RELATIVE, atol=1e-5, err_msg=what)
        # Of images, two processes encode other batches than one, so their networks round otherwise. Where a gradient is
        # hardly more than rounding, as of a bias before batch normalisation, Adam makes a whole step of it: how a model
        # is trained is not promised to 1e-5. These trainings change embeddings by a third of their length and more
        assert np.linalg.norm(found - expected) <= 5e-3 * np.linalg.norm(expected), what


def test_something_was_learned(one):
    """Otherwise equality would say little."""
    for name in ("images", "table"):
        q = one[name]["q"]
        assert len(np.unique(q)) > 10
        assert len(np.unique(one[name]["labels"])) == 3


@pytest.mark.parametrize("what", ["space", "basis", "sinkhorn", "matched", "rand", "sample"])
def test_clustering_by_sums(one, two, what):
    found, expected = two["clustering"][what], one["clustering"][what]
    np.testing.assert_allclose(found, expected, rtol=RELATIVE, atol=ABSOLUTE)
    assert np.isfinite(expected).all()


@pytest.mark.parametrize("what", ["kmeans", "lost", "mixture.T", "contrast.T"])
def test_clusters_by_sums_up_to_their_order(one, two, what):
    name, _, transposed = what.partition(".")  # of posteriors, the columns are the clusters
    found, expected = (each["clustering"][name].T if transposed else each["clustering"][name] for each in (two, one))
    order = match_centroids(torch.as_tensor(expected), torch.as_tensor(found))
    np.testing.assert_allclose(found[order], expected, rtol=RELATIVE, atol=ABSOLUTE)
    assert np.isfinite(expected).all()


def test_gradients_of_parts_add_up_to_those_of_the_whole(one, two):
    torch.manual_seed(0)  # the oracle is torch alone: nothing of ours in network or loss
    x = torch.randn(33, 1, 12, 12).double()
    network = Network(light((1, 12, 12)), {"head": torch.nn.Linear(128, 2)}).double().train()
    head = network.heads["head"](network.encoder(x))
    (head @ head.T).logsumexp(1).mean().backward()
    expected = {name: w.grad for name, w in network.named_parameters()} | dict(network.encoder.named_buffers())
    assert set(expected) == set(one["gradients"]) == set(two["gradients"])
    for name, value in expected.items():
        for found in (one, two):
            np.testing.assert_allclose(found["gradients"][name], value.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("shape", [(5, 3), (6, 3, 4, 5), (4, 2, 3, 4, 5)])
def test_the_norm_is_torchs_own(shape):
    torch.manual_seed(0)
    kind = {2: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}[len(shape)]
    ours, theirs = (kind(shape[1]).double() for _ in range(2))
    for momentum in (0.1, None):
        ours.momentum = theirs.momentum = momentum
        x = (3 + torch.randn(shape).double()).requires_grad_()
        weight = torch.randn(shape).double()
        for norm, forward in ((theirs, theirs), (ours, lambda x: shared_norm(ours, ALONE, x))):
            x.grad = None
            y = forward(x)
            (y * weight).sum().backward()
            norm.seen = y.detach(), x.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var
        for a, b in zip(ours.seen, theirs.seen, strict=True):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(shared_norm(ours.eval(), ALONE, x), theirs.eval()(x))


@pytest.mark.parametrize("name", ["digits_morpho", "xray", "oct", "brain", "volumes"])
def test_a_part_of_a_batch_is_augmented_as_in_the_whole(name):
    torch.manual_seed(0)
    x = torch.rand(7, 2, *[9] * (3 if name in ("brain", "volumes") else 2))
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    seen, next_draws = [], set()
    for rows in (slice(None), slice(0, 3), slice(3, 7)):
        torch.manual_seed(1)
        seen.append(AUGMENTATIONS[name](x[rows], Part(rows, 7)))
        next_draws.add(torch.rand(1).item())
    torch.testing.assert_close(torch.cat(seen[1:]), seen[0], rtol=0, atol=0)
    assert len(next_draws) == 1  # all go on with the same numbers
    torch.manual_seed(1)
    assert torch.equal(AUGMENTATIONS[name](x), seen[0])


def test_adjusted_rand_is_scikit_learns():
    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.integers(0, 3, 40), rng.integers(0, 2, 40)
        assert adjusted_rand(torch.tensor(a), torch.tensor(b), 3) == pytest.approx(adjusted_rand_score(a, b))
    same = torch.zeros(4, dtype=torch.long)
    assert adjusted_rand(same, same, 2) == adjusted_rand_score(same, same) == 1


def test_who_dies_is_missed_at_once(two):
    assert "Expected an answer of all 2 processes within 10 minutes. Received: " in str(two["died"]["message"])
    assert two["died"]["seconds"] < 60


def test_a_method_that_cannot_is_refused_and_others_are_named(two):
    message = str(two["refused"]["message"])
    assert "deep_ucsl" in message
    assert "Received: PlainKMeans" in message
    able = {name for name, make in METHODS.items() if make().shares}
    assert {"deep_ucsl", "deep_ucsl_paper", "simclr", "byol", "swav", "deep_cluster", "consensus"} <= able
    assert not able & {"kmeans", "ucsl", "hydra", "vae", "autoencoder", "supcon", "scan", "foundation"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--method", "hydra", "--devices", "2"], "several processes can train together: "),
        (["--devices", "0"], "Expected at least one process"),
    ],
)
def test_the_command_refuses_before_it_starts_others(tmp_path, capsys, words, expected):
    from phenogroups.cli import main

    assert main(["discover", "drawn", "--subjects", "40", "--out", str(tmp_path / "run"), *words]) == 2
    assert expected in capsys.readouterr().err


def test_torchrun_says_how_many(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"2 on each of 2 machines. Received: 3 on each of 2"):
        launch(3)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    cohort = cohorts()["table"]
    path = tmp_path_factory.mktemp("table") / "table.csv"
    frame = pd.DataFrame(cohort.inputs, columns=[f"f{i}" for i in range(6)]).assign(diagnosis=cohort.diagnosis)
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def alone(table, tmp_path_factory) -> Path:
    """The run of one process."""
    from phenogroups.cli import main

    folder = tmp_path_factory.mktemp("alone") / "run"
    assert main(["discover", str(table), *DISCOVER, "--out", str(folder)]) == 0
    return folder


def same_run(alone: Path, found: Path) -> None:
    pd.testing.assert_frame_equal(
        *(pd.read_csv(f / "subgroups.csv") for f in (alone, found)), check_exact=False, atol=1e-5
    )
    ours, theirs = (json.loads((f / "recipe.json").read_text()) for f in (alone, found))
    assert ours["settings"] == theirs["settings"]  # processes are no part of what a model is
    assert load(found).predict(cohorts()["table"]).shape == (121,)


def test_the_command_under_torchrun(table, alone, tmp_path):
    words = ["--nproc-per-node=2", "--master-port", free_port(), "-m", "phenogroups.cli", "discover", table, *DISCOVER]
    done = run("-m", "torch.distributed.run", *words, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Written: ") == 1  # the first process alone speaks
    same_run(alone, tmp_path / "run")


@contextmanager
def two_machines():
    """Two network namespaces, each with its own address, joined by a pair of virtual devices."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command ip (iproute2), which is not here")
    names = [f"phenogroups-{os.getpid()}-{i}" for i in range(2)]
    devices = [f"pg{os.getpid() % 10**6}-{i}" for i in range(2)]
    commands = [
        *(["ip", "netns", "add", name] for name in names),
        ["ip", "link", "add", devices[0], "netns", names[0], "type", "veth", "peer", devices[1], "netns", names[1]],
    ]
    for i, (name, device) in enumerate(zip(names, devices, strict=True)):
        inside = ["ip", "-n", name]
        commands += [[*inside, "addr", "add", f"10.77.0.{i + 1}/24", "dev", device]]
        commands += [[*inside, "link", "set", link, "up"] for link in (device, "lo")]
    try:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"network namespaces are not permitted here: {' '.join(command)}: {done.stderr.strip()}")
        yield list(zip(names, devices, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_two_machines(table, alone, tmp_path):
    with two_machines() as machines:
        running = []
        for i, (name, device) in enumerate(machines):
            out = tmp_path / f"machine{i}"
            words = ["discover", table, *DISCOVER, "--nodes", "2", "--devices", "1", "--out", out]
            more = {"NODE_RANK": str(i), "MASTER_ADDR": "10.77.0.1", "GLOO_SOCKET_IFNAME": device}
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "phenogroups.cli", *map(str, words)]
            env = environment(**more) | {"MASTER_PORT": "29400"}
            running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        said = [process.communicate(timeout=300)[0].decode() for process in running]
        assert [process.returncode for process in running] == [0, 0], said
    same_run(alone, tmp_path / "machine0")
    assert not (tmp_path / "machine1").exists()  # only the first process writes


if __name__ == "__main__":
    main()
