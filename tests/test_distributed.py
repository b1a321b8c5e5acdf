"""Several processes find what one finds; whoever is left alone says so. Run as a script, this is one of them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from closeness import ABSOLUTE, RELATIVE
from phenogroups.clustering.communicator import LOCAL, Communicator, ProcessLostError
from phenogroups.clustering.contrast import contrastive_mixture
from phenogroups.clustering.kmeans import kmeans, lloyd, nearest, sinkhorn_kmeans
from phenogroups.clustering.matching import adjusted_rand, match_centroids, match_members
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.clustering.space import fit_space
from phenogroups.data.cohort import Cohort
from phenogroups.losses import balanced_cross_entropy, class_balance, contrastive, gate_loss, info_nce
from phenogroups.methods import METHODS, DeepMethod, build_method, load
from phenogroups.methods.base import predict_together
from phenogroups.networks.architectures import light
from phenogroups.training import distributed
from phenogroups.training.checkpoint import Checkpoint
from phenogroups.training.distributed import build_fabric, launch, synchronise_batch_norm
from phenogroups.training.em import Trainer

pytestmark = pytest.mark.anew
DISCOVER = ["--subgroups", "2", "--held-out", "0.2", "--set", "epochs=3", "steps=5", "restarts=1"]
THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
QUICK = {"epochs": 3, "steps": 10}
FITS: dict[str, tuple[str, str, dict[str, Any]]] = {  # name: cohort, method, settings
    "images": ("images", "deep_ucsl", {**QUICK, "restarts": 2}),
    "images by K-means": ("images", "deep_ucsl", {**QUICK, "restarts": 1, "clusterer": "sinkhorn_kmeans"}),
    "patients last": ("patients last", "deep_ucsl", {**QUICK, "restarts": 1}),
    "table": ("table", "deep_ucsl", {**QUICK, "restarts": 2}),
    "table by K-means": ("table", "deep_ucsl", {**QUICK, "restarts": 1, "clusterer": "sinkhorn_kmeans"}),
    "classes": ("images", "ws_deep_cluster", QUICK),
}
RUN_ONLY = ("byol", "swav", "pcl", "deep_cluster", "vae", "classifier", "mixture_of_experts")  # and not compared
E_STEPS = {
    "mixture": ("deep_ucsl", {}),
    "K-means": ("deep_ucsl", {"clusterer": "sinkhorn_kmeans"}),
    "centroids": ("simclr", {}),
    "prototypes": ("deep_cluster", {}),
    "concentrations": ("pcl", {}),
    "classes": ("ws_deep_cluster", {}),
}
AGREEING = 0.95  # adjusted Rand index


def cohorts() -> dict[str, Cohort]:
    """Odd numbers of subjects, so that shards are unequal; in one cohort, the first half has no patients.

    Patients differ from controls in one feature, or by a bar, and from each other in another feature, or in the bar's
    direction.
    """
    rng = np.random.default_rng(0)
    ill, truth = np.arange(121) % 2, rng.integers(0, 2, 121)
    table = rng.normal(size=(121, 6)).astype(np.float32)
    table[:, 0] += 3 * ill
    table[:, 1] += ill * np.where(truth, 3, -3)
    pixels = rng.normal(size=(121, 1, 12, 12)).astype(np.float32)
    for row in np.flatnonzero(ill):
        pixels[row, 0, 5:7] += 3 * truth[row]
        pixels[row, 0, :, 5:7] += 3 * (1 - truth[row])
    images = Cohort(pixels, ill, truth=truth)
    last = images[np.argsort(ill, kind="stable")]
    return {"images": images, "table": Cohort(table, ill, truth=truth), "patients last": last}


def fitted(name: str, comm: Communicator) -> dict[str, np.ndarray]:
    of, method, settings = FITS[name]
    cohort = cohorts()[of]
    model = build_method(method, settings).fit(cohort)
    found = predict_together(model, cohort)
    subgroup = np.empty(0) if found is None else found.subgroup
    own = sum(float(value.double().sum()) for value in model.state().values())
    return {"labels": model.labels_, "subgroup": subgroup, "weights": comm.gather(torch.tensor([own])).numpy()}


def e_step(name: str, comm: Communicator) -> dict[str, np.ndarray]:
    """Two E-steps in a row on the same embeddings, of which each process has some; uneven on purpose."""
    method = build_method(*E_STEPS[name])
    z, patient, _ = vectors()
    own = uneven(comm, len(z))
    z, labels = z[own], patient[own].long()
    if name in ("prototypes", "concentrations"):
        z = torch.nn.functional.normalize(z, dim=1)
    beliefs = method.e_step(z, labels, None, 0)
    beliefs = method.e_step(z, labels, beliefs, 1)
    found = {f.name: getattr(beliefs, f.name) for f in fields(beliefs)}
    return {name: (comm.gather(value) if name == "q" else value).numpy() for name, value in found.items()}


def vectors() -> tuple[Tensor, Tensor, Tensor]:
    """Three clouds, who is a patient, and the cloud of each."""
    rng = torch.Generator().manual_seed(0)
    cloud = torch.randint(3, (203,), generator=rng)
    z = torch.randn(203, 5, generator=rng) + 6 * torch.nn.functional.one_hot(cloud, 5)
    return z, torch.arange(203) % 3 > 0, cloud


def uneven(comm: Communicator, count: int) -> slice:
    cut = [0, 31, count] if comm.world_size == 2 else [0, count]
    return slice(cut[comm.rank], cut[comm.rank + 1])


def clustered(comm: Communicator) -> dict[str, np.ndarray]:
    """Everything that clustering does with a communicator."""
    z, patient, cloud = vectors()
    own = uneven(comm, len(z))
    z, patient, cloud = z[own], patient[own], cloud[own]
    space = fit_space(z, patient, remove_severity=True, winsorise=2.0, components=3, comm=comm)
    scores = torch.softmax(z[:, :3], dim=1)
    balanced = sinkhorn_kmeans(z, 3, n_starts=2, comm=comm)
    # centroids that nobody is nearest to must start again at those farthest away, wherever they are
    lost, _ = lloyd(z, torch.tensor([[0.0] * 5, [1e3] * 5, [2e3] * 5]), nearest(z), comm)
    mixture = tied_mixture(z, 3, n_starts=2, comm=comm)
    contrast = contrastive_mixture(z[patient], z[~patient], 3, comm=comm)
    found = {
        "space": space(z), "basis": space.basis, "sinkhorn": sinkhorn(scores, comm=comm),
        "kmeans": kmeans(z, 3, comm=comm), "sinkhorn_kmeans": balanced, "lost": lost,
        "mixture": mixture.log_posterior(z.double()).exp(),
        "contrast": contrast.log_posterior(z.double()).exp(),
        "matched": balanced[match_members(cloud, z, balanced, comm)],
        "rand": torch.tensor(adjusted_rand(cloud, scores.argmax(1), 3, comm)),
        "sample": comm.sample(z, 50),
    }  # fmt: skip
    of_subjects = ("space", "sinkhorn", "mixture", "contrast")
    return {name: (comm.gather(v) if name in of_subjects else v).numpy() for name, v in found.items()}


class Losses(nn.Module):
    """Of a linear network, every loss that needs to know of the whole batch."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self.layer, self.comm = nn.Linear(5, 3), comm

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        h, patient, comm = self.layer(x), (labels > 0).long(), self.comm
        return {
            "gate": gate_loss(h, h.detach().softmax(1), patient.to(h), comm),
            "balance": (class_balance(patient, comm)[patient] * h.square().sum(1)).mean(),
            "classes": balanced_cross_entropy(h, labels, comm),
            "info_nce": info_nce(h, h + x[:, :3], 0.5, comm),
            "supcon": contrastive(h, h + x[:, :3], labels, 0.5, comm),
        }


