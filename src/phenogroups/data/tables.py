"""From a table of subjects (CSV, TSV, Parquet) to a cohort: one row per subject, every column named explicitly."""

import csv
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cache import cached_inputs, too_large_to_hold, user_cache
from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, Cohort, CohortError, name_rows, refuse_repeated
from phenogroups.data.reading import (
    PRETRAINED_SIDE,
    Reading,
    UnreadableInput,
    read_ahead,
    read_input,
    suits_pretrained,
)
from phenogroups.data.stored import Inputs
from phenogroups.data.untrusted import check_types, refuse_more_than_memory, shortened

CONTROL_WORDS, PATIENT_WORDS = ("0", "control"), ("1", "patient")
MOST_TABLE = 2**30  # bytes of a table as text; larger ones keep their numbers in a features file
MOST_COLUMNS, MOST_CELL, MOST_NAME = 2**16, 2**16, 2**10  # columns of a table; letters of a cell, of a name
MOST_FEATURES = 2**20  # columns of a Parquet file
MOST_TRIED = 100  # files that are tried for one that tells what images are like
MISSING = ("", "n/a", "na", "nan")  # n/a: as BIDS writes it
NAMING = ("subject", "name", "id", "participant_id")  # columns of a features file that say whose its rows are


@dataclass(frozen=True)
class TableSpec:
    """Which column means what; part of the recipe, so that prediction reads new tables alike."""

    diagnosis: str = "diagnosis"
    control: tuple[str, ...] = ()  # words of the diagnosis column that mean control
    patient: tuple[str, ...] = ()  # words that mean patient
    image: str | None = None  # column of file paths, relative to the table
    features: tuple[str, ...] = ()  # numeric columns; without image and features: every numeric column left over
    features_file: str | None = None  # instead: a NumPy or Parquet file, by subject or one row per row of the table
    subject: str | None = None  # unique name of the row; None: the row number
    group: str | None = None  # rows that belong together, such as both eyes of one person
    covariates: tuple[str, ...] = ()
    truth: str | None = None  # known subgroup, read by evaluation only
    split: str | None = None  # column whose word "train" means trained on, any other held out
    reading: Reading = field(default_factory=Reading)


def spec_from_json(stored: Mapping[str, Any]) -> TableSpec:
    """What `dataclasses.asdict` made of a spec, after a way through JSON; what an older version lacked is as it was."""
    try:
        reading = Reading(**_known(stored["reading"], Reading))
        spec = TableSpec(**{**_known(stored, TableSpec), "reading": reading})
        check_types(reading)
        check_types(spec)
        return spec
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CohortError(f"Expected a recipe that says how its table is read. Received: {error}.") from error


