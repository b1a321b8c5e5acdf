"""The run folder: the results of a run, written completely or not at all, without executable content."""

import importlib.metadata
import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from phenogroups.data.decoding import MOST_NUMBERS
from phenogroups.data.untrusted import parse_json, read_limited, refuse_more_than_memory, shortened
from phenogroups.data.writing import RunError, write_whole

FORMAT = 1  # of recipe.json; raised when old folders can no longer be read
MODEL, RECIPE, CHOICE = "model.safetensors", "recipe.json", "choice.json"
PAGE, MATERIAL = "report.html", "report.safetensors"  # the second is what the page is made from
FILES = {  # all that a run writes
    MODEL, RECIPE, "history.csv", "subgroups.csv", "scores.json", "confounds.csv", "profiles.csv", "profiles.tex",
    "criteria.csv", "stability.csv", "verdict.json", CHOICE, PAGE, MATERIAL, "log.txt",
}  # fmt: skip
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # first characters of formulas in spreadsheets
MOST_MODEL = 2**34  # bytes: several copies of the largest encoders
VERSIONED = ("phenogroups", "torch", "monai", "scikit-learn", "numpy")


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in VERSIONED}}


def check_writable(folder: str | Path, *, overwrite: bool = False) -> None:
    """Raise before training, not after it, where the run folder cannot be written; nothing is written.

    A finished run, or a saved model, is replaced only with `overwrite`.
    """
    folder = Path(folder).resolve()
    inside = {folder.name} if folder.exists() else set()
    if folder.is_dir():
        inside = {path.name for path in folder.iterdir()}
    other = sorted(inside - FILES if RECIPE in inside else inside)
    if other:
        raise RunError(
            f"Expected a new folder or an earlier run to replace. Received: {folder}, which holds other things "
            f"({', '.join(other[:5])}). Choose another folder (--out)."
        )
    if inside and not overwrite:
        raise RunError(
            f"Expected a new run folder. Received: {folder}, which holds a finished run or a saved model. "
            "Give another folder (--out), or replace it (--overwrite; in Python overwrite=True)."
        )
    home = next(parent for parent in folder.parents if parent.exists())
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        raise RunError(f"Expected a place to write the run folder {folder}. Received: {home}, which is not writable.")


@contextmanager
def new_run_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder to write into, which gets this name when everything in it is complete."""
    folder = Path(folder).resolve()
    check_writable(folder, overwrite=True)  # whether an earlier run may be replaced is checked before the work
    partial = folder.with_name(folder.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise RunError(f"Expected to write the run folder {folder}. Received: {error}.") from error
        raise
    earlier = folder.with_name(folder.name + ".earlier")
    try:
        # moved away first: a process that is killed while deleting would leave an incomplete run folder
        shutil.rmtree(earlier, ignore_errors=True)
        if folder.exists():
            os.replace(folder, earlier)
        os.replace(partial, folder)
        shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:  # the results stay in the temporary folder
        raise RunError(f"Expected to replace {folder}. Received: {error}. The new run is in {partial}.") from error


def write_model(folder: Path, recipe: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    model = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    write_whole(folder / MODEL, model)
    whole = {"format": FORMAT, **recipe, "model_sha256": sha256(model).hexdigest(), "versions": versions()}
    text = json.dumps(whole, indent=2, allow_nan=False)
    write_whole(folder / RECIPE, text + "\n")


def read_recipe(folder: str | Path) -> dict[str, Any]:
    path = member(folder, RECIPE)
    if not path.is_file():
        there = "which has none" if Path(folder).is_dir() else "which does not exist"
        raise RunError(f"Expected a run folder with {RECIPE}. Received: {folder}, {there}.")
    try:
        recipe = parse_json(read_limited(path))
    except (ValueError, OSError) as error:
        raise RunError(f"Expected {path} to be JSON. Received: {error}.") from error
    if not isinstance(recipe, dict) or recipe.get("format") != FORMAT:
        raise RunError(f"Expected {path} in format {FORMAT}. Received another. Use the version that wrote it.")
    for key, kind in (("method", str), ("settings", dict), ("input_shape", list)):
        if not isinstance(recipe.get(key), kind):
            raise RunError(f"Expected {path} to name its {key}. Received: {shortened(recipe.get(key))}.")
    shape = recipe["input_shape"]
    whole = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in shape)
    if len(shape) not in (1, 3, 4) or not whole or math.prod(shape) > MOST_NUMBERS:
        raise RunError(
            f"Expected {path} to name its input_shape as 1, 3 or 4 whole numbers, at most {MOST_NUMBERS:,} together. "
            f"Received: {shortened(shape)}."
        )
    if not isinstance(recipe.get("table") or {}, dict):
        raise RunError(f"Expected {path} to say how its table is read. Received: {shortened(recipe['table'])}.")
    return recipe


def member(folder: str | Path, name: str) -> Path:
    """The path of a file in a run folder. A link out of it is refused: it could lead to any file of this machine."""
    folder = Path(folder)
    try:
        is_inside = (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:  # a link to itself
        raise RunError(f"Expected a run folder. Received: {folder} ({error}).") from error
    if not is_inside:
        raise RunError(f"Expected {name} in the run folder. Received: a link out of {folder}. Copy the file there.")
    return folder / name


def found_none(folder: str | Path) -> bool:
    """Whether a run folder has no model because no subgroups were found."""
    return not (Path(folder) / MODEL).exists() and (Path(folder) / CHOICE).exists()


def read_tensors(folder: str | Path, recipe: Mapping[str, Any]) -> dict[str, Tensor]:
    path = member(folder, MODEL)
    if found_none(folder):
        raise RunError(f"Expected a run that found subgroups. Received: {folder}, which found none and has no model.")
    try:
        refuse_more_than_memory(2 * path.stat().st_size, "the model")  # once as a file, once as tensors
        model = read_limited(path, MOST_MODEL)
        if sha256(model).hexdigest() != recipe.get("model_sha256"):
            raise RunError(f"Expected {path} as {RECIPE} was written with. Received another or a damaged file.")
        return load(model)
    except RunError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"Expected a model in {path}. Received: {error}.") from error


def write_csv(path: Path, table: pd.DataFrame) -> None:
    write_whole(path, csv_text(table))


def csv_text(table: pd.DataFrame, *, header: bool = True) -> str:
    """Nine digits, which distinguish any two float32; text that a spreadsheet would read as a formula is quoted."""
    words = {name: column.map(_as_text) for name, column in table.items() if not is_numeric_dtype(column)}
    return table.assign(**words).to_csv(index=False, header=header, float_format="%.9g")


def _as_text(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(FORMULAS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
