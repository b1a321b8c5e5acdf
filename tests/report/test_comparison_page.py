"""The page of a comparison: the table, the bars, and each method's embedding of the same subjects."""

import json
import re
import shutil

import numpy as np
import pytest

from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.projection import EMBEDDED
from phenogroups.training.cells import _checksum
from phenogroups.workflows.compare import compare

QUICK = {"epochs": 1, "steps": 2}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "c"
    compare(
        drawn_digits(160, size=8, seed=0), ["kmeans", "classifier"], folder, seeds=2, settings=QUICK, isolated=False
    )
    return folder


def data_of(folder) -> dict:
    html = (folder / "compare.html").read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


def test_every_method_shows_the_same_subjects(compared):
    data = data_of(compared)
    held_out = drawn_digits(160, size=8, seed=0).split(0.2, 0)[1]
    assert [row[0] for row in data["rows"]] == held_out.subject.tolist()
    assert [len(method["points"]) for method in data["methods"]] == [len(held_out)] * 2
    assert data["colours"][0]["name"] == "truth"
    assert "boldness" in {way["name"] for way in data["colours"]}
    z = held_out.inputs.reshape(len(held_out), -1)  # K-means embeds nothing: it sees the pixels
    points = np.array(data["methods"][0]["points"], dtype=float)
    first = np.linalg.svd(z - z.mean(axis=0), full_matrices=False)[0][:, 0]
    assert abs(np.corrcoef(first, points[:, 0])[0, 1]) > 0.99


def test_cells_keep_a_bounded_embedding_of_the_first_seed_only(compared):
    for path in (compared / "cells").glob("*.json"):
        cell = json.loads(path.read_text())
        assert ("embedding" in cell) == (cell["seed"] == 0)
        assert len(cell.get("embedding", [])) <= EMBEDDED


def test_cells_of_earlier_versions_are_left_out_of_the_pictures(compared, tmp_path):
    shutil.copytree(compared, tmp_path / "c")
    (path,) = (tmp_path / "c" / "cells").glob("kmeans-0-*.json")
    cell = json.loads(path.read_text())
    del cell["sha256"], cell["embedding"]
    path.write_text(json.dumps({**cell, "sha256": _checksum(cell)}))
    again = compare(
        drawn_digits(160, size=8, seed=0),
        ["kmeans", "classifier"],
        tmp_path / "c",
        seeds=2,
        settings=QUICK,
        isolated=False,
    )
    assert again.ran == 0
    assert len(data_of(tmp_path / "c")["methods"]) == 1
    html = (tmp_path / "c" / "compare.html").read_text(encoding="utf-8")
    assert html.count("<canvas id=") == 1
    assert "kmeans" in html  # in the table it stays


def test_a_page_without_truth(tmp_path):
    cohort = drawn_digits(80, size=8, seed=0, sizes=(1.0,))
    compare(cohort, ["kmeans"], tmp_path / "c", seeds=1, isolated=False)
    assert (tmp_path / "c" / "embeddings.png").is_file()
    assert "What each method sees" in (tmp_path / "c" / "compare.html").read_text(encoding="utf-8")
