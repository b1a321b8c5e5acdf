"""Bad input of every kind: one message that names row, file and remedy, before training, and nothing is left behind."""

import gzip

import nibabel
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups import cli

COLUMNS = [
    "--image", "scan", "--diagnosis", "dx", "--control", "HC", "--patient", "SZ", "--subject", "id",
    "--group", "person", "--covariates", "age", "sex",
]  # fmt: skip


@pytest.fixture
def home(tmp_path, request):
    """Twelve JPEG pictures or NIfTI volumes in a folder, and a picture beside it."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "home"
    folder.mkdir()
    Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / "secret.jpeg")
    rows = []
    for i in range(12):
        name = f"{i}.nii.gz" if request.param == "volumes" else f"{i}.jpeg"
        if request.param == "volumes":
            save(folder / name, rng.random((4, 4, 4)))
        else:
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / name)
        rows.append(
            {"id": f"sub-{i:02d}", "person": f"p{i // 2}", "scan": name, "dx": "SZ" if i % 4 > 1 else "HC",
             "age": 30 + i, "sex": "FM"[i % 2], "part": "test" if i > 7 else "train"}
        )  # fmt: skip
    pd.DataFrame(rows).to_csv(folder / "subjects.csv", index=False)
    return folder


def save(path, volume):
    nibabel.save(nibabel.Nifti1Image(volume.astype(np.float32), np.eye(4)), path)


def edit(home, row=3, **cells):
    rows = pd.read_csv(home / "subjects.csv", dtype=str, keep_default_na=False)
    for name, value in cells.items():
        rows.loc[row, name] = value
    rows.to_csv(home / "subjects.csv", index=False)


def cut(home):
    (home / "3.jpeg").write_bytes((home / "3.jpeg").read_bytes()[:-40])


def nothing(home):
    (home / "3.nii.gz").write_bytes(b"")


def header_only(home):
    raw = gzip.decompress((home / "3.nii.gz").read_bytes())
    (home / "3.nii.gz").write_bytes(gzip.compress(raw[:352]))


def no_voxels(home):
    save(home / "3.nii.gz", np.zeros((4, 0, 4)))


def nan_voxel(home):
    volume = np.zeros((4, 4, 4))
    volume[1, 2, 3] = np.nan
    save(home / "3.nii.gz", volume)


def constant(home):
    save(home / "3.nii.gz", np.ones((4, 4, 4)))


def time_series(home):
    save(home / "3.nii.gz", np.random.default_rng(0).random((4, 4, 4, 2)))


def colour(home):
    Image.open(home / "3.jpeg").convert("RGB").save(home / "3.jpeg")


def larger(home):
    save(home / "3.nii.gz", np.random.default_rng(0).random((5, 4, 4)))


P, V = "pictures", "volumes"
CASES = {
    "truncated JPEG": (P, cut, [], ["row 4 (sub-03): 3.jpeg cannot be read", "correct or drop"]),
    "no JPEG": (P, lambda h: (h / "3.jpeg").write_text("hello"), [], ["row 4 (sub-03): 3.jpeg cannot be read"]),
    "empty file": (V, nothing, [], ["row 4 (sub-03): 3.nii.gz is an empty file"]),
    "NIfTI without data": (V, header_only, [], ["row 4 (sub-03): 3.nii.gz cannot be read"]),
    "NIfTI without voxels": (V, no_voxels, [], ["row 4 (sub-03): 3.nii.gz holds no voxels"]),
    "NaN voxel": (V, nan_voxel, [], ["row 4 (sub-03): 3.nii.gz holds NaN or infinite values (1 of 64)"]),
    "constant": (V, constant, ["--intensity", "standardise"], ["row 4 (sub-03): 3.nii.gz is constant"]),
    "time series": (V, time_series, [], ["row 4 (sub-03): 3.nii.gz holds 4 dimensions"]),
    "channels": (P, colour, [], ["(3, 8, 8) in 1 row (sub-03)", "--channels"]),
    "channels asked for": (P, colour, ["--channels", "4"], ["row 4 (sub-03): 3.jpeg has 3 channels"]),
    "sizes": (V, larger, [], ["(1, 5, 4, 4) in 1 row (sub-03)", "--size"]),
    "missing file": (P, lambda h: (h / "3.jpeg").unlink(), [], ["row 4 (sub-03): 3.jpeg does not exist"]),
    "unknown ending": (P, lambda h: edit(h, scan="subjects.csv"), [], ["row 4 (sub-03)", "unknown ending"]),
    "a folder": (P, lambda h: edit(h, scan="."), [], ["row 4 (sub-03): . does not exist"]),
    "path up": (P, lambda h: edit(h, scan="../secret.jpeg"), [], ["../secret.jpeg leads out", "--folder"]),
    "absolute path": (P, lambda h: edit(h, scan=str(h.parent / "secret.jpeg")), [], ["leads out", "row 4"]),
    "empty cell": (P, lambda h: edit(h, scan=""), [], ["row 4 (sub-03): the cell is empty"]),
    "repeated id": (P, lambda h: edit(h, id="sub-04"), [], ["every subject id once", "2 rows (sub-04, sub-04)"]),
    "group in both parts": (P, lambda h: edit(h, person="p4"), ["--split", "part"],
                            ["1 on both (p4)", "Move their rows to one side"]),
    "words among numbers": (P, lambda h: edit(h, age="young"), [], ["'young' in 1 row (sub-03)", "empty"]),
    "unknown diagnosis": (P, lambda h: edit(h, dx="BD"), [], ["'BD' in 1 row (sub-03)", "--control, --patient"]),
    "no patients": (P, lambda h: edit(h, slice(0, 11), dx="HC"), [], ["patients"]),
}  # fmt: skip


@pytest.mark.parametrize("command", ["discover", "discover from a cache", "check"])
@pytest.mark.parametrize(("home", "spoil", "options", "words"), CASES.values(), ids=CASES, indirect=["home"])
def test_one_message_and_nothing_left(home, spoil, options, words, command, capsys, monkeypatch):
    for module in ("deep", "with_encoder"):
        monkeypatch.setattr(f"phenogroups.methods.{module}.build_encoder", lambda *_: pytest.fail("built a network"))
    spoil(home)
    before = sorted(home.parent.rglob("*"))
    arguments = [command.split()[0], str(home / "subjects.csv"), *COLUMNS, *options]
    if command != "check":
        arguments += ["--out", str(home.parent / "run")]
    if "cache" in command:
        arguments += ["--cache", str(home / "cache")]
    assert cli.main(arguments) == (1 if command == "check" else 2)
    printed = capsys.readouterr()
    message = printed.out if command == "check" else printed.err
    assert message.count("Problem:" if command == "check" else "phenogroups:") == 1
    assert "Traceback" not in message
    for word in words:
        assert word in message
    cache = home / "cache"
    assert sorted(set(home.parent.rglob("*")) - {cache}) == before or spoil is CASES["no patients"][1]
    assert not list(cache.glob("*.partial"))


@pytest.mark.parametrize("home", ["pictures"], indirect=True)
def test_what_may_be_meant_is_only_warned_of(home, capsys):
    edit(home, sex="x")
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(home / "5.jpeg")
    assert cli.main(["check", str(home / "subjects.csv"), *COLUMNS]) == 0
    printed = capsys.readouterr().out
    assert "Covariate sex has codes that may be typing errors: 'x' in 1 row (sub-03). Recode them" in printed
    assert "row 6 (sub-05): 5.jpeg" in printed
    assert "6 patients for 2 subgroups: with fewer than 10 for each" in printed
    assert "Training may start; 3 warnings to judge first." in printed


@pytest.mark.parametrize("home", ["pictures"], indirect=True)
def test_a_group_in_both_tables_is_refused(home, capsys):
    table = pd.read_csv(home / "subjects.csv", dtype=str)
    table.assign(id=table["id"] + "b")[:1].to_csv(home / "test.csv", index=False)
    arguments = ["--test", str(home / "test.csv"), "--methods", "kmeans", "--out", str(home / "out")]
    assert cli.main(["compare", str(home / "subjects.csv"), *COLUMNS, *arguments]) == 2
    assert "Received: p0 in both tables" in capsys.readouterr().err
    assert not (home / "out").exists()
