"""Tiny copies of the public layouts, read as the real ones would be."""

import nibabel
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups import cli
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.layouts import read_layout
from phenogroups.data.opening import read_cohort
from phenogroups.data.stored import StoredRows


@pytest.fixture
def draw(tmp_path):
    """Writes a random picture or volume at a path of the folder."""
    rng = np.random.default_rng(0)

    def picture(path: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith((".nii", ".nii.gz")):
            nibabel.save(nibabel.Nifti1Image(rng.random((4, 4, 4)).astype(np.float32), np.eye(4)), file)
        else:
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(file)

    return picture


def read(folder, **changes):
    from dataclasses import replace

    layout = read_layout(folder)
    return read_cohort(replace(layout, spec=replace(layout.spec, **changes))), list(layout.notes)


def test_class_folders(tmp_path, draw):
    for i in range(3):
        draw(f"healthy/{i}.png")
        draw(f"asthma/{i}.png")
        draw(f"copd/{i}.png")
    draw("copd/.hidden.png")
    (tmp_path / "asthma" / "read me.txt").write_text("about")
    cohort, notes = read(tmp_path, control=("healthy",), patient=("asthma", "copd"))
    assert list(cohort.diagnosis) == [1] * 6 + [0] * 3
    assert cohort.truth_names == ("asthma", "copd")
    assert len(set(cohort.group)) == 9
    assert "another person" in notes[0]
    assert "1 files that are no images (read me.txt)" in notes[1]
    with pytest.raises(CohortError, match="'asthma', 'copd', 'healthy' in 9 rows"):
        read(tmp_path)


def test_class_folders_with_persons_and_splits(tmp_path, draw):
    for split in ("train", "test"):
        for kind in ("control", "patient"):
            for person in ("p1", "p2"):
                draw(f"{split}/{kind}/{person}/left.png")
                draw(f"{split}/{kind}/{person}/right.png")
    cohort, notes = read(tmp_path)
    assert len(cohort) == 16
    assert len(set(cohort.group)) == 8
    assert not notes
    train, test = cohort.split()
    assert {name.split("/")[0] for name in train.subject} == {"train"}
    assert len(test) == 8


def test_chest_xrays(tmp_path, draw):
    for split in ("train", "test"):
        for name in ("NORMAL/IM-0429-0001.jpeg", "NORMAL/IM-0429-0001-0002.jpeg", "NORMAL/NORMAL2-IM-0001-0001.jpeg",
                     "PNEUMONIA/person1_virus_6.jpeg", "PNEUMONIA/person1_bacteria_1.jpeg"):  # fmt: skip
            draw(f"chest_xray/{split}/{name}")
    draw("chest_xray/__MACOSX/NORMAL/IM-0429-0001.jpeg")
    cohort, _ = read(tmp_path)
    assert len(cohort) == 10
    assert set(cohort.group) == {
        f"{s}-{p}" for s in ("train", "test") for p in ("IM-0429", "NORMAL2-IM-0001", "person1")
    }
    assert cohort.truth_names == ("bacteria", "virus")
    assert cohort.is_test.sum() == 5


def test_oct(tmp_path, draw):
    for name in ("NORMAL/NORMAL-12494-1", "NORMAL/NORMAL-12494-2", "CNV/CNV-1016042-1", "CNV/CNV-1016042-2",
                 "DME/DME-15307-1", "DRUSEN/DRUSEN-95633-1"):  # fmt: skip
        draw(f"OCT2017/train/{name}.jpeg")
    for kind in ("NORMAL", "CNV", "DME", "DRUSEN"):
        draw(f"OCT2017/test/{kind}/{kind}-7-1.jpeg")
    cohort, _ = read(tmp_path / "OCT2017")
    assert cohort.truth_names == ("CNV", "DME", "DRUSEN")
    assert cohort.is_patient.sum() == 7
    assert set(cohort.group) == {"12494", "1016042", "15307", "95633", "7"}
    draw("OCT2017/test/CNV/CNV-1016042-9.jpeg")
    with pytest.raises(CohortError, match=r"1 on both \(1016042\)"):
        read(tmp_path / "OCT2017")
    assert len(read(tmp_path / "OCT2017" / "train")[0]) == 6


def test_odir(tmp_path, draw):
    labels = ["N", "N", "D", "G", "C", "A", "M", "H", "O", "N"]
    rows = []
    for i, label in enumerate(labels):
        name = f"{i // 2}_{'left' if i % 2 else 'right'}.jpg"
        draw(f"preprocessed_images/{name}")
        draw(f"ODIR-5K/ODIR-5K/Training Images/{name}")
        flags = {letter: int(letter == label) for letter in "NDGCAHMO"}
        rows.append(
            {"ID": i // 2, "Patient Age": 50 + i, "Patient Sex": "Male", "Left-Fundus": f"{i // 2}_left.jpg",
             "Right-Fundus": f"{i // 2}_right.jpg", "Left-Diagnostic Keywords": "", "Right-Diagnostic Keywords": "",
             **flags, "filepath": f"../input/{name}", "labels": f"['{label}']", "target": str(list(flags.values())),
             "filename": name}
        )  # fmt: skip
    rows[-1]["labels"] = "['D', 'C']"
    pd.DataFrame(rows).to_csv(tmp_path / "full_df.csv", index=False)
    cohort, notes = read(tmp_path)
    assert list(cohort.diagnosis) == [0, 0, 1, 1, 1, 1, 1]
    assert list(cohort.group) == ["0", "0", "1", "1", "2", "2", "3"]
    assert cohort.truth_names == ("amd", "cataract", "diabetes", "glaucoma", "myopia")
    assert list(cohort.covariates["age"][:2]) == [50, 51]
    assert all(name.startswith("preprocessed_images/") for name in cohort.subject)
    assert notes == [
        "Left out, not among normal and the paper's five kinds: 1 ambiguous, 1 hypertension, 1 other eyes."
    ]


def test_odir_by_the_labels_of_the_patient(tmp_path, draw):
    """Exactly one of six, H and O ignored; both eyes of a patient count as what the patient has."""
    patients = ["N", "DO", "DH", "DC", "O", "H", "NO", "M"]
    rows = []
    for i, letters in enumerate(patients):
        for side, label in (("left", letters[0]), ("right", "N")):
            draw(f"preprocessed_images/{i}_{side}.jpg")
            flags = {letter: int(letter in letters) for letter in "NDGCAHMO"}
            rows.append({"ID": i, **flags, "labels": f"['{label}']", "filename": f"{i}_{side}.jpg"})
    pd.DataFrame(rows).to_csv(tmp_path / "full_df.csv", index=False)
    table = read_layout(tmp_path, "patient")
    kinds = [("normal", ""), ("ill", "diabetes"), ("ill", "diabetes"), ("normal", ""), ("ill", "myopia")]
    assert list(zip(table.rows["diagnosis"], table.rows["kind"], strict=True)) == [k for k in kinds for _ in "lr"]
    assert sorted(set(table.rows["group"])) == ["0", "1", "2", "6", "7"]
    assert set(read_layout(tmp_path).rows.query("group == '1'")["diagnosis"]) == {"ill", "normal"}  # by eyes


def test_bids(tmp_path, draw):
    people = pd.DataFrame(
        {"participant_id": [f"sub-{i:02d}" for i in range(5)], "group": ["HC", "HC", "SZ", "SZ", "SZ"],
         "age": ["21", "n/a", "30", "31", "32"]}
    )  # fmt: skip
    people.to_csv(tmp_path / "participants.tsv", sep="\t", index=False)
    for i in range(3):
        draw(f"sub-{i:02d}/anat/sub-{i:02d}_T1w.nii.gz")
        draw(f"sub-{i:02d}/func/sub-{i:02d}_bold.nii.gz")
    for session in (1, 2):
        draw(f"sub-03/ses-{session}/anat/sub-03_ses-{session}_T1w.nii.gz")
    draw("sub-99/anat/sub-99_T1w.nii.gz")
    cohort, notes = read(tmp_path, diagnosis="group", control=("HC",), patient=("SZ",), covariates=("age",))
    assert list(cohort.subject) == [
        "sub-00_T1w", "sub-01_T1w", "sub-02_T1w", "sub-03_ses-1_T1w", "sub-03_ses-2_T1w"
    ]  # fmt: skip
    assert list(cohort.group[-2:]) == ["sub-03", "sub-03"]
    assert cohort.inputs.shape == (5, 1, 4, 4, 4)
    assert np.isnan(cohort.covariates["age"][1])
    assert "1 participants without a T1w scan (sub-04)" in notes[0]
    assert "1 folders that participants.tsv does not name (sub-99)" in notes[1]


def test_one_folder_per_site(tmp_path, draw):
    for site, ids in (("lyon", ("sub-01", "sub-1", "sub-02")), ("ulm", ("01", "02", "03"))):
        people = pd.DataFrame({"participant_id": ids, "dx": ["HC", "SZ", "SZ"], "age": [20, 30, 40]})
        (tmp_path / site).mkdir()
        people.assign(**({"sex": "F"} if site == "ulm" else {})).to_csv(
            tmp_path / site / "participants.tsv", sep="\t", index=False
        )
    draw("lyon/maps/mwp1sub-01_ses-02_T1w.nii.gz")  # 02 is the session here, not the participant
    draw("lyon/maps/mwp2sub-01_ses-02_T1w.nii.gz")
    draw("lyon/maps/mwp1sub-1_T1w.nii")
    draw("lyon/sub-02/anat/T1w.nii.gz")
    for name in ("01", "02_scan"):
        np.save(tmp_path / "ulm" / f"{name}.npy", np.zeros((1, 4, 4, 4), np.float32))
    (tmp_path / "ulm" / "quality.png").write_bytes(b"no volume")
    cohort, notes = read(tmp_path, diagnosis="dx", control=("HC",), patient=("SZ",))
    assert list(cohort.subject) == [
        "lyon/maps/mwp1sub-01_ses-02_T1w.nii.gz", "lyon/maps/mwp1sub-1_T1w.nii", "lyon/sub-02/anat/T1w.nii.gz",
        "ulm/01.npy", "ulm/02_scan.npy",
    ]  # fmt: skip
    assert list(cohort.group) == ["lyon/sub-01", "lyon/sub-1", "lyon/sub-02", "ulm/01", "ulm/02"]
    assert list(cohort.diagnosis) == [0, 1, 1, 0, 1]
    assert list(cohort.covariates.columns) == ["age", "site"]  # sex is known at one site only
    assert list(cohort.covariates["site"]) == ["lyon"] * 3 + ["ulm"] * 2
    assert notes == ["Left out: 1 participants without a volume (ulm/03)."]
    for path in tmp_path.rglob("*.n*"):
        path.unlink()
    with pytest.raises(CohortError, match="none of 6 participants"):
        read_layout(tmp_path)
    (tmp_path / "ulm" / "participants.tsv").write_text("person\tdx\n01\tHC\n")
    with pytest.raises(CohortError, match=r"Expected the column participant_id in .*ulm"):
        read_layout(tmp_path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_files_of_mnist_are_named_by_digit(tmp_path, ending, capsys):
    (tmp_path / f"train-images-idx3-ubyte{ending}").write_bytes(b"")
    assert cli.main(["check", str(tmp_path)]) == 1
    assert f"mnist7 --data {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "notes.txt", "control/notes.txt", "participants.tsv", "full_df.csv"])
def test_a_folder_that_is_no_cohort_is_refused(tmp_path, content):
    if content:
        (tmp_path / content).parent.mkdir(exist_ok=True)
        (tmp_path / content).write_text("a\n1\n")
    with pytest.raises(CohortError, match="Expected"):
        read_layout(tmp_path)


def test_a_folder_goes_where_a_table_does(tmp_path, draw, capsys):
    for i in range(8):
        draw(f"train/ok/{i}.png")
        draw(f"train/ill/{i}.png")
        draw(f"new/{i}.png")
    run = str(tmp_path / "run")
    command = ["discover", str(tmp_path / "train"), "--control", "ok", "--patient", "ill", "--out", run]
    assert cli.main([*command, "--set", "epochs=1", "steps=2", "restarts=1"]) == 0
    assert "8 patients and 8 controls, images of shape (1, 8, 8)" in capsys.readouterr().out
    assert cli.main(["predict", run, str(tmp_path / "new")]) == 0
    assert list(pd.read_csv(tmp_path / "new.subgroups.csv")["subject"]) == [f"{i}.png" for i in range(8)]


def test_a_folder_in_python(tmp_path, draw):
    for i in range(3):
        draw(f"control/{i}.png")
        draw(f"patient/{i}.png")
    cohort = Cohort.from_table(tmp_path, cache=tmp_path / ".cache")
    assert cohort.is_patient.sum() == 3
    assert isinstance(cohort.inputs, StoredRows)
