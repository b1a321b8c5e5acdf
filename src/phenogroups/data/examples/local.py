"""Files of public cohorts on this machine: in a folder given as an argument, or by PHENOGROUPS_DATA."""

import json
import os
from pathlib import Path
from typing import Any

from phenogroups.data.cohort import CohortError

VARIABLE = "PHENOGROUPS_DATA"
REMEDY = f"Give the folder that holds them (data=..., --data) or name it in {VARIABLE}."


def find(data: str | Path | None, *places: str) -> Path | None:
    """The first of these places that exists in the data folder, if there is such a folder and place."""
    given = data if data is not None else os.environ.get(VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        where = VARIABLE if data is None else "data"
        raise CohortError(f"Expected a folder as {where}. Received: {folder}, which is none. {REMEDY}")
    return next((folder / place for place in places if (folder / place).exists()), None)


def require(data: str | Path | None, *places: str) -> Path:
    found = find(data, *places)
    if found is None:
        received = data if data is not None else os.environ.get(VARIABLE)
        received = f"{received}, which has none of them" if received else "no data folder"
        raise CohortError(f"Expected {' or '.join(places)} in the data folder. Received: {received}. {REMEDY}")
    return found


def read_labels(path: str | Path) -> dict[str, Any]:
    """A JSON object, as label files are; null means unlabelled."""
    try:
        labels = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CohortError(f"Expected a label file in JSON. Received: {path}, unreadable ({error}).") from error
    if not isinstance(labels, dict):
        raise CohortError(f"Expected labels as one JSON object. Received: {path}, a {type(labels).__name__}.")
    labels = {key: value for key, value in labels.items() if value is not None}
    if not labels:
        raise CohortError(f"Expected at least one label. Received: {path}, which has none.")
    return labels
