"""What strangers send is read or refused, takes no memory it does not need, runs nothing and writes nowhere else."""

import gzip
import io
import json
import os
import shutil
import struct
import zipfile
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save
from torch.overrides import TorchFunctionMode

from phenogroups import cli
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.decoding import UnreadableInput, decode
from phenogroups.data.features import read_features_file
from phenogroups.data.reading import Reading, prepare
from phenogroups.data.table_files import read_table
from phenogroups.data.tables import TableSpec, spec_from_json
from phenogroups.data.untrusted import as_bytes, from_bytes, parse_json, read_limited
from phenogroups.data.writing import write_whole
from phenogroups.methods import VAE, Consensus, DeepUCSL, PlainKMeans, load
from phenogroups.recipes import recipe
from phenogroups.report.material import Material
from phenogroups.report.page import write_page
from phenogroups.training.cells import Cell, Cells
from phenogroups.training.run import RunError, csv_text, read_recipe
from phenogroups.workflows.discover import discover

QUICK = {"epochs": 1, "steps": 1, "batch_size": 16}
RUNS = {
    "kmeans": PlainKMeans(),
    "deep_ucsl": DeepUCSL(**QUICK, restarts=1),
    "vae": VAE(**QUICK),
    "consensus": Consensus(PlainKMeans(), runs=2),
}
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=8), inside, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    cohort = Cohort(x, (np.arange(40) < 20).astype(int))
    table = asdict(TableSpec(features=tuple("abcde"), subject="id"))
    for name, method in RUNS.items():
        discover(cohort, method, home / name, table=table)
    return home


@pytest.fixture
def spoilt(runs, tmp_path):
    """A copy of a run, with other entries in its recipe or its model, and the checksum of whoever made it."""

    def make(name="deep_ucsl", model=None, **entries):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        copy = shutil.copytree(runs / name, tmp_path / "run")
        told = json.loads((copy / "recipe.json").read_text())
        told["settings"] |= entries.pop("settings", {})
        told |= entries
        if model is not None:
            content = save(model(load_file(copy / "model.safetensors")))
            (copy / "model.safetensors").write_bytes(content)
            told["model_sha256"] = sha256(content).hexdigest()
        (copy / "recipe.json").write_text(json.dumps(told))
        return copy

    return make


class Watched(TorchFunctionMode):
    """Whoever makes a tensor of more than 64 MB fails the test, unless it is one without memory."""

    most = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and not made.is_meta:
            self.most = max(self.most, made.numel())
        return made


@pytest.fixture
def little_memory():
    with Watched() as watched:
        yield
    assert watched.most < 2**24


def changed(**tensors):
    return lambda old: {**old, **tensors}


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("deep_ucsl", {"settings": {"n_subgroups": 10**9}}),
        ("vae", {"settings": {"latent": 10**12}}),
        ("vae", {"settings": {"latent": 10**30}}),
        ("kmeans", {"settings": {"n_subgroups": 10**9}}),
        ("kmeans", {"input_shape": [2**28]}),
        ("deep_ucsl", {"input_shape": [2**28]}),
        ("deep_ucsl", {"input_shape": [10**9, 10**9, 10**9]}),
        ("deep_ucsl", {"input_shape": [True]}),
        ("deep_ucsl", {"input_shape": []}),
        ("deep_ucsl", {"settings": {"encoder": "paper"}, "input_shape": [2**20, 16, 16]}),
        ("consensus", {"settings": {"runs": 10**9}}),
        ("consensus", {"model": changed(order=torch.zeros(2, 2, dtype=torch.int64))}),
        ("consensus", {"model": changed(best=torch.tensor(5))}),
        ("kmeans", {"model": changed(centroids=torch.zeros(2, 4))}),
        ("kmeans", {"model": changed(centroids=torch.zeros(3, 5))}),
        ("kmeans", {"model": changed(centroids=torch.full((2, 5), torch.nan))}),
        ("kmeans", {"model": changed(subgroup_means=torch.zeros(2, 7))}),
        ("kmeans", {"model": changed(subgroup_order=torch.tensor([0, 0]))}),
        ("kmeans", {"model": changed(subgroup_order=torch.tensor([0, 1, 2]))}),
        ("kmeans", {"model": changed(subgroup_order=torch.tensor([[0, 1]]))}),
        ("kmeans", {"model": changed(subgroup_order=torch.tensor([0.0, 1.0]))}),
        ("kmeans", {"model": changed(subgroup_order=torch.tensor(0))}),
        ("deep_ucsl", {"model": lambda old: {**old, "beliefs.centroids": old["beliefs.centroids"][:1]}}),
        ("deep_ucsl", {"model": lambda old: {**old, "network.heads.gate.bias": torch.zeros(2, dtype=torch.float64)}}),
        ("deep_ucsl", {"model": lambda old: {name: t for name, t in old.items() if "gate" not in name}}),
        ("deep_ucsl", {"settings": {"encoder": "hf:/etc"}}),
    ],
)
def test_a_recipe_cannot_ask_for_more_than_its_model_holds(spoilt, little_memory, name, spoil):
    with pytest.raises(RunError, match="Expected"):
        load(spoilt(name, **spoil))


