"""The benchmarks of quality run from nothing and write what they print; their figures are not tested here."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from phenogroups.data.cohort import CohortError
from phenogroups.data.examples.drawn import drawn_digits

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


def test_numbers_of_real_pictures(script, tmp_path, capsys, monkeypatch):
    number = script("number")
    asked = number.Number(
        kind="scikit-learn", data=tmp_path, none=2, planted=1, shuffled=1, json=tmp_path / "number.json"
    )
    cohorts = list(asked.cohorts())
    assert cohorts == [(1, "one", 100), (1, "shuffled", 100), (2, "equal", 100), (3, "equal", 100), (4, "equal", 100),
                       (1, "same", 101)]  # fmt: skip
    pool = asked.pool()
    for planted, sizes, seed in cohorts:
        cohort = pool.draw(planted, sizes, seed)
        digits = [int(digit) for digit in cohort.name.split("-")]
        assert all(digit % 2 for digit in digits)
        of = {row.tobytes(): digit for row, digit in zip(pool.inputs, pool.kind, strict=True)}
        ill, well = ({of[row.tobytes()] for row in cohort.inputs[cohort.diagnosis == k]} for k in (1, 0))
        if sizes == "same":
            assert ill == well == set(digits)
        elif sizes == "shuffled":
            assert len(ill & well) > 5
        else:
            assert ill == set(digits)
            assert not ill & well
    answers = iter([1, 2, 2, 5, 4, 1])  # to the cohorts, in their order
    choice = pd.DataFrame(
        {
            "gap": [0.1],
            "gap_of_smaller": [0.2],
            "apart": [5.0],
            "p_gap": [0.001],
            "p_shuffled": [0.001],
            "agreement": [0.9],
        }
    )
    monkeypatch.setattr(
        number, "number_of_subgroups", lambda *_: number_answer(subgroups=next(answers), criteria=choice)
    )
    asked.run()
    printed = " ".join(capsys.readouterr().out.split())
    assert "shuffled diagnosis: 0 of 1 right" in printed
    assert "without subgroups: 2 of 2 right" in printed
    assert "with subgroups: 2 of 3 right" in printed
    assert "more than one too many: 1 of 3" in printed


def number_answer(**said):
    return SimpleNamespace(p=0.1, p_shuffled=0.1, reason="", **said)


def test_strangers_of_drawn_pictures(script, tmp_path, capsys):
    out = tmp_path / "strangers.json"
    script("strangers").Strangers(data=tmp_path, kinds=("oct", "drawn"), seeds=1, subjects=40, json=out).run()
    assert "oct is skipped" in capsys.readouterr().out
    cells = json.loads(out.read_text())["cells"]
    assert [(cell["by"], cell["model"], cell["new"]) for cell in cells] == [
        ("lite0", "drawn", "drawn"), ("look", "drawn", "drawn"),
    ]  # fmt: skip
    assert cells[0]["known"] == 24


def test_peers_run_by_turns_and_one_that_cannot_says_why(script, tmp_path, capsys, monkeypatch):
    peers, out = script("peers"), tmp_path / "peers.json"
    monkeypatch.setattr(peers, "PAIRS", ((0, 1),))
    asked = {"cohorts": ("digit pairs",), "peers": ("sklearn_kmeans", "clustpy_dec"), "seeds": 2, "json": out}
    peers.Peers(**asked).run()  # in the environment of the package, which has no ClustPy
    assert "2 failed, such as digits-0-1, seed 0: ModuleNotFoundError: No module named 'clustpy'" in " ".join(
        capsys.readouterr().out.split()
    )
    kmeans, dec = json.loads(out.read_text())["summary"]
    assert (kmeans["runs"], dec["runs"], dec["subgroup_bacc"]) == (2, 0, None)
    assert kmeans["subgroup_bacc"]["worst"] > 0.9
    # that of the run itself, and not of this process, which has torch in memory
    assert 10 < kmeans["peak_memory_mb"]["mean"] < 0.8 * script("common").peak_memory_mb()
    assert peers.lines_of_user_code()["sklearn_kmeans"] == 3
    first = out.read_text()
    monkeypatch.setattr(peers.Peers, "one", lambda *_: {"error": "was run again"})
    peers.Peers(**{**asked, "peers": ("sklearn_kmeans",)}, resume=True).run()
    assert json.loads(out.read_text())["runs"] == json.loads(first)["runs"]


@pytest.mark.parametrize(
    "name", ["first split: the most likely, not the most specific", "marginals equal", "damping 0.8"]
)
def test_an_ablation_with_code_of_its_own_is_fitted(script, name):
    settings = {"epochs": 3, "steps": 2, "restarts": 1}
    method = script("ablations").ROWS[name](**settings).fit(drawn_digits(80))
    assert set(method.labels_) == {-1, 0, 1}


def test_the_rule_of_ones_tells_strokes_from_plain_ones(script):
    plain, flagged = np.zeros((2, 32, 32))
    for image in (plain, flagged):
        image[6:26, 15:18] = 1
    for step in range(5):
        flagged[7 + step, 14 - step - 1 : 15 - step + 1] = 1
    footed = flagged.copy()
    footed[24:26, 10:23] = 1
    rule = script("mnist1").strokes
    assert [rule(image) for image in (plain, flagged, footed)] == [0, 1, 1]
