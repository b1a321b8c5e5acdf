"""What a check says of cohorts with one thing wrong each."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups import cli
from phenogroups.data.opening import open_table
from phenogroups.data.quality import check_cohort, check_table
from phenogroups.data.reading import Reading
from phenogroups.data.tables import TableSpec

SPEC = TableSpec(
    diagnosis="dx", control=("HC",), patient=("SZ",), image="scan", subject="id", group="person",
    covariates=("age", "sex"), truth="kind",
)  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """Forty persons with 8 x 8 pictures, controls first."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(40):
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        ill = i >= 20
        rows.append(
            {"id": f"sub-{i:02d}", "person": f"p{i // 2}", "scan": f"{i}.png", "dx": "SZ" if ill else "HC",
             "age": 20 + i, "sex": "FM"[i % 2], "kind": "ab"[i % 2] if ill else "", "part": "train"}
        )  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "subjects.csv", index=False)
    return tmp_path


def check(home, **changes):
    from dataclasses import replace

    return check_table(open_table(home / "subjects.csv", replace(SPEC, **changes)))


def edit(home, row, **cells):
    rows = pd.read_csv(home / "subjects.csv", dtype=str, keep_default_na=False)
    for name, value in cells.items():
        rows.loc[row, name] = value
    rows.to_csv(home / "subjects.csv", index=False)


def test_a_clean_cohort(table):
    found = check(table)
    assert found.may_start
    assert found.warnings == []
    assert found.verdict == "Training may start."
    assert found.facts == [
        "40 rows: 20 patients, 20 controls.",
        "Known subgroups of patients: a 10, b 10; 0 unknown.",
        "20 groups, the largest of 2 rows.",
        "Covariate age: numbers, 20 to 59.",
        "Covariate sex: 2 words (F 20, M 20).",
        "Formats: png (40).", "Types: uint8 (40).", "Channels: 1 (40).", "Sizes: 8 x 8 (40).",
        "The network would see (1, 8, 8), channels first.",
    ]  # fmt: skip


def copied(home):
    (home / "1.png").write_bytes((home / "0.png").read_bytes())


def copied_across(home):
    (home / "30.png").write_bytes((home / "3.png").read_bytes())


def copied_across_splits(home):
    (home / "4.png").write_bytes((home / "2.png").read_bytes())
    edit(home, slice(4, 9), part="test")
    edit(home, slice(30, 39), part="test")


def all_larger(home):
    for i in range(20, 40):
        Image.open(home / f"{i}.png").resize((9, 9)).save(home / f"{i}.png")


def other_format(home):
    for i in range(20, 40):
        Image.open(home / f"{i}.png").save(home / f"{i}.tif")
        edit(home, i, scan=f"{i}.tif")