def gradients(comm: Communicator) -> dict[str, np.ndarray]:
    """Of every loss by itself, through Fabric's DDP. The processes have different classes."""
    torch.manual_seed(0)
    x, labels = torch.randn(24, 5), torch.arange(24) // 8
    module = Losses(comm)
    wrapped = build_fabric("cpu", "32-true").setup(module) if comm.world_size > 1 else module
    own, found = comm.shard(len(x)), {}
    for name in module(x[own], labels[own]):
        module.zero_grad()
        loss = wrapped(x[own], labels[own])[name]
        loss.backward()
        found[name] = module.layer.weight.grad.numpy().copy()
        found[f"{name} itself"] = comm.mean(loss.detach()[None]).numpy()
    return found


def resumed(comm: Communicator, folder: Path) -> dict[str, np.ndarray]:
    """A training that all processes are thrown out of after two epochs, then resumed; and one left alone."""
    cohort, notes = cohorts()["images"], []
    real = Trainer.m_step

    def interrupted(trainer: Trainer) -> None:
        if trainer.epoch == 2:
            raise InterruptedError
        real(trainer)

    def fit(checkpoint: Checkpoint) -> np.ndarray:
        method = build_method("deep_ucsl", {**QUICK, "restarts": 2})
        found = predict_together(method.fit(cohort, checkpoint=checkpoint), cohort)
        return np.empty(0) if found is None else found.subgroup

    alone = fit(Checkpoint())
    kept = Checkpoint(folder / "kept", {"run": 1}, note=notes.append) if comm.rank == 0 else Checkpoint()
    try:
        Trainer.m_step = interrupted
        with kept:
            fit(kept)
    except InterruptedError:
        Trainer.m_step = real
    kept = replace(kept, resume=comm.rank == 0)
    with kept:
        again = fit(kept)
    return {"alone": alone, "again": again, "notes": np.array(notes)}