def _known(stored: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Without what a newer version added and did not use; what it did use would change how files are read."""
    known = {f.name for f in fields(kind)}
    strange = [name for name, value in stored.items() if name not in known and value not in (None, "", [], False)]
    if strange:
        names = shortened(", ".join(map(str, strange)), quoted=False)
        raise ValueError(f"{names}, which this version does not know; use the version that wrote it")
    return {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items() if name in known}


def read_table(table: str | Path | pd.DataFrame) -> pd.DataFrame:
    """All cells as text; an empty cell is ''."""
    if not isinstance(table, str | Path):
        return table.astype(object).where(table.notna(), "").astype(str).reset_index(drop=True)
    path = Path(table)
    if not path.is_file():
        raise CohortError(f"Expected a table of subjects. Received: {path}, which does not exist.")
    if path.suffix.lower() in (".xls", ".xlsx", ".ods"):
        raise CohortError(f"Expected a CSV, TSV or Parquet table. Received: {path}. Save the sheet as CSV (UTF-8).")
    if path.suffix.lower() == ".parquet":
        return read_table(read_parquet(path))
    try:
        separator = _separator(path)
        with warnings.catch_warnings(record=True) as lost:
            warnings.simplefilter("always", pd.errors.ParserWarning)
            rows = pd.read_csv(
                path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False,
                compression=None,
            )  # fmt: skip
        if any(issubclass(one.category, pd.errors.ParserWarning) for one in lost):
            _refuse_lost_cells(path, separator, rows.shape[1])
    except (ValueError, OSError, OverflowError, MemoryError, csv.Error) as error:  # pandas' own are ValueErrors
        raise CohortError(f"Expected a CSV or TSV table in UTF-8. Received: {path}, unreadable ({error}).") from error
    if rows.empty:
        raise CohortError(f"Expected at least one subject. Received: {path} without rows.")
    if any(column.str.len().max() > MOST_CELL for _, column in rows.items()):
        raise CohortError(f"Expected cells of at most {MOST_CELL:,} letters. Received: a longer one in {path}.")
    return rows


def _refuse_lost_cells(path: Path, separator: str, columns: int) -> None:
    """Where rows are longer than the header: only separators may follow."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.reader(file, delimiter=separator):
            if any(row[columns:]):
                raise ValueError(f"{len(row)} cells under {columns} names in the row of {row[0]!r}")


def _separator(path: Path) -> str:
    """By the header, which also tells whether the table can be a table."""
    size = path.stat().st_size
    if size > MOST_TABLE:
        raise ValueError(f"{size:,} bytes, of at most {MOST_TABLE:,}; numbers may lie in a file (--features-file)")
    is_tab = path.suffix.lower() in (".tsv", ".tab")
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline(MOST_COLUMNS * 2**8)  # letters, not lines: there may be no second line
    # a semicolon as spreadsheets write where the comma is decimal
    separator = "\t" if is_tab else ";" if ";" in header and "," not in header else ","
    if header.count(separator) >= MOST_COLUMNS or len(header) >= MOST_COLUMNS * 2**8:
        raise ValueError(f"more than {MOST_COLUMNS:,} columns; numbers may lie in a file (--features-file)")
    return separator


def read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise CohortError(
            f"Expected pyarrow to read {path}. Received: none installed. pip install 'phenogroups[parquet]'"
        ) from None
    try:
        rows = _parquet_frame(path)
    except Exception as error:  # pyarrow has an error of each kind
        raise CohortError(f"Expected a Parquet file. Received: {path}, unreadable ({error}).") from error
    if rows.empty:
        raise CohortError(f"Expected at least one row. Received: {path} without.")
    return rows


def _parquet_frame(path: Path) -> pd.DataFrame:
    """Words are read as codes: a page of one word may stand for a million rows of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        said, schema = file.metadata, file.schema_arrow
        if len(schema) > MOST_FEATURES or any(pa.types.is_nested(kind) for kind in schema.types):
            raise ValueError(f"expected at most {MOST_FEATURES:,} columns of numbers or words")
        refuse_more_than_memory(said.num_rows * len(schema) * 8, f"{said.num_rows:,} rows x {len(schema)} columns")
        words = [field.name for field in schema if _is_text(field.type)]
    table = pq.read_table(path, read_dictionary=words, use_threads=False, memory_map=False)
    for column in table.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            longest = max((len(word or "") for word in chunk.dictionary.to_pylist()), default=0)
            if longest > MOST_CELL:
                raise ValueError(f"a cell of {longest:,} letters, of at most {MOST_CELL:,}")
            refuse_more_than_memory(longest * len(chunk), "its text")
    # what pandas left in the file is not asked: an index without a name is row numbers
    rows = table.to_pandas(ignore_metadata=True)
    return rows.drop(columns=[column for column in rows.columns if str(column).startswith("__index_level_")])


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def read_cohort(
    table: str | Path | pd.DataFrame,
    spec: TableSpec,
    *,
    folder: str | Path | None = None,
    name: str | None = None,
    cache: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Cohort:
    """The cohort that the table describes; everything wrong with it is said before anything is trained.

    Image paths are relative to `folder`, by default the table's own, and must lie in it.
    """
    rows = read_table(table)
    optional = [column for column in (spec.subject, spec.group, spec.truth, spec.split) if column is not None]
    _require_columns(rows, [spec.diagnosis, *optional, *spec.covariates])
    subject = subject_names(rows, spec)
    refuse_repeated(subject)
    diagnosis = map_diagnosis(rows[spec.diagnosis], spec, subject)
    truth, truth_names = (None, ()) if spec.truth is None else map_truth(rows[spec.truth], diagnosis)
    group = names_of(rows[spec.group]) if spec.group else subject
    part = None if spec.split is None else part_of(rows[spec.split], group)
    covariates = typed_covariates(rows[list(spec.covariates)], subject)
    inputs = read_inputs(table, resolve_features(rows, spec), folder=folder, cache=cache, progress=progress)
    return Cohort(
        inputs=inputs,
        diagnosis=diagnosis,
        subject=subject,
        group=group,
        covariates=covariates,
        is_test=part,
        truth=truth,
        truth_names=truth_names,
        name=name or (Path(table).stem if isinstance(table, str | Path) else "table"),
    )


def read_inputs(
    table: str | Path | pd.DataFrame,
    spec: TableSpec,
    *,
    folder: str | Path | None = None,
    shape: tuple[int, ...] | None = None,
    cache: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Inputs:
    """Images (rows, channels, ...) or features (rows, features), float32; needs no diagnosis.

    `shape` is what every image must have; without it, they must have one shape. Images that would not fit into memory,
    or any if `cache` names a folder, are decoded into a file and read from there.
    """
    rows = read_table(table)
    subject = subject_names(rows, spec)
    if spec.features_file is not None:
        return read_features_file(Path(spec.features_file), subject, named=spec.subject is not None)
    if spec.image is None:
        return _read_features(rows, spec, subject)
    paths = image_paths(rows, spec, home_of(table, folder))
    inputs: Inputs | None = None
    shapes: list[tuple[int, ...]] = []
    broken: list[tuple[int, str]] = []
    files = () if cache is not None else read_ahead(
        (path.locate for path in paths), lambda path: read_input(path, spec.reading)
    )  # fmt: skip
    for number, image in enumerate(files):
        if isinstance(image, UnreadableInput):
            broken.append((number, str(image)))
        elif inputs is None and too_large_to_hold(len(rows), image):
            cache = user_cache()
            break
        else:
            inputs = np.empty((len(rows), *image.shape), np.float32) if inputs is None else inputs
            shapes.append(image.shape)
            if image.shape == inputs.shape[1:]:
                inputs[number] = image
        if progress is not None:
            progress(number + 1, len(rows))
    if cache is not None:
        inputs = cached_inputs(
            [path.locate for path in paths], spec.reading, Path(cache), progress=progress,
            on_broken=lambda broken: refuse_broken(broken, subject, paths),
            on_shapes=lambda found: require_one_shape(list(found.values()), subject[list(found)], shape),
        )  # fmt: skip
        require_one_shape([inputs.shape[1:]] * len(rows), subject, shape)
        return inputs
    refuse_broken(broken, subject, paths)
    require_one_shape(shapes, subject, shape)
    return inputs  # pyright: ignore[reportReturnType], a table has a row and none of them is broken


@dataclass(frozen=True)
class ImagePath:
    """A cell of the image column: a path in the folder that images lie in."""

    cell: str
    home: Path | None  # None: a frame made in Python, whose paths are its author's own

    def locate(self) -> Path:
        """Raises if the path leads out of the folder: a table from elsewhere must not choose what is read here."""
        if not self.cell:
            raise UnreadableInput("is empty")
        if self.home is None:
            return Path(self.cell)
        path = self.home / self.cell
        try:
            # by its name or by where links lead: a folder of links is its owner's word
            is_inside = any(whole(path).is_relative_to(whole(self.home)) for whole in (_by_name, Path.resolve))
        except (ValueError, OSError, RuntimeError) as error:  # no letter of a path, too long, links in a circle
            raise UnreadableInput(f"is no path ({error})") from error
        if not is_inside:
            raise UnreadableInput(f"leads out of the folder {self.home}; move it there, or name its folder (--folder)")
        return path

    def __str__(self) -> str:
        return self.cell or "the cell"


def _by_name(path: Path) -> Path:
    return Path(os.path.abspath(path))


def home_of(table: str | Path | pd.DataFrame, folder: str | Path | None) -> Path | None:
    """The folder that image paths are relative to and must lie in."""
    return Path(folder) if folder is not None else Path(table).parent if isinstance(table, str | Path) else None


def image_paths(rows: pd.DataFrame, spec: TableSpec, home: Path | None) -> list[ImagePath]:
    return [ImagePath(cell, home) for cell in image_cells(rows, spec)]


def image_cells(rows: pd.DataFrame, spec: TableSpec) -> list[str]:
    _require_columns(rows, [str(spec.image)])
    return [cell.strip() for cell in rows[spec.image]]


def refuse_broken(broken: list[tuple[int, str]], subject: np.ndarray, paths: list[ImagePath]) -> None:
    if broken:
        raise CohortError(
            f"Expected a readable file in every row. Received {len(broken)} that are not; mend or drop them:\n"
            + "\n".join(f"  row {row + 1} ({subject[row]}): {paths[row]} {why}" for row, why in broken)
        )


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
    except Exception as error:  # an archive can be broken in many ways
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
    """By the header of a packed array, before it is unpacked."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    refuse_more_than_memory(prod(shape) * dtype.itemsize, f"an array of shape {shape}")


def _split_names(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray | None]:
    naming = [column for column in rows.columns if str(column).lower() in NAMING]
    values = rows.drop(columns=naming)
    strange = [str(column) for column in values.columns if values[column].dtype.kind not in "biuf"]
    if strange:
        raise CohortError(f"Expected columns of numbers. Received: {', '.join(strange[:5])}. Drop or recode them.")
    return values.to_numpy(dtype=np.float32), rows[naming[0]].to_numpy(dtype=str) if naming else None


def read_covariates(table: str | Path | pd.DataFrame, columns: Sequence[str], subject: np.ndarray) -> pd.DataFrame:
    """One row per subject; needs no diagnosis."""
    rows = read_table(table)
    _require_columns(rows, list(columns))
    return typed_covariates(rows[list(columns)], subject)


def resolve_features(rows: pd.DataFrame, spec: TableSpec) -> TableSpec:
    """The spec with its feature columns named: every column of numbers that means nothing else."""
    if spec.image is not None or spec.features or spec.features_file is not None:
        return spec
    meant = {spec.diagnosis, spec.subject, spec.group, spec.truth, spec.split, *spec.covariates}
    left = [column for column in rows.columns if column not in meant]
    numeric = tuple(column for column in left if pd.to_numeric(rows[column], errors="coerce").notna().any())
    if not numeric:
        raise CohortError(
            "Expected a column of image paths (--image), columns of numbers or a file of them (--features-file). "
            f"Received: {', '.join(map(repr, rows.columns))}, with no numbers to learn from."
        )
    return replace(spec, features=numeric)


def resolve_size(rows: pd.DataFrame, spec: TableSpec, home: Path | None) -> TableSpec:
    """The spec with the size that the default encoder was trained at, if nobody asked for another and images suit it.

    By the first that can be read: others may have other sizes.
    """
    if spec.image is None or spec.features_file is not None or spec.reading.size or spec.reading.frame:
        return spec
    for path in image_paths(rows, spec, home)[:MOST_TRIED]:
        try:
            image = read_input(path.locate(), spec.reading)
        except UnreadableInput:  # it is named with all others when all are read
            continue
        if not suits_pretrained(image):
            return spec
        return replace(spec, reading=replace(spec.reading, size=(PRETRAINED_SIDE, PRETRAINED_SIDE)))
    return spec


def subject_names(rows: pd.DataFrame, spec: TableSpec) -> np.ndarray:
    if spec.subject is None:
        return np.array([f"row{number + 1}" for number in range(len(rows))])
    _require_columns(rows, [spec.subject])
    return names_of(rows[spec.subject])


def names_of(column: pd.Series) -> np.ndarray:
    """(rows,): as NumPy keeps words, which takes as much of every row as the longest needs."""
    longest = column.str.len().max()
    if longest > MOST_NAME:
        raise CohortError(
            f"Expected names of at most {MOST_NAME:,} letters in column {column.name!r}. Received: {longest:,}. "
            "Shorten them."
        )
    return column.to_numpy(dtype=str)


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


def map_truth(column: pd.Series, diagnosis: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """(rows,): known subgroup of each patient, -1 where none is known; and what the subgroups are called."""
    words = names_of(column.str.strip())
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


def require_one_shape(found: list[tuple[int, ...]], subject: np.ndarray, shape: tuple[int, ...] | None = None) -> None:
    expected = shape or max(set(found), key=found.count)
    other = np.array([image != expected for image in found])
    if other.any():
        strange = ", ".join(map(str, sorted({image for image in found if image != expected})[:5]))
        raise CohortError(
            f"Expected images of shape {expected}, channels first, as {'in training' if shape else 'most have'}. "
            f"Received: {strange} in {name_rows(subject[other])}. Bring them to one shape"
            + (" as the training images were, or drop them." if shape else " (--size, --channels), or drop them.")
        )


def part_of(column: pd.Series, group: np.ndarray) -> np.ndarray:
    """(rows,): whether held out; a group on both sides would be recognised, not predicted."""
    held_out = (column.str.strip().str.lower() != "train").to_numpy()
    both = sorted({*group[held_out]} & {*group[~held_out]})
    if both:
        raise CohortError(
            f"Expected every group on one side of the split in column {column.name!r}. Received: {len(both)} on both "
            f"({', '.join(both[:5])}{', ...' if len(both) > 5 else ''}). Move their rows to one side, or leave the "
            "column out (--split; of a folder, give its train folder alone): a share is then held out by whole groups."
        )
    return held_out


def typed_covariates(covariates: pd.DataFrame, subject: np.ndarray) -> pd.DataFrame:
    """Columns of numbers as numbers, others as words; empty cells as missing."""
    typed = {}
    for name, column in covariates.items():
        column = column.str.strip()
        numbers, missing = pd.to_numeric(column, errors="coerce"), column.str.lower().isin(MISSING)
        words = (numbers.isna() & ~missing).to_numpy()
        if 0 < words.sum() <= 0.1 * (~missing).sum():  # a few words among numbers are slips, not a code
            values = ", ".join(map(repr, sorted(column[words].unique())[:5]))
            raise CohortError(
                f"Expected numbers in the covariate {name!r}, as most rows have. Received: {values} in "
                f"{name_rows(subject[words])}. Mend them, or empty the cells if nobody knows; "
                "if all are codes, write them as words (site1, site2)."
            )
        is_numeric = bool((~missing).any()) and not words.any()
        typed[name] = numbers if is_numeric else column.astype(object).where(~missing, None)
    return pd.DataFrame(typed, index=covariates.index)
