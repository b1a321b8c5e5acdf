"""Predicting many: the same as in one go, a few blocks in memory, and a broken file costs its row only."""

import json
import shutil
import threading
from dataclasses import asdict

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from closeness import ABSOLUTE, RELATIVE
from phenogroups import cli
from phenogroups.data import streaming
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.data.inputs import read_inputs
from phenogroups.data.opening import open_table
from phenogroups.data.reading import ImagePath, Reading
from phenogroups.data.streaming import blocks_of, cached_rows, decoded_blocks, rows_of_block
from phenogroups.data.tables import TableSpec, spec_from_json
from phenogroups.methods import Consensus, DeepUCSL, PlainKMeans, load
from phenogroups.training.run import read_recipe
from phenogroups.workflows.discover import discover
from phenogroups.workflows.predict import predict_table

QUICK = {"epochs": 1, "steps": 1, "batch_size": 16}
SPEC = TableSpec(image="scan", subject="id")
BROKEN = {3: "does not exist", 7: "cannot be read", 11: "has shape (1, 9, 8)", 12: "leads out of the folder"}


@pytest.fixture
def small_blocks(monkeypatch):
    """Four images of 8 x 8 are a block."""
    monkeypatch.setattr(streaming, "rows_of_block", lambda shape: 4)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of 24 images and a table of 20 others, four of which cannot be used."""
    folder = tmp_path_factory.mktemp("home")
    rng = np.random.default_rng(0)
    for i in range(24):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{i}.png")
    rows = pd.DataFrame({"id": [f"s{i}" for i in range(24)], "scan": [f"{i}.png" for i in range(24)]})
    whole = read_inputs(open_table(rows, SPEC, folder=folder))
    discover(Cohort(whole, np.arange(24) % 2), DeepUCSL(**QUICK, restarts=1), folder / "run", table=asdict(SPEC))
    rows[:20].to_csv(folder / "whole.csv", index=False)
    spoilt = rows[:20].copy()
    (folder / "text.png").write_text("no picture")
    Image.fromarray(np.zeros((9, 8), np.uint8)).save(folder / "tall.png")
    for row, name in zip(BROKEN, ("none.png", "text.png", "tall.png", "../secret.png"), strict=True):
        spoilt.loc[row, "scan"] = name
    spoilt.to_csv(folder / "spoilt.csv", index=False)
    return folder


@pytest.mark.parametrize("cache", [False, True])
def test_a_broken_file_costs_its_row_only(home, tmp_path, capsys, small_blocks, cache):
    out, options = tmp_path / "out.csv", ["--cache", str(tmp_path / "cache")] if cache else []
    assert cli.main(["predict", str(home / "run"), str(home / "spoilt.csv"), "--out", str(out), *options]) == 3
    printed = capsys.readouterr()
    assert "4 subjects could not be assigned; the column problem says why" in printed.err
    found, words = pd.read_csv(out), pd.read_csv(out, dtype=str, keep_default_na=False)
    assert f"{(words['subgroup'] != '').sum()} of 20 subjects assigned" in printed.out
    assert found["p_A"].notna().sum() == 16
    assert list(found["subject"]) == [f"s{i}" for i in range(20)]
    for row, why in BROKEN.items():
        assert f"row {row + 1} (s{row}): " in printed.err
        assert why in words["problem"][row]
        assert (words.iloc[row, 1:-1] == "").all()
    assert cli.main(["predict", str(home / "run"), str(home / "whole.csv"), "--out", str(tmp_path / "all.csv")]) == 0
    verdict = json.loads((home / "run/verdict.json").read_text())["headline"]
    assert capsys.readouterr().err == (
        f"phenogroups predict: starting\nThe verdict on the subgroups of this model: {verdict}\n"
    )
    everybody = pd.read_csv(tmp_path / "all.csv")
    good = [row for row in range(20) if row not in BROKEN]
    # without the column of problems, which here holds words and there nothing
    pd.testing.assert_frame_equal(
        found.iloc[good, :-1], everybody.iloc[good, :-1], check_dtype=False, rtol=RELATIVE, atol=ABSOLUTE
    )
    assert found["problem"][good].isna().all()


def test_a_run_without_a_readable_verdict_predicts_all_the_same(home, tmp_path, capsys):
    run = shutil.copytree(home / "run", tmp_path / "run")
    for verdict in ("", "[]", json.dumps({"answer": "convincing", "headline": "Convincing."})):
        (run / "verdict.json").write_text(verdict)
        assert cli.main(["predict", str(run), str(home / "whole.csv"), "--out", str(tmp_path / "all.csv")]) == 0
        assert capsys.readouterr().err == "phenogroups predict: starting\n"


def test_grey_pictures_for_a_model_of_colours_are_said_to_be_grey():
    assert streaming._other_shape((1, 8, 8), (3, 8, 8)) == (
        "is grey (1 channel), and those of training are in colour (3 channels); save it as they are if it is the same "
        "kind of picture"
    )
    assert "has shape (1, 9, 8)" in streaming._other_shape((1, 9, 8), (1, 8, 8))


def test_the_same_as_in_one_go(home, tmp_path, small_blocks):
    predict_table(home / "run", home / "whole.csv", tmp_path / "out.csv")
    spec = spec_from_json(read_recipe(home / "run")["table"])
    expected = load(home / "run").predict_cohort(read_inputs(open_table(home / "whole.csv", spec)))
    found = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_allclose(found[["p_A", "p_B"]], expected.subgroup, rtol=RELATIVE, atol=ABSOLUTE)
    np.testing.assert_allclose(found["p_patient"], expected.diagnosis, rtol=RELATIVE, atol=ABSOLUTE)
    letters = np.array(["A", "B"])[expected.subgroup.argmax(axis=1)]
    has_one = found["remark"].isna()
    assert list(found["subgroup"][has_one]) == list(letters[has_one])
    assert found["problem"].isna().all()


def test_nothing_is_written_where_nobody_is_left(home, tmp_path):
    pd.DataFrame({"id": range(30), "scan": "none.png"}).to_csv(tmp_path / "none.csv", index=False)
    with pytest.raises(CohortError, match="Received: 30 who cannot") as error:
        predict_table(home / "run", tmp_path / "none.csv", tmp_path / "out.csv")
    assert str(error.value).count("none.png does not exist") == 5
    assert f"and 25 more that do not exist\n  Files were looked for in {tmp_path}." in str(error.value)
    with pytest.raises(CohortError, match="none"):
        predict_table(home / "run", tmp_path / "none.csv", tmp_path / "out.csv", cache=tmp_path / "cache")
    assert not list(tmp_path.glob("out.csv*"))


def test_another_column_names_the_rows(home, tmp_path):
    rows = pd.read_csv(home / "whole.csv")[:3].rename(columns={"id": "eye"})
    rows.to_csv(home / "renamed.csv", index=False)
    out = str(tmp_path / "out.csv")
    assert cli.main(["predict", str(home / "run"), str(home / "renamed.csv"), "--subject", "eye", "--out", out]) == 0
    assert list(pd.read_csv(out)["subject"]) == ["s0", "s1", "s2"]


def test_a_list_of_missing_files_is_printed_once(home, tmp_path, capsys):
    pd.DataFrame({"id": range(30), "scan": "none.png"}).to_csv(tmp_path / "none.csv", index=False)
    assert cli.main(["predict", str(home / "run"), str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.count("row 1 (0): none.png does not exist") == 1


def test_an_interruption_leaves_nothing(home, tmp_path, small_blocks):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_table(home / "run", home / "whole.csv", tmp_path / "out.csv", stop)
    assert not list(tmp_path.iterdir())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_few_blocks_are_decoded_ahead(home, monkeypatch, small_blocks):
    decoded = []
    original = streaming.read_input
    monkeypatch.setattr(streaming, "read_input", lambda *a: decoded.append(1) or original(*a))
    paths = [ImagePath(f"{i}.png", home) for i in range(24)] * 10
    blocks = decoded_blocks(paths, Reading(), (1, 8, 8))
    next(blocks)
    blocks.close()
    assert len(decoded) <= 4 * 4  # of 240


@pytest.mark.parametrize(
    ("shape", "rows"), [((6,), 1024), ((1, 32, 32), 1024), ((1, 224, 224), 64), ((1, 128, 128, 128), 2)]
)
def test_blocks_are_bounded(shape, rows):
    assert rows_of_block(shape) == rows
    inputs = np.zeros((5, *([1] * len(shape))), np.float32)
    (block,) = blocks_of(inputs, {1: "broken"})
    assert list(block.readable) == [0, 2, 3, 4, 5]
    assert len(block.inputs) == 5


def test_a_cache_without_broken_rows(home, tmp_path):
    paths = [ImagePath(cell, home) for cell in ("0.png", "text.png", "1.png")]
    stored, broken = cached_rows(paths, Reading(), (1, 8, 8), tmp_path)
    assert set(broken) == {1}
    two = open_table(pd.DataFrame({"scan": ["0.png", "1.png"]}), TableSpec(image="scan"), folder=home)
    np.testing.assert_array_equal(stored, read_inputs(two))
    with pytest.raises(CohortError, match="every one has shape"):
        cached_rows([ImagePath("tall.png", home)], Reading(), (1, 8, 8), tmp_path)


def test_volumes_in_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "new").mkdir()
    volumes = rng.random((12, 1, 6, 6, 6)).astype(np.float32)
    for i in range(3):
        nibabel.save(nibabel.Nifti1Image(volumes[i, 0], np.eye(4)), tmp_path / "new" / f"{i}.nii.gz")
    (tmp_path / "new" / "1.nii.gz").write_bytes(b"broken")
    discover(Cohort(volumes, np.arange(12) % 2), PlainKMeans(), tmp_path / "run", table=asdict(SPEC))
    found = predict_table(tmp_path / "run", tmp_path / "new", tmp_path / "out.csv")
    assert (found.subjects, found.broken) == (3, 1)
    assert found.problems[1].startswith("cannot be read")
    expected = load(tmp_path / "run").predict_subgroup(volumes[[0, 2]])
    assert list(pd.read_csv(tmp_path / "out.csv")["subgroup"].dropna()) == [("A", "B")[k] for k in expected]


def test_features_covariates_and_consensus(tmp_path, monkeypatch, small_blocks):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(40, 3)), columns=list("abc"))
    table["age"], table["dx"] = 30.0 + np.arange(40), np.arange(40) % 2
    table.to_csv(tmp_path / "all.csv", index=False)
    spec = TableSpec(diagnosis="dx", features=tuple("abc"), covariates=("age",))
    cohort = Cohort.from_table(tmp_path / "all.csv", **vars(spec))
    method = Consensus(PlainKMeans(adjust=("age",)), runs=2)
    discover(cohort, method, tmp_path / "run", table=asdict(spec))
    predict_table(tmp_path / "run", tmp_path / "all.csv", tmp_path / "out.csv")
    found, expected = pd.read_csv(tmp_path / "out.csv", dtype=str), load(tmp_path / "run").predict_cohort(cohort)
    assert list(found["p_A"]) == [f"{p:.9g}" for p in expected.subgroup[:, 0]]
    table.loc[30, "age"] = np.nan  # far behind the first block
    table.to_csv(tmp_path / "missing.csv", index=False)
    monkeypatch.setattr(Consensus, "predict_cohort", lambda *_: pytest.fail("predicted something"))
    with pytest.raises(CohortError, match=r"row31"):
        predict_table(tmp_path / "run", tmp_path / "missing.csv", tmp_path / "out2.csv")


def test_what_overflows_has_no_subgroup(tmp_path):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=list("abc"))
    table["dx"] = np.arange(40) % 2
    spec = TableSpec(diagnosis="dx", features=tuple("abc"))
    cohort = Cohort.from_table(table, **vars(spec))
    discover(cohort, DeepUCSL(**QUICK, restarts=1), tmp_path / "run", table=asdict(spec))
    table.loc[4, list("abc")] = 3e38
    table[:6].to_csv(tmp_path / "new.csv", index=False)
    found = predict_table(tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv")
    written = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert found.broken == (written["problem"] != "").sum() == 1
    assert written["subgroup"][4] == ""
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["format"] == 1


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A run of two kinds of patients in ten features, and subjects whom it has not seen."""
    folder = tmp_path_factory.mktemp("tables")
    cohort = drawn_table(600, 10, 2, separation=8, seed=0)
    names = [f"f{i}" for i in range(10)]
    rows = pd.DataFrame(cohort.inputs, columns=names).assign(dx=cohort.diagnosis)
    spec = TableSpec(diagnosis="dx", features=tuple(names))
    discover(Cohort.from_table(rows[:300], **vars(spec)), DeepUCSL(), folder / "run", table=asdict(spec))
    return folder, rows[300:]


