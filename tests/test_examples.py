"""Every example runs, at small size."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_drawn_digits(tmp_path):
    printed = run("01_drawn_digits.py", "--subjects", 120, "--epochs", 2, "--picture", tmp_path / "demo.png")
    assert "subgroup_bacc=" in printed
    assert (tmp_path / "demo.png").stat().st_size > 10_000
