"""The commands of docs/guides/your_own_images.md, on tiny cohorts that look like those it names."""

import os
import re
import shlex
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "guides" / "your_own_images.md").read_text(encoding="utf-8")
SECTIONS = {
    title: re.findall(r"^phenogroups (.*)$", text, flags=re.MULTILINE)
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
}
QUICK = ["epochs=1", "steps=2", "restarts=1"]
FUNDUS = Path(os.environ.get("PHENOGROUPS_DATA", "nowhere"), "fundus", "train.csv").is_file()
RNG = np.random.default_rng(0)


def picture(path):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 255, (32, 32), dtype=np.uint8)).save(path)


def bids():
    rows = [
        {"participant_id": f"sub-{i:02d}", "group": ("HC", "SZ", "HC", "BD")[i % 4], "age": 20 + i,
         "sex": "MF"[i // 2 % 2]}
        for i in range(20)
    ]  # fmt: skip
    for row in rows:
        folder = Path("study") / row["participant_id"] / "anat"
        folder.mkdir(parents=True)
        volume = RNG.random((14, 18, 14)).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / f"{row['participant_id']}_T1w.nii.gz")
    pd.DataFrame(rows).to_csv("study/participants.tsv", sep="\t", index=False)


def site_folders():
    for site in ("lyon", "ulm"):
        Path("sites", site).mkdir(parents=True)
        rows = [{"participant_id": f"sub-{i:02d}", "dx": ("HC", "SZ", "HC", "BD")[i % 4]} for i in range(12)]
        pd.DataFrame(rows).to_csv(f"sites/{site}/participants.tsv", sep="\t", index=False)
        for row in rows:
            np.save(f"sites/{site}/{row['participant_id']}.npy", RNG.random((1, 14, 18, 14), dtype=np.float32))


def radiology():
    rows = []
    for i in range(24):
        picture(f"images/{i}.png")
        word = ("none", "pneumonia")[i // 2 % 2]
        rows.append({"study": f"st{i}", "patient": f"p{i // 2}", "file": f"{i}.png", "finding": word})
    pd.DataFrame(rows).to_csv("chest.csv", sep=";", index=False)
    pd.DataFrame(rows[:3]).drop(columns="finding").to_csv("new_chest.csv", index=False)


def sorted_pictures():
    for kind in ("healthy", "healthy2", "asthma", "copd"):
        for i in range(8):
            picture(f"pictures/{kind.removesuffix('2')}/{kind}{i}.png")


def eyes():
    rows = []
    for i in range(60):
        name = f"{i // 2}_{'left' if i % 2 else 'right'}.jpg"
        picture(f"ODIR/preprocessed_images/{name}")
        label = "NNNNNNDGCAMH"[i // 2 % 12]
        rows.append(
            {"ID": i // 2, "Patient Age": 50 + i, "Patient Sex": "Male", "labels": f"['{label}']", "filename": name}
            | {letter: int(letter == label) for letter in "NDGCAHMO"}
        )
    pd.DataFrame(rows).to_csv("ODIR/full_df.csv", index=False)


def expression():
    rows = pd.DataFrame(RNG.normal(size=(40, 5)), columns=[f"gene{j}" for j in range(5)])
    about = {"status": ["healthy", "case"] * 20, "age": range(40), "batch": ["a", "a", "b", "b"] * 10}
    rows.assign(**about, sample=[f"s{i}" for i in range(40)]).to_csv("expression.csv", index=False)


def embeddings():
    names = np.array([f"s{i}" for i in range(40)])
    for prefix, chosen in (("", names), ("new_", names[:5])):
        rows = pd.DataFrame({"id": chosen, "diagnosis": np.arange(len(chosen)) % 2})
        rows.to_csv(f"{prefix}subjects.csv", index=False)
        np.savez(f"{prefix}embeddings.npz", embedding=RNG.normal(size=(len(chosen), 6)), name=chosen[::-1])


def paper():
    eyes()
    Path("mnist").mkdir()
    for name, count in (("train", 100), ("t10k", 60)):
        images, digits = RNG.integers(0, 255, (count, 28, 28), dtype=np.uint8), np.arange(count, dtype=np.uint8) % 10
        for kind, values in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", digits)):
            sizes = b"".join(n.to_bytes(4, "big") for n in values.shape)
            Path("mnist", f"{name}-{kind}").write_bytes(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes())


def own_recipe():
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    Path("study.toml").write_text(toml.replace("64", "16"))
    rows = []
    for i in range(32):
        picture(f"{i}.png")
        site, quality = ("Lyon", "Ulm")[i // 16], "bad" if i % 9 == 8 else "good"
        rows.append({"scan": f"{i}.png", "dx": ("HC", "SZ", "HC", "BD")[i % 4], "age": 20 + i, "site": site,
                     "quality": quality})  # fmt: skip
    pd.DataFrame(rows).to_csv("study.csv", index=False)


def large():
    for i in range(20):
        picture(f"{i}.png")
    pd.DataFrame({"path": [f"{i}.png" for i in range(20)], "diagnosis": [0, 1] * 10}).to_csv("large.csv", index=False)


MAKE = {
    "A neuroscientist with a BIDS folder": bids,
    "Several sites, a folder each": site_folders,
    "A radiologist with DICOM or PNG and a spreadsheet": radiology,
    "Pictures sorted into folders": sorted_pictures,
    "An ophthalmologist with two eyes per patient": eyes,
    "A geneticist with a table of features": expression,
    "Embeddings of another network": embeddings,
    "The paper's cohorts": paper,
    "A recipe of your own": own_recipe,
    "More images than memory holds": large,
}


def test_every_recipe_is_tried():
    assert {title for title, commands in SECTIONS.items() if commands} == set(MAKE)


@pytest.mark.parametrize("title", MAKE)
def test_recipe(title, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("phenogroups.data.batches.MOST_ROWS", 8)  # blocks are filled up
    MAKE[title]()
    for command in SECTIONS[title]:
        small = re.sub(r"(128|224|64)(?= |$)", "16", command)
        words = shlex.split(small)
        if words[0] == "discover":
            words += QUICK if "--set" in words else ["--set", *QUICK]
            if words[-len(QUICK) - 2] == "odir":  # no download, and the least that ResNet takes
                words += ["weights=null", "batch_size=8", "--size", "32", "32"]
        assert main(words) == 0, capsys.readouterr()
        warned = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning:")]
        assert [line for line in warned if "with fewer than 10 for each" not in line] == []  # these cohorts are small


@pytest.mark.skipif(
    not FUNDUS, reason="needs fundus/train.csv and its photographs in the folder PHENOGROUPS_DATA names"
)
def test_fundus_photographs(tmp_path, capsys):
    """Real pictures of three diseases, from check to predict."""
    table = Path(os.environ["PHENOGROUPS_DATA"]) / "fundus" / "train.csv"
    rows = pd.read_csv(table).groupby(["diagnosis", "subgroup"], dropna=False).head(12)
    rows.to_csv(tmp_path / "some.csv", index=False)
    how = ["--folder", str(table.parent), "--image", "path", "--subject", "path", "--truth", "subgroup"]
    how += ["--size", "32", "32", "--channels", "3"]
    assert main(["check", str(tmp_path / "some.csv"), *how]) == 0
    assert "Known subgroups of patients: amd 12, dr 12, glaucoma 12; 0 unknown." in capsys.readouterr().out
    run = ["--subgroups", "3", "--out", str(tmp_path / "run"), "--set", "augmentation=fundus", *QUICK]
    assert main(["discover", str(tmp_path / "some.csv"), *how, *run]) == 0
    assert set(pd.read_csv(tmp_path / "run" / "subgroups.csv")["subgroup"].dropna()) <= {"A", "B", "C"}
    rows[:4].to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv"), "--folder", str(table.parent)]) == 0
    assert "4 subjects assigned" in capsys.readouterr().out
