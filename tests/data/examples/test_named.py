"""Example cohorts by name: what each trains on and what it scores."""

import json

import numpy as np
import pytest

from phenogroups.data.cohort import CohortError
from phenogroups.data.examples.mnist import FILES
from phenogroups.data.examples.named import EXAMPLES, example


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    monkeypatch.delenv("PHENOGROUPS_DATA", raising=False)


@pytest.fixture
def mnist_folder(tmp_path):
    rng = np.random.default_rng(0)
    for (images, digits), count in ((FILES["train"], 200), (FILES["test"], 100)):
        for name, values in ((images, rng.integers(0, 255, (count, 28, 28))), (digits, np.arange(count) % 10)):
            sizes = b"".join(n.to_bytes(4, "big") for n in values.shape)
            (tmp_path / name).write_bytes(bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes())
    return tmp_path


def test_drawn_holds_out_a_fifth():
    study = example("drawn", subjects=40)
    train, scored, diagnosed = study.parts(0)
    assert (len(train), len(scored), diagnosed is scored) == (32, 8, True)
    assert study.known_subgroups == 2


@pytest.mark.parametrize(("labels", "where"), [({"0": 0, "1": 1}, "train"), ({"0": "No bar", "1": "With bar"}, "test")])
def test_mnist_scores_subgroups_where_they_are_labelled(mnist_folder, labels, where):
    path = mnist_folder / "labels.json"
    path.write_text(json.dumps(labels))
    train, scored, diagnosed = example("mnist7", data=mnist_folder, labels=path).parts(0)
    assert (len(train), len(diagnosed)) == (40, 20)
    assert scored is (train if where == "train" else diagnosed)
    assert sorted(scored.truth[scored.truth >= 0]) == [0, 1]


def test_mnist_without_labels_and_with_few_subjects(mnist_folder):
    study = example("mnist1", data=mnist_folder, subjects=10)
    assert study.cohort.name == "mnist-1"
    assert [len(part) for part in study.parts(0)] == [10, 10, 10]
    assert study.known_subgroups == 0


def test_pneumonia_holds_out_patients_unless_there_is_a_test_split(tmp_path):
    names = [f"person{i}_{kind}_{j}.jpeg" for i in range(10) for j, kind in enumerate(("virus", "bacteria"))]
    names += [f"IM-{i:04d}-0001.jpeg" for i in range(20)]
    content = {"embedding": np.random.default_rng(0).normal(size=(40, 3)), "name": np.array(names)}
    np.savez(tmp_path / "resnet50_train.npz", **content)
    study = example("pneumonia", data=tmp_path)
    train, scored, _ = study.parts(1)
    assert (len(train), len(scored)) == (32, 8)
    assert not set(train.group) & set(scored.group)
    np.savez(tmp_path / "resnet50_test.npz", **content)
    train, scored, _ = example("pneumonia", data=tmp_path).parts(1)
    assert (len(train), len(scored)) == (40, 40)
    assert scored.subject[0].startswith("test-")


def test_wrong_names(tmp_path):
    with pytest.raises(CohortError, match=f"among {', '.join(EXAMPLES)}. Received: 'mnist10'"):
        example("mnist10")
    with pytest.raises(CohortError, match="at least 1 subject"):
        example("drawn", subjects=0)
    with pytest.raises(CohortError, match="no files for the drawn cohort"):
        example("drawn", data=tmp_path)


def test_drawn_brains_are_volumes():
    assert example("drawn_brains", subjects=20).cohort.input_shape == (1, 32, 32, 32)


def test_a_study_as_one_cohort_that_says_who_is_held_out(mnist_folder):
    study = example("mnist3", data=mnist_folder)
    train, test = study.joined.split(0.5)
    assert list(train.subject) == list(study.cohort.subject)
    assert list(test.subject) == list(study.test.subject)
    assert (test.inputs == study.test.inputs).all()
    path = mnist_folder / "labels.json"
    path.write_text(json.dumps({"0": "No bar", "1": "With bar"}))
    joined = example("mnist7", data=mnist_folder, labels=path).joined
    assert sorted(joined.truth[joined.is_test & (joined.truth >= 0)]) == [0, 1]
    assert (joined.truth[~joined.is_test] == -1).all()
    alone = example("drawn", subjects=40)
    assert alone.joined is alone.cohort  # a share of it is held out
