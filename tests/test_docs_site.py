"""The documentation site: it builds without a warning, and what its pages show runs."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from phenogroups.cli import main
from phenogroups.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def test_it_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install '.[docs]'")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    reference = (tmp_path / "site" / "reference" / "python.html").read_text()
    assert "Number of networks that are warmed up for images" in reference  # a setting of its own
    assert "Largest number of epochs" in reference  # an inherited one
    assert "usage: phenogroups discover" in (tmp_path / "site" / "reference" / "command_line.html").read_text()


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"[\w/]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [*PAGES, *(notebook.with_suffix(".md") for notebook in NOTEBOOKS)]  # docs/hooks.py makes these pages
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert (page.parent / target).exists(), target


def test_the_code_of_get_started_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), flags=re.DOTALL)
    exec(code.replace("n_subgroups=2", "n_subgroups=2, epochs=1, steps=2"), {})
    assert "Scores(" in capsys.readouterr().out


def test_the_code_of_the_guide_to_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/in_python.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out
    assert len(blocks) == 4
    assert printed.startswith("AD [")
    assert "\nTrue\n" in printed  # the loaded model predicts the same
    assert {path.name for path in (tmp_path / "my-model").iterdir()} == {"model.safetensors", "recipe.json"}
    cohort, pipeline, subgroup = names["cohort"], names["pipeline"], names["subgroup"]
    assert pipeline.score(names["X"], names["y"]) > 0.9
    ill = cohort.is_patient
    assert adjusted_rand_score(cohort.truth[ill], subgroup[ill]) > 0.8
    assert len(names["rows"]) >= len(names["model"].history_) > 0


def test_the_first_comparison_of_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "guides" / "comparing_methods.md").read_text()
    command = re.findall(r"^phenogroups (compare .*)$", page, flags=re.MULTILINE)[0]
    few = ["--subjects", "60", "--set", "epochs=1", "steps=2", "restarts=1", "--no-isolated"]  # as printed, but quick
    assert main([*shlex.split(command), *few]) == 0
    assert len(pd.read_csv("phenogroups-compare/compare.csv")) == 9


def test_the_method_of_the_guide_is_a_method(tmp_path, monkeypatch, features):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/methods/your_own_method.md").read_text(), re.DOTALL)
    (tmp_path / "guide_method.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    cls = importlib.import_module("guide_method").RandomPatients
    try:
        assert METHODS["random_patients"] is cls
        assert cls(epochs=1, steps=2).fit(features).predict_subgroup_proba(features).shape == (120, 2)
    finally:
        del METHODS["random_patients"], sys.modules["guide_method"]
