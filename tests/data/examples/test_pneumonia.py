"""Embeddings of chest X-rays as a cohort: from a small table made here, and from the real one where it lies."""

import json
from pathlib import Path

import numpy as np
import pytest

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.pneumonia import has_embeddings, pneumonia_embeddings

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


def save(path: Path, stems: list[str]) -> None:
    names = np.array([f"{stem}.jpeg" for stem in stems])
    np.savez(path, embedding=np.arange(len(names) * 4, dtype=np.float16).reshape(-1, 4), name=names)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The data folder, with a table of embeddings beside an empty folder of X-rays."""
    (tmp_path / "pneumonia" / "chest_xray").mkdir(parents=True)
    save(tmp_path / "pneumonia" / "resnet50_train.npz", [*NORMAL, *PNEUMONIA])
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
def test_the_table_is_found_from_wherever_it_is_named(home: Path, inner: str) -> None:
    check_who_is_who(pneumonia_embeddings(home / inner))


def test_the_table_is_found_by_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHENOGROUPS_DATA", str(home))
    check_who_is_who(pneumonia_embeddings())
    assert has_embeddings(None, "train")
    assert not has_embeddings(None, "test")


def test_embeddings_are_features_of_the_same_subjects(home: Path) -> None:
    cohort = pneumonia_embeddings(file=home / "pneumonia" / "resnet50_train.npz")
    check_who_is_who(cohort)
    assert cohort.inputs.dtype == np.float32
    assert np.array_equal(cohort.inputs, np.arange(40).reshape(10, 4))


def test_labels_override_names_and_serve_files_that_tell_nothing(home: Path, tmp_path: Path) -> None:
    save(home / "resnet50_test.npz", ["person10_35", "person1_7", *PNEUMONIA[1:]])
    labels = write(
        tmp_path / "labels.json", {"person10_35.jpeg": "virus", "person1_bacteria_1": "Viral", "elsewhere": "bacteria"}
    )
    cohort = pneumonia_embeddings(home, split="test", labels=labels)
    truth = dict(zip(cohort.subject.tolist(), truth_of(cohort).tolist(), strict=True))
    assert truth["test-person10_35"] == 1
    assert truth["test-person1_7"] == -1
    assert truth["test-person1_bacteria_1"] == 1
    assert truth["test-person1_bacteria_2"] == 0


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
        pneumonia_embeddings(home, labels=write(tmp_path / "labels.json", labels))


def test_what_is_not_there_is_named(home: Path) -> None:
    with pytest.raises(CohortError, match=r"no data folder.*PHENOGROUPS_DATA"):
        pneumonia_embeddings()
    with pytest.raises(CohortError, match=r"resnet50_test.npz.*has none of them"):
        pneumonia_embeddings(home, split="test")


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
    cohort = pneumonia_embeddings(REAL)
    assert (~cohort.is_patient).sum() == 1341
    assert np.bincount(truth_of(cohort)[cohort.is_patient]).tolist() == [2530, 1345]
    train, held_out = cohort.split(0.2, seed=0)
    assert not set(train.group) & set(held_out.group)
