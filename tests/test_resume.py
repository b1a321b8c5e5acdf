"""A run that was killed, or stopped by its disk, goes on to the bits of one that was not."""

import errno
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load, save

from phenogroups import cli
from phenogroups.data.cohort import Cohort
from phenogroups.methods import DeepMethod, DeepUCSL, PlainKMeans, build_method
from phenogroups.training.checkpoint import CHECKSUM, KIND, NOTES, resume_folder
from phenogroups.training.em import Trainer
from phenogroups.training.run import RunError
from phenogroups.workflows import discover as discovery

KILLS, IN_WRITING = 20, 10
QUICK = {"epochs": 4, "steps": 3, "batch_size": 32, "restarts": 1, "stop_below": 0.0}
KMEANS = {"warmup": 0, "clusterer": "kmeans"}  # without an election, which takes a second
OF_THE_CHAIN = {**QUICK, "epochs": 8, "restarts": 2, "warmup": 2, "clusterer": "kmeans"}


def people(seed: int = 0) -> Cohort:
    """Patients differ from controls in the first feature and from each other in the second."""
    rng = np.random.default_rng(seed)
    ill, two = np.arange(80) % 2, rng.integers(0, 2, 80)
    inputs = rng.normal(size=(80, 5)) + np.outer(3 * ill, np.eye(5)[0]) + np.outer(ill * (6 * two - 3), np.eye(5)[1])
    return Cohort(inputs.astype(np.float32), ill, name="people")


def bits(folder: Path) -> dict[str, str]:
    """A checksum of every file of a run, without seconds, the log, and when and how it was asked for."""
    files = [path for path in folder.iterdir() if path.name != "log.txt"]
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in files}
    recipe = json.loads((folder / "recipe.json").read_text())
    found["recipe.json"] = json.dumps(
        {name: value for name, value in recipe.items() if name not in ("date", "command")}
    )
    if "history.csv" in found:
        found["history.csv"] = pd.read_csv(folder / "history.csv").drop(columns="seconds").to_csv()
    return found


def without_pictures(folder: Path) -> None:
    """In the place of the page, which takes longer than the training and is made from the folder alone."""
    (folder / "report.html").write_text("")


# a process of its own, which imports once and forks a child for every run


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended(child: int, seconds: float | None = None) -> int | None:
    """How it ended, by itself; None if it was killed after so many seconds."""
    until = np.inf if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            return None if os.waitpid(child, 0)[1] == signal.SIGKILL else 0
        time.sleep(0.002)


def kill_at(name: str, call: int, *, after: bool, to: Path | None = None) -> None:
    """From now on this process dies at this call of a function of `os`; only calls with this second argument count."""
    real, calls = getattr(os, name), 0

    def deadly(*arguments, **named):
        nonlocal calls
        calls += to is None or arguments[1] == to
        if calls == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*arguments, **named)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(os, name, deadly)


def chain(home: Path, seed: int) -> dict[str, object]:
    """Kill, resume, kill, ... whoever comes to the end is compared with a run that was left alone, and begins anew."""
    torch.set_num_threads(1)
    discovery.write_page = without_pictures
    DeepUCSL.elect = DeepMethod.elect  # pyright: ignore[reportAttributeAccessIssue], a vote takes a second
    rng, log, run = random.Random(seed), home / "log", home / "run"
    cohort = people()

    def discover(folder: Path) -> None:
        with log.open("a") as file:
            discovery.discover(
                cohort, build_method("deep_ucsl", OF_THE_CHAIN), folder, resume=True, overwrite=True,
                note=lambda said: print(said, file=file, flush=True),
            )  # fmt: skip

    def find(before: Callable[[], None] = lambda: None) -> int:
        return fork(lambda: (before(), discover(run)))

    discover(home / "alone")  # here, so that children need not import what is imported late
    began = time.monotonic()
    assert ended(find()) == 0
    whole = time.monotonic() - began
    finished = moments = writings = 0

    def see(code: int | None) -> bool:
        nonlocal finished
        assert code in (0, None, -signal.SIGKILL), code
        if code == 0:
            assert bits(run) == bits(home / "alone")
            assert not resume_folder(run).exists()
            finished += 1
        return code != 0

    while moments < KILLS:
        moments += see(ended(find(), rng.uniform(0, whole)))
    while writings < IN_WRITING:
        name, call, after = rng.choice(("replace", "fsync", "unlink")), rng.randint(1, 9), rng.random() < 0.5
        writings += see(ended(find(lambda: kill_at(name, call, after=after))))  # noqa: B023
    assert ended(find()) == 0
    # an earlier run is moved away before the new one takes its name, and one dies in between
    assert ended(find(lambda: kill_at("replace", 1, after=False, to=run))) == -signal.SIGKILL
    assert not run.exists()
    assert bits(home / "run.earlier") == bits(home / "alone")
    assert ended(find()) == 0
    assert bits(run) == bits(home / "alone")
    return {
        "moments": moments, "writings": writings, "finished": finished, "notes": log.read_text().splitlines(),
        "left": sorted(path.name for path in home.iterdir()),
    }  # fmt: skip


