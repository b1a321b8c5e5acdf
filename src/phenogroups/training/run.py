"""The run folder: what a run leaves behind, written whole or not at all, holding nothing that can execute."""

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

FORMAT = 1  # of recipe.json; raised when old folders can no longer be read
MODEL, RECIPE, CHOICE = "model.safetensors", "recipe.json", "choice.json"
PAGE, MATERIAL = "report.html", "report.safetensors"  # and what the page is made of
FILES = {  # all that a run writes
    MODEL, RECIPE, "history.csv", "subgroups.csv", "scores.json", "confounds.csv", "profiles.csv", "profiles.tex",
    "criteria.csv", CHOICE, PAGE, MATERIAL,
}  # fmt: skip
VERSIONED = ("phenogroups", "torch", "monai", "scikit-learn", "numpy")


class RunError(ValueError):
    """A run folder cannot be written or read; the message says why."""


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in VERSIONED}}


def check_writable(folder: str | Path) -> None:
    """Say before training, not after it, that the run folder cannot be written; leaves no trace."""
    folder = Path(folder).resolve()
    inside = (
        {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name} if folder.exists() else set()
    )
    strange = sorted(inside - FILES if RECIPE in inside else inside)
    if strange:
        raise RunError(
            f"Expected a new folder or an earlier run to replace. Received: {folder}, which holds other things "
            f"({', '.join(strange[:5])}). Choose another folder (--out)."
        )
    home = next(parent for parent in folder.parents if parent.exists())
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        raise RunError(f"Expected a place to write the run folder {folder}. Received: {home}, which is not writable.")


@contextmanager
def new_run_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write into, which takes its name only when everything in it is complete."""
    folder = Path(folder).resolve()
    check_writable(folder)
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
        # moved away and not deleted in its place: a process killed half-way would leave something that is no run folder
        shutil.rmtree(earlier, ignore_errors=True)
        if folder.exists():
            os.replace(folder, earlier)
        os.replace(partial, folder)
        shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:  # the work is done: it stays where it is
        raise RunError(f"Expected to replace {folder}. Received: {error}. The new run is in {partial}.") from error


def write_model(folder: Path, recipe: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    model = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    (folder / MODEL).write_bytes(model)
    whole = {"format": FORMAT, **recipe, "model_sha256": sha256(model).hexdigest(), "versions": versions()}
    text = json.dumps(whole, indent=2, allow_nan=False)
    (folder / RECIPE).write_text(text + "\n", encoding="utf-8")


def read_recipe(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / RECIPE
    if not path.is_file():
        raise RunError(f"Expected a run folder with {RECIPE}. Received: {folder}, which has none.")
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"Expected {path} to be JSON. Received: {error}.") from error
    if not isinstance(recipe, dict) or recipe.get("format") != FORMAT:
        raise RunError(f"Expected {path} in format {FORMAT}. Received another. Use the version that wrote it.")
    for key, kind in (("method", str), ("settings", dict), ("input_shape", list)):
        if not isinstance(recipe.get(key), kind):
            raise RunError(f"Expected {path} to name its {key}. Received: {recipe.get(key)!r}.")
    return recipe


def read_tensors(folder: str | Path, recipe: Mapping[str, Any]) -> dict[str, Tensor]:
    path = Path(folder) / MODEL
    if not path.exists() and (Path(folder) / CHOICE).exists():
        raise RunError(f"Expected a run that found subgroups. Received: {folder}, which found none and has no model.")
    try:
        model = path.read_bytes()
        if sha256(model).hexdigest() != recipe.get("model_sha256"):
            raise RunError(f"Expected {path} as {RECIPE} was written with. Received another or a damaged file.")
        return load(model)
    except (OSError, SafetensorError) as error:
        raise RunError(f"Expected a model in {path}. Received: {error}.") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """The file appears complete or not at all."""
    # of this process: another one may be writing the same file
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # else the name could reach the disk before the content does
        os.replace(partial, path)
    except OSError as error:
        raise RunError(f"Expected to write {path}. Received: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)