def brighter(home):
    for i in range(20, 40):
        Image.fromarray(np.asarray(Image.open(home / f"{i}.png")) // 4 + 180).save(home / f"{i}.png")


def colours(home):
    for i in range(20, 40):
        Image.open(home / f"{i}.png").convert("RGB").save(home / f"{i}.png")


def black(home):
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(home / "5.png")


def unreadable(home):
    (home / "7.png").write_bytes(b"\x89PNG")
    (home / "9.png").unlink()
    np.save(home / "11.npy", np.full((8, 8), np.nan))
    edit(home, 11, scan="11.npy")


@pytest.mark.parametrize(
    ("spoil", "changes", "problems", "warnings"),
    [
        (unreadable, {}, ["Received 3 that are not", "row 8 (sub-07): 7.png cannot be read",
                          "row 10 (sub-09): 9.png does not exist", "row 12 (sub-11): 11.npy holds NaN"], []),
        (copied, {}, [], ["1 input more than once; drop the copies:", "row 1 (sub-00): 0.png = row 2 (sub-01): 1.png"]),
        (copied, {"group": None}, [], ["or give them one group: else one may be held out"]),
        (copied_across, {}, ["1 input in both diagnoses", "row 4 (sub-03): 3.png = row 31 (sub-30): 30.png"], []),
        (copied_across_splits, {"split": "part"}, ["1 input in both parts of the split", "row 3 (sub-02)"], []),
        (all_larger, {"reading": Reading((8, 8))}, [], ["differ in size (patients: 9 x 9 (20); controls: 8 x 8 (20))"]),
        (all_larger, {}, ["Expected images of shape"], ["differ in size"]),
        (other_format, {}, [], ["differ in format (patients: tiff (20); controls: png (20))"]),
        (brighter, {}, [], ["differ in mean brightness"]),
        (colours, {"reading": Reading(channels=1)}, [], ["differ in channels (patients: 3 (20); controls: 1 (20))"]),
        (black, {}, [], ["1 image of one value throughout", "row 6 (sub-05): 5.png"]),
        (black, {"reading": Reading(intensity="minmax")}, ["row 6 (sub-05): 5.png is constant"], []),
        (lambda h: edit(h, 4, sex="x"), {}, [],
         ["Covariate sex has codes that may be typing errors: 'x' in 1 row (sub-04)"]),
        (lambda h: edit(h, 4, sex="f"), {}, [], ["'F', 'f' in 1 row (sub-04)"]),
        (lambda h: edit(h, 4, age="old"), {}, ["numbers in the covariate 'age'", "'old' in 1 row (sub-04)"], []),
        (lambda h: edit(h, 4, dx="XX"), {}, ["'XX' in 1 row (sub-04)"], []),
        (lambda h: edit(h, slice(0, 39), dx="HC"), {}, ["one class, all controls"], []),
        (lambda h: edit(h, 4, id="sub-05"), {}, ["every subject id once", "2 rows (sub-05, sub-05)"], []),
        (lambda h: edit(h, 4, part="test"), {"split": "part"}, ["every group on one side", "1 on both (p2)"], []),
        (lambda h: edit(h, 4, scan="/etc/hostname"), {}, ["row 5 (sub-04): /etc/hostname leads out of the folder"], []),
        (lambda h: None, {"covariates": ("iq",), "truth": "what", "group": "who"}, ["'iq'", "'what'", "'who'"], []),
    ],
)  # fmt: skip
def test_each_oddity_is_said(table, spoil, changes, problems, warnings):
    spoil(table)
    before = sorted(table.iterdir())
    found = check(table, **changes)
    assert found.may_start == (not problems)
    for words in problems:
        assert words in "\n".join(found.problems)
    for words in warnings:
        assert words in "\n".join(found.warnings)
    if not warnings:
        assert found.warnings == []
    assert sorted(table.iterdir()) == before


def test_features_and_cohorts(features):
    assert check_cohort(features).may_start
    rows = pd.DataFrame(features.inputs, columns=[f"x{j}" for j in range(6)]).assign(diagnosis=features.diagnosis, x6=1)
    rows.loc[3, "x0":"x5"] = rows.loc[1, "x0":"x5"]
    found = check_table(open_table(rows, TableSpec()))
    assert "7 features" in "\n".join(found.facts)
    assert "1 feature with one value in all rows (x6)" in "\n".join(found.warnings)
    assert "row 2 (row2) = row 4 (row4)" in "\n".join(found.warnings)


COLUMNS = ["--diagnosis", "dx", "--control", "HC", "--patient", "SZ", "--image", "scan", "--subject", "id"]


def test_the_command_says_whether_to_start(table, capsys):
    assert cli.main(["check", str(table / "subjects.csv"), *COLUMNS]) == 0
    assert capsys.readouterr().out.endswith("Training may start.\n")
    unreadable(table)
    assert cli.main(["check", str(table / "subjects.csv"), *COLUMNS]) == 1
    printed = capsys.readouterr().out
    assert "Problem: Expected a readable file in every row. Received 3 that are not" in printed
    assert "Training should not start: 1 problem to correct." in printed
    assert cli.main(["check", str(table / "none.csv"), *COLUMNS]) == 1  # a finding like any other
    assert "which does not exist" in capsys.readouterr().out


def test_a_folder_can_be_checked(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for kind in ("control", "patient"):
        (tmp_path / kind).mkdir()
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / kind / f"{i}.png")
    assert cli.main(["check", str(tmp_path)]) == 0
    assert "12 rows: 6 patients, 6 controls." in capsys.readouterr().out
