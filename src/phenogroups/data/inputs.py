"""The inputs of a table: images or features, one row per subject."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from phenogroups.data.cache import Progress, UnusableRows, cached_inputs, too_large_to_hold, user_cache
from phenogroups.data.cohort import CohortError, name_rows
from phenogroups.data.columns import require_columns, subject_names
from phenogroups.data.decoding import NOT_THERE, UnreadableInput
from phenogroups.data.features import read_feature_columns, read_features_file
from phenogroups.data.reading import PRETRAINED_SIDE, ImagePath, read_ahead, read_input, suits_pretrained
from phenogroups.data.stored import Inputs
from phenogroups.data.tables import Table, TableSpec

# columns with one of these words in their names are features only if the user names them; unnamed: pandas' row numbers
NO_FEATURES = {
    "age", "sex", "gender", "site", "scanner", "center", "centre", "hospital", "batch", "id", "ids", "identifier",
    "index", "unnamed", "date", "year", "month", "dob", "birth", "visit", "session", "subject", "participant",
    "patient", "race", "ethnicity", "education", "handedness",
}  # fmt: skip
MOST_MISSING = 5  # missing files that are named
MOST_BROKEN = 20  # other unusable files that are named
MOST_TRIED = 100  # files that are tried to find one that can be read


def read_inputs(table: Table, *, cache: str | Path | None = None, progress: Progress | None = None) -> Inputs:
    """Images (rows, channels, ...) or features (rows, features), float32; needs no diagnosis.

    Images that would not fit into memory, or any if `cache` names a folder, are decoded into a file and read from
    there.
    """
    subject, spec = subject_names(table.rows, table.spec), table.spec
    if spec.features_file is not None:
        return read_features_file(Path(spec.features_file), subject, named=spec.subject is not None)
    if spec.image is None:
        if not spec.features:
            raise CohortError(
                "Expected a column of image paths (--image), columns of numbers or a file of them (--features-file). "
                f"Received: {', '.join(map(repr, table.rows.columns))}, with no numbers to learn from."
            )
        return read_feature_columns(table.rows, spec.features, subject)
    paths = image_paths(table)
    inputs: np.ndarray | None = None
    broken, shapes = {}, {}
    for row, image in enumerate(() if cache else read_ahead(paths, lambda path: read_input(path, spec.reading))):
        if isinstance(image, UnreadableInput):
            broken[row] = str(image)
        elif inputs is None and too_large_to_hold(len(paths), image):
            cache = user_cache()
            break
        else:
            inputs = np.empty((len(paths), *image.shape), np.float32) if inputs is None else inputs
            shapes[row] = image.shape
            if image.shape == inputs.shape[1:]:
                inputs[row] = image
        if progress is not None:
            progress(row + 1, len(paths))
    if cache:
        try:
            return cached_inputs(paths, spec.reading, Path(cache), progress=progress)
        except UnusableRows as error:
            broken, shapes = error.broken, error.shapes
    refuse_broken(broken, subject, paths)
    require_one_shape(shapes, subject)
    return inputs  # pyright: ignore[reportReturnType], a table has a row and none of them is broken


def resolve_features(rows: pd.DataFrame, spec: TableSpec) -> TableSpec:
    """The spec with its feature columns named: by default all columns of numbers that have no other meaning."""
    if spec.image is not None or spec.features or spec.features_file is not None:
        return spec
    meant = {spec.diagnosis, spec.subject, spec.group, spec.truth, spec.split, *spec.covariates}
    left = [column for column in rows.columns if column not in meant]
    numeric = tuple(column for column in left if pd.to_numeric(rows[column], errors="coerce").notna().any())
    about = [column for column in numeric if NO_FEATURES & {*_words(column)}]
    if about:
        names, more = about[:10], ", ..." if len(about) > 10 else ""
        raise CohortError(
            f"Expected columns of measurements as features. Received also: {', '.join(map(repr, names))}{more}, whose "
            "names say that they describe the subject and not the disease. Say what they are (--covariates "
            f"{' '.join(shlex.quote(str(name)) for name in names)}, --subject, --group), drop them, or name all "
            "columns to learn from (--features)."
        )
    return replace(spec, features=numeric)


def _words(column: str) -> list[str]:
    """The words of a name in lower case: patient and age of PatientAge, Patient Age or patient_age."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", str(column))]


def features_in_words(features: Sequence[str], most: int = 10) -> str:
    """`2 features: volume, thickness`: the first of them, and how many more there are."""
    more = f" and {len(features) - most} more" if len(features) > most else ""
    return f"{len(features)} feature{'' if len(features) == 1 else 's'}: {', '.join(map(str, features[:most]))}{more}"


def resolve_size(table: Table) -> TableSpec:
    """The spec with the size that the default encoder was trained at, if no other is asked for and images suit it.

    The first image that can be read decides: others may have other sizes.
    """
    spec = table.spec
    if not spec.reads_images or spec.reading.size or spec.reading.frame:
        return spec
    for path in image_paths(table)[:MOST_TRIED]:
        try:
            image = read_input(path.locate(), spec.reading)
        except UnreadableInput:  # reported with all others when all are read
            continue
        size = (PRETRAINED_SIDE, PRETRAINED_SIDE) if suits_pretrained(image) else None
        return replace(spec, reading=replace(spec.reading, size=size))
    return spec


def image_paths(table: Table) -> list[ImagePath]:
    require_columns(table.rows, [str(table.spec.image)])
    return [ImagePath(cell.strip(), table.folder) for cell in table.rows[table.spec.image]]


def refuse_broken(broken: Mapping[int, str], subject: np.ndarray, paths: Sequence[ImagePath]) -> None:
    if broken:
        lines = "\n".join(f"  {line}" for line in name_broken(broken, subject, paths, MOST_BROKEN))
        are, them = ("is", "it") if len(broken) == 1 else ("are", "them")
        raise CohortError(
            f"Expected a readable file in every row. Received {len(broken)} that {are} not; correct or drop "
            f"{them}:\n{lines}"
        )


def name_broken(
    broken: Mapping[int, str], subject: np.ndarray, paths: Sequence[ImagePath], most: int | None = None
) -> list[str]:
    """A line for each row that cannot be used: its number, subject, file and the reason; only few missing files."""
    missing = [row for row, why in broken.items() if why == NOT_THERE]
    hidden = {*missing[MOST_MISSING:]}
    shown = [row for row in broken if row not in hidden][:most]
    names = {row: "" if subject[row] == paths[row].cell else f" ({subject[row]})" for row in shown}
    lines = [f"row {row + 1}{names[row]}: {paths[row]} {broken[row]}" for row in shown]
    if len(shown) < len(broken):
        lines.append(f"and {len(broken) - len(shown)} more" + (" that do not exist" if hidden else ""))
    if missing:
        folder = (paths[missing[0]].folder or Path()).resolve()
        lines.append(f"Files were looked for in {folder}. If their paths begin elsewhere, say where (--folder).")
    return lines


def require_one_shape(shapes: Mapping[int, tuple[int, ...]], subject: np.ndarray) -> None:
    """`shapes`: of each row."""
    found = list(shapes.values())
    expected = max(set(found), key=found.count, default=())
    other = {row: shape for row, shape in shapes.items() if shape != expected}
    if other:
        raise CohortError(
            f"Expected images of shape {expected}, channels first, as most have. Received: "
            f"{', '.join(map(str, sorted({*other.values()})[:5]))} in {name_rows(subject[list(other)])}. "
            "Bring them to one shape (--size, --channels), or drop them."
        )
