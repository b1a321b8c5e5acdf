"""Every recipe builds its method, reads a tiny copy of its cohort and trains; what is wrong in one is named."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups import cli
from phenogroups.data import batches
from phenogroups.data.augment import AUGMENTATIONS
from phenogroups.data.cohort import CohortError
from phenogroups.data.columns import read_columns
from phenogroups.data.opening import open_table
from phenogroups.data.selection import Selection
from phenogroups.data.tables import TableSpec
from phenogroups.methods.deep_ucsl import PAPER, DeepUCSL
from phenogroups.networks.encoders import build_encoder
from phenogroups.recipes import FOLDER, RECIPES, recipe
from phenogroups.workflows.compare import build_methods

RNG = np.random.default_rng(0)
COHORTS = ("mnist1", "mnist7", "neuropsychiatry", "oct", "odir", "pneumonia")


def picture(path, colour=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 255, (40, 36, 3) if colour else (40, 36), dtype=np.uint8)).save(path)


def pneumonia(home):
    for part, n in (("train", 5), ("val", 1), ("test", 3)):
        for i in range(n):
            picture(home / part / "NORMAL" / f"IM-{i:04d}-0001.jpeg")
            picture(home / part / "PNEUMONIA" / f"person{i}_bacteria_1.jpeg")
            picture(home / part / "PNEUMONIA" / f"person{100 + i}_virus_1.jpeg")


def oct2017(home):
    for part, n in (("train", 4), ("val", 1), ("test", 2)):
        for k, kind in enumerate(("NORMAL", "CNV", "DME", "DRUSEN")):
            for i in range(n):
                picture(home / part / kind / f"{kind}-{(part == 'test') * 1000 + 10 * k + i}-1.jpeg")
    for i in range(2, 8):
        picture(home / "train" / "CNV" / f"CNV-10-{i}.jpeg")  # the first patient with CNV has seven pictures
    picture(home / "train" / "DME" / "DME-1020-9.jpeg")  # whose other pictures are tested


def odir(home):
    rows = []
    for i in range(60):
        name = f"{i // 2}_{'left' if i % 2 else 'right'}.jpg"
        picture(home / "preprocessed_images" / name, colour=True)
        label = "NNNNNDGCAM"[i // 2 % 10]
        rows.append(
            {"ID": i // 2, "Patient Age": 50, "Patient Sex": "Male", "labels": f"['{label}']", "filename": name}
            | {letter: int(letter == label) for letter in "NDGCAHMO"}
        )
    pd.DataFrame(rows).to_csv(home / "full_df.csv", index=False)


def sites(home):
    ill = {
        "biobd": "bipolar disorder",
        "schizconnect-vip-prague": "schizophrenia",
        "bsnip1": "psychotic bipolar disorder",
    }
    for site, word in ill.items():
        (home / site).mkdir()
        people = [
            {
                "participant_id": f"sub-{i}",
                "diagnosis": ("control", word)[i % 2],
                "age": 30 + i,
                "sex": "MF"[i // 2 % 2],
            }
            for i in range(4)
        ]
        pd.DataFrame(people).to_csv(home / site / "participants.tsv", sep="\t", index=False)
        for i in range(4):
            np.save(home / site / f"sub-{i}.npy", RNG.random((12, 15, 12), dtype=np.float32))


MAKE = {"pneumonia": pneumonia, "oct": oct2017, "odir": odir, "neuropsychiatry": sites}
SMALL = {2: (32, 32), 3: (32, 32, 32)}  # the least that ResNet and DenseNet take


def quick(method):
    settings = {"epochs": 1, "steps": 1, "batch_size": 4, "warmup": 0, "restarts": 1, "weights": None}  # no download
    return method.set_params(**settings)


def test_every_cohort_of_the_paper_has_two():
    assert set(RECIPES) == {*COHORTS, *(f"{name}-fast" for name in COHORTS)}


@pytest.mark.parametrize("name", RECIPES)
def test_settings_arrive_in_the_method(name):
    told, method = tomllib.loads((FOLDER / f"{name}.toml").read_text()), recipe(name).build(seed=3)
    assert isinstance(method, DeepUCSL)
    assert method.seed == 3
    assert method.n_subgroups == told["subgroups"]
    for key, value in told["settings"].items():
        assert getattr(method, key) == (tuple(value) if isinstance(value, list) else value)
    assert method.augmentation in AUGMENTATIONS
    if not name.endswith("-fast"):  # the published rules, not this project's
        assert {key: getattr(method, key) for key in PAPER if key not in told["settings"]} == {
            key: value for key, value in PAPER.items() if key not in told["settings"]
        }


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.startswith("mnist")])
def test_reads_and_trains_on_a_tiny_copy(name, tmp_path, monkeypatch):
    """At the least size that its encoder takes; the size of the paper is tried below."""
    monkeypatch.setattr(batches, "MOST_ROWS", 4)  # blocks are filled up, which costs more than these few do
    home = tmp_path / "cohort"
    home.mkdir()
    MAKE[name.removesuffix("-fast")](home)
    chosen = recipe(name)
    sides = SMALL[len(chosen.reading.get("frame") or chosen.reading["size"])]
    small = dict.fromkeys(("size", "frame") if "frame" in chosen.reading else ("size",), sides)
    (tmp_path / "small.toml").write_text(rewritten(FOLDER / f"{name}.toml", small))
    chosen = recipe(tmp_path / "small.toml")
    cohort = chosen.read(home)
    assert cohort.input_shape == (chosen.reading["channels"], *sides)
    train, test = cohort.split(chosen.held_out)
    assert not {*train.group} & {*test.group}
    assert len(cohort.truth_names) == chosen.subgroups
    method = quick(chosen.build())
    found = method.fit(train).predict_cohort(test)
    assert found.subgroup.shape == (len(test), chosen.subgroups)


def rewritten(path: Path, reading) -> str:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("size =", "frame ="))]
    place = lines.index("[reading]") + 1
    return "\n".join(lines[:place] + [f"{key} = {list(sides)}" for key, sides in reading.items()] + lines[place:])


def test_the_papers_sizes_are_read(tmp_path):
    (tmp_path / "OCT2017").mkdir()
    oct2017(tmp_path / "OCT2017")
    assert recipe("oct").read(tmp_path / "OCT2017").input_shape == (1, 224, 224)
    for name in ("a", "b"):
        site = tmp_path / "sites" / name
        site.mkdir(parents=True)
        people = pd.DataFrame({"participant_id": ["01", "02"], "diagnosis": ["control", "schizophrenia"]})
        people.to_csv(site / "participants.tsv", sep="\t", index=False)
        for person in ("01", "02"):
            volume = np.zeros((121, 145, 121), np.float32)
            volume[60, 72, 60] = 1  # the middle
            volume[:, :8] = 1  # cropped away
            np.save(site / f"mwp1sub-{person}.npy", volume)
    (tmp_path / "mine.toml").write_text((FOLDER / "neuropsychiatry.toml").read_text().replace("bsnip1", "b"))
    cohort = recipe(tmp_path / "mine.toml").read(tmp_path / "sites")
    assert cohort.input_shape == (1, 128, 128, 128)
    assert list(cohort.covariates["site"]) == ["a", "a", "b", "b"]
    assert list(cohort.is_test) == [False, False, True, True]
    seen = cohort.inputs[0, 0]
    assert np.isclose(seen, seen.max()).sum() == 1  # what was cropped is gone, what is padded is background
    assert np.unravel_index(seen.argmax(), seen.shape) == (63, 64, 63)


def test_the_papers_encoders_are_built():
    for name in COHORTS:
        chosen = recipe(name)
        sides = (32, 32, 32) if name == "neuropsychiatry" else (32, 32)
        encoder = build_encoder(chosen.settings["encoder"], (chosen.reading.get("channels", 1), *sides))
        expected = {"mnist1": 128, "mnist7": 128, "neuropsychiatry": 128}.get(name, 512)
        assert encoder.dim == expected


def test_who_is_studied(tmp_path):
    pneumonia(tmp_path / "xray")
    cohort = recipe("pneumonia").read(tmp_path / "xray")
    assert {subject.split("/")[0] for subject in cohort.subject} == {"train", "test"}
    oct2017(tmp_path / "oct")
    cohort = recipe("oct").read(tmp_path / "oct")
    train, test = cohort.split()
    assert len(test) == 8
    assert (train.group == "10").sum() == 4  # of seven pictures
    assert "1020" not in train.group  # whoever is tested
    fewer = Selection(most={"diagnosis": {"CNV": 2, "NORMAL": 0}})
    rows = pd.DataFrame({"diagnosis": ["NORMAL", "CNV", "CNV", "CNV", "DME"], "who": list("abcde")})
    kept, _ = fewer(rows, TableSpec())
    assert list(kept["who"]) == ["b", "c", "e"]
    with pytest.raises(CohortError, match="Expected the column 'kind'"):
        Selection(most={"kind": {"x": 1}})(rows, TableSpec())
    with pytest.raises(CohortError, match="leaves out all"):
        Selection(leave_out={"diagnosis": ["NORMAL", "CNV", "DME"]})(rows, TableSpec())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs = 3", "Expected keys of recipe among table, rows, reading, method, subgroups, held_out, settings, "
                       "methods. "
                       "Received: epochs"),
        ("[reading]\npixels = 3", "Expected keys of \\[reading\\] among size, channels, .* Received: pixels"),
        ("[settings]\nepoch = 3", "Expected settings of deep_ucsl among .* Received: epoch"),
        ("[settings]\nepochs = 'many'", "Expected epochs as int"),
        ("[rows]\nfirst = 3", "Expected keys of \\[rows\\] among labels, same, leave_out"),
        ("[table]\ncolumn = 3", "Expected keys of \\[table\\] among diagnosis"),
        ("method = 'deep'", "Expected a method among kmeans"),
        ("held_out = 2", "Expected held_out as a share"),
        ("reading = 2", "Expected \\[reading\\] with keys"),
        ("[reading]\nintensity = 'loud'", "Expected intensity 'unit'"),
        ("[settings", "Expected a recipe in TOML"),
    ],
)  # fmt: skip
def test_mistakes_are_named(text, words, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        recipe(tmp_path / "mine.toml")
    assert "mine.toml" in str(error.value)


def test_a_wrong_name_lists_all(capsys, tmp_path):
    assert cli.main(["discover", "drawn", "--recipe", "odyr", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in RECIPES)
    assert "Received: 'odyr'" in said


def test_options_win_over_the_recipe(tmp_path, capsys):
    home = tmp_path / "chest_xray"
    pneumonia(home)
    words = ["discover", str(home), "--recipe", "pneumonia-fast", "--size", "16", "12", "--subgroups", "3"]
    words += ["--set", "epochs=1", "steps=1", "restarts=1", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0, capsys.readouterr().err
    made = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert made["settings"]["n_subgroups"] == 3
    assert made["settings"]["epochs"] == 1
    assert made["settings"]["augmentation"] == "xray"  # the recipe's
    assert made["table"]["reading"] == {"size": [16, 12], "channels": 1, "intensity": "standardise", "frame": None}
    words = [
        "discover",
        str(home),
        "--recipe",
        "pneumonia-fast",
        "--method",
        "kmeans",
        "--out",
        str(tmp_path / "other"),
    ]
    assert cli.main(words) == 0
    assert "kmeans does not have: encoder, augmentation" in capsys.readouterr().err
    assert cli.main(["check", str(home), "--recipe", "pneumonia-fast"]) == 0


def test_examples_are_discovered_too(tmp_path, capsys):
    few = ["--subjects", "80", "--set", "epochs=1", "steps=1", "restarts=1", "--out", str(tmp_path / "run")]
    assert cli.main(["discover", "drawn", "--recipe", "mnist7-fast", *few]) == 0
    assert "held-out patients" in capsys.readouterr().out
    assert cli.main(["discover", "drawn", "--recipe", "odir", *few[:2], "--out", str(tmp_path / "b")]) == 2
    assert "the recipe odir only with a table" in capsys.readouterr().err


def test_a_recipe_does_not_change_what_another_method_is_made_of():
    """It says to every method what is about the data: the network that sees them and how that is trained on them."""
    chosen = recipe("mnist7")
    for name in ("morpho_simclr", "morpho_pcl", "morpho_supcon"):
        method = chosen.build(name)
        assert method.augmentation == "digits_morpho"
        assert method.encoder == "paper"
        assert method.epochs == 75
    built = build_methods(["autoencoder", "vae", "simclr", "hydra"], {}, 2, chosen)
    assert built["autoencoder"].augmentation == built["vae"].augmentation == "auto"
    assert built["vae"].scaler == "none"
    assert built["simclr"].augmentation == chosen.settings["augmentation"]
    assert build_methods(["morpho_simclr"], {"augmentation": "none"}, 2, chosen)["morpho_simclr"].augmentation == "none"


def test_an_ablation_differs_in_nothing_else():
    chosen = recipe("pneumonia")
    whole, ablated = vars(chosen.build()), vars(chosen.build("deep_ucsl_paper_hard"))
    assert {key for key in whole if whole[key] != ablated[key]} == {"pseudo_labels"}
    assert recipe("mnist7-fast").build("deep_ucsl_paper").clusterer == "sinkhorn_kmeans"


def test_the_command_keeps_a_preset_and_says_so(tmp_path, capsys):
    few = ["--subjects", "80", "--set", "steps=1", "batch_size=32", "--epochs", "1", "--out", str(tmp_path / "run")]
    assert cli.main(["discover", "drawn", "--recipe", "mnist7-fast", "--method", "morpho_simclr", *few]) == 0
    assert "a part of morpho_simclr and stay as they are: augmentation" in capsys.readouterr().err
    made = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (made["settings"]["augmentation"], made["settings"]["encoder"]) == ("digits_morpho", "light")


def test_a_recipe_says_something_to_one_method(tmp_path):
    (tmp_path / "mine.toml").write_text("[settings]\nepochs = 3\n[methods.simclr]\nepochs = 5\n")
    chosen = recipe(tmp_path / "mine.toml")
    assert (chosen.build("simclr").epochs, chosen.build("byol").epochs, chosen.build().epochs) == (5, 3, 3)
    (tmp_path / "mine.toml").write_text("[methods.simclr]\ntemper = 5\n")
    with pytest.raises(ValueError, match=r"Expected settings of simclr among .* Received: temper"):
        recipe(tmp_path / "mine.toml")


def test_psychotic_bipolar_disorder_is_bipolar_disorder(tmp_path):
    sites(tmp_path)
    for name in ("neuropsychiatry", "neuropsychiatry-fast"):
        table = open_table(tmp_path, recipe=recipe(name))
        columns = read_columns(table.rows, table.spec)
        assert columns["truth_names"] == ("bipolar disorder", "schizophrenia")
        ill = columns["is_test"] & (columns["diagnosis"] == 1)
        assert ill.sum() == 2
        assert (columns["truth"][ill] == 0).all()


def test_odir_goes_by_the_patient_as_published_and_by_the_eye_where_it_is_fast():
    assert (recipe("odir").rows.labels, recipe("odir-fast").rows.labels) == ("patient", "eye")