def test_killed_at_random_moments(tmp_path):
    seed = random.randrange(10**6)
    print(f"moments of seed {seed}")  # pytest shows it when this fails
    said = subprocess.run(
        [sys.executable, __file__, str(tmp_path), str(seed)], env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    seen = json.loads(said.stdout.splitlines()[-1])
    assert (seen["moments"], seen["writings"]) == (KILLS, IN_WRITING)
    assert seen["finished"] > 0
    went_on = {note for note in seen["notes"] if note.startswith("Going on after epoch")}
    assert len(went_on) > 2  # from several places
    assert seen["left"] == ["alone", "log", "run"]  # nothing but runs


# in this process: what stops it is raised


class Stopped(BaseException):
    """As Ctrl-C, which is no error."""


@pytest.fixture
def find(tmp_path, monkeypatch):
    """A run that may be stopped once it is beyond some epoch; what it noted."""
    monkeypatch.setattr(discovery, "write_page", without_pictures)

    def run(folder="run", *, cohort=None, how="deep_ucsl", beyond=np.inf, resume=True, held_out=0.2, **settings):
        said: list[str] = []

        def progress(row):
            if row["epoch"] > beyond:
                raise Stopped

        given = settings if how == "consensus" else {**QUICK, **KMEANS, **settings}
        try:
            discovery.discover(
                cohort or people(), build_method(how, given), tmp_path / folder, held_out=held_out, resume=resume,
                progress=progress, overwrite=True, note=said.append,
            )  # fmt: skip
        except Stopped:
            assert beyond < np.inf
        return " ".join(said)

    return run


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Of a run that was left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "write_page", without_pictures)
        folder = tmp_path_factory.mktemp("alone") / "run"
        discovery.discover(people(), build_method("deep_ucsl", QUICK | KMEANS), folder)
    return bits(folder)


@pytest.fixture
def stopped(find, tmp_path):
    """What a run kept that was stopped after its second epoch."""
    find(beyond=2.1)
    (kept,) = (tmp_path / "run.resume").iterdir()
    return kept


def refused(find, **asked) -> str:
    with pytest.raises(RunError) as error:
        find(**asked)
    return str(error.value)


def test_notes_say_where_it_goes_on(find, stopped, tmp_path, alone):
    assert find(beyond=3.1) == "Going on after epoch 2 of 4."
    assert "is replaced; with --resume it would go on" in find(resume=False, beyond=1.1)
    assert find() == "Going on after epoch 1 of 4."
    assert bits(tmp_path / "run") == alone
    assert not resume_folder(tmp_path / "run").exists()
    assert "There is nothing in" in find()
    assert bits(tmp_path / "run") == alone


@pytest.mark.parametrize(
    ("asked", "differs"),
    [
        ({"cohort": people(1)}, "differs in cohort."),
        ({"epochs": 5}, "differs in settings epochs (4 then, 5 now)."),
        ({"seed": 1}, "settings seed (0 then, 1 now), trained_on."),
        ({"held_out": 0.3}, "differs in held_out (0.2 then, 0.3 now), trained_on."),
        ({"how": "consensus", "settings": {"epochs": 1}}, "method (deep_ucsl then, consensus now)"),
    ],
)
def test_what_another_run_kept_is_refused(find, stopped, tmp_path, asked, differs):
    before = stopped.read_bytes()
    message = refused(find, **asked)
    assert differs in message
    assert "start without --resume" in message
    assert stopped.read_bytes() == before
    find(**asked, resume=False, beyond=1.1)
    assert not stopped.exists()


