"""Chest X-rays as a cohort: from tiny pictures made here, and from the real ones where they lie."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.pneumonia import has_embeddings, has_images, pneumonia, pneumonia_embeddings

REAL = Path(__file__).parents[4] / "shared" / "data" / "pneumonia"
real = pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the X-rays in {REAL}")

NORMAL = ["IM-0115-0001-0002", "IM-0115-0001", "NORMAL2-IM-0115-0001"]
PNEUMONIA = [
    "person10_virus_35", "person1_bacteria_1", "person1_bacteria_2", "person1_virus_7", "person2_bacteria_3",
    "person2_bacteria_4", "person447_virus_921_1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHENOGROUPS_DATA", raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The data folder, with pneumonia/chest_xray and a table of embeddings in it."""
    for split in ("train", "test"):
        for part, stems in (("NORMAL", NORMAL), ("PNEUMONIA", PNEUMONIA)):
            folder = tmp_path / "pneumonia" / "chest_xray" / split / part
            folder.mkdir(parents=True)
            (folder / ".DS_Store").write_bytes(b"no picture")
            for number, stem in enumerate(stems):
                grey = np.full((20, 30), 20 * number + 40, np.uint8)
                colour = Image.fromarray(grey).convert("RGB" if number == 0 else "L")  # as some public files are
                colour.save(folder / f"{stem}.jpeg")
    names = np.array([f"{stem}.jpeg" for stem in (*NORMAL, *PNEUMONIA)])
    embedding = np.arange(len(names) * 4, dtype=np.float16).reshape(-1, 4)
    np.savez(tmp_path / "pneumonia" / "resnet50_train.npz", embedding=embedding, name=names)
    return tmp_path


def write(path: Path, labels: object) -> Path:
    path.write_text(json.dumps(labels))
    return path


def truth_of(cohort: Cohort) -> np.ndarray:
    assert cohort.truth is not None
    return cohort.truth


def check_who_is_who(cohort: Cohort, split: str = "train") -> None:
    assert cohort.subject.tolist() == [f"{split}-{stem}" for stem in (*NORMAL, *PNEUMONIA)]
    assert cohort.diagnosis.tolist() == [0] * 3 + [1] * 7
    assert truth_of(cohort).tolist() == [-1, -1, -1, 1, 0, 0, 1, 0, 0, 1]
    assert cohort.truth_names == ("bacterial", "viral")
    groups = ["IM-0115"] * 2 + ["NORMAL2-IM-0115", "person10"] + ["person1"] * 3 + ["person2"] * 2 + ["person447"]
    assert cohort.group.tolist() == [f"{split}-{group}" for group in groups]
    assert cohort.name == "pneumonia"


@pytest.mark.parametrize("inner", ["", "pneumonia", "pneumonia/chest_xray"])
def test_folders_are_found_from_wherever_they_are_named(home: Path, inner: str) -> None:
    cohort = pneumonia(home / inner, size=8)
    check_who_is_who(cohort)
    check_who_is_who(pneumonia_embeddings(home / inner))
    assert cohort.inputs.shape == (10, 1, 8, 8)
    assert cohort.inputs.dtype == np.float32
    expected = (40 + 20 * np.array([*range(3), *range(7)])) / 255
    assert np.allclose(cohort.inputs.mean(axis=(1, 2, 3)), expected, atol=0.01)


def test_folders_are_found_by_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHENOGROUPS_DATA", str(home))
    check_who_is_who(pneumonia(size=8, split="test"), "test")
    check_who_is_who(pneumonia_embeddings())
    assert has_images(None, "test")
    assert has_embeddings(None, "train")
    assert not has_embeddings(None, "test")


def test_embeddings_are_features_of_the_same_subjects(home: Path) -> None:
    cohort = pneumonia_embeddings(file=home / "pneumonia" / "resnet50_train.npz")
    check_who_is_who(cohort)
    assert cohort.inputs.dtype == np.float32
    assert np.array_equal(cohort.inputs, np.arange(40).reshape(10, 4))


def test_balanced_is_all_controls_and_the_first_of_either_pneumonia(home: Path) -> None:
    for removed in ("IM-0115-0001", "NORMAL2-IM-0115-0001"):
        (home / "pneumonia" / "chest_xray" / "train" / "NORMAL" / f"{removed}.jpeg").unlink()
    one = ["train-IM-0115-0001-0002", "train-person10_virus_35", "train-person1_bacteria_1"]
    assert pneumonia(home, size=8, balanced=True).subject.tolist() == one
    three = [*NORMAL, *(stem for stem in PNEUMONIA if stem != "person2_bacteria_4")]
    assert pneumonia_embeddings(home, balanced=True).subject.tolist() == [f"train-{stem}" for stem in three]


