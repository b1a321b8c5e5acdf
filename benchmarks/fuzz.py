"""Whether strangers' files are ever anything but read or refused: mutations of valid files through every reader.

python benchmarks/fuzz.py --inputs 100000 [--seed 0]. Each input is a valid file, mutated by its own seed:
bytes and numbers changed, pieces cut, doubled, swapped with those of another file, keys and values replaced. Whoever
writes a model file writes its checksum too, so checksums are made right again. A reader may return a valid object or
raise an error that the command line turns into one message (ValueError, OSError); anything else is a surprise, and so
are a read that takes seconds and one that takes memory. Surprises are kept in a folder, to be read again.
"""

import copy
import io
import json
import os
import random
import resource
import struct
import sys
import tempfile
import tomllib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from common import ERR, OUT, RESULTS, machine
from common import main as run_main
from rich.table import Table

from phenogroups.cli import say
from phenogroups.data.cohort import Cohort
from phenogroups.data.decoding import decode
from phenogroups.data.features import read_features_file
from phenogroups.data.opening import open_cohort
from phenogroups.data.reading import prepare
from phenogroups.data.table_files import read_table
from phenogroups.data.tables import TableSpec, spec_from_json
from phenogroups.data.writing import write_whole
from phenogroups.methods import build_method, load
from phenogroups.recipes import FOLDER, RECIPES, recipe
from phenogroups.report.material import Material
from phenogroups.training.run import MATERIAL, MODEL, RECIPE, read_recipe, versions
from phenogroups.workflows.discover import discover

EXPECTED = (ValueError, OSError)  # one message and exit code 2
SLOW, GROWTH = 5.0, 500  # seconds of processor, megabytes: a surprise
METHODS = ("kmeans", "deep_ucsl", "hydra", "vae", "consensus")  # whose models are mutated
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, 0.5, "", "a", "../../etc/passwd", "/dev/zero", "hf:evil/model",
    "\x1b[2J", "\ud800", "<script>", [], {}, [[]], ["a", 1], [1, 2, 3], [10**9], [10**9, 10**9], {"a": {"b": 1}},
    "kmeans", "consensus", "imagenet", [None], float("nan"), float("inf"),
)  # fmt: skip
TEXTS = (
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b",",
    b"\n",
    b"\r",
    b";",
    b"[",
    b"{",
    b"9" * 400,
    b"NaN",
    b"1e999",
    b"[" * 3000,
)


@dataclass(frozen=True, kw_only=True)
class Fuzz:
    """Mutated files through the readers."""

    inputs: int = 100_000
    """Of all readers together."""
    seed: int = 0
    """Of the mutations."""
    only: tuple[str, ...] = ()
    """Readers by name; by default all."""
    keep: Path | None = None
    """Folder for inputs that surprised; by default none is kept."""

    def build(self, _: int) -> None:
        if self.inputs < 1:
            raise ValueError(f"Expected at least 1 input. Received: {self.inputs}.")

    def run(self) -> None:
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as home:
            targets = {name: made for name, made in make_targets(Path(home)).items() if name in (self.only or TARGETS)}
            shares = {name: TARGETS[name] for name in targets}
            counts = {name: round(self.inputs * share / sum(shares.values())) for name, share in shares.items()}
            found = {name: self.fuzz(name, one, counts[name]) for name, one in targets.items()}
        table = Table("reader", "inputs", "valid", "refused", "surprises", "seconds", "slowest, ms")
        for name, row in found.items():
            refused = sum(row["errors"].values())
            numbers = (row["inputs"], row["valid"], refused, row["surprises"])
            table.add_row(name, *map(str, numbers), f"{row['seconds']:.0f}", f"{1000 * row['slowest']:.0f}")
        OUT.print(table)
        total = sum(row["inputs"] for row in found.values())
        surprises = sum(row["surprises"] for row in found.values())
        say(f"{total} inputs, {surprises} surprises.", OUT)
        about = {
            "benchmark": "fuzz", "options": vars(self), "inputs": total, "surprises": surprises, "readers": found,
            "seconds": sum(row["seconds"] for row in found.values()), "machine": machine(), "versions": versions(),
        }  # fmt: skip
        if not self.only:
            RESULTS.mkdir(parents=True, exist_ok=True)
            write_whole(RESULTS / "fuzz.json", json.dumps(about, indent=2, default=str) + "\n")
        if surprises:
            sys.exit(1)

    def fuzz(self, name: str, target: "Target", count: int) -> dict[str, Any]:
        errors: Counter[str] = Counter()
        strange: defaultdict[str, list[int]] = defaultdict(list)
        valid, slowest, began = 0, 0.0, process_time()
        for number in range(count):
            rng = random.Random(f"{self.seed}-{name}-{number}")
            target.write(rng)
            memory, start = peak_mb(), process_time()
            try:
                target.read()
                valid += 1
            except EXPECTED as error:
                errors[type(error).__name__] += 1
                if len(str(error)) > 20_000:
                    strange["a message of more than 20,000 letters"].append(number)
            except Exception as error:
                strange[f"{type(error).__name__}: {str(error)[:200]}"].append(number)
            took = process_time() - start
            slowest = max(slowest, took)
            if took > SLOW:
                strange[f"took more than {SLOW} s"].append(number)
            if number and peak_mb() - memory > GROWTH:
                strange[f"took more than {GROWTH} MB"].append(number)
        for words, numbers in strange.items():
            say(f"{name}: {words} ({len(numbers)} times; inputs {numbers[:3]})", ERR)
            if self.keep is not None:
                target.write(random.Random(f"{self.seed}-{name}-{numbers[0]}"))
                target.keep(self.keep / f"{name}-{self.seed}-{numbers[0]}")
        seconds = process_time() - began
        say(f"{name}: {count} inputs in {seconds:.0f} s, {valid} valid, {dict(errors)}", ERR)
        return {
            "inputs": count, "valid": valid, "errors": dict(errors), "seconds": seconds, "slowest": slowest,
            "surprises": sum(map(len, strange.values())), "strange": {what: len(n) for what, n in strange.items()},
        }  # fmt: skip