def test_another_version_is_refused(find, stopped, monkeypatch):
    monkeypatch.setattr(discovery, "versions", lambda: {"torch": "0.1"})
    assert "versions torch" in refused(find)


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b[:10], lambda b: b"", lambda b: b + b"0"])
def test_a_damaged_file_is_refused(find, stopped, damage, tmp_path, alone):
    stopped.write_bytes(damage(stopped.read_bytes()))
    assert re.search(r"Received: a damaged file.* Start without --resume\.", refused(find))
    find(resume=False)
    assert bits(tmp_path / "run") == alone


def test_a_flipped_bit_is_seen_wherever_it_is(find, stopped):
    content = stopped.read_bytes()
    for place in random.Random(0).sample(range(len(content)), 10):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        stopped.write_bytes(flipped)
        assert "a damaged file" in refused(find)


class Dangerous:
    def __reduce__(self):
        return os.mkdir, ("/tmp/phenogroups-was-executed",)


def changed_notes(content: bytes, **changes) -> bytes:
    tensors = load(content)
    notes = json.loads(tensors[NOTES].numpy().tobytes()) | changes
    tensors[NOTES] = torch.frombuffer(bytearray(json.dumps(notes).encode()), dtype=torch.uint8)
    return save(tensors)


@pytest.mark.parametrize(
    "content",
    [
        lambda _: pickle.dumps(Dangerous()),
        lambda _: b"",
        lambda _: save({"a": torch.zeros(3)}),
        lambda _: save({NOTES: torch.zeros(3)}),
        lambda kept: changed_notes(kept, identity={"method": "other"}),
        lambda kept: changed_notes(kept, attempt=7),
        lambda kept: changed_notes(kept, epoch="many"),
        lambda kept: changed_notes(kept, history=None),
        lambda kept: changed_notes(kept, method={"agreement_": "much"}),
        lambda kept: changed_notes(kept, strides={}),
        lambda kept: save({k: v[:1] if k.startswith("network") and v.ndim else v for k, v in load(kept).items()}),
    ],
)
def test_a_strangers_file_executes_nothing(find, stopped, content):
    """Its checksum is right: whoever means harm can write one."""
    strange = content(stopped.read_bytes()[CHECKSUM:])
    stopped.write_bytes(sha256(strange).digest() + strange)
    assert "--resume" in refused(find)
    assert not Path("/tmp/phenogroups-was-executed").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_disk_that_takes_no_more(find, stopped, tmp_path, monkeypatch, function, code, alone):
    before = stopped.read_bytes()

    def full(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        message = refused(find)
    assert message.startswith("Expected to write")
    assert os.strerror(code) in message
    assert [path.read_bytes() for path in stopped.parent.iterdir()] == [before]  # and no rest of another
    assert find() == "Going on after epoch 2 of 4."
    assert bits(tmp_path / "run") == alone


def test_a_disk_that_is_full_when_the_run_is_written(find, stopped, tmp_path, monkeypatch, alone):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(discovery, "write_model", full)
        assert "Expected to write the run folder" in refused(find)
    assert not (tmp_path / "run").exists()
    assert find() == "Going on after epoch 4 of 4."
    assert bits(tmp_path / "run") == alone


def test_a_place_where_nothing_can_be_kept_is_said_before_training(find, tmp_path, monkeypatch):
    (tmp_path / "run.resume").write_text("mine")
    monkeypatch.setattr(Trainer, "m_step", lambda _: pytest.fail("trained"))
    assert "Expected to write checkpoints to" in refused(find)
    assert (tmp_path / "run.resume").read_text() == "mine"


def test_other_things_in_the_folder_stay(find, tmp_path):
    (tmp_path / "run.resume").mkdir()
    (tmp_path / "run.resume" / "thesis.txt").write_text("mine")
    find(epochs=1)
    assert [path.name for path in (tmp_path / "run.resume").iterdir()] == ["thesis.txt"]


def test_a_method_without_epochs_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "write_page", without_pictures)
    discovery.discover(people(), PlainKMeans(), tmp_path / "run", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_finished_runs_of_a_consensus_are_not_run_again(find, tmp_path, monkeypatch):
    asked = {"how": "consensus", "runs": 3, "settings": {**QUICK, **KMEANS, "epochs": 2}}
    find("alone", **asked)
    find(**asked, beyond=3.1)  # the second run has ended one of its two epochs
    trained = []
    real = Trainer.m_step
    monkeypatch.setattr(Trainer, "m_step", lambda self: (trained.append(self.method.seed), real(self)))
    assert find(**asked) == "run 1 Going on after epoch 2 of 2. run 2 Going on after epoch 1 of 2."
    assert [trained.count(seed) for seed in sorted({*trained})] == [1, 2]
    assert bits(tmp_path / "run") == bits(tmp_path / "alone")


def test_nor_are_those_without_epochs(find, tmp_path, monkeypatch):
    asked = {"how": "consensus", "method": "kmeans", "runs": 3}
    fitted = []
    real = PlainKMeans.e_step
    monkeypatch.setattr(PlainKMeans, "e_step", lambda self, *given: (fitted.append(self.seed), real(self, *given))[1])
    find("alone", **asked)
    assert len(fitted) == 3
    find(**asked, beyond=1)
    find(**asked)
    assert sorted(fitted[3:]) == sorted(fitted[:3])
    assert bits(tmp_path / "run") == bits(tmp_path / "alone")


# the command line


@pytest.fixture
def pictures(tmp_path):
    """A table of images."""
    rng = np.random.default_rng(0)
    for i in range(40):
        pixels = rng.integers(0, 60, (12, 12)) + (i % 2) * 100 * (np.indices((12, 12))[i // 2 % 2] > 7)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{i}.png")
    table = pd.DataFrame({"path": [f"{i}.png" for i in range(40)], "diagnosis": np.arange(40) % 2})
    table.to_csv(tmp_path / "pictures.csv", index=False)
    return tmp_path / "pictures.csv"


SET = ["--set", *(f"{name}={value}" for name, value in (QUICK | KMEANS).items())]


def test_a_deleted_cache(pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(discovery, "write_page", without_pictures)
    cache = tmp_path / "cache"
    command = ["discover", str(pictures), "--image", "path", "--cache", str(cache), "--workers", "2", *SET]
    assert cli.main([*command, "--out", str(tmp_path / "alone")]) == 0
    real = Trainer.m_step

    def clumsy(self):
        real(self)
        if self.epoch == 2:
            next(cache.glob("*.npy")).unlink()

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "m_step", clumsy)
        capsys.readouterr()
        assert cli.main([*command, "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err.replace("\n", " ")
    assert (
        "the file is gone. Start again: it is decoded anew. Finished epochs are kept: the same command with" in message
    )
    assert "Traceback" not in message
    assert cli.main([*command, "--out", str(tmp_path / "run"), "--resume"]) == 0
    assert "Going on after epoch 2 of 4." in capsys.readouterr().err
    assert bits(tmp_path / "run") == bits(tmp_path / "alone")


def test_control_c(pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(discovery, "write_page", without_pictures)
    command = ["discover", str(pictures), "--image", "path", "--out", str(tmp_path / "run"), *SET]
    real = Trainer.m_step

    def impatient(self):
        if self.epoch == 3:
            raise KeyboardInterrupt
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "m_step", impatient)
        assert cli.main(command) == 130
    message = capsys.readouterr().err
    assert "stopped; Finished epochs are kept: the same command with --resume goes on." in message.replace("\n", " ")
    assert not (tmp_path / "run").exists()
    assert cli.main([*command, "--resume"]) == 0
    assert "Going on after epoch 3 of 4." in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix not in (".png", ".csv")) == ["run"]


# commands in processes of their own, where Ctrl-C is understood or ignored, that send themselves a signal after one
# epoch; forked by a process that imports once
SIGNALLED = """
import json, os, signal, sys
from phenogroups import cli
from phenogroups.workflows import discover as discovery
from phenogroups.training.em import Trainer

real = Trainer.m_step

def run(folder, number, on_control_c, words):
    os.chdir(folder)
    for descriptor, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN if on_control_c == "ignored" else signal.default_int_handler)

    def m_step(self):
        if self.epoch == 1:
            os.kill(os.getpid(), number)
        real(self)

    Trainer.m_step = m_step
    discovery.write_page = lambda folder: (folder / "report.html").write_text("")
    return cli.main(words)

codes = []
for folder, *asked in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run(folder, *asked)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""
SIGNALS = {  # name: the signal, what Ctrl-C is, the code of a command that ends as it should
    "control-c": (signal.SIGINT, "understood", 130),
    "terminated": (signal.SIGTERM, "ignored", 143),
    "control-c ignored": (signal.SIGINT, "ignored", 0),
}


def commands_of_the_docs() -> list[str]:
    """The first is stopped in its second epoch, the second goes on."""
    text = (Path(__file__).parents[1] / "docs" / "guides" / "interrupted_runs.md").read_text()
    return re.findall(r"^phenogroups (.*)$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def signalled(tmp_path_factory) -> dict[str, tuple[Path, int]]:
    """Of each signal, the folder in which the command ran, and its code."""
    first, _ = commands_of_the_docs()
    cohort, jobs = people(), []
    for name, (number, on_control_c, _) in SIGNALS.items():
        folder = tmp_path_factory.mktemp(name)
        table = pd.DataFrame(cohort.inputs).add_prefix("x").assign(diagnosis=cohort.diagnosis)
        table.to_csv(folder / "subjects.csv", index=False)
        own = ["discover", "subjects.csv", "--out", "run", *SET]
        jobs.append([str(folder), int(number), on_control_c, own if name == "control-c ignored" else first.split()])
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, json.dumps(jobs)], capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    return {name: (Path(job[0]), code) for name, job, code in zip(SIGNALS, jobs, codes, strict=True)}


@pytest.mark.parametrize("name", ["control-c", "terminated"])
def test_the_commands_of_the_docs(signalled, capsys, monkeypatch, name):
    _, second = commands_of_the_docs()
    folder, code = signalled[name]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(discovery, "write_page", without_pictures)
    said = Path("err.txt").read_text()
    assert code == SIGNALS[name][2], said
    assert "stopped; Finished epochs are kept: the same command with --resume goes on." in said
    assert "Traceback" not in said
    assert cli.main(second.split()) == 0
    assert "Going on after epoch 1 of 6." in capsys.readouterr().err


def test_a_run_that_ignores_control_c_is_not_stopped_by_it(signalled):
    folder, code = signalled["control-c ignored"]
    assert code == SIGNALS["control-c ignored"][2], (folder / "err.txt").read_text()
    assert (folder / "run" / "recipe.json").exists()


def test_the_demo_goes_on_too(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(discovery, "discover", lambda *_, **given: asked.update(given) or sys.exit(0))
    with pytest.raises(SystemExit):
        cli.main(["demo", "--subjects", "40", "--resume", "--out", str(tmp_path / "run")])
    assert asked["resume"]


def test_a_command_that_is_killed(pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(discovery, "write_page", without_pictures)
    home = tmp_path / "runs"
    command = ["discover", str(pictures), "--image", "path", *SET, "--out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "phenogroups.cli", *command, str(home / "run")], stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
    )  # fmt: skip
    while not any(resume_folder(home / "run").glob(f"*{KIND}")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert cli.main([*command, str(home / "run"), "--resume"]) == 0
    assert re.search(r"Going on after epoch \d of 4\.", capsys.readouterr().err)
    assert cli.main([*command, str(home / "alone")]) == 0
    assert bits(home / "run") == bits(home / "alone")
    assert sorted(path.name for path in home.iterdir()) == ["alone", "run"]


if __name__ == "__main__":
    print(json.dumps(chain(Path(sys.argv[1]), int(sys.argv[2]))))