def test_names_of_files_in_a_recipe_are_only_names(spoilt, tmp_path):
    planted = tmp_path / "weights.pth"
    planted.write_bytes(b"never read")
    assert load(spoilt(settings={"weights": str(planted), "device": "/dev/zero"})).n_subgroups == 2


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5000, "NaN", '{"a": 1e999}', '"\\ud800"', "9" * 5000, ""])
def test_strange_json_is_a_value_error(text, tmp_path):
    with pytest.raises(ValueError):  # noqa: PT011, whichever
        parse_json(text)
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(RunError, match="to be JSON"):
        read_recipe(tmp_path)


def test_files_are_measured_before_they_are_read(spoilt, tmp_path, monkeypatch):
    copy = spoilt()
    with (copy / "recipe.json").open("ab") as file:
        file.truncate(2**36)  # sparse: it takes no room
    with pytest.raises(RunError, match="larger than the 16,777,216 bytes"):
        load(copy)
    copy = spoilt()
    with (copy / "model.safetensors").open("ab") as file:
        file.truncate(2**40)
    with pytest.raises(RunError, match="would take 2199"):
        load(copy)
    with pytest.raises(ValueError, match="larger than the 3 bytes"):
        read_limited(copy / "recipe.json", 3)


def test_links_out_of_a_run_folder_are_refused(spoilt, tmp_path):
    for name in ("recipe.json", "model.safetensors", "subgroups.csv", "report.safetensors", "scores.json"):
        copy = spoilt()
        shutil.move(copy / name, tmp_path / name)
        (copy / name).symlink_to(tmp_path / name)
        with pytest.raises(RunError, match=f"Expected {name} in the run folder"):
            load(copy) if name.startswith(("recipe", "model")) else write_page(copy)
    copy = spoilt()
    (copy / "recipe.json").unlink()
    (copy / "recipe.json").symlink_to("recipe.json")
    with pytest.raises(RunError):
        load(copy)


def test_nothing_is_written_through_a_link(spoilt, tmp_path):
    copy, victim = spoilt(), tmp_path / "victim"
    victim.write_text("mine")
    (copy / "report.html").unlink()
    (copy / "report.html").symlink_to(victim)
    (copy / f"report.html.{os.getpid()}.partial").symlink_to(victim)  # process numbers can be guessed
    write_page(copy)
    assert victim.read_text() == "mine"
    assert not (copy / "report.html").is_symlink()
    write_whole(copy / "report.html", "again")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cells").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="a link"), Cells(tmp_path / "cells"):
        pass
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "lock").symlink_to(tmp_path / "made")
    with pytest.raises(RunError), Cells(tmp_path / "own"):
        pass
    assert not (tmp_path / "made").exists()


