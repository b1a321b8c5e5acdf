"""The README's own commands, on a small cohort with the columns it names."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups.cli import main
from phenogroups.data.examples.drawn import drawn_digits

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def subjects(tmp_path, monkeypatch):
    cohort = drawn_digits(96, size=16, seed=0)
    rows = []
    for name, image, ill in zip(cohort.subject, cohort.inputs, cohort.is_patient, strict=True):
        Image.fromarray((255 * image[0]).astype(np.uint8)).save(tmp_path / f"{name}.png")
        words = {"diagnosis": "patient" if ill else "control", "dx": "SZ" if ill else "HC"}
        rows.append({"id": name, "person": name, "path": f"{name}.png", **words})
    for table in ("subjects.csv", "new_subjects.csv"):
        pd.DataFrame(rows).to_csv(tmp_path / table, index=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("subjects")
def test_python_lines(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(code, {})
    assert "Scores(" in capsys.readouterr().out


@pytest.mark.usefixtures("subjects")
def test_commands():
    commands = re.findall(r"^phenogroups ((?:discover|predict) .*)$", README, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)) == 0
    assert len(pd.read_csv("new_subjects.subgroups.csv")) == 96


def test_images_and_links_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target


@pytest.mark.usefixtures("subjects")
def test_comparison():
    (command,) = re.findall(r"^phenogroups (compare .*)$", README, flags=re.MULTILINE)
    few = ["--subjects", "60", "--set", "epochs=1", "steps=2", "restarts=1", "--no-isolated"]  # as said, but quick
    assert main([*shlex.split(command), *few]) == 0
    assert len(pd.read_csv("phenogroups-compare/compare.csv")) == 9
