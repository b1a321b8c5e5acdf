"""Decoded once, whole or resumable, and trained from as if it were in memory."""

import os
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from closeness import assert_same_prediction
from phenogroups import cli
from phenogroups.data import cache as caching
from phenogroups.data.cohort import CohortError
from phenogroups.data.opening import open_table, read_cohort
from phenogroups.data.reading import Reading
from phenogroups.data.stored import StoredRows
from phenogroups.data.tables import TableSpec
from phenogroups.methods import DeepUCSL, build_method

SPEC = TableSpec(image="scan", subject="id")
QUICK = {"epochs": 2, "steps": 2, "restarts": 1}


@pytest.fixture
def home(tmp_path):
    """Forty pictures and their table."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "home"
    folder.mkdir()
    for i in range(40):
        Image.fromarray(rng.integers(0, 255, (16, 16), dtype=np.uint8)).save(folder / f"{i}.png")
    names = [f"sub-{i:02d}" for i in range(40)]
    rows = pd.DataFrame({"id": names, "scan": [f"{i}.png" for i in range(40)], "diagnosis": [0, 1] * 20})
    rows.to_csv(folder / "subjects.csv", index=False)
    return folder


def read(home, cache=True, spec=SPEC, progress=None):
    return read_cohort(open_table(home / "subjects.csv", spec), home.parent / "cache" if cache else None, progress)


def files(home):
    return sorted(path.suffix for path in (home.parent / "cache").iterdir())


@pytest.fixture
def decoded(monkeypatch):
    """Paths in the order in which they are decoded."""
    seen = []
    real = caching.read_input
    monkeypatch.setattr(caching, "read_input", lambda path, reading: seen.append(path.name) or real(path, reading))
    return seen


def test_the_same_numbers_as_in_memory(home, decoded):
    here, there = read(home, cache=False), read(home)
    assert isinstance(there.inputs, StoredRows)
    assert there.inputs.shape == here.inputs.shape == (40, 1, 16, 16)
    np.testing.assert_array_equal(there.inputs, here.inputs)
    assert there.fingerprint == here.fingerprint
    assert files(home) == [".crc", ".npy"]
    assert len(decoded) == 40
    read(home)
    assert len(decoded) == 40


def test_rows_are_views_until_they_are_read(home):
    whole = np.asarray(read(home).inputs)
    stored = read(home).inputs
    rng = np.random.default_rng(0)
    for chosen in (
        slice(3, 30, 4),
        slice(None, None, -1),
        rng.permutation(40)[:17],
        whole[:, 0, 0, 0] > 0.5,
        [5, 5, 4],
    ):
        view = stored[chosen]
        assert isinstance(view, StoredRows)
        np.testing.assert_array_equal(view, whole[chosen])
        np.testing.assert_array_equal(view[1:][::2], whole[chosen][1:][::2])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(view)), whole[chosen])
    np.testing.assert_array_equal(stored[7], whole[7])
    np.testing.assert_array_equal(np.stack(list(stored)), whole)
    assert np.asarray(stored[:0]).shape == (0, 1, 16, 16)
    train, test = read(home).split(0.25)
    assert isinstance(train.inputs, StoredRows)
    assert isinstance(test.patients.inputs, StoredRows)


@pytest.mark.parametrize("name", ["deep_ucsl", "vae", "kmeans", "simclr", "scan"])
def test_methods_learn_the_same_from_disk(home, name):
    found = []
    for cohort in (read(home, cache=False), read(home)):
        settings = QUICK if name == "deep_ucsl" else {} if name == "kmeans" else {"epochs": 2, "steps": 2}
        train, test = cohort.split(0.25)
        found.append(build_method(name, settings).fit(train).predict_cohort(test))
    np.testing.assert_array_equal(found[0].subgroup, found[1].subgroup)
    np.testing.assert_array_equal(found[0].embedding, found[1].embedding)


def test_an_interruption_is_gone_on_with(home, decoded, monkeypatch):
    def stop(done, total):
        if done == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(home, progress=stop)
    assert files(home) == [".journal", ".partial"]
    partial = next((home.parent / "cache").glob("*.partial"))
    with partial.open("r+b") as file:  # one row was on its way to the disk when the power went
        file.seek(128 + 3 * 16 * 16 * 4)
        file.write(b"\xff" * 8)
    with next((home.parent / "cache").glob("*.journal")).open("ab") as file:  # and an entry was cut off
        file.write(b"\1\2\3")
    decoded.clear()
    there = read(home)
    # each of them once; threads decode ahead, so in no certain order
    assert sorted(decoded) == sorted(["3.png", *[f"{i}.png" for i in range(15, 40)]])
    np.testing.assert_array_equal(there.inputs, read(home, cache=False).inputs)
    assert files(home) == [".crc", ".npy"]


def test_what_changed_is_decoded_anew(home, decoded):
    before = np.asarray(read(home).inputs)
    os.utime(home / "0.png", ns=(1, 1))
    read(home)
    assert len(decoded) == 80
    read(home, spec=TableSpec(image="scan", subject="id", reading=Reading(intensity="minmax")))
    assert len(decoded) == 120
    damaged = max((home.parent / "cache").glob("*.npy"), key=lambda path: path.stat().st_mtime_ns)
    with damaged.open("r+b") as file:
        file.seek(1000)
        file.write(b"\0\1\2\3")
    read(home, spec=TableSpec(image="scan", subject="id", reading=Reading(intensity="minmax")))
    assert len(decoded) == 160
    np.testing.assert_array_equal(read(home).inputs, before)


def test_a_broken_cohort_leaves_nothing(home):
    (home / "4.png").unlink()
    (home / "6.png").write_bytes(b"\x89PNG")
    with pytest.raises(CohortError) as error:
        read(home)
    assert "row 5 (sub-04): 4.png does not exist" in str(error.value)
    assert "row 7 (sub-06): 6.png cannot be read" in str(error.value)
    assert files(home) == []
    for i in (4, 6):
        shutil.copy(home / "0.png", home / f"{i}.png")
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(home / "0.png")
    with pytest.raises(
        CohortError, match=r"\(1, 16, 16\), channels first, as most have. Received: \(1, 9, 9\) in 1 row"
    ):
        read(home)
    assert files(home) == []


def test_no_room_is_said_before_decoding(home, monkeypatch):
    monkeypatch.setattr(caching.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(CohortError, match="GB of free space"):
        read(home)
    assert files(home) == []


def test_two_processes_do_not_decode_the_same(home):
    fcntl = pytest.importorskip("fcntl")

    def lock(done, total):
        (path,) = (home.parent / "cache").glob("*.lock")
        with path.open("w") as file, pytest.raises(OSError, match="unavailable"):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    read(home, progress=lock)


def test_a_cohort_too_large_for_memory_goes_to_the_cache_of_the_user(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.parent / "user"))
    monkeypatch.setattr(caching, "MOST_HELD", 40 * 16 * 16 * 4 - 1)
    cohort = read(home, cache=False)
    assert isinstance(cohort.inputs, StoredRows)
    assert cohort.inputs.path.is_relative_to(home.parent / "user" / "phenogroups")


def test_the_commands_take_a_cache(home):
    cache, run, table = str(home.parent / "cache"), str(home.parent / "run"), str(home / "subjects.csv")
    columns = ["--image", "scan", "--subject", "id", "--cache", cache]
    quick = ["--set", *(f"{name}={value}" for name, value in QUICK.items())]
    assert cli.main(["discover", table, *columns, "--out", run, *quick]) == 0
    assert files(home) == [".crc", ".npy"]
    assert cli.main(["predict", run, table, "--cache", cache, "--out", str(home.parent / "a.csv")]) == 0
    assert files(home) == [".crc", ".npy"]
    assert cli.main(["predict", run, table, "--out", str(home.parent / "b.csv")]) == 0
    assert (home.parent / "a.csv").read_text() == (home.parent / "b.csv").read_text()
    small = [*columns, "--methods", "deep_ucsl", "--seeds", "1", "--out", str(home.parent / "compare"), *quick]
    assert cli.main(["compare", table, *small]) == 0  # in a process of its own


def test_deep_ucsl_predicts_rows_alone(home):
    cohort = read(home)
    model = DeepUCSL(**QUICK).fit(cohort)
    together = model.predict_cohort(cohort)
    assert_same_prediction(model.predict_cohort(cohort[[3]]), together[[3]])