def test_who_is_probably_not_a_patient_has_probabilities_and_no_subgroup(tables, tmp_path):
    folder, new = tables
    new.to_csv(tmp_path / "new.csv", index=False)
    said = predict_table(folder / "run", tmp_path / "new.csv", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    well = found["p_patient"] < 0.5
    assert (well == (new["dx"] == 0).to_numpy()).mean() > 0.9
    assert (found["subgroup"][well] == "").all()
    assert found["remark"][well].str.startswith("probably not a patient").all()
    assert found[["p_A", "p_B", "confidence"]].notna().all(axis=None)
    assert found["subgroup"][~well & (found["strangeness"] <= 1)].isin(["A", "B"]).all()
    assert said.no_patients == well.sum()
    assert f"{well.sum()} probably not a patient" in str(said)


def test_strangers_are_marked_and_most_of_its_own_kind_are_not(tables, tmp_path):
    folder, new = tables
    own, strangers = new.copy(), new.copy()
    names = [name for name in new if name != "dx"]
    strangers[names] = np.random.default_rng(0).normal(size=(len(new), len(names))) * 30
    pd.concat([own, strangers]).to_csv(tmp_path / "new.csv", index=False)
    said = predict_table(folder / "run", tmp_path / "new.csv", tmp_path / "out.csv", note=(notes := []).append)
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    marked = (found["strangeness"] > 1).to_numpy()
    assert marked[: len(own)].mean() <= 0.05
    assert marked[len(own) :].mean() >= 0.95
    assert (found["subgroup"][marked] == "").all()
    assert found["remark"][marked].str.endswith("unlike all training subjects").all()
    assert said.strangers == marked.sum()
    assert bool(notes) == (marked.mean() > 0.5)
    strangers.to_csv(tmp_path / "strangers.csv", index=False)
    predict_table(folder / "run", tmp_path / "strangers.csv", tmp_path / "out.csv", note=notes.append)
    assert "The model was not made for them" in notes[-1]


def test_a_model_of_an_earlier_version_knows_no_strangers(tables, tmp_path):
    folder, new = tables
    method = load(folder / "run")
    old = {name: value for name, value in method.state().items() if not name.startswith("familiar.")}
    assert np.isnan(DeepUCSL().restore((10,), old).strangeness(new.drop(columns="dx").to_numpy())).all()
    spoilt = {**method.state(), "familiar.center": torch.zeros(9, dtype=torch.float64)}
    with pytest.raises(ValueError, match=r"Expected familiar.center of shape \(10,\)"):
        DeepUCSL().restore((10,), spoilt)


@pytest.mark.parametrize("shape", [(1, 16, 16), (2, 8, 8, 8)])
def test_images_and_volumes_have_strangers_too(shape):
    rng = np.random.default_rng(0)

    def drawn(count):
        """Smooth: a bright ball whose place and brightness vary."""
        at = np.stack(np.meshgrid(*[np.linspace(-1, 1, side) for side in shape[1:]], indexing="ij"))
        middle = rng.normal(0, 0.1, (count, len(shape) - 1, *[1] * (len(shape) - 1)))
        ball = np.exp(-3 * ((at - middle) ** 2).sum(1)) * rng.uniform(0.7, 1, (count, *[1] * (len(shape) - 1)))
        return (np.repeat(ball[:, None], shape[0], axis=1) + rng.normal(0, 0.02, (count, *shape))).astype(np.float32)

    method = PlainKMeans().fit(Cohort(drawn(200), np.arange(200) % 2))
    again = PlainKMeans().restore(shape, method.state())
    own, noise = drawn(200), rng.random((50, *shape)).astype(np.float32)
    assert (again.strangeness(own) > 1).mean() <= 0.05
    assert (again.strangeness(noise) > 1).all()
    np.testing.assert_array_equal(again.strangeness(own), method.strangeness(own))
