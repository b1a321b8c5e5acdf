"""From a table of subjects (CSV, TSV) to a cohort: one row per subject, every column named explicitly."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, Cohort, CohortError, name_rows
from phenogroups.data.reading import Reading, UnreadableInput, read_input

CONTROL_WORDS, PATIENT_WORDS = ("0", "control"), ("1", "patient")


@dataclass(frozen=True)
class TableSpec:
    """Which column means what; part of the recipe, so that prediction reads new tables alike."""

    diagnosis: str = "diagnosis"
    control: tuple[str, ...] = ()  # words of the diagnosis column that mean control
    patient: tuple[str, ...] = ()  # words that mean patient
    image: str | None = None  # column of file paths, relative to the table
    features: tuple[str, ...] = ()  # numeric columns; without image and features: every numeric column left over
    subject: str | None = None  # unique name of the row; None: the row number
    group: str | None = None  # rows that belong together, such as both eyes of one person
    covariates: tuple[str, ...] = ()
    truth: str | None = None  # known subgroup, read by evaluation only
    reading: Reading = field(default_factory=Reading)


def spec_from_json(stored: Mapping[str, Any]) -> TableSpec:
    """What `dataclasses.asdict` made of a spec, after a way through JSON."""
    columns: dict[str, Any] = {key: _tuple_if_list(value) for key, value in stored.items()}
    try:
        reading = {key: _tuple_if_list(value) for key, value in columns.pop("reading").items()}
        return TableSpec(**columns, reading=Reading(**reading))
    except (TypeError, KeyError, AttributeError) as error:
        raise CohortError(f"Expected a recipe that says how its table is read. Received: {error}.") from error


def _tuple_if_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def read_table(table: str | Path | pd.DataFrame) -> pd.DataFrame:
    """All cells as text; an empty cell is ''."""
    if not isinstance(table, str | Path):
        return table.astype(object).where(table.notna(), "").astype(str).reset_index(drop=True)
    path = Path(table)
    if not path.is_file():
        raise CohortError(f"Expected a table of subjects. Received: {path}, which does not exist.")
    try:
        rows = pd.read_csv(
            path, sep="\t" if path.suffix.lower() in (".tsv", ".tab") else ",", dtype=str, keep_default_na=False,
            encoding="utf-8-sig", index_col=False,
        )  # fmt: skip
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise CohortError(f"Expected a CSV or TSV table in UTF-8. Received: {path}, unreadable ({error}).") from error
    if rows.empty:
        raise CohortError(f"Expected at least one subject. Received: {path} without rows.")
    return rows


def read_cohort(
    table: str | Path | pd.DataFrame,
    spec: TableSpec,
    *,
    folder: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Cohort:
    """The cohort that the table describes; everything wrong with it is said before anything is trained."""
    rows = read_table(table)
    optional = [column for column in (spec.subject, spec.group, spec.truth) if column is not None]
    _require_columns(rows, [spec.diagnosis, *optional, *spec.covariates])
    subject = subject_names(rows, spec)
    diagnosis = map_diagnosis(rows[spec.diagnosis], spec, subject)
    truth, truth_names = _map_truth(rows, spec, diagnosis)
    inputs = read_inputs(table, resolve_features(rows, spec), folder=folder, progress=progress)
    return Cohort(
        inputs=inputs,
        diagnosis=diagnosis,
        subject=subject,
        group=rows[spec.group].to_numpy(dtype=str) if spec.group else subject,
        covariates=_typed(rows[list(spec.covariates)]),
        truth=truth,
        truth_names=truth_names,
        name=Path(table).stem if isinstance(table, str | Path) else "table",
    )


def read_inputs(
    table: str | Path | pd.DataFrame,
    spec: TableSpec,
    *,
    folder: str | Path | None = None,
    shape: tuple[int, ...] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Images (rows, channels, ...) or features (rows, features), float32; needs no diagnosis.

    `shape` is what every image must have; without it, they must have one shape.
    """
    rows = read_table(table)
    subject = subject_names(rows, spec)
    if spec.image is None:
        return _read_features(rows, spec, subject)
    _require_columns(rows, [spec.image])
    home = Path(folder) if folder is not None else Path(table).parent if isinstance(table, str | Path) else Path()
    images, broken = [], []
    for number, (name, path) in enumerate(zip(subject, rows[spec.image], strict=True)):
        try:
            if not path:
                raise UnreadableInput("is empty")
            images.append(read_input(home / path, spec.reading))
        except UnreadableInput as error:
            broken.append(f"  row {number + 1} ({name}): {path or 'the cell'} {error}")
        if progress is not None:
            progress(number + 1, len(rows))
    if broken:
        raise CohortError(
            f"Expected a readable file in every row. Received {len(broken)} that are not; mend or drop them:\n"
            + "\n".join(broken)
        )
    _require_one_shape(images, subject, shape)
    return np.stack(images)


