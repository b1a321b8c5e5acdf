"""The one door for data: parsed once, the same for all who ask, and the same errors in `check` as in `discover`."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.opening import RESIZED, TableRecipe, open_cohort, open_table, read_cohort
from phenogroups.data.quality import check_table
from phenogroups.data.selection import Selection
from phenogroups.data.tables import TableSpec
from phenogroups.methods import UCSL
from phenogroups.workflows.discover import discover

COLUMNS = {"diagnosis": "dx", "image": "scan", "subject": "id", "group": "person", "covariates": ("age",)}


@pytest.fixture
def table(tmp_path):
    """Twelve subjects with pictures of 64 x 64, two of each person."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(12):
        Image.fromarray(rng.integers(0, 255, (64, 64), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        rows.append(
            {"id": f"s{i}", "person": f"p{i // 2}", "scan": f"{i}.png", "dx": int(i > 5), "age": i, "part": "a"}
        )
    pd.DataFrame(rows).to_csv(tmp_path / "subjects.csv", index=False)
    return tmp_path / "subjects.csv"


def edit(path, row, **cells):
    rows = pd.read_csv(path, dtype=str)
    for name, value in cells.items():
        rows.loc[row, name] = value
    rows.to_csv(path, index=False)


def test_a_table_is_parsed_once(table, monkeypatch):
    parsed, read = [], pd.read_csv
    monkeypatch.setattr(pd, "read_csv", lambda *given, **options: parsed.append(given) or read(*given, **options))
    assert len(Cohort.from_table(table, **COLUMNS)) == 12
    assert len(parsed) == 1


def test_what_is_given_wins_over_the_recipe(table):
    recipe = TableRecipe(
        table={**COLUMNS, "covariates": ()}, reading={"size": (8, 8)}, rows=Selection(leave_out={"id": ["s3"]})
    )
    opened = open_table(table, {"covariates": ("age",)}, {"size": (6, 6)}, recipe)
    assert opened.spec.covariates == ("age",)
    assert opened.notes == ()
    cohort = open_cohort(table, {"covariates": ("age",)}, {"size": (6, 6)}, recipe)
    assert cohort.inputs.shape == (11, 1, 6, 6)
    assert "s3" not in cohort.subject
    assert cohort.name == "subjects"


def test_images_are_resized_unless_another_encoder_is_asked_for(table):
    assert open_table(table, COLUMNS).notes == (RESIZED,)
    assert open_cohort(table, COLUMNS).input_shape == (1, 224, 224)
    assert open_cohort(table, COLUMNS, resized=False).input_shape == (1, 64, 64)
    assert open_cohort(table, TableSpec(**COLUMNS)).input_shape == (1, 64, 64)


def test_images_or_a_file_of_features(table):
    with pytest.raises(ValueError, match="--image or --features-file"):
        open_table(table, {**COLUMNS, "features_file": "f.npy"})


@pytest.mark.parametrize(
    ("row", "cells", "columns"),
    [
        (4, {"scan": "none.png"}, {}),
        (4, {"dx": "2"}, {}),
        (4, {"id": "s5"}, {}),
        (4, {"age": "old"}, {}),
        (4, {"part": "train"}, {"split": "part"}),
        (slice(0, 11), {"dx": "1"}, {}),
        (slice(0, 10), {"dx": "0"}, {}),  # one patient is left
        (slice(2, 9), {"person": "p"}, {}),
        (4, {}, {"covariates": ("iq",), "truth": "kind"}),
    ],
)
def test_check_says_what_discover_raises(table, row, cells, columns):
    edit(table, row, **cells)
    opened = open_table(table, {**COLUMNS, **columns}, resized=False)
    with pytest.raises(CohortError) as error:
        discover(read_cohort(opened), UCSL(), table.parent / "run")
    assert check_table(opened).problems == [str(error.value)]


def measured(**more):
    numbers = {f"volume{j}": range(j, j + 12) for j in range(12)}
    return pd.DataFrame({**numbers, "diagnosis": [0, 1] * 6, **more})


@pytest.mark.parametrize("name", ["age", "Age", "PatientAge", "age_at_scan", "SITE", "Unnamed: 0", "scan date", "ID"])
def test_what_describes_a_subject_is_no_feature_unless_it_is_named(name):
    rows = measured(**{name: range(12)})
    with pytest.raises(CohortError, match=f"Received also: '{name}', .* --subject, --group.*--features"):
        open_table(rows)
    assert name not in open_table(rows, {"covariates": (name,)}).spec.features
    assert open_table(rows, {"features": (name, "volume1")}).spec.features == (name, "volume1")
    assert len(open_table(measured(average=range(12), sexual_genes=range(12))).spec.features) == 14


def test_check_lists_the_features():
    facts = check_table(open_table(measured())).facts
    assert any(f.startswith("12 features: volume0, volume1,") and "volume9 and 2 more;" in f for f in facts)
