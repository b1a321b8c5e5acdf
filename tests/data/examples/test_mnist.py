"""MNIST as a cohort: from idx files made here, from a mirror played here, and from the real files where they lie."""

import gzip
import hashlib
import io
import json
import os
import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples import mnist as module
from phenogroups.data.examples.mnist import FILES, MIRRORS, mnist, parse_labels

REAL = Path(__file__).parents[4] / "shared" / "data" / "mnist"
real = pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the MNIST files in {REAL}")


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def made(split: str) -> dict[str, bytes]:
    """200 images: 40 sevens, few eights; the first pixel tells the position."""
    rng = np.random.default_rng(len(split))
    digits = rng.permutation(np.repeat(np.arange(10), [20, 20, 20, 20, 20, 20, 20, 40, 2, 18]))
    images = rng.integers(0, 256, (200, 28, 28))
    images[:, 0, 0] = np.arange(200)
    return dict(zip(FILES[split], (idx(images), idx(digits)), strict=True))


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the network nor anybody's cache or data folder."""

    def refuse(url: str, **_: object) -> None:
        raise AssertionError(f"asked the network for {url}")

    monkeypatch.setattr(module, "urlopen", refuse)
    monkeypatch.delenv("PHENOGROUPS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for split in FILES:
        for name, content in made(split).items():
            (folder / name).write_bytes(content)
    return folder


def write(path: Path, labels: object) -> Path:
    path.write_text(json.dumps(labels))
    return path


def truth_of(cohort: Cohort) -> np.ndarray:
    assert cohort.truth is not None
    return cohort.truth


def test_half_are_the_digit_and_the_others_are_in_equal_parts_in_file_order(folder: Path) -> None:
    cohort = mnist(7, data=folder)
    counts = cohort.covariates["digit"].value_counts().to_dict()
    assert counts[7] == 40
    assert counts[8] == 2  # all there are
    assert sorted(counts[digit] for digit in (0, 1, 2, 3, 4, 5, 6, 9)) == [4, 4, 5, 5, 5, 5, 5, 5]
    position = np.rint(cohort.inputs[:, 0, 2, 2] * 255).astype(int)
    assert (np.diff(position) > 0).all()
    assert cohort.subject.tolist() == [f"train-{row:05d}" for row in position]
    digits = np.frombuffer(made("train")[FILES["train"][1]], np.uint8, offset=8)
    for digit in range(10):  # the first of each digit are taken
        chosen = position[cohort.covariates["digit"] == digit]
        assert chosen.tolist() == np.flatnonzero(digits == digit)[: len(chosen)].tolist()
    assert (cohort.is_patient == (cohort.covariates["digit"] == 7)).all()
    assert cohort.name == "mnist-7"
    assert cohort.truth is None


def test_images_are_padded_and_between_0_and_1(folder: Path) -> None:
    cohort = mnist(7, data=folder, balanced=False)
    raw = np.frombuffer(made("train")[FILES["train"][0]], np.uint8, offset=16).reshape(200, 28, 28)
    assert cohort.inputs.shape == (200, 1, 32, 32)
    assert cohort.inputs.dtype == np.float32
    assert np.array_equal(cohort.inputs[:, 0, 2:-2, 2:-2], raw.astype(np.float32) / 255)
    assert cohort.inputs.sum(dtype=float) == pytest.approx(cohort.inputs[:, 0, 2:-2, 2:-2].sum(dtype=float))


def test_files_may_be_gzipped_in_a_subfolder_and_named_by_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = tmp_path / "data" / "mnist"
    zipped.mkdir(parents=True)
    for file in folder.iterdir():
        (zipped / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    monkeypatch.setenv("PHENOGROUPS_DATA", str(tmp_path / "data"))
    assert mnist(1, split="test").fingerprint == mnist(1, data=folder, split="test").fingerprint


def test_labels_of_training_images_go_by_position_among_the_digit(folder: Path, tmp_path: Path) -> None:
    labels = write(tmp_path / "labels.json", {"0": 0, "2": 1, "39": 1, "5": None})
    cohort = mnist(7, data=folder, labels=labels)
    assert parse_labels(labels)[0] == "train"
    truth = truth_of(cohort)[cohort.is_patient]
    assert np.flatnonzero(truth == 0).tolist() == [0]
    assert np.flatnonzero(truth == 1).tolist() == [2, 39]
    assert (truth_of(cohort)[~cohort.is_patient] == -1).all()
    assert cohort.truth_names == ("without crossbar", "with crossbar")


def test_labels_of_test_images_are_words(folder: Path, tmp_path: Path) -> None:
    labels = write(tmp_path / "labels.json", {"0": "No bar", "1": "With bar"})
    assert parse_labels(labels)[0] == "test"
    cohort = mnist(7, data=folder, labels=labels, split="test")
    assert truth_of(cohort)[cohort.is_patient][:3].tolist() == [0, 1, -1]
    assert cohort.subject[0].startswith("test-")
    with pytest.raises(CohortError, match=r"labels of train images.*form is for split='test'"):
        mnist(7, data=folder, labels=labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"0": 0, "1": "With bar"}, r"one form throughout.*'0', 'with bar'"),
        ({"0": 2}, "Recode or drop"),
        ({"first": 0}, "keys such as 1 row .first"),
        ({"0": [1]}, "one form throughout"),
        ({"40": 1}, r"positions below 40.*1 row \(40\)"),
        ([0, 1], "one JSON object"),
        ({}, "at least one label"),
    ],
)
def test_labels_that_mean_nothing_are_named(folder: Path, tmp_path: Path, labels: object, message: str) -> None:
    with pytest.raises(CohortError, match=message):
        mnist(7, data=folder, labels=write(tmp_path / "labels.json", labels))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes beginning with nothing"),
        (b"\0\0\x08\x01" + bytes(12), "first bytes 00000803.*beginning with 00000801"),
        (idx(np.zeros((200, 28, 28)))[:-1], "Expected 156800 bytes.*Received: 156799"),
        (idx(np.zeros((200, 28, 28))) + b"x", "Received: 156801"),
        (idx(np.zeros((199, 28, 28))), "shape .199, 28, 28. and 200 digits"),
        (idx(np.zeros((200, 14, 56))), "28 x 28"),
        (gzip.compress(bytes(99), mtime=0)[:-9], "Fetch it again"),
        (b"\x1f\x8b" + bytes(20), "Fetch it again"),
    ],
)
def test_damaged_files_are_named(folder: Path, content: bytes, message: str) -> None:
    (folder / FILES["train"][0]).write_bytes(content)
    with pytest.raises(CohortError, match=message):
        mnist(7, data=folder)


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CohortError, match=r"mnist/train-images-idx3-ubyte.gz.*has none of them.*PHENOGROUPS_DATA"):
        mnist(7, data=tmp_path)
    with pytest.raises(CohortError, match="Expected a folder as data"):
        mnist(7, data=tmp_path / "nowhere")
    monkeypatch.setenv("PHENOGROUPS_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(CohortError, match="Expected a folder as PHENOGROUPS_DATA"):
        mnist(7)
    with pytest.raises(CohortError, match="digit from 0 to 9"):
        mnist(10)
    with pytest.raises(CohortError, match="'train' or 'test'"):
        mnist(7, split="validation")  # pyright: ignore[reportArgumentType]


class Mirrors:
    """The two mirrors, played: they serve what was made, unless a mirror was told to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = {f"{name}.gz": gzip.compress(file) for split in FILES for name, file in made(split).items()}
        self.failing: dict[str, Exception | bytes] = {}
        self.asked: list[str] = []
        md5 = {name: hashlib.md5(content).hexdigest() for name, content in self.files.items()}
        monkeypatch.setattr(module, "MD5", md5)
        monkeypatch.setattr(module, "urlopen", self.serve)

    def serve(self, url: str, timeout: float) -> io.BytesIO:
        assert timeout > 0
        self.asked.append(url)
        mirror, name = url.rsplit("/", 1)
        answer = self.failing.get(f"{mirror}/", self.files[name])
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer)


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Mirrors:
    return Mirrors(monkeypatch)


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_files_are_downloaded_once(mirrors: Mirrors, folder: Path, tmp_path: Path) -> None:
    assert mnist(7).fingerprint == mnist(7, data=folder).fingerprint
    assert mirrors.asked == [f"{MIRRORS[0]}{name}.gz" for name in FILES["train"]]
    mnist(7)
    assert len(mirrors.asked) == 2
    mnist(7, split="test")
    assert cached(tmp_path) == sorted(mirrors.files)


def test_a_data_folder_of_something_else_does_not_prevent_the_download(
    mirrors: Mirrors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHENOGROUPS_DATA", str(tmp_path))
    assert len(mnist(7)) == 80


@pytest.mark.parametrize("failure", [URLError("no route"), TimeoutError("too slow"), b"<html>blocked</html>"])
def test_the_second_mirror_helps_out(mirrors: Mirrors, tmp_path: Path, failure: Exception | bytes) -> None:
    mirrors.failing[MIRRORS[0]] = failure
    assert len(mnist(7)) == 80
    assert [url.rsplit("/", 1)[0] + "/" for url in mirrors.asked] == [*MIRRORS, *MIRRORS]


def test_nothing_is_kept_of_a_download_that_fails(mirrors: Mirrors, tmp_path: Path) -> None:
    mirrors.failing = {MIRRORS[0]: URLError("no route"), MIRRORS[1]: b"half of it"}
    with pytest.raises(CohortError, match=r"no route.*md5 [0-9a-f]{32} instead of [0-9a-f]{32}.*PHENOGROUPS_DATA"):
        mnist(7)
    assert cached(tmp_path) == []


def test_a_file_appears_whole_or_not_at_all(mirrors: Mirrors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        assert source.read_bytes() == mirrors.files[target.name]
        assert not target.exists()
        raise OSError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", full)
        with pytest.raises(CohortError, match=r"disk full.*XDG_CACHE_HOME"):
            mnist(7)
    assert cached(tmp_path) == []
    assert len(mnist(7)) == 80


def test_a_cache_that_cannot_be_made_is_named(mirrors: Mirrors, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CohortError, match="XDG_CACHE_HOME"):
        mnist(7)


def test_mirrors_and_checksums_cover_all_files() -> None:
    assert sorted(module.MD5) == sorted(f"{name}.gz" for names in FILES.values() for name in names)
    assert all(url.startswith("https://") and url.endswith("/") for url in MIRRORS)


@real
def test_the_real_training_cohort_is_the_papers() -> None:
    cohort = mnist(7, data=REAL, labels=REAL / "crossbar_train.json")
    assert len(cohort) == 12_530
    assert cohort.is_patient.sum() == 6265
    counts = cohort.covariates["digit"][~cohort.is_patient].value_counts()
    assert set(counts) == {696, 697}
    assert (truth_of(cohort) >= 0).sum() == 1039
    assert (truth_of(cohort) == 1).sum() == 131
    assert cohort.inputs.min() == 0
    assert cohort.inputs.max() == 1


@real
def test_the_real_test_cohort_and_the_ones_follow_the_same_rule(tmp_path: Path) -> None:
    labels = write(tmp_path / "labels.json", {str(position): "No bar" for position in range(398)})
    test = mnist(7, data=REAL.parent, split="test", labels=labels)
    assert test.diagnosis.sum() == len(test) / 2 == 1028
    assert (truth_of(test) == 0).sum() == 398
    ones = mnist(1, data=REAL)
    assert ones.diagnosis.sum() == len(ones) / 2 == 6742