def test_a_cell_of_a_stranger_is_run_again(tmp_path):
    def check(found):
        from phenogroups.workflows.run_cells import check_found

        check_found(found)

    cell, notes = Cell("kmeans", 0, {}, {"a": 1}), []
    with Cells(tmp_path / "cells", check) as store:
        for found in ({"status": "finished"}, {"status": "?"}, {"status": "finished", "scores": "high", "seconds": 1}):
            store.write(cell, found)
            assert store.read(cell, notes.append) is None
        store.write(cell, {"status": "failed", "error": "no"})
        assert store.read(cell)["error"] == "no"
        (tmp_path / "cells" / cell.file).write_text("[" * 10_000)
        assert store.read(cell, notes.append) is None
    assert all("run again" in note for note in notes)


@pytest.mark.parametrize(
    ("words", "arrays"),
    [
        ({"n_subgroups": 10**9}, {}), ({"title": {"a": 1}}, {}), ({"sentences": {}}, {}), ({"warnings": "x"}, {}),
        ({"verdict": {"answer": "great"}}, {}), ({"stability": {"table": {"data": [[1]], "columns": ["a"]}}}, {}),
        ({"covariates": {"table": {"data": [[1]], "columns": ["a", "b"]}}}, {}), ({"strange": 1}, {}),
        ({}, {"shown": np.array([-1])}), ({}, {"points": np.full((3, 3), np.nan, np.float32)}),
        ({}, {"gallery": np.array([10**9])}), ({}, {"gallery_subgroup": np.array([7])}), ({}, {"truth": np.zeros(0)}),
    ],
)  # fmt: skip
def test_a_page_is_made_of_what_fits_together(spoilt, words, arrays):
    from safetensors.numpy import load as load_arrays
    from safetensors.numpy import save as save_arrays

    copy = spoilt()
    content = (copy / "report.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    told = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["words"]) | words
    changed = {**load_arrays(content), **arrays}
    (copy / "report.safetensors").write_bytes(save_arrays(changed, metadata={"words": json.dumps(told)}))
    with pytest.raises(RunError, match="Expected"):
        write_page(copy)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scores.json", '{"deep_ucsl": 3}'),
        ("scores.json", "[" * 9999),
        ("history.csv", "epoch,loss\n1,<script>\n"),
        ("subgroups.csv", "subject\n1\n"),
        ("subgroups.csv", "subject,part,diagnosis,subgroup,confidence,undecided\na,train,patient,ZZZ,1,False\n"),
    ],
)
def test_other_files_of_a_run_are_looked_at_too(spoilt, name, text):
    copy = spoilt()
    (copy / name).write_text(text)
    with pytest.raises(RunError, match="Expected"):
        write_page(copy)


def test_text_of_strangers_is_shown_and_never_run(spoilt):
    evil = "</script><script>alert(1)</script>"
    page = write_page(spoilt(cohort={"name": evil}, table={evil: evil})).read_text()
    assert evil not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page


def test_a_terminal_is_not_commanded(capsys):
    cli.say("row 1 (\x1b]52;c;evil\x07\x1b[2J): a\rb \u202egpj.exe \ud800 é\n\tend")
    assert (
        capsys.readouterr().out
        == "row 1 (\\x1b]52;c;evil\\x07\\x1b[2J): a\\rb \\u202egpj.exe \\ud800 é\n\tend\n".expandtabs()
    )


def test_a_spreadsheet_computes_nothing():
    names = ["=cmd|'/C calc'!A0", "+1+1", "-2", "-x", "@SUM(A1)", "plain", "\tx"]
    text = csv_text(pd.DataFrame({"subject": names, "p": np.float32(0.1)}))
    back = pd.read_csv(io.StringIO(text), dtype=str)["subject"].tolist()
    assert back == ["'=cmd|'/C calc'!A0", "'+1+1", "-2", "'-x", "'@SUM(A1)", "plain", "'\tx"]
    assert "0.100000001" in text