def with_unused_weights(comm: Communicator, folder: Path) -> dict[str, np.ndarray]:
    """A vision transformer that is trained throughout, but for its mask token, which embeddings do not use."""
    if find_spec("transformers") is None:
        return {}
    import transformers

    name = folder / "model"
    if comm.rank == 0:
        transformers.utils.logging.disable_progress_bar()
        tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.Dinov2Config(**tiny, image_size=12, patch_size=4)
        transformers.Dinov2Model(config).save_pretrained(name)
        processor = {"do_normalize": False, "size": {"height": 12, "width": 12}}
        (name / "preprocessor_config.json").write_text(json.dumps(processor))
    comm.counts(0)  # the others wait for the file
    images = cohorts()["images"]
    cohort = Cohort(images.inputs.clip(0, 1), images.diagnosis)
    settings = {"epochs": 1, "steps": 2, "restarts": 1, "encoder": f"hf:{name}", "fine_tune": "throughout"}
    return {"labels": build_method("deep_ucsl", settings).fit(cohort).labels_}


def computed(comm: Communicator) -> dict[str, dict[str, np.ndarray]]:
    found = {name: fitted(name, comm) for name in FITS}
    found |= {f"E-step, {name}": e_step(name, comm) for name in E_STEPS}
    return found | {"clustering": clustered(comm), "gradients": gradients(comm)}


def train_and_die() -> None:
    """The second process dies in the midst of an epoch, without a word."""

    def last(self: DeepMethod, network: nn.Module) -> None:
        if self.comm.rank == 1:
            os._exit(0)

    DeepMethod.after_step = last  # pyright: ignore[reportAttributeAccessIssue]
    build_method("deep_ucsl", QUICK).fit(cohorts()["images"])


