"""The benchmarks of quality run from nothing and write what they print; their figures are not tested here."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from phenogroups.data.cohort import CohortError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
QUICK = ("epochs=1", "steps=2", "restarts=1")


@pytest.fixture
def script(monkeypatch):
    """A benchmark as a module, among its neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def table(tmp_path):
    """Two kinds of patients far apart, two rows of each person."""
    rng = np.random.default_rng(0)
    y, t = np.repeat([0, 1, 1], 40), np.repeat(["", "near", "far"], 40)
    z = rng.normal(size=(120, 5))
    z[:, 0] += 6 * (y == 1)
    z[:, 1] += 9 * (t == "far")
    np.savez(tmp_path / "table.npz", z=z, y=y, t=t, g=np.arange(120) // 2)
    return tmp_path / "table.npz"


def test_a_table_of_features_is_scored_by_every_method(script, table, tmp_path, capsys):
    out = tmp_path / "out.json"
    script("cohorts").Cohorts(features=(table,), seeds=2, json=out, set=QUICK).run()
    assert "table: deep_ucsl vs best baseline (" in capsys.readouterr().out
    found = json.loads(out.read_text())
    methods = ["deep_ucsl", "kmeans", "gaussian_mixture", "foundation", "supervised"]
    assert [row["method"] for row in found["summary"]] == methods
    assert len(found["cells"]) == 2 * len(methods)
    of = {row["method"]: row["subgroup_bacc"]["worst"] for row in found["summary"]}
    assert of["supervised"] == of["kmeans"] == 1
    assert found["cohorts"]["table"]["known_subgroups"] == {"far": 40, "near": 40}


def test_a_cohort_that_is_not_here_is_skipped_and_named(script, tmp_path, capsys):
    with pytest.raises(ValueError, match="none of them here"):
        script("cohorts").Cohorts(data=tmp_path, cohorts=("oct",)).run()
    script("pairs").Pairs(data=tmp_path, images=True).run()
    printed = " ".join(capsys.readouterr().out.split())
    assert "oct is skipped: Expected oct/train.csv in the data folder" in printed
    assert "MNIST is skipped" in printed


def test_objects_in_a_file_of_features_are_refused(script, tmp_path):
    words = np.array(["", "", "a", "b"], object)
    np.savez(tmp_path / "bad.npz", z=np.zeros((4, 2)), y=np.array([0, 0, 1, 1]), t=words)
    with pytest.raises(CohortError, match="words saved as text"):
        script("cohorts").read_features(tmp_path / "bad.npz")


def test_pairs_of_digits_are_counted_by_the_parity_of_their_sum(script, tmp_path, capsys):
    out = tmp_path / "out.json"
    script("pairs").Pairs(pairs=("0-1", "0-2"), json=out, set=QUICK).run()
    found = json.loads(out.read_text())
    assert [row["pair"] for row in found["pairs"]] == [[0, 1], [0, 2]]
    assert found["summary"]["even sum"]["pairs"] == found["summary"]["odd sum"]["pairs"] == 1
    assert "all: " in capsys.readouterr().out