def nifti_with_extension(path):
    """An extension that says it is shorter than its own head: nibabel would read all that follows."""
    raw = bytearray(nibabel.Nifti1Image(np.ones((2, 2, 2), np.float32), np.eye(4)).to_bytes())
    raw[348:352] = b"\1\0\0\0"
    raw[108:112] = struct.pack("<f", 352 + 16)
    with gzip.open(path / "a.nii.gz", "wb", 1) as file:
        file.write(raw[:352] + struct.pack("<ii", 4, 4) + bytes(8) + raw[352:])
        for _ in range(8):
            file.write(bytes(2**24))
    return path / "a.nii.gz"


def test_extensions_of_a_volume_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(nibabel.nifti1.Nifti1Extensions, "from_fileobj", lambda *_: pytest.fail("read an extension"))
    np.testing.assert_array_equal(decode(nifti_with_extension(tmp_path)).array, np.ones((1, 2, 2, 2)))


def far_voxels(path):
    raw = bytearray(nibabel.Nifti1Image(np.ones((2, 2, 2), np.float32), np.eye(4)).to_bytes())
    raw[108:112] = struct.pack("<f", 1e12)
    (path / "a.nii").write_bytes(raw)
    return path / "a.nii"


def postscript(path):
    """Pillow would give it to Ghostscript, whatever the file is called."""
    (path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    return path / "a.png"


def pages(path):
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(
        path / "a.tif", save_all=True, append_images=[Image.fromarray(np.ones((4, 4), np.uint8))] * 3
    )
    return path / "a.tif"


def sparse(path):
    with (path / "a.dcm").open("wb") as file:
        file.truncate(2**33)
    return path / "a.dcm"


def deflated(path):
    pydicom = pytest.importorskip("pydicom")
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1.99"
    file.SOPClassUID, file.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", "1.2.3"
    file.PatientName = "A"
    file.save_as(path / "a.dcm", enforce_file_format=True)
    return path / "a.dcm"


@pytest.mark.parametrize("bomb", [far_voxels, postscript, pages, sparse, deflated])
def test_bombs_are_refused(tmp_path, bomb):
    with pytest.raises(UnreadableInput, match=r"at most|cannot identify|several pages|deflated"):
        decode(bomb(tmp_path))


def test_a_reading_cannot_ask_for_all_memory():
    for wrong in ({"size": (10**6, 10**6)}, {"frame": (2**14, 2**15)}, {"channels": 10**9}):
        with pytest.raises(ValueError, match="Expected"):
            Reading(**wrong)
    with pytest.raises(UnreadableInput, match="at most"):
        prepare(np.zeros((300, 4, 4), np.uint8), Reading(size=(1024, 1024)))
    with pytest.raises(CohortError, match="Expected image as"):
        spec_from_json({"image": 5, "reading": {}})
    with pytest.raises(CohortError, match="Expected features as"):
        spec_from_json({"features": ["a", ["b"]], "reading": {}})


def test_a_table_is_no_bomb(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text(",".join(f"c{i}" for i in range(70_000)) + "\n" + ",".join(["1"] * 70_000) + "\n")
    with pytest.raises(CohortError, match="more than 65,536 columns"):
        read_table(path)
    path.write_text("x" * 2**25)  # no line ends
    with pytest.raises(CohortError, match="columns"):
        read_table(path)
    path.write_text("id,x\na," + "y" * 100_000 + "\n")
    with pytest.raises(CohortError, match="cells of at most 65,536 letters"):
        read_table(path)
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(CohortError, match="of at most 1,073,741,824"):
        read_table(path)
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:  # pandas would unpack it
        archive.writestr("a.csv", "id,x\n1,2\n")
    with pytest.raises(CohortError):
        read_table(tmp_path / "b.zip")
    path.write_text("id,x\n" + "n" * 2000 + ",1\n")
    with pytest.raises(CohortError, match="names of at most 1,024 letters"):
        Cohort.from_table(path, subject="id", diagnosis="x")


def test_cells_beyond_the_header_are_not_lost(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,x\na,1,,\nb,2,,\n")  # as some programs end their lines
    assert read_table(path).to_numpy().tolist() == [["a", "1"], ["b", "2"]]
    path.write_text("id,x\na,1\nb,2,3\n")
    with pytest.raises(CohortError, match="3"):
        read_table(path)
    path.write_text("id,x\na,1,2\nb,2,3\n")
    with pytest.raises(CohortError, match="3 cells under 2 names in the row of 'a'"):
        read_table(path)


def test_packed_features_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("phenogroups.data.untrusted.machine_memory", lambda: 2**20)
    pytest.importorskip("pyarrow")
    rows = pd.DataFrame({"x": np.zeros(200_000), "word": ["w" * 1000] * 200_000})
    rows.to_parquet(tmp_path / "a.parquet")
    rows[["word"]][:1000].to_parquet(tmp_path / "b.parquet")
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)))
    np.save(tmp_path / "a.npy", np.zeros((1000, 1000)))
    for name in ("a.parquet", "b.parquet", "a.npz", "a.npy"):
        assert (tmp_path / name).stat().st_size < 2**17 or name == "a.npy"
        with pytest.raises(CohortError, match="would take"):
            read_features_file(tmp_path / name, np.array(["a"]), named=False)