def read_covariates(table: str | Path | pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """One row per subject; needs no diagnosis."""
    rows = read_table(table)
    _require_columns(rows, list(columns))
    return _typed(rows[list(columns)])


def resolve_features(rows: pd.DataFrame, spec: TableSpec) -> TableSpec:
    """The spec with its feature columns named: every column of numbers that means nothing else."""
    if spec.image is not None or spec.features:
        return spec
    meant = {spec.diagnosis, spec.subject, spec.group, spec.truth, *spec.covariates}
    left = [column for column in rows.columns if column not in meant]
    numeric = tuple(column for column in left if pd.to_numeric(rows[column], errors="coerce").notna().any())
    if not numeric:
        raise CohortError(
            "Expected a column of image paths (--image) or columns of numbers. "
            f"Received: {', '.join(map(repr, rows.columns))}, with no numbers to learn from."
        )
    return replace(spec, features=numeric)


def subject_names(rows: pd.DataFrame, spec: TableSpec) -> np.ndarray:
    if spec.subject is None:
        return np.array([f"row{number + 1}" for number in range(len(rows))])
    _require_columns(rows, [spec.subject])
    return rows[spec.subject].to_numpy(dtype=str)


def map_diagnosis(column: pd.Series, spec: TableSpec, subject: np.ndarray) -> np.ndarray:
    """0 control, 1 patient, by the words given; 0 / 1 and control / patient are understood without."""
    words = column.str.strip()
    if not spec.control and not spec.patient:
        words, control, patient = words.str.lower().str.removesuffix(".0"), CONTROL_WORDS, PATIENT_WORDS
    else:
        control, patient = spec.control, spec.patient
        if set(control) & set(patient):
            raise CohortError(
                f"Expected a word to mean control or patient. Received both for: {set(control) & set(patient)}."
            )
        # one list given: the other word means the other; two other words may be a slip of the pen
        rest = tuple(word for word in words.unique() if word and word not in (*control, *patient))
        if len(rest) == 1:
            control, patient = control or rest, patient or rest
    known = words.isin(control) | words.isin(patient)
    if not known.all():
        strange = ", ".join(repr(value) for value in sorted(column[~known].unique())[:10])
        control, patient = (" or ".join(map(repr, words)) or "one other word" for words in (control, patient))
        raise CohortError(
            f"Expected diagnosis {control} (control) or {patient} (patient) in column {column.name!r}. "
            f"Received: {strange} in {name_rows(subject[~known.to_numpy()])}. "
            "Say which words mean what (--control, --patient), or drop these rows."
        )
    return np.where(words.isin(patient), PATIENT, CONTROL)


def _map_truth(rows: pd.DataFrame, spec: TableSpec, diagnosis: np.ndarray) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if spec.truth is None:
        return None, ()
    words = rows[spec.truth].str.strip().to_numpy(dtype=str)
    names = tuple(sorted({word for word, ill in zip(words, diagnosis, strict=True) if ill == PATIENT and word}))
    code = {name: k for k, name in enumerate(names)}
    return np.array([code.get(word, UNKNOWN) for word in words]), names


def _read_features(rows: pd.DataFrame, spec: TableSpec, subject: np.ndarray) -> np.ndarray:
    _require_columns(rows, list(spec.features))
    numbers = rows[list(spec.features)].apply(pd.to_numeric, errors="coerce")
    broken = ~np.isfinite(numbers.to_numpy(dtype=float))
    if broken.any():
        where = [f"{spec.features[c]!r} of {subject[r]}" for r, c in np.argwhere(broken)[:5]]
        raise CohortError(
            f"Expected a finite number in every feature. Received {int(broken.sum())} cells that are not, "
            f"in {name_rows(subject[broken.any(axis=1)])}: {', '.join(where)}{', ...' if broken.sum() > 5 else ''}. "
            "Fill them in, drop these rows, or name the feature columns (--features)."
        )
    return numbers.to_numpy(dtype=np.float32)


def _require_columns(rows: pd.DataFrame, wanted: list[str]) -> None:
    missing = [column for column in wanted if column not in rows.columns]
    if missing:
        raise CohortError(
            f"Expected the column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}. "
            f"Received a table with: {', '.join(map(repr, rows.columns[:30]))}."
        )


def _require_one_shape(images: list[np.ndarray], subject: np.ndarray, shape: tuple[int, ...] | None) -> None:
    found = [image.shape for image in images]
    expected = shape or max(set(found), key=found.count)
    other = np.array([image != expected for image in found])
    if other.any():
        strange = ", ".join(map(str, sorted({image for image in found if image != expected})[:5]))
        raise CohortError(
            f"Expected images of shape {expected}, channels first, as {'in training' if shape else 'most have'}. "
            f"Received: {strange} in {name_rows(subject[other])}. Bring them to one shape"
            + (" as the training images were, or drop them." if shape else " (--size, --channels), or drop them.")
        )


def _typed(covariates: pd.DataFrame) -> pd.DataFrame:
    """Columns of numbers as numbers, others as words; empty cells as missing."""
    typed = {}
    for name, column in covariates.items():
        numbers = pd.to_numeric(column, errors="coerce")
        is_numeric = numbers.notna().any() and numbers[column != ""].notna().all()
        typed[name] = numbers if is_numeric else column.astype(object).where(column != "", None)
    return pd.DataFrame(typed, index=covariates.index)
