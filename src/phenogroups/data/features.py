"""Features: columns of numbers in the table, or a file of them (.npy, .npz, .parquet)."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import CohortError, name_rows
from phenogroups.data.columns import require_columns
from phenogroups.data.table_files import read_parquet
from phenogroups.data.untrusted import refuse_more_than_memory

NAMING = ("subject", "name", "id", "participant_id")  # columns of a features file that name the subject of each row


def read_features_file(path: Path, subject: np.ndarray, *, named: bool) -> np.ndarray:
    """(rows, features) in the table's order, float32, from .npy, .npz or .parquet.

    Rows are found by name where the file names them (an array or column `subject`, `name` or `id`) and the table does;
    otherwise the file has one row per row of the table, in the same order.
    """
    if not path.is_file():
        raise CohortError(f"Expected a file of features. Received: {path}, which does not exist.")
    kind = path.suffix.lower()
    try:
        if kind == ".npy":
            values, names = np.load(path, allow_pickle=False, mmap_mode="r"), None  # the header only
            refuse_more_than_memory(values.size * 8, "its numbers")
        elif kind == ".npz":
            values, names = _read_npz(path)
        elif kind == ".parquet":
            values, names = _split_names(read_parquet(path))
        else:
            raise CohortError(f"Expected features in .npy, .npz or .parquet. Received: {path}.")
    except CohortError:
        raise
    except Exception as error:  # archives raise errors of many kinds
        raise CohortError(f"Expected a readable file of features. Received: {path} ({error}).") from error
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise CohortError(f"Expected numbers (rows, features) in {path}. Received: {values.dtype} {values.shape}.")
    if names is not None and named:
        order = pd.Index(names.astype(str)).get_indexer(subject) if pd.Index(names).is_unique else None
        if order is None:
            raise CohortError(f"Expected every name once in {path}. Received repeated names. Drop or rename them.")
        if (order < 0).any():
            raise CohortError(
                f"Expected features of every subject in {path}. Received none of {name_rows(subject[order < 0])}. "
                "Add them, or drop these rows."
            )
        values = values[order]
    elif len(values) != len(subject):
        raise CohortError(
            f"Expected {len(subject)} rows of features, one per row of the table. Received: {len(values)} in {path}. "
            "Write both in one order, or name the rows of both (a column subject in the file, --subject)."
        )
    values = np.asarray(values, dtype=np.float32)
    broken = ~np.isfinite(values).all(axis=1)
    if broken.any():
        raise CohortError(
            f"Expected finite numbers in {path}. Received NaN or infinite values in {name_rows(subject[broken])}. "
            "Fill them in or drop these rows."
        )
    return values


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    with np.load(path, allow_pickle=False) as stored:
        for member in stored.zip.infolist():  # pyright: ignore[reportOptionalMemberAccess]
            with stored.zip.open(member) as file:  # pyright: ignore[reportOptionalMemberAccess]
                _refuse_long_array(file)
        naming = [key for key in stored.files if key.lower() in NAMING]
        others = [key for key in stored.files if key not in naming]
        if len(others) != 1:
            raise CohortError(
                f"Expected one array of features in {path}, and beside it at most one of {', '.join(NAMING)}. "
                f"Received: {', '.join(stored.files)}."
            )
        return stored[others[0]], stored[naming[0]] if naming else None


def _refuse_long_array(file: Any) -> None:
    """Check the header of a compressed array before it is decompressed."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    refuse_more_than_memory(prod(shape) * dtype.itemsize, f"an array of shape {shape}")


def _split_names(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray | None]:
    naming = [column for column in rows.columns if str(column).lower() in NAMING]
    values = rows.drop(columns=naming)
    words = [str(column) for column in values.columns if values[column].dtype.kind not in "biuf"]
    if words:
        raise CohortError(f"Expected columns of numbers. Received: {', '.join(words[:5])}. Drop or recode them.")
    return values.to_numpy(dtype=np.float32), rows[naming[0]].to_numpy(dtype=str) if naming else None


def read_feature_columns(rows: pd.DataFrame, features: Sequence[str], subject: np.ndarray) -> np.ndarray:
    """(rows, features), float32."""
    require_columns(rows, features)
    numbers = rows[list(features)].apply(pd.to_numeric, errors="coerce")
    broken = ~np.isfinite(numbers.to_numpy(dtype=float))
    if broken.any():
        where = [f"{features[c]!r} of {subject[r]}" for r, c in np.argwhere(broken)[:5]]
        raise CohortError(
            f"Expected a finite number in every feature. Received {int(broken.sum())} cells that are not, "
            f"in {name_rows(subject[broken.any(axis=1)])}: {', '.join(where)}{', ...' if broken.sum() > 5 else ''}. "
            "Fill them in, drop these rows, or name the feature columns (--features)."
        )
    return numbers.to_numpy(dtype=np.float32)
