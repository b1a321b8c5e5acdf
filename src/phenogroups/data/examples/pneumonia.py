"""Embeddings of chest X-rays of children: pneumonia, bacterial or viral, and healthy lungs (Kermany et al. 2018).

The X-rays themselves are a folder that `discover` reads (`layouts.kermany`).
"""

import re
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, Cohort, CohortError, name_rows
from phenogroups.data.examples.local import find, read_labels, require
from phenogroups.data.layouts import XRAY_NAME

TRUTH_NAMES = ("bacterial", "viral")
TRUTH_OF = {"bacteria": 0, "bacterial": 0, "virus": 1, "viral": 1, "normal": UNKNOWN}  # by the word of a label file


def pneumonia_embeddings(
    data: str | Path | None = None,
    *,
    file: str | Path | None = None,
    split: str = "train",
    labels: str | Path | None = None,
) -> Cohort:
    """Read an npz file with the arrays `embedding` and `name`: `file`, or resnet50_{split}.npz in the data folder.

    File names say the patient and the kind of pneumonia; `labels`, a JSON file {file name: "bacteria" or "virus"},
    takes precedence over them.
    """
    path = Path(file) if file is not None else require(data, *_places(split))
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
    matches = [XRAY_NAME.match(name) for name in names]
    unknown = [name for name, match in zip(names, matches, strict=True) if not match]
    if unknown:
        raise CohortError(
            "Expected file names of patients (person1_virus_6.jpeg) or controls (IM-0001-0001.jpeg, "
            f"NORMAL2-IM-0001-0001.jpeg). Received: {name_rows(unknown)} in {path}. Name rows as the public files are."
        )
    return Cohort(
        embedding.astype(np.float32),
        diagnosis=np.array([PATIENT if name.startswith("person") else CONTROL for name in names]),
        subject=np.array([f"{split}-{Path(name).stem}" for name in names]),
        # the numbering of patients starts anew in the other split
        group=np.array([f"{split}-{match[match.lastgroup or 0]}" for match in matches if match]),
        truth=np.array([TRUTH_OF[kind] for kind in kinds_of(names, labels)]),
        truth_names=TRUTH_NAMES,
        name="pneumonia",
    )


def has_embeddings(data: str | Path | None, split: str) -> bool:
    return find(data, *_places(split)) is not None


def _places(split: str) -> list[str]:
    return [f"{folder}resnet50_{split}.npz" for folder in ("", "pneumonia/", "../")]  # ../: beside chest_xray


def kinds_of(names: list[str], labels: str | Path | None) -> list[str]:
    """The kind of pneumonia of each file (a key of TRUTH_OF), by its name or by the file of labels.

    The label file has file names with or without their ending.
    """
    kinds = [match[1] if (match := re.search("_(bacteria|virus)_", name)) else "normal" for name in names]
    if labels is None:
        return kinds
    words = {key: str(value).strip().lower() for key, value in read_labels(labels).items()}
    unknown = [key for key, word in words.items() if word not in TRUTH_OF]
    if unknown:
        raise CohortError(
            f"Expected the labels {', '.join(TRUTH_OF)}. Received: {words[unknown[0]]!r} in {name_rows(unknown)} of "
            f"{labels}. Recode or drop them."
        )
    if not any(name in words or Path(name).stem in words for name in names):
        raise CohortError(
            f"Expected labels by file name, such as {names[-1]}. Received: {name_rows(list(words))} in {labels}, "
            "none of which is here. Give the labels of this split."
        )
    return [words.get(name, words.get(Path(name).stem, kind)) for name, kind in zip(names, kinds, strict=True)]
