"""The commands and the Python of the README run as a user would run them; its figures are those of docs/results.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups.data.examples.drawn import drawn_digits

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [block.strip() for block in re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)]
INSTALLING = ["pip install .", "make demo"]


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A folder with the tables that the README names, and a shell in it."""
    folder = tmp_path_factory.mktemp("user")
    cohort = drawn_digits(96, size=16, seed=0)
    rows = []
    for name, image, ill in zip(cohort.subject, cohort.inputs, cohort.is_patient, strict=True):
        Image.fromarray((255 * image[0]).astype(np.uint8)).save(folder / f"{name}.png")
        rows.append({"path": f"{name}.png", "dx": "SZ" if ill else "HC", "person": name})
    pd.DataFrame(rows).to_csv(folder / "subjects.csv", index=False)
    pd.DataFrame(rows[:9]).drop(columns="dx").to_csv(folder / "new_subjects.csv", index=False)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "XDG_CACHE_HOME": str(folder / "cache"),
    }  # fmt: skip

    def run(*command: str, text: str | None = None) -> str:
        done = subprocess.run(
            command, cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run.folder = folder
    return run


def test_every_block_is_tried():
    assert [block for block in BLOCKS if not block.startswith("phenogroups ")] == INSTALLING
    assert len(BLOCKS) == 3


def test_the_commands_as_printed(user):
    (commands,) = (block for block in BLOCKS if block.startswith("phenogroups "))
    said = user("sh", "-e", "-c", commands)
    assert "48 patients and 48 controls" in said
    assert "9 subjects assigned" in said
    assert (user.folder / "phenogroups-run" / "report.html").stat().st_size > 100_000
    assert len(pd.read_csv(user.folder / "new_subjects.subgroups.csv")) == 9


def test_the_python_as_printed(user):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) < 6
    found = re.search(r"subgroup_bacc=([\d.]+)", user(sys.executable, "-", text=code))
    assert float(found[1]) > 0.9


def test_make_demo_installs_the_package_without_its_test_tools(user):
    steps = user("make", "-n", "-B", "-C", str(ROOT), "demo")
    assert re.search(r"pip install .*--constraint constraints.txt --editable \.$", steps, re.MULTILINE)
    assert "[test]" not in steps
    assert steps.strip().splitlines()[-2 if "Leaving" in steps else -1].endswith("phenogroups demo --overwrite")


def test_images_and_links_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_figures_are_those_of_the_results():
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = README.split("## Measured results")[1].split("\n## ")[0]
    figures = re.findall(r"\d\.\d{3}(?: ± \d\.\d{3})?", table)
    assert len(figures) > 15
    assert [figure for figure in figures if figure not in results] == []
