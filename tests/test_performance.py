"""docs/performance.md holds what benchmarks/performance.py makes of the results at hand."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def performance():
    spec = importlib.util.spec_from_file_location("performance", ROOT / "benchmarks" / "performance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_makes(performance):
    page = performance.PAGE.read_text()
    assert performance.filled(page) == page, "run: python benchmarks/performance.py"


def test_so_is_that_of_scale(performance):
    page = performance.SCALE_PAGE.read_text()
    assert performance.filled(page, tables=performance.SCALE_TABLES) == page, "run: python benchmarks/performance.py"


def test_scale_is_computed_from_constants(performance, tmp_path):
    constants = {
        f"{name}_{unit}": 100.0
        for name in ("epoch32", "embedding32", "e_step", "iteration")
        for unit in ("us", "cpu_us")
    }
    constants |= {"step32_kb": 400.0, "e_step_kb": 500.0, "e_step_calls": 25, "bytes_per_subject": 1000.0}
    found = {
        "options": {"processes": [1, 2], "sizes": [32], "subjects": 6000}, "found": {"1": constants, "2": constants},
        "agreement": {"processes": 0.99, "seeds": 1.0},
        "machine": {"processor": "abacus", "cores": 2, "threads": 1, "load": [1.0, 1.0, 1.0]},
    }  # fmt: skip
    (tmp_path / "ranks.json").write_text(json.dumps(found))
    page = performance.filled(performance.SCALE_PAGE.read_text(), tmp_path, performance.SCALE_TABLES)
    assert "Processor time per image: 8 x 100 µs + 10 x 100 µs = 1.8 ms." in page
    assert "| processor time of training, in all | 30 minutes | 2.1 days |" in page
    assert "| memory of the E-step, 1 process | 1 GB | 100 GB |" in page
    assert "| gradient steps per epoch, and what each process sends | 3,906: 1.6 GB | 390,625: 160 GB |" in page
    assert "0.990 between one and 2 processes, 1.000 between two seeds of one." in page


def test_what_was_not_measured_is_said(performance, tmp_path):
    page = performance.filled(performance.PAGE.read_text(), tmp_path)
    assert page.count(performance.NOT_MEASURED) == len(performance.TABLES)
    assert performance.filled(page) == performance.filled(performance.PAGE.read_text())  # and filled in again


def test_numbers_reach_the_page(performance, tmp_path):
    machine = {"processor": "abacus", "cores": 2, "threads": 1, "load": [9.0, 9.0, 9.0]}
    cell = {
        "subgroups": 2, "seconds": {"scikit-learn": [0.5], "kmeans": [0.25], "sinkhorn_kmeans": [0.75]},
        "ratio": {"kmeans": 0.5, "sinkhorn_kmeans": 1.5}, "plan": {"here": {"seconds": [0.125], "error": 1e-7}},
    }  # fmt: skip
    slower = {**cell, "seconds": {name: [12 * each[0]] for name, each in cell["seconds"].items()}}
    cells = [{"count": 1000, **cell}, {"count": 10_000, **slower}]
    peak = {"what": "kmeans", "count": 1000, "embeddings_mb": 5, "subgroups": 2, "beyond_mb": 17}
    (tmp_path / "estep.json").write_text(json.dumps({"cells": cells, "memory": [peak], "machine": machine}))
    page = performance.filled(performance.PAGE.read_text(), tmp_path)
    assert "| 1,000 | 2 | 500 | 250 ms (0.50) | 750 ms (1.50) | 125 (sizes off by 1e-07) | – |" in page
    assert "Sinkhorn K-means, time per embedding beside that of the next smaller count: 1.20 (1 is linear)." in page
    assert "| K-means | 1,000 | 5 | 2 | 17 |" in page
    assert "**shared with other programs**" in page


def test_a_page_without_markers_is_refused(performance):
    with pytest.raises(ValueError, match="markers of 'estep'"):
        performance.filled("no table here")


def test_make_benchmark_runs_whatever_the_page_shows(performance):
    listed = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {file.removesuffix("-deep_ucsl") for file, _ in performance.TABLES.values()} == set(listed)
