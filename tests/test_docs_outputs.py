"""docs/reference/files.md names every file of a run folder and every column of its tables."""

from pathlib import Path

import pandas as pd

from phenogroups.methods import DeepUCSL
from phenogroups.training.run import FILES
from phenogroups.workflows.discover import discover

TEXT = (Path(__file__).parents[1] / "docs" / "reference" / "files.md").read_text(encoding="utf-8")


def test_every_file_and_every_column_is_explained(features, tmp_path):
    discover(features, DeepUCSL(epochs=2, steps=2, restarts=1), tmp_path / "run")
    only_where_asked = {"confounds.csv", "profiles.csv", "profiles.tex", "criteria.csv", "choice.json", "log.txt"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES - only_where_asked
    names = [*FILES]
    names += pd.read_csv(tmp_path / "run" / "subgroups.csv", nrows=0).columns.tolist()
    losses = {"classification", "clustering"}  # a method's own: "one column per loss"
    names += [name for name in pd.read_csv(tmp_path / "run" / "history.csv", nrows=0).columns if name not in losses]
    of_every_letter = {"distance_B", "size_B"}  # explained with A
    missing = [name for name in names if f"`{name}`" not in TEXT and name not in of_every_letter]
    assert missing == []
