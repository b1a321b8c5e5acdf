"""Table files (CSV, TSV, Parquet, Excel), all cells as text; files beyond a size limit are refused."""

import codecs
import csv
import warnings
import zipfile
from pathlib import Path

import pandas as pd

from phenogroups.data.cohort import CohortError
from phenogroups.data.untrusted import refuse_more_than_memory

MOST_TABLE = 2**30  # bytes of a table as text; more numbers belong in a features file
MOST_COLUMNS, MOST_CELL = 2**16, 2**16  # columns of a table; letters of a cell
MOST_LINE = 2**24  # bytes of a line that are decoded together
MOST_SHEET = 2**27  # bytes of an unpacked Excel file; openpyxl needs many times as much memory
MOST_FEATURES = 2**20  # columns of a Parquet file


def read_table(table: str | Path | pd.DataFrame) -> pd.DataFrame:
    """All cells as text; an empty cell is ''."""
    if not isinstance(table, str | Path):
        return table.astype(object).where(table.notna(), "").astype(str).reset_index(drop=True)
    path = Path(table)
    if not path.is_file():
        raise CohortError(f"Expected a table of subjects. Received: {path}, which does not exist.")
    if path.suffix.lower() in (".xls", ".xlsb", ".xlsm", ".ods"):
        raise CohortError(
            f"Expected a table in CSV, TSV, Parquet or .xlsx. Received: {path}. Save the sheet as CSV (UTF-8) or .xlsx."
        )
    if path.suffix.lower() == ".xlsx":
        return read_excel(path)
    if path.suffix.lower() == ".parquet":
        return read_table(read_parquet(path))
    try:
        encoding = _encoding(path)
        separator = _separator(path, encoding)
        with warnings.catch_warnings(record=True) as lost:
            warnings.simplefilter("always", pd.errors.ParserWarning)
            rows = pd.read_csv(
                path, sep=separator, dtype=str, keep_default_na=False, encoding=encoding, index_col=False,
                compression=None,
            )  # fmt: skip
        if any(issubclass(one.category, pd.errors.ParserWarning) for one in lost):
            _refuse_lost_cells(path, encoding, separator, rows.shape[1])
    except (ValueError, OSError, OverflowError, MemoryError, csv.Error) as error:  # pandas' own are ValueErrors
        raise CohortError(
            f"Expected a CSV or TSV table. Received: {path}, unreadable ({error}). Save it as CSV in UTF-8."
        ) from error
    if rows.empty:
        raise CohortError(f"Expected at least one subject. Received: {path} without rows.")
    if any(column.str.len().max() > MOST_CELL for _, column in rows.items()):
        raise CohortError(f"Expected cells of at most {MOST_CELL:,} letters. Received: a longer one in {path}.")
    return rows if separator == "," else rows.apply(_with_decimal_points)


def _with_decimal_points(column: pd.Series) -> pd.Series:
    """Write 1,5 as 1.5 in a column that has only such numbers and empty cells."""
    is_number = column.str.fullmatch(r"\s*([+-]?\d*,?\d+([eE][+-]?\d+)?)?\s*|n/a|na|nan", case=False)
    return column.str.replace(",", ".", regex=False) if is_number.all() else column


def _encoding(path: Path) -> str:
    """UTF-16 by the first bytes; otherwise UTF-8 if the file is valid in it, otherwise Latin-1 as Windows writes it.

    Raises where the file is too large for a table.
    """
    size = path.stat().st_size
    if size > MOST_TABLE:
        raise ValueError(f"{size:,} bytes, of at most {MOST_TABLE:,}; numbers may lie in a file (--features-file)")
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        names = ["utf-8-sig", "cp1252"]
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE), b""), start=1):
            names = [name for name in names if _is_text_in(line, name)]
            if not names:
                raise ValueError(f"line {number} is no text in UTF-8, UTF-16 or Latin-1: {line[:40]!r}")
    return names[0]


def _is_text_in(line: bytes, encoding: str) -> bool:
    try:
        return "\0" not in line.decode(encoding)
    except UnicodeDecodeError:
        return False


def _refuse_lost_cells(path: Path, encoding: str, separator: str, columns: int) -> None:
    """Raise if cells beyond the last column hold anything."""
    with path.open(encoding=encoding, newline="") as file:
        for row in csv.reader(file, delimiter=separator):
            if any(row[columns:]):
                raise ValueError(f"{len(row)} cells under {columns} names in the row of {row[0]!r}")


def _separator(path: Path, encoding: str) -> str:
    """The separator, by the header; raises where there are too many columns for a table."""
    is_tab = path.suffix.lower() in (".tsv", ".tab")
    with path.open(encoding=encoding) as file:
        header = file.readline(MOST_COLUMNS * 2**8)  # the file may have no second line
    # spreadsheets write semicolons where the decimal sign is a comma
    separator = "\t" if is_tab else ";" if ";" in header and "," not in header else ","
    if header.count(separator) >= MOST_COLUMNS or len(header) >= MOST_COLUMNS * 2**8:
        raise ValueError(f"more than {MOST_COLUMNS:,} columns; numbers may lie in a file (--features-file)")
    return separator


def read_excel(path: Path) -> pd.DataFrame:
    """The first sheet, as text."""
    try:
        import openpyxl  # noqa: F401
    except ImportError:
        raise CohortError(
            f"Expected openpyxl to read {path}. Received: none installed. pip install 'phenogroups[excel]', or save "
            "the sheet as CSV (UTF-8)."
        ) from None
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_SHEET:
            raise ValueError(f"{size:,} bytes when unpacked, of at most {MOST_SHEET:,}")
        rows = pd.read_excel(path, dtype=str, keep_default_na=False, engine="openpyxl")
    except Exception as error:  # an archive can be broken in many ways
        raise CohortError(
            f"Expected an Excel file. Received: {path}, unreadable ({error}). Save the sheet as CSV (UTF-8)."
        ) from error
    if rows.empty:
        raise CohortError(f"Expected at least one subject. Received: {path} without rows in its first sheet.")
    return read_table(rows.rename(columns=str))


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
    """Text is read as dictionary codes, since a small page may hold a million rows of one word."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        count, schema = file.metadata.num_rows, file.schema_arrow
        if len(schema) > MOST_FEATURES or any(pa.types.is_nested(kind) for kind in schema.types):
            raise ValueError(f"expected at most {MOST_FEATURES:,} columns of numbers or words")
        refuse_more_than_memory(count * len(schema) * 8, f"{count:,} rows x {len(schema)} columns")
        is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
        words = [field.name for field in schema if any(check(field.type) for check in is_text)]
    table = pq.read_table(path, read_dictionary=words, use_threads=False, memory_map=False)
    for column in table.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            longest = max((len(word or "") for word in chunk.dictionary.to_pylist()), default=0)
            if longest > MOST_CELL:
                raise ValueError(f"a cell of {longest:,} letters, of at most {MOST_CELL:,}")
            refuse_more_than_memory(longest * len(chunk), "its text")
    # pandas' metadata is ignored: an index without a name is row numbers
    rows = table.to_pandas(ignore_metadata=True)
    return rows.drop(columns=[column for column in rows.columns if str(column).startswith("__index_level_")])
