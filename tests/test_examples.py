"""Every example runs, at small size."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example as a script, in this process: a new one would import torch for seconds."""

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.pictures
def test_drawn_digits(run, tmp_path):
    printed = run("01_drawn_digits.py", "--subjects", 120, "--epochs", 2, "--picture", tmp_path / "demo.png")
    assert "subgroup_bacc=" in printed
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_your_own_images(run, tmp_path):
    printed = run("02_your_own_images.py", "--out", tmp_path / "study", "--subjects", 100, "--epochs", 1)
    assert "Training may start" in printed
    assert "Of 10 held-out patients: A " in printed
    rows = pd.read_csv(tmp_path / "study" / "new.subgroups.csv")
    assert list(rows["subject"]) == ["s00", "s01", "s02", "s03", "s04"]
    # the table and the arrays give the same five; who is hardly a patient after one epoch has no letter
    likeliest = rows[["p_A", "p_B"]].to_numpy().argmax(axis=1)
    assert printed.strip().endswith(str(likeliest))
    given = rows["subgroup"].notna()
    assert list(rows["subgroup"][given]) == ["AB"[k] for k in likeliest[given]]
    assert (rows["remark"].notna() == ~given).all()


@pytest.mark.pictures
def test_brain_volumes(run, tmp_path):
    printed = run("04_brain_volumes.py", "--out", tmp_path, "--subjects", 40, "--size", 16, "--epochs", 1)
    assert "Against the known subgroups, which were not used in training" in printed
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


@pytest.mark.pictures
def test_mnist(run, tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("train", 300), ("t10k", 100)):
        images, digits = rng.integers(0, 255, (count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10
        for kind, values in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", digits)):
            sizes = b"".join(n.to_bytes(4, "big") for n in values.shape)
            (tmp_path / f"{name}-{kind}").write_bytes(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes())
    printed = run("06_mnist.py", "--data", tmp_path, "--epochs", 2, "--picture", tmp_path / "ones.png")
    assert "test digits in each subgroup:" in printed
    assert (tmp_path / "ones.png").stat().st_size > 10_000


@pytest.mark.pictures
def test_compare_methods(run, tmp_path):
    quick = ["--subjects", 60, "--epochs", 1, "--seeds", 2, "--methods", "kmeans", "classifier"]
    printed = run("03_compare_methods.py", *quick, "--out", tmp_path / "c")
    assert "Subgroup" in printed
    assert "kmeans" in printed
    assert (tmp_path / "c" / "compare.png").stat().st_size > 10_000


def test_is_it_real(run, tmp_path):
    printed = run("05_is_it_real.py", "--subjects", 96, "--epochs", 3, "--out", tmp_path)
    finding, printed = printed.split("# artefact")
    assert "Subgroups were not seen to follow age, sex, site" in finding
    assert "has about equal probabilities of all subgroups, by the design" in finding  # the paper's diagnostics
    assert "Subgroups follow site (Cramer's V 0." in printed or "Subgroups follow site (Cramer's V 1." in printed
    assert "Controls cannot tell the two apart (all have the value A)." in printed
    assert "Expected controls that differ in 'site'" in printed  # no statistics mend it
    assert (tmp_path / "artefact" / "profiles.tex").exists()
