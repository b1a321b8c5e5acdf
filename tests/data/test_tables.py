import json
import sys
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.opening import open_cohort
from phenogroups.data.reading import Reading
from phenogroups.data.tables import TableSpec, spec_from_json


@pytest.fixture
def table(tmp_path):
    """Eight subjects with 8x8 pictures, two eyes per person."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(8):
        Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        rows.append(
            {"id": f"sub-{i}", "person": f"p{i // 2}", "scan": f"{i}.png", "dx": "HC" if i < 4 else "SZ", "age": 20 + i,
             "sex": "FM"[i % 2], "kind": "" if i < 4 else "ab"[i % 2]}
        )  # fmt: skip
    path = tmp_path / "subjects.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


COLUMNS = {"diagnosis": "dx", "image": "scan", "subject": "id", "control": ("HC",), "patient": ("SZ",)}


def edit(path, **columns):
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    for name, values in columns.items():
        rows[name] = values
    rows.to_csv(path, index=False)
    return path


def test_reads_everything(table):
    cohort = Cohort.from_table(table, **COLUMNS, group="person", covariates=("age", "sex"), truth="kind")
    assert cohort.inputs.shape == (8, 1, 8, 8)
    assert 0 <= cohort.inputs.min() <= cohort.inputs.max() <= 1
    assert list(cohort.diagnosis) == [0] * 4 + [1] * 4
    assert list(cohort.group[:4]) == ["p0", "p0", "p1", "p1"]
    assert cohort.covariates["age"].dtype.kind in "if"
    assert list(cohort.covariates["sex"][:2]) == ["F", "M"]
    assert cohort.truth_names == ("a", "b")
    assert list(cohort.truth) == [-1, -1, -1, -1, 0, 1, 0, 1]


def test_tsv_and_features(tmp_path):
    rows = pd.DataFrame(
        {"diagnosis": ["control", "patient", "1.0", "0"], "x": [1, 2, 3, 4.5], "note": ["a", "b", "c", "d"]}
    )
    path = tmp_path / "participants.tsv"
    rows.to_csv(path, sep="\t", index=False)
    cohort = Cohort.from_table(path)
    assert cohort.inputs.tolist() == [[1], [2], [3], [4.5]]
    assert list(cohort.diagnosis) == [0, 1, 1, 0]


def test_sizes_and_channels_are_brought_to_one(table, tmp_path):
    Image.fromarray(np.zeros((16, 12, 3), dtype=np.uint8)).save(tmp_path / "0.png")
    with pytest.raises(CohortError) as error:
        Cohort.from_table(table, **COLUMNS)
    assert "(1, 8, 8), channels first, as most have" in str(error.value)
    assert "(3, 16, 12) in 1 row (sub-0)" in str(error.value)
    cohort = Cohort.from_table(table, **COLUMNS, reading=Reading(size=(8, 8), channels=1))
    assert cohort.inputs.shape == (8, 1, 8, 8)


def test_npy_and_nifti(table, tmp_path):
    import nibabel

    volume = np.random.default_rng(0).random((4, 5, 6)).astype(np.float32)
    names = []
    for i in range(8):
        names.append(f"{i}.nii.gz" if i % 2 else f"{i}.npy")
        if i % 2:
            nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / names[-1])
        else:
            np.save(tmp_path / names[-1], volume[None])
    cohort = Cohort.from_table(edit(table, scan=names), **COLUMNS)
    np.testing.assert_allclose(cohort.inputs[0], cohort.inputs[1], atol=1e-6)
    assert cohort.inputs.shape == (8, 1, 4, 5, 6)


def test_unreadable_files_are_all_named(table, tmp_path):
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:40])
    (tmp_path / "5.png").unlink()
    np.save(tmp_path / "6.npy", np.full((8, 8), np.nan))
    edit(table, scan=[f"{i}.png" for i in range(6)] + ["6.npy", ""])
    with pytest.raises(CohortError) as error:
        Cohort.from_table(table, **COLUMNS)
    message = str(error.value)
    assert "4 that are not" in message
    for words in (
        "row 2 (sub-1): 1.png cannot be read",
        "row 6 (sub-5): 5.png does not exist",
        "NaN",
        "the cell is empty",
    ):
        assert words in message


def test_of_missing_files_the_first_are_named_and_where_they_were_looked_for(table, tmp_path):
    for i in range(1, 8):
        (tmp_path / f"{i}.png").unlink()
    with pytest.raises(CohortError) as error:
        Cohort.from_table(table, **COLUMNS)
    lines = [line.strip() for line in str(error.value).splitlines()]
    assert lines[1:6] == [f"row {i + 1} (sub-{i}): {i}.png does not exist" for i in range(1, 6)]
    assert lines[6:] == [
        "and 2 more that do not exist",
        f"Files were looked for in {tmp_path}. If their paths begin elsewhere, say where (--folder).",
    ]


def test_paths_of_windows_and_of_the_working_directory(table, tmp_path, monkeypatch):
    (tmp_path / "img").mkdir()
    for i in range(8):
        (tmp_path / f"{i}.png").rename(tmp_path / "img" / f"{i}.png")
    assert len(Cohort.from_table(edit(table, scan=[f"img\\{i}.png" for i in range(8)]), **COLUMNS)) == 8
    monkeypatch.chdir(tmp_path.parent)
    whole = edit(table, scan=[f"{tmp_path.name}/img/{i}.png" for i in range(8)])
    assert len(Cohort.from_table(whole, **COLUMNS)) == 8
    (tmp_path / "tables").mkdir()
    with pytest.raises(CohortError, match=r"but in the working directory \(--folder \.\)"):
        Cohort.from_table(whole.rename(tmp_path / "tables" / "subjects.csv"), **COLUMNS)
    assert len(Cohort.from_table(tmp_path / "tables" / "subjects.csv", folder=".", **COLUMNS)) == 8
    spoilt = edit(tmp_path / "tables" / "subjects.csv", scan=[f"..\\img\\{i}.png" for i in range(8)])
    with pytest.raises(CohortError, match="leads out of the folder"):
        Cohort.from_table(spoilt, **COLUMNS)


@pytest.mark.parametrize(
    ("change", "columns", "words"),
    [
        ({}, {"diagnosis": "group"}, ["the column 'group'", "'dx'"]),
        ({}, {"image": "file"}, ["the column 'file'"]),
        (
            {"dx": ["HC"] * 3 + ["SZ"] * 3 + ["BD"] * 2},
            {},
            ["'HC' (control)", "'SZ' (patient)", "'BD' in 2 rows (sub-6, sub-7)"],
        ),
        ({"dx": ["HC"] * 7 + [""]}, {"patient": ()}, ["'' in 1 row (sub-7)"]),
        ({}, {"control": (), "patient": ()}, ["'0' or 'control'", "'HC', 'SZ' in 8 rows"]),
        ({}, {"patient": ("HC", "SZ")}, ["control or patient", "HC"]),
        (
            {"dx": ["HC"] * 3 + ["hc"] + ["SZ"] * 4},  # a slip of the pen must not make a patient
            {"patient": ()},
            ["'HC' (control) or one other word (patient)", "'SZ', 'hc' in 5 rows (sub-3,"],
        ),
        ({"id": ["x"] * 8}, {}, ["every subject id once"]),
    ],
)
def test_bad_tables_get_one_clear_message(table, change, columns, words):
    with pytest.raises(CohortError) as error:
        Cohort.from_table(edit(table, **change), **{**COLUMNS, **columns})
    for word in words:
        assert word in str(error.value)


def test_a_feature_that_is_no_number_is_named(tmp_path):
    path = tmp_path / "t.csv"
    pd.DataFrame({"diagnosis": [0, 1, 1], "x": ["1", "", "two"], "y": [1, 2, 3]}).to_csv(path, index=False)
    with pytest.raises(CohortError) as error:
        Cohort.from_table(path)
    assert "2 cells that are not, in 2 rows (row2, row3): 'x' of row2, 'x' of row3" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"a,b\n", b"\xff\xfe\x00", b'a,"b\n1,2'])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(CohortError):
        Cohort.from_table(path)


def test_one_list_of_words_is_enough(table):
    cohort = Cohort.from_table(table, **{**COLUMNS, "patient": ()})
    assert cohort.is_patient.sum() == 4


@pytest.fixture
def embeddings(tmp_path):
    """A table of four subjects and their six numbers each."""
    values = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    path = tmp_path / "subjects.csv"
    pd.DataFrame({"id": list("abcd"), "diagnosis": [0, 1, 0, 1]}).to_csv(path, index=False)
    return path, values


@pytest.mark.parametrize("kind", ["npy", "npz", "named npz", "parquet", "named parquet"])
def test_features_from_a_file(embeddings, tmp_path, kind):
    table, values = embeddings
    file, turned = tmp_path / f"features.{kind.split()[-1]}", [3, 1, 0, 2]  # whoever is named is found in any order
    if kind == "npy":
        np.save(file, values)
    elif kind == "npz":
        np.savez(file, embedding=values)
    elif kind == "named npz":
        np.savez(file, embedding=values[turned], name=np.array(list("abcd"))[turned])
    else:
        rows = pd.DataFrame(values, columns=[f"e{j}" for j in range(6)])
        rows = rows.assign(subject=list("abcd")).iloc[turned] if kind == "named parquet" else rows
        rows.to_parquet(file)
    cohort = Cohort.from_table(table, subject="id", features_file=str(file))
    np.testing.assert_array_equal(cohort.inputs, values)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"embedding": np.zeros((3, 2))}, "Expected 4 rows of features, one per row of the table. Received: 3"),
        ({"embedding": np.zeros(4)}, "numbers (rows, features)"),
        ({"a": np.zeros((4, 2)), "b": np.zeros((4, 2))}, "one array of features"),
        ({"embedding": np.zeros((4, 2)), "name": np.array(list("abcx"))}, "none of 1 row (d)"),
        ({"embedding": np.zeros((4, 2)), "name": np.array(list("aacd"))}, "every name once"),
        ({"embedding": np.array([[0.0], [1], [np.nan], [2]])}, "NaN or infinite values in 1 row (c)"),
    ],
)
def test_a_wrong_features_file_gets_one_message(embeddings, tmp_path, content, words):
    np.savez(tmp_path / "features.npz", **content)
    with pytest.raises(CohortError) as error:
        Cohort.from_table(embeddings[0], subject="id", features_file=str(tmp_path / "features.npz"))
    assert words in str(error.value)


def test_parquet_without_pyarrow_says_what_to_install(embeddings, tmp_path, monkeypatch):
    pd.DataFrame(embeddings[1]).rename(columns=str).to_parquet(tmp_path / "features.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CohortError, match=r"pip install 'phenogroups\[parquet\]'"):
        Cohort.from_table(embeddings[0], features_file=str(tmp_path / "features.parquet"))


def test_tables_as_spreadsheets_write_them(tmp_path):
    rows = pd.DataFrame({"diagnosis": [0, 1, 1], "x": [1.5, 2, 3]})
    rows.to_csv(tmp_path / "a.csv", sep=";", index=False, encoding="utf-8-sig")
    rows.to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        assert Cohort.from_table(tmp_path / name).inputs.tolist() == [[1.5], [2], [3]]
    for name in ("a.xlsx", "a.ods"):
        (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(CohortError, match="Save the sheet as CSV"):
            Cohort.from_table(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_and_decimal_commas(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_text("diagnosis;größe;ort\n0;1,5;Köln\n1;-2;Ulm\n1;3,25e1;Genève\n", encoding=encoding)
    cohort = Cohort.from_table(path, covariates=("ort",))
    assert cohort.inputs.tolist() == [[1.5], [-2], [32.5]]
    assert list(cohort.covariates["ort"]) == ["Köln", "Ulm", "Genève"]


def test_what_is_no_text_is_refused_with_its_line(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"diagnosis,x\n0,1\n1,\x00\x81\n")
    with pytest.raises(CohortError, match=r"line 3 is no text in UTF-8, UTF-16 or Latin-1.* Save it as CSV"):
        Cohort.from_table(tmp_path / "t.csv")


def test_excel(tmp_path, monkeypatch):
    rows = pd.DataFrame({"diagnosis": [0, 1, 1], "x": [1.5, 2, 3], "id": ["a", "b", "c"]})
    rows.to_excel(tmp_path / "t.xlsx", index=False)
    cohort = Cohort.from_table(tmp_path / "t.xlsx", subject="id")
    assert cohort.inputs.tolist() == [[1.5], [2], [3]]
    assert cohort.diagnosis.tolist() == [0, 1, 1]
    assert list(cohort.subject) == ["a", "b", "c"]
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(CohortError, match=r"pip install 'phenogroups\[excel\]', or save the sheet as CSV"):
        Cohort.from_table(tmp_path / "t.xlsx")


def test_a_column_that_was_nearly_named(table):
    rows = pd.read_csv(table, dtype=str).rename(columns={"dx": "dx ", "scan": "Scans"})
    with pytest.raises(CohortError, match=r"Expected the column 'scan'.* Did you mean 'Scans'\?"):
        Cohort.from_table(rows.rename(columns={"dx ": "dx"}), **COLUMNS)
    with pytest.raises(CohortError, match=r"Expected the column 'dx'.* Did you mean 'dx '\?"):
        Cohort.from_table(rows, **{**COLUMNS, "image": "Scans"}, folder=table.parent)


def test_rows_are_named_by_their_images(table):
    unnamed = {**COLUMNS, "subject": None}
    assert list(Cohort.from_table(table, **unnamed).subject) == [f"{i}.png" for i in range(8)]
    twice = edit(table, scan=["0.png", *[f"{i}.png" for i in range(7)]])
    assert Cohort.from_table(twice, **unnamed).subject[0] == "row1"


def test_a_path_stays_in_its_folder(table, tmp_path):
    inside = [str(tmp_path / "0.png"), "../" + tmp_path.name + "/1.png", *[f"./{i}.png" for i in range(2, 8)]]
    assert len(Cohort.from_table(edit(table, scan=inside), **COLUMNS)) == 8
    home = tmp_path / "tables"
    home.mkdir()
    moved = home / "subjects.csv"
    table.rename(moved)
    with pytest.raises(CohortError) as error:
        Cohort.from_table(edit(moved, scan=[f"../{i}.png" for i in range(8)]), **COLUMNS)
    assert "row 8 (sub-7): ../7.png leads out of the folder" in str(error.value)
    assert "--folder" in str(error.value)
    (home / "links").symlink_to(tmp_path)  # made by whoever owns the folder
    assert len(Cohort.from_table(edit(moved, scan=[f"links/{i}.png" for i in range(8)]), **COLUMNS)) == 8
    cohort = open_cohort(edit(moved, scan=[f"{i}.png" for i in range(8)]), TableSpec(**COLUMNS), folder=tmp_path)
    assert len(cohort) == 8


def test_a_split_column_is_taken_at_its_word(table):
    edit(table, part=["train", "train", "test", "test", "Train", "train", "test", "test"])
    train, test = Cohort.from_table(table, **COLUMNS, group="person", split="part").split()
    assert list(train.subject) == ["sub-0", "sub-1", "sub-4", "sub-5"]
    assert list(test.subject) == ["sub-2", "sub-3", "sub-6", "sub-7"]


def test_recipes_of_other_versions():
    now = json.loads(json.dumps(asdict(TableSpec(image="scan", reading=Reading((8, 8), 1, "minmax", (9, 9))))))
    assert spec_from_json(now) == TableSpec(image="scan", reading=Reading((8, 8), 1, "minmax", (9, 9)))
    older = {**now, "reading": {"size": [8, 8], "channels": 1, "intensity": "unit"}}
    del older["split"], older["features_file"]
    assert spec_from_json(older) == TableSpec(image="scan", reading=Reading((8, 8), 1))
    newer = {**now, "reading": {**now["reading"], "denoise": None}, "weights": []}
    assert spec_from_json(newer) == spec_from_json(now)
    with pytest.raises(CohortError, match="denoise, which this version does not know"):
        spec_from_json({**now, "reading": {**now["reading"], "denoise": 3}})