def test_labels_override_names_and_serve_files_that_tell_nothing(home: Path, tmp_path: Path) -> None:
    folder = home / "pneumonia" / "chest_xray" / "test" / "PNEUMONIA"
    (folder / "person10_virus_35.jpeg").rename(folder / "a.jpeg")
    (folder / "person1_virus_7.jpeg").rename(folder / "b.jpeg")
    labels = write(
        tmp_path / "labels.json", {"a.jpeg": "virus", "person1_bacteria_1": "Viral", "elsewhere": "bacteria"}
    )
    cohort = pneumonia(home, size=8, split="test", labels=labels)
    truth = dict(zip(cohort.subject.tolist(), truth_of(cohort).tolist(), strict=True))
    assert truth["test-a"] == 1
    assert truth["test-b"] == -1
    assert truth["test-person1_bacteria_1"] == 1
    assert truth["test-person1_bacteria_2"] == 0
    assert cohort.group[cohort.subject == "test-a"] == "test-a.jpeg"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"person1_bacteria_1.jpeg": "fungus"}, r"labels bacteria.*'fungus' in 1 row \(person1_bacteria_1.jpeg\)"),
        ({"person99_virus_1.jpeg": "virus"}, "by file name, such as person447_virus_921_1.jpeg.*none of which"),
        (["virus"], "one JSON object"),
    ],
)
def test_labels_that_mean_nothing_are_named(home: Path, tmp_path: Path, labels: object, message: str) -> None:
    with pytest.raises(CohortError, match=message):
        pneumonia(home, size=8, labels=write(tmp_path / "labels.json", labels))


def test_what_is_not_there_or_broken_is_named(home: Path, tmp_path: Path) -> None:
    with pytest.raises(CohortError, match=r"no data folder.*PHENOGROUPS_DATA"):
        pneumonia()
    with pytest.raises(CohortError, match=r"chest_xray/validation/PNEUMONIA.*has none of them"):
        pneumonia(home, split="validation")
    with pytest.raises(CohortError, match=r"resnet50_test.npz"):
        pneumonia_embeddings(home, split="test")
    folder = home / "pneumonia" / "chest_xray" / "train"
    (folder / "NORMAL" / "IM-0115-0001.jpeg").write_bytes(b"no picture")
    with pytest.raises(CohortError, match=r"readable file.*\n.*IM-0115-0001.jpeg cannot be read"):
        pneumonia(home, size=8)
    for file in (folder / "NORMAL").glob("*.jpeg"):
        file.unlink()
    with pytest.raises(CohortError, match=r"Expected X-rays in .*NORMAL.*none"):
        pneumonia(home, size=8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"embedding": np.zeros((2, 3))}, "with embedding and name"),
        ({"embedding": np.zeros((2, 3)), "name": np.array(["IM-0001-0001.jpeg"])}, r"of 1 names.*shape \(2, 3\)"),
        ({"embedding": np.zeros((1, 3)), "name": np.array(["scan.png"])}, r"1 row \(scan.png\)"),
    ],
)
def test_tables_that_mean_nothing_are_named(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "table.npz", **arrays)
    with pytest.raises(CohortError, match=message):
        pneumonia_embeddings(file=tmp_path / "table.npz")


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "table.npz").write_bytes(b"PK no")
    with pytest.raises(CohortError, match="an npz file"):
        pneumonia_embeddings(file=tmp_path / "table.npz")


@real
def test_the_real_cohort_has_its_published_counts() -> None:
    cohort, table = pneumonia(REAL, size=16), pneumonia_embeddings(REAL)
    for found in (cohort, table):
        assert (~found.is_patient).sum() == 1341
        assert np.bincount(truth_of(found)[found.is_patient]).tolist() == [2530, 1345]
    assert sorted(cohort.subject) == sorted(table.subject)
    assert dict(zip(cohort.subject, cohort.group, strict=True)) == dict(zip(table.subject, table.group, strict=True))
    paper = pneumonia_embeddings(REAL, balanced=True)
    assert (~paper.is_patient).sum() == 1341
    assert np.bincount(truth_of(paper)[paper.is_patient]).tolist() == [1341, 1341]
    train, held_out = table.split(0.2, seed=0)
    assert not set(train.group) & set(held_out.group)