def test_parquet_comes_back_as_it_was(tmp_path):
    pytest.importorskip("pyarrow")
    rows = pd.DataFrame({"id": ["a", "b", None], "x": [1.5, np.nan, 3]}, index=[5, 6, 7])
    rows.to_parquet(tmp_path / "a.parquet")
    rows.set_index("id").to_parquet(tmp_path / "b.parquet")
    for name in ("a", "b"):
        read = read_table(tmp_path / f"{name}.parquet")[["id", "x"]]
        assert read.to_numpy().tolist() == [["a", "1.5"], ["b", ""], ["", "3.0"]]


@pytest.mark.parametrize("text", [
    "method = 5", "x = " + "[" * 5000, "[rows]\nleave_out = 5", "[rows]\nmost = {a = {b = 'c'}}", "[table]\nimage = 5",
    "[reading]\nsize = [1.5, 2.5]", "[settings]\nepochs = nan", "[settings]\naugmentation = {rotation = 'far'}",
    "subgroups = 1e3", "held_out = [0.5]", "[table]\nfeatures = [1, 2]", "[reading]\nsize = [1000000000, 1000000000]",
])  # fmt: skip
def test_strange_toml_is_one_message(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError, match=r"Expected|recipe"):
        recipe(tmp_path / "a.toml")


@FEW
@given(content=JSON, key=st.sampled_from(["method", "settings", "input_shape", "table", "format", "model_sha256"]))
def test_any_entry_of_a_recipe(spoilt, content, key):
    copy = spoilt("kmeans")
    told = json.loads((copy / "recipe.json").read_text())
    (copy / "recipe.json").write_text(json.dumps({**told, key: content}))
    with suppress(ValueError):
        spec_from_json(read_recipe(copy).get("table") or {"reading": {}})
        assert load(copy).predict_subgroup(np.zeros((2, 5), np.float32)).shape == (2,)


@FEW
@given(rows=st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=4), min_size=1, max_size=5), text=st.text())
def test_any_table(tmp_path, rows, text):
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join([text, *(",".join(row) for row in rows)]).encode("utf-8", "surrogatepass"))
    with suppress(CohortError):
        assert len(read_table(path)) >= 1


@FEW
@given(content=JSON)
def test_text_in_a_tensor(content):
    with suppress(ValueError):
        assert from_bytes(as_bytes(content)) == json.loads(json.dumps(content))
    with pytest.raises(ValueError, match="as bytes"):
        from_bytes(torch.zeros(3))


def test_material_of_another_kind_is_refused(tmp_path):
    (tmp_path / "report.safetensors").write_bytes(save({"a": torch.zeros(1)}))
    with pytest.raises(RunError, match="as it was written"):
        Material.read(tmp_path)
