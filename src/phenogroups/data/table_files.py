"""Table files (CSV, TSV, Parquet): all cells as text, refused where they are too large to be a table."""

import csv
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from phenogroups.data.cohort import CohortError
from phenogroups.data.untrusted import refuse_more_than_memory

MOST_TABLE = 2**30  # bytes of a table as text; larger ones keep their numbers in a features file
MOST_COLUMNS, MOST_CELL = 2**16, 2**16  # columns of a table; letters of a cell
MOST_FEATURES = 2**20  # columns of a Parquet file


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
    """Raise if cells beyond the last column hold anything."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.reader(file, delimiter=separator):
            if any(row[columns:]):
                raise ValueError(f"{len(row)} cells under {columns} names in the row of {row[0]!r}")


def _separator(path: Path) -> str:
    """The separator, by the header; raises where the file is too large for a table."""
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
    """Words are read as dictionary codes: a small page may hold a million rows of one word."""
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
