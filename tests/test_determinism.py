"""Same seed, same bits, of every method: in another process, from disk with readers ahead, and interrupted."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from phenogroups.data.batches import _read_rows, reading_ahead
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.stored import StoredRows
from phenogroups.methods import METHODS, build_method
from phenogroups.methods.registry import class_of
from phenogroups.training.checkpoint import Checkpoint

pytestmark = pytest.mark.anew
SMALL = {"epochs": 2, "steps": 2, "batch_size": 32, "restarts": 2, "encoder": "auto", "n_consensus": 2, "iterations": 2}
SMALL |= {"runs": 2, "settings": {"epochs": 2, "steps": 2, "batch_size": 32, "restarts": 1, "stop_below": 0.0}}
SMALL |= {"weights": "random", "stop_below": 0.0}  # of foundation; of Deep UCSL, which might end before it is stopped
ONLY = {"weights": ("foundation",)}
OF_EACH_CLASS = {type(make()): name for name, make in reversed(METHODS.items())}


class Stopped(BaseException):
    """As by Ctrl-C, which no handler of errors sees."""


def small(name):
    known = class_of(name).setting_names()
    return build_method(name, {k: v for k, v in SMALL.items() if k in known and name in ONLY.get(k, (name,))})


def cohort_at(path):
    """The same digits as a cohort whose inputs stay on disk."""
    cohort = drawn_digits(80, size=16, seed=1)
    if path is None:
        return cohort
    np.save(path, cohort.inputs)
    return replace(cohort, inputs=StoredRows(path))


def digest(method, cohort) -> str:
    """Of all that is learned, said and shown; only seconds may differ."""
    whole = sha256()
    tensors = method.state()
    for name in sorted(tensors):
        whole.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    for run in getattr(method, "runs_", [method]):
        film = getattr(run, "film_", None)
        whole.update(b"" if film is None else b"".join(part.tobytes() for part in vars(film).values()))
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in getattr(run, "history_", [])]
        numbers = {k: v for k, v in vars(run).items() if isinstance(v, float)}  # agreement_ of the starts is one
        whole.update(json.dumps([rows, run.caveats(), numbers], sort_keys=True).encode())
    said = method.predict_cohort(cohort)
    whole.update(b"".join(np.ascontiguousarray(part).tobytes() for part in vars(said).values() if part is not None))
    return whole.hexdigest()


@pytest.fixture(scope="module", params=METHODS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def cohort():
    return cohort_at(None)


@pytest.fixture(scope="module")
def first(name, cohort):
    return digest(small(name).fit(cohort), cohort)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Of all methods, in a process that orders its sets differently and has four readers of a cohort on disk."""
    path = tmp_path_factory.mktemp("disk") / "digits.npy"
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    said = subprocess.run(
        [sys.executable, __file__, str(path)], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout.splitlines()[-1])


def test_in_another_process_from_disk_with_four_readers(name, first, elsewhere):
    assert elsewhere[name] == first


@pytest.mark.parametrize("name", OF_EACH_CLASS.values(), indirect=True)
def test_interrupted_after_every_epoch(name, cohort, first, tmp_path):
    passes = getattr(small(name), "passes", 0)
    said = []
    for stop in range(1, passes + 2):

        def progress(row, stop=stop):
            if row["epoch"] > stop:  # once it has begun with the epoch that follows
                raise Stopped

        checkpoint = Checkpoint(tmp_path, {"method": name}, resume=True, note=said.append)
        method = small(name)
        try:
            method.fit(cohort, progress=progress, checkpoint=checkpoint)
        except Stopped:
            continue
    assert digest(method, cohort) == first
    assert len([sentence for sentence in said if "Going on" in sentence]) >= max(passes - 1, 0)


def test_the_digest_sees_another_seed(cohort):
    seen = [
        digest(small(name).set_params(seed=seed).fit(cohort), cohort)
        for name in ("simclr", "ucsl")
        for seed in (0, 0, 1)
    ]
    assert [seen.index(one) for one in seen] == [0, 0, 2, 3, 3, 5]


def test_rows_come_in_order_whatever_the_readers():
    rows = np.arange(70).reshape(35, 2)
    wanted = [slice(first, first + 4) for first in range(0, 35, 4)]
    for workers in (0, 1, 4, 20):
        with reading_ahead(workers):
            np.testing.assert_array_equal(np.concatenate(list(_read_rows(rows, iter(wanted)))), rows)


def test_a_reader_that_fails_is_heard(tmp_path):
    stored = cohort_at(tmp_path / "digits.npy").inputs
    (tmp_path / "digits.npy").unlink()
    for workers in (0, 4):
        with reading_ahead(workers), pytest.raises(FileNotFoundError, match="the file is gone"):
            list(_read_rows(stored, [slice(0, 5)]))


def test_fewer_readers_than_none():
    with pytest.raises(ValueError, match="Expected workers of at least 0"), reading_ahead(-1):
        pass


if __name__ == "__main__":
    stored = cohort_at(Path(sys.argv[1]))
    with reading_ahead(4):
        print(json.dumps({name: digest(small(name).fit(stored), stored) for name in METHODS}))
