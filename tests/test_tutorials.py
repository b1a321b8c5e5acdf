"""The notebooks of docs/tutorials run from beginning to end, and find what their text says that they find."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(2000)  # the first test waits for all notebooks
ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
# what the text of each promises, in the order in which it is printed
SAID = {
    "brain_volumes": [
        "Received also: 'age'", "(500, 24)", "not seen to follow age, sex, site", "'K-means'", "around the ventricles",
        "agreement with UCSL",
    ],
    "comparing_methods": ["30 methods", "deep_ucsl", "supervised_upper_bound"],
    "is_it_real": [
        "finding: 2.", "nothing: 1.", "# finding", "not seen to follow age, sex, site", "Subgroups follow site",
        "Expected controls that differ in 'site'", "artefact: stability",
    ],
    "your_own_images": ["Training may start", "not seen to follow pen", "with crossbar", "4 subjects assigned"],
}  # fmt: skip
# one kernel for all, which imports torch once; every notebook begins without names. As in other tests, figures of
# report pages are not rendered (those of cells are) and the same search is made once
RUN = """
import os, sys, nbformat
from nbclient import NotebookClient
light = "import conftest, pytest; patch = pytest.MonkeyPatch()"
light += "; conftest.leave_figures_blank(patch); conftest.remember_searches(patch)"
notebooks = {path: nbformat.read(path, as_version=4) for path in sys.argv[1:]}
fresh = [nbformat.v4.new_code_cell("%reset -f") for _ in notebooks]
cells = [cell for first, each in zip(fresh, notebooks.values()) for cell in (first, *each.cells)]
cells = [nbformat.v4.new_code_cell(light), *cells]
NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=500, allow_errors=True).execute()
assert not cells[0].outputs, cells[0].outputs
for path, notebook in notebooks.items():
    nbformat.write(notebook, os.path.basename(path))
"""


def printed(path: Path) -> str:
    """All text that the cells printed or showed."""
    outputs = [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", [])]
    shown = [output.get("data", {}).get("text/plain", output.get("text", "")) for output in outputs]
    return "\n".join("".join(text) for text in shown)


def in_order(words: list[str], text: str) -> bool:
    return re.search(".*?".join(map(re.escape, words)), text, re.DOTALL) is not None


def test_every_notebook_is_tried():
    assert [path.stem for path in NOTEBOOKS] == list(SAID)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of all notebooks, as they were run."""
    for name in ("nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install '.[notebooks]'")
    folder = tmp_path_factory.mktemp("tutorials")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, *map(str, NOTEBOOKS)]  # whose warnings are not ours
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_finds_what_it_says(path, run):
    cells = json.loads((run / path.name).read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert [output["traceback"] for output in outputs if output["output_type"] == "error"] == []
    assert in_order(SAID[path.stem], printed(run / path.name))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_of_its_outputs_is_whole_and_small(path):
    assert in_order(SAID[path.stem], printed(path))
    assert "Traceback" not in printed(path)
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))  # run once, in order
    assert sum(each.stat().st_size for each in NOTEBOOKS) < 1_000_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_page_has_all_of_it(path):
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page, pictures = hooks.notebook_page(path)
    assert page.startswith("# ")
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert re.findall(r"\]\((\w+-\d+\.png)\)", page) == [f"{path.stem}-{i}.png" for i in range(len(pictures))]
    assert len(pictures) >= 1
    assert "\x1b" not in page  # colours of a terminal
    assert page.count("```") % 2 == 0
    for target in re.findall(r"\]\(([^)#\s]+\.(?:md|ipynb))[^)]*\)", page):
        assert (path.parent / target).exists(), target