def main() -> None:
    """What every process runs: PROCESSES and a folder, into which the first one writes."""
    processes, folder = int(sys.argv[1]), Path(sys.argv[2])
    comm = launch(processes)
    found = computed(comm)
    for name in RUN_ONLY:
        model = build_method(name, {"epochs": 2, "steps": 2}).fit(cohorts()["images"])
        found[f"run {name}"] = {"labels": model.labels_}
    found["unused"] = with_unused_weights(comm, folder)
    found["resumed"] = resumed(comm, folder)
    try:
        build_method("kmeans", {}).fit(cohorts()["table"])
    except ValueError as error:
        found["refused"] = {"message": np.array(str(error))}
    began = time.monotonic()
    try:
        train_and_die()
    except ProcessLostError as error:
        found["died"] = {"message": np.array(str(error)), "seconds": np.array(time.monotonic() - began)}
    if comm.rank == 0:
        for name, arrays in found.items():
            np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)


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
    torch.set_num_threads(1)  # as the others have
    found = computed(LOCAL)
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("two")
    done = run(__file__, 2, folder)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    assert "Warning" not in done.stderr
    return {path.stem: dict(np.load(path, allow_pickle=False)) for path in folder.glob("*.npz")}


@pytest.mark.parametrize("name", FITS)
def test_two_processes_find_the_subgroups_of_one(one, two, name):
    cohort = cohorts()[FITS[name][0]]
    labels = one[name]["labels"]
    assert adjusted_rand_score(labels, two[name]["labels"]) >= AGREEING
    assert adjusted_rand_score(labels[cohort.is_patient], cohort.truth[cohort.is_patient]) >= AGREEING
    np.testing.assert_array_equal(two[name]["subgroup"].argmax(1)[cohort.is_patient], labels[cohort.is_patient])


@pytest.mark.parametrize("name", FITS)
def test_both_processes_end_with_the_same_model(two, name):
    first, second = two[name]["weights"]
    assert first == second


@pytest.mark.parametrize("name", RUN_ONLY)
def test_other_methods_train_in_two_processes(two, name):
    assert len(two[f"run {name}"]["labels"]) == 121


def test_an_encoder_may_have_weights_that_it_does_not_use(two):
    pytest.importorskip("transformers", reason="needs transformers: pip install 'phenogroups[foundation]'")
    assert len(two["unused"]["labels"]) == 121


@pytest.mark.parametrize("name", E_STEPS)
def test_an_e_step_of_two_processes_is_that_of_one(one, two, name):
    found, expected = two[f"E-step, {name}"], one[f"E-step, {name}"]
    assert found.keys() == expected.keys()
    for what, values in expected.items():
        np.testing.assert_allclose(found[what], values, rtol=1e-5, atol=1e-5, err_msg=what)


@pytest.mark.parametrize("what", ["space", "basis", "sinkhorn", "matched", "rand", "sample"])
def test_clustering_with_a_communicator(one, two, what):
    found, expected = two["clustering"][what], one["clustering"][what]
    np.testing.assert_allclose(found, expected, rtol=RELATIVE, atol=ABSOLUTE)
    assert np.isfinite(expected).all()


@pytest.mark.parametrize("what", ["kmeans", "sinkhorn_kmeans", "lost", "mixture.T", "contrast.T"])
def test_clusters_with_a_communicator_up_to_their_order(one, two, what):
    name, _, transposed = what.partition(".")  # of posteriors, the columns are the clusters
    found, expected = (each["clustering"][name].T if transposed else each["clustering"][name] for each in (two, one))
    order = match_centroids(torch.as_tensor(expected), torch.as_tensor(found))
    np.testing.assert_allclose(found[order], expected, rtol=RELATIVE, atol=ABSOLUTE)
    assert np.isfinite(expected).all()


