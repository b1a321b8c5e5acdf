import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.reading import Reading


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