@dataclass
class Target:
    """A reader, and how its next input comes to be."""

    write: Callable[[random.Random], None]
    read: Callable[[], Any]
    folder: Path

    def keep(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.is_file():
                (place / path.name).write_bytes(path.read_bytes())


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def mutate_bytes(content: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """A few changes, most of them near the beginning, where headers are."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        reach = len(found) if rng.random() < 0.5 else min(len(found), 512)
        at, to = sorted((rng.randrange(reach + 1), rng.randrange(reach + 1)))
        match rng.randrange(9):
            case 0 if reach:
                found[min(at, reach - 1)] ^= 1 << rng.randrange(8)
            case 1 if reach:
                found[min(at, reach - 1)] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                del found[at : at + rng.choice((1, 2, 8, 64))]
            case 3:
                del found[at:]
            case 4:
                found[at:at] = found[at:to][:4096]
            case 5:
                found[at:at] = rng.choice(TEXTS)
            case 6:
                number = rng.choice((0, 1, 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, rng.randrange(2**32)))
                width, order = rng.choice((2, 4, 8)), rng.choice(("<", ">"))
                packed = struct.pack(f"{order}Q", number)
                found[at : at + width] = packed[:width] if order == "<" else packed[-width:]
            case 7 if other:
                begin = rng.randrange(len(other))
                found[at:to] = other[begin : begin + to - at]
            case _:
                found[at:to] = rng.randbytes(min(to - at, 64))
    return bytes(found)


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """One place of a tree of dicts and lists, changed: another value, another key, gone, or deeper."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        todo = [tree]
        while todo:
            one = todo.pop()
            for key in list(one) if isinstance(one, dict) else range(len(one)):
                places.append((one, key))
                if isinstance(one[key], dict | list):
                    todo.append(one[key])
        if not places:
            return rng.choice(NASTY)
        inside, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[rng.choice(("weights", "encoder", "latent", "\x00", "x" * 50, "settings", "n_subgroups"))] = (
                    inside[key]
                )
            case 2 if isinstance(inside[key], int | float):
                inside[key] = rng.choice((-inside[key], inside[key] * 10**9, inside[key] + 1, str(inside[key])))
            case 3:
                inside[key] = [inside[key]] * rng.choice((1, 2, 100))
            case 4:
                inside[key] = copy.deepcopy(rng.choice(places)[0])
            case _:
                inside[key] = copy.deepcopy(rng.choice(NASTY))
    return tree


def mutate_tensors(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """The header as a tree, the numbers as numbers, or both as bytes."""
    (size,) = struct.unpack("<Q", content[:8])
    how = rng.randrange(4)
    if how == 0:
        return mutate_bytes(content, rng, other)
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    if how == 1:
        tensors = [name for name in header if name != "__metadata__"]
        entry = header[rng.choice(tensors)]
        match rng.randrange(5):
            case 0:
                entry["shape"] = entry["shape"][::-1]
            case 1:
                entry["shape"] = [*entry["shape"], 1]
            case 2:
                entry["dtype"] = rng.choice(("F64", "F16", "I64", "U8", "BOOL", "BF16", "F8_E4M3", "C64", "I32"))
            case 3:
                name = rng.choice(tensors)
                header[rng.choice((f"{name}x", name.replace(".", "_"), "subgroup_means"))] = header.pop(name, entry)
            case _:
                entry["shape"] = [int(np.prod(entry["shape"]))]
    elif how == 2:
        header = mutate_tree(header, rng)
    else:
        numbers = bytearray(data)
        for _ in range(rng.choice((1, 4, 64))):
            at = rng.randrange(max(len(numbers) // 4, 1)) * 4
            numbers[at : at + 4] = struct.pack(
                "<f", rng.choice((float("nan"), float("inf"), 1e38, -1e38, 0.0, rng.random()))
            )
        data = bytes(numbers)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TARGETS = {  # shares of the inputs
    "table": 22, "table of images": 3, "recipe.json": 24, "recipe.toml": 12, "model": 22, "page material": 9,
    "pictures and volumes": 6, "features file": 2,
}  # fmt: skip


def make_targets(home: Path) -> dict[str, Target]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)).astype(np.float32)
    x[:20] += np.where(np.arange(20) % 2, 2, -2)[:, None]
    cohort = Cohort(x, (np.arange(40) < 20).astype(int))
    runs = {}
    for method in METHODS:
        settings = {"method": "kmeans", "runs": 2} if method == "consensus" else {}
        if method in ("deep_ucsl", "vae"):
            settings = {"epochs": 1, "steps": 1, "batch_size": 16} | ({"restarts": 1} if method == "deep_ucsl" else {})
        spec = {**asdict(TableSpec(features=tuple("abcde"), subject="id"))}
        discover(cohort, build_method(method, settings), home / method, table=spec)
        runs[method] = {path.name: path.read_bytes() for path in (home / method).iterdir()}
    at = home / "work"
    at.mkdir()
    folders = {name: at / name for name in ("run", "table", "files")}
    for folder in folders.values():
        folder.mkdir()
    return {
        **table_targets(folders["table"]),
        **run_targets(folders["run"], runs),
        "recipe.toml": toml_target(folders["table"]),
        **file_targets(folders["files"]),
    }


def table_targets(folder: Path) -> dict[str, Target]:
    rows = [f'sub-{i},{"SZ" if i % 2 else "HC"},{i * 1.5},{30 + i},"F, or M",{i % 3}.png' for i in range(12)]
    valid = "\n".join(["id,dx,x,age,sex,scan", *rows]).encode()
    others = [
        valid.replace(b",", b";"),
        valid.replace(b",", b"\t"),
        b"\xef\xbb\xbf" + valid,
        valid.decode().encode("utf-16"),
    ]
    path = folder / "subjects.csv"
    for i in range(3):
        np.save(folder / f"{i}.npy", np.zeros((4, 4)))
    columns = {"diagnosis": "dx", "control": ("HC",), "patient": ("SZ",), "subject": "id", "covariates": ("age", "sex")}
    features, images = TableSpec(**columns, features=("x",)), TableSpec(**columns, image="scan")

    def write(rng: random.Random) -> None:
        path.write_bytes(mutate_bytes(rng.choice((valid, valid, valid, valid, *others)), rng, valid))

    def write_paths(rng: random.Random) -> None:
        table = pd.read_csv(io.BytesIO(valid), dtype=str)
        for _ in range(rng.choice((1, 3))):
            words = (
                "../secret.npy",
                "/etc/passwd",
                "0.npy",
                "\0.npy",
                "a" * 5000 + ".npy",
                "",
                ".",
                "0.npy/../0.npy",
                "~/x.npy",
            )
            cell = rng.choice((*words, *(str(one) for one in NASTY if one != "\ud800")))
            table.iloc[rng.randrange(len(table)), rng.randrange(table.shape[1])] = cell
        table["scan"] = table["scan"].str.replace(".png", ".npy")
        path.write_bytes(table.to_csv(index=False).encode())

    def read(spec: TableSpec) -> None:
        table = read_table(path)
        cohort = open_cohort(table, spec, folder=folder)
        if len(cohort) != len(table) or not np.isfinite(cohort.inputs).all():
            raise AssertionError("the cohort is not the table")

    return {
        "table": Target(write, lambda: read(features), folder),
        "table of images": Target(write_paths, lambda: read(images), folder),
    }


def run_targets(folder: Path, runs: dict[str, dict[str, bytes]]) -> dict[str, Target]:
    x = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    models = [files[MODEL] for files in runs.values()]
    names = list(runs)

    def put(method: str, **changed: bytes) -> None:
        for path in folder.iterdir():
            path.unlink()
        for name, content in {**runs[method], **changed}.items():
            (folder / name).write_bytes(content)

    def write_recipe(rng: random.Random) -> None:
        method = rng.choice(names)
        content = runs[method][RECIPE]
        if rng.random() < 0.3:
            content = mutate_bytes(content, rng, runs[rng.choice(names)][RECIPE])
        else:
            content = json.dumps(mutate_tree(json.loads(content), rng)).encode()
        put(method, **{RECIPE: content})

    def write_model(rng: random.Random) -> None:
        method = rng.choice(names)
        content = mutate_tensors(runs[method][MODEL], rng, rng.choice(models))
        told = json.loads(runs[method][RECIPE])
        if rng.random() < 0.2:
            told["settings"] = mutate_tree(told["settings"], rng)
        put(
            method,
            **{MODEL: content, RECIPE: json.dumps({**told, "model_sha256": sha256(content).hexdigest()}).encode()},
        )

    def write_material(rng: random.Random) -> None:
        method = rng.choice(names)
        put(method, **{MATERIAL: mutate_tensors(runs[method][MATERIAL], rng, runs[rng.choice(names)][MATERIAL])})

    def read_model() -> None:
        told = read_recipe(folder)
        if told.get("table"):
            spec_from_json(told["table"])
        method = load(folder)
        if method.input_shape_ != (5,):
            return
        found = method.predict_cohort(Cohort(x, np.zeros(3)))
        if found.subgroup.shape != (3, method.n_subgroups) or len(found.embedding) != 3:
            raise AssertionError("the model speaks of other subgroups")

    return {
        "recipe.json": Target(write_recipe, read_model, folder),
        "model": Target(write_model, read_model, folder),
        "page material": Target(write_material, lambda: Material.read(folder), folder),
    }


def toml_target(folder: Path) -> Target:
    texts = [(FOLDER / f"{name}.toml").read_bytes() for name in RECIPES]
    path = folder / "own.toml"

    def write(rng: random.Random) -> None:
        text = rng.choice(texts)
        if rng.random() < 0.5:
            path.write_bytes(mutate_bytes(text, rng, rng.choice(texts)))
        else:
            path.write_text(as_toml(mutate_tree(tomllib.loads(text.decode()), rng)), errors="surrogatepass")

    return Target(write, lambda: recipe(path), folder)


def as_toml(tree: Any) -> str:
    """Tables as inline tables, which TOML takes too; what it cannot hold is left as JSON, to be refused."""
    if isinstance(tree, dict):
        return "\n".join(f"{json.dumps(str(key))} = {_inline(value)}" for key, value in tree.items())
    return json.dumps(tree)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return {"NaN": "nan", "Infinity": "inf"}.get(json.dumps(value), json.dumps(value))


def file_targets(folder: Path) -> dict[str, Target]:
    import nibabel
    from PIL import Image

    rng = np.random.default_rng(0)
    picture, volume = rng.integers(0, 256, (8, 8), dtype=np.uint8), rng.random((4, 4, 4)).astype(np.float32)
    for ending in ("png", "jpeg", "tif", "bmp"):
        Image.fromarray(picture).save(folder / f"a.{ending}")
    np.save(folder / "a.npy", volume)
    for ending in ("nii", "nii.gz"):
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / f"a.{ending}")
    write_dicom(folder / "a.dcm", picture)
    names = np.array([f"s{i}" for i in range(6)])
    np.savez(folder / "f.npz", x=rng.random((6, 4)), subject=names)
    np.save(folder / "f.npy", rng.random((6, 4)))
    pd.DataFrame(rng.random((6, 4)), columns=list("abcd")).assign(subject=names).to_parquet(folder / "f.parquet")
    valid = {path.name: path.read_bytes() for path in folder.iterdir()}
    now: list[Path] = []

    def write(first: str) -> Callable[[random.Random], None]:
        names = sorted(name for name in valid if name.startswith(first))

        def one(rng: random.Random) -> None:
            name = rng.choice(names)
            now[:] = [folder / name]
            now[0].write_bytes(mutate_bytes(valid[name], rng, valid[rng.choice(names)]))

        return one

    def read_file() -> None:
        if prepare(decode(now[0]).array, TableSpec().reading).dtype != np.float32:
            raise AssertionError("other numbers")

    def read_features() -> None:
        if not np.isfinite(read_features_file(now[0], names, named=True)).all():
            raise AssertionError("features that are not finite")

    return {
        "pictures and volumes": Target(write("a."), read_file, folder),
        "features file": Target(write("f."), read_features, folder),
    }


def write_dicom(path: Path, picture: np.ndarray) -> None:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.SOPClassUID, file.SOPInstanceUID = SecondaryCaptureImageStorage, generate_uid(entropy_srcs=["a"])
    file.Rows, file.Columns, file.SamplesPerPixel = *picture.shape, 1
    file.BitsAllocated = file.BitsStored = 8
    file.HighBit, file.PixelRepresentation, file.PhotometricInterpretation = 7, 0, "MONOCHROME2"
    file.PixelData = picture.tobytes()
    file.save_as(path, enforce_file_format=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_main(Fuzz)