def test_losses_and_gradients_of_two_processes_are_those_of_the_whole_batch(one, two):
    assert len(one["gradients"]) == 10
    for name, expected in one["gradients"].items():
        np.testing.assert_allclose(two["gradients"][name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_two_processes_resume(two):
    found = two["resumed"]
    assert found["notes"].tolist() == ["Going on after epoch 2 of 3."]
    np.testing.assert_allclose(found["again"], found["alone"], rtol=RELATIVE, atol=1e-5)


def test_batch_normalisation_is_synchronised_on_gpus_only():
    several = Communicator(0, 2)
    for comm, device, expected in ((several, "cuda", True), (several, "cpu", False), (LOCAL, "cuda", False)):
        encoder = light((1, 12, 12)).eval()
        x = torch.rand(4, 1, 12, 12)
        before = encoder(x)
        synchronise_batch_norm(encoder, comm, torch.device(device))
        assert any(isinstance(module, nn.SyncBatchNorm) for module in encoder.modules()) == expected
        torch.testing.assert_close(encoder(x), before)  # it predicts the same, also on a CPU
        light((1, 12, 12)).load_state_dict(encoder.state_dict())


def test_a_batch_too_small_for_all_processes_is_refused():
    assert distributed.divided_batch_size(33, Communicator(0, 2)) == 32
    assert distributed.divided_batch_size(33, LOCAL) == 33
    with pytest.raises(ValueError, match="at least 2 subjects of every batch for each of 4 processes"):
        distributed.divided_batch_size(7, Communicator(0, 4))


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
    able = {name for name, make in METHODS.items() if make().supports_distributed}
    assert {"deep_ucsl", "deep_ucsl_paper", "simclr", "byol", "swav", "deep_cluster", "pcl", "vae", "consensus"} <= able
    assert not able & {"kmeans", "ucsl", "hydra", "supcon", "scan", "foundation"}


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
def commands(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Of two sizes, a table and the run of one process.

    In the smaller one, patients are too few for subgroups to be looked for again in halves, which takes the most time.
    """
    from phenogroups.cli import main

    found = {}
    for name, count in (("whole", 121), ("few", 81)):
        folder, cohort = tmp_path_factory.mktemp(name), cohorts()["table"][:count]
        frame = pd.DataFrame(cohort.inputs, columns=[f"f{i}" for i in range(6)]).assign(diagnosis=cohort.diagnosis)
        frame.to_csv(folder / "table.csv", index=False)
        assert main(["discover", str(folder / "table.csv"), *DISCOVER, "--out", str(folder / "run")]) == 0
        found[name] = folder / "table.csv", folder / "run"
    return found


def same_run(alone: Path, found: Path) -> None:
    one, two = (pd.read_csv(f / "subgroups.csv").query("diagnosis == 1") for f in (alone, found))
    assert one["subject"].tolist() == two["subject"].tolist()
    assert adjusted_rand_score(one["subgroup"], two["subgroup"]) >= AGREEING
    ours, theirs = (json.loads((f / "recipe.json").read_text()) for f in (alone, found))
    assert ours["settings"] == theirs["settings"]  # processes are no part of what a model is
    assert load(found).predict(cohorts()["table"]).shape == (121,)


def test_the_command_under_torchrun(commands, tmp_path):
    table, alone = commands["whole"]
    words = ["--nproc-per-node=2", "--master-port", free_port(), "-m", "phenogroups.cli", "discover", table, *DISCOVER]
    done = run("-m", "torch.distributed.run", *words, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Written: ") == 1  # the first process alone speaks
    same_run(alone, tmp_path / "run")


def test_a_run_that_one_process_began_is_resumed_by_two(commands, tmp_path, monkeypatch):
    from phenogroups.cli import main

    table, alone = commands["few"]

    def interrupted(trainer: Trainer) -> None:
        if trainer.epoch == 2:
            raise KeyboardInterrupt
        real(trainer)

    real = Trainer.m_step
    command = ["discover", str(table), *DISCOVER, "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "m_step", interrupted)
        assert main(command) == 130
    done = run("-m", "phenogroups.cli", *command, "--devices", 2, "--resume")
    assert done.returncode == 0, done.stderr
    assert "Going on after epoch 2 of 3." in done.stderr
    assert not (tmp_path / "run.resume").exists()
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


def test_two_machines(commands, tmp_path):
    table, alone = commands["few"]
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
