"""Chest X-rays of children: pneumonia, bacterial or viral, against healthy lungs (Kermany et al. 2018).

The public layout is chest_xray/{train,test}/{NORMAL,PNEUMONIA}/*.jpeg; file names tell patient and kind of pneumonia.
"""

import re
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, Cohort, CohortError, name_rows
from phenogroups.data.decoding import PICTURES
from phenogroups.data.examples.local import find, read_labels, require
from phenogroups.data.inputs import read_inputs
from phenogroups.data.layouts import XRAY_NAME
from phenogroups.data.reading import Reading
from phenogroups.data.stored import Inputs
from phenogroups.data.tables import Table, TableSpec

TRUTH_NAMES = ("bacterial", "viral")
WORDS = {"bacteria": 0, "bacterial": 0, "virus": 1, "viral": 1, "normal": UNKNOWN}  # of label files


def pneumonia(
    data: str | Path | None = None,
    *,
    size: int = 96,
    split: str = "train",
    balanced: bool = False,
    labels: str | Path | None = None,
    intensity: Literal["unit", "minmax", "standardise"] = "unit",
) -> Cohort:
    """Grey images of size x size from the public folders, in `data` or in the folder that PHENOGROUPS_DATA names.

    `balanced` is the paper's training set: all controls and equally many of either pneumonia. `labels` is a JSON file
    {file name: "bacteria" or "virus"} that overrides what the names tell.
    """
    folder = require(data, *_image_places(split)).parent
    files = [file for part in ("NORMAL", "PNEUMONIA") for file in _pictures(folder / part)]
    diagnosis = np.array([PATIENT if file.parent.name == "PNEUMONIA" else CONTROL for file in files])
    about = _about([file.name for file in files], diagnosis, split, labels)
    about["image"] = [str(file.resolve()) for file in files]
    if balanced:
        about = about.iloc[_paper_subset(about)]
    spec = TableSpec(image="image", subject="subject", reading=Reading((size, size), 1, intensity))
    return _cohort(about, read_inputs(Table(about, spec)))


def pneumonia_embeddings(
    data: str | Path | None = None,
    *,
    file: str | Path | None = None,
    split: str = "train",
    balanced: bool = False,
    labels: str | Path | None = None,
) -> Cohort:
    """The same subjects as a table of embeddings: an npz file with `embedding` and `name`, or resnet50_{split}.npz."""
    path = Path(file) if file is not None else require(data, *_table_places(split))
    try:
        with np.load(path, allow_pickle=False) as stored:
            embedding, names = stored["embedding"], [Path(name).name for name in stored["name"].astype(str)]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise CohortError(f"Expected an npz file with embedding and name. Received: {path} ({error}).") from error
    if embedding.ndim != 2 or len(embedding) != len(names):
        raise CohortError(
            f"Expected embeddings of {len(names)} names. Received: shape {embedding.shape} in {path}. "
            "Write both from the same list of files."
        )
    strange = [name for name in names if not XRAY_NAME.match(name)]
    if strange:
        raise CohortError(
            "Expected file names of patients (person1_virus_6.jpeg) or controls (IM-0001-0001.jpeg, "
            f"NORMAL2-IM-0001-0001.jpeg). Received: {name_rows(strange)} in {path}. Name rows as the public files are."
        )
    diagnosis = np.array([PATIENT if name.startswith("person") else CONTROL for name in names])
    about = _about(names, diagnosis, split, labels)
    rows = _paper_subset(about) if balanced else np.arange(len(about))
    return _cohort(about.iloc[rows], embedding[rows].astype(np.float32))


def has_images(data: str | Path | None, split: str) -> bool:
    return find(data, *_image_places(split)) is not None


def has_embeddings(data: str | Path | None, split: str) -> bool:
    return find(data, *_table_places(split)) is not None


def _image_places(split: str) -> list[str]:
    folders = ("", "chest_xray/", "pneumonia/", "pneumonia/chest_xray/")
    return [f"{folder}{split}/PNEUMONIA" for folder in folders]


def _table_places(split: str) -> list[str]:
    return [f"{folder}resnet50_{split}.npz" for folder in ("", "pneumonia/", "../")]  # ../: beside chest_xray


def _pictures(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.glob("*") if file.name.lower().endswith(PICTURES))
    if not files:
        raise CohortError(f"Expected X-rays in {folder}. Received: none. Unpack the public files there.")
    return files


def _about(names: list[str], diagnosis: np.ndarray, split: str, labels: str | Path | None) -> pd.DataFrame:
    """One row per file: what its name and the labels tell."""
    patient = [match[match.lastgroup or 0] if (match := XRAY_NAME.match(name)) else name for name in names]
    kind = [match[1] if (match := re.search("_(bacteria|virus)_", name)) else "normal" for name in names]
    if labels is not None:
        kind = _relabelled(names, kind, labels)
    # patients are counted from one again in the other split
    return pd.DataFrame(
        {
            "subject": [f"{split}-{Path(name).stem}" for name in names],
            "group": [f"{split}-{name}" for name in patient],
            "diagnosis": diagnosis,
            "truth": [WORDS[word] for word in kind],
        }
    )


def _relabelled(names: list[str], kind: list[str], path: str | Path) -> list[str]:
    """By file name, with or without its ending."""
    labels = {key: str(value).strip().lower() for key, value in read_labels(path).items()}
    strange = [key for key, word in labels.items() if word not in WORDS]
    if strange:
        raise CohortError(
            f"Expected the labels {', '.join(WORDS)}. Received: {labels[strange[0]]!r} in {name_rows(strange)} of "
            f"{path}. Recode or drop them."
        )
    if not any(name in labels or Path(name).stem in labels for name in names):
        raise CohortError(
            f"Expected labels by file name, such as {names[-1]}. Received: {name_rows(list(labels))} in {path}, "
            "none of which is here. Give the labels of this split."
        )
    return [labels.get(name, labels.get(Path(name).stem, word)) for name, word in zip(names, kind, strict=True)]


def _paper_subset(about: pd.DataFrame) -> np.ndarray:
    """Positions of all controls and of equally many of either pneumonia, the first in the order of the files."""
    ill = (about["diagnosis"] == PATIENT).to_numpy()
    bacterial, viral = (np.flatnonzero(ill & (about["truth"] == k).to_numpy()) for k in range(2))
    count = min((~ill).sum(), len(bacterial), len(viral))
    return np.sort(np.concatenate([np.flatnonzero(~ill), bacterial[:count], viral[:count]]))


def _cohort(about: pd.DataFrame, inputs: Inputs) -> Cohort:
    known = {column: about[column].to_numpy() for column in ("diagnosis", "subject", "group", "truth")}
    return Cohort(inputs, **known, truth_names=TRUTH_NAMES, name="pneumonia")
