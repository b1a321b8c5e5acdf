"""What the columns of a table say of its subjects: name, diagnosis, group, known subgroup, covariates and split."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, CohortError, name_rows, refuse_repeated
from phenogroups.data.properties import is_measured
from phenogroups.data.tables import TableSpec

CONTROL_WORDS, PATIENT_WORDS = ("0", "control"), ("1", "patient")  # understood in a table without --control, --patient
CONTROL_VALUES = (  # understood in an array of two words
    "control", "controls", "healthy control", "healthy controls", "healthy", "normal", "unaffected", "ctrl", "ctl",
    "con", "hc", "cn", "nc", "td", "hv",
)  # fmt: skip
NUMBERS = {"false": 0.0, "true": 1.0, "zero": 0.0, "one": 1.0, "two": 2.0, "three": 3.0}  # that are written as words
MOST_NAME = 2**10  # letters of a name
MISSING = ("", "n/a", "na", "nan")  # n/a: as BIDS writes it

# Runs one step of reading. `check` passes one that records a CohortError and returns None, so that all are found.
Attempt = Callable[[Callable[[], Any]], Any]


def read_columns(rows: pd.DataFrame, spec: TableSpec, attempt: Attempt = lambda step: step()) -> dict[str, Any]:
    """The arguments of `Cohort` except its inputs; None where a step failed."""
    optional = [column for column in (spec.group, spec.truth, spec.split) if column is not None]
    of_table = [name for name in spec.covariates if spec.image is None or not is_measured(name)]
    attempt(lambda: require_columns(rows, [spec.diagnosis, *optional, *of_table]))

    def column(name: str | None) -> pd.Series | None:
        return rows[name] if name in rows.columns else None

    subject = subject_names(rows, spec)
    attempt(lambda: refuse_repeated(subject))
    found: dict[str, Any] = {"subject": subject, "truth": None, "truth_names": (), "is_test": None}
    words = column(spec.diagnosis)
    diagnosis = None if words is None else attempt(lambda: map_diagnosis(words, spec, subject))
    people = column(spec.group)
    group = subject if people is None else attempt(lambda: names_of(people))
    kinds = column(spec.truth)
    if kinds is not None and diagnosis is not None:
        found["truth"], found["truth_names"] = attempt(lambda: map_truth(kinds, diagnosis)) or (None, ())
    parts = column(spec.split)
    if parts is not None:
        held_out = (parts.str.strip().str.lower() != "train").to_numpy()
        found["is_test"] = held_out
        if group is not None:
            attempt(lambda: _refuse_divided_groups(held_out, group, str(spec.split)))
    covariates = rows[[name for name in spec.covariates if name in rows.columns]]
    found["covariates"] = attempt(lambda: typed_covariates(covariates, subject))
    return found | {"diagnosis": diagnosis, "group": group}


def require_columns(rows: pd.DataFrame, wanted: Iterable[str]) -> None:
    missing = [column for column in wanted if column not in rows.columns]
    if missing:
        alike = [name for column in missing for name in _alike(column, rows.columns)]
        meant = f" Did you mean {' or '.join(map(repr, alike))}?" if alike else ""
        raise CohortError(
            f"Expected the column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}. "
            f"Received a table with: {', '.join(map(repr, rows.columns[:30]))}.{meant or ' Name one of these.'}"
        )


def _alike(wanted: str, columns: Iterable[str]) -> list[str]:
    """Columns with a similar name: equal except for blanks and capital letters, or otherwise nearly equal."""
    plain = {str(column): "".join(str(column).lower().split()) for column in columns}
    asked = "".join(wanted.lower().split())
    same = [column for column, word in plain.items() if word == asked]
    close = get_close_matches(asked, plain.values(), n=1, cutoff=0.8)
    return same or [column for column, word in plain.items() if word in close]


def subject_names(rows: pd.DataFrame, spec: TableSpec) -> np.ndarray:
    """Names from the column of subjects, otherwise from image paths, otherwise row numbers."""
    if spec.subject is None and spec.image in rows.columns:
        images = rows[spec.image].str.strip()
        if images.is_unique and images.str.len().between(1, MOST_NAME).all():
            return names_of(images)
    if spec.subject is None:
        return np.array([f"row{number + 1}" for number in range(len(rows))])
    require_columns(rows, [spec.subject])
    return names_of(rows[spec.subject])


def names_of(column: pd.Series) -> np.ndarray:
    """(rows,): the cells; their length is limited, since NumPy gives every name the width of the longest one."""
    longest = column.str.len().max()
    if longest > MOST_NAME:
        raise CohortError(
            f"Expected names of at most {MOST_NAME:,} letters in column {column.name!r}. Received: {longest:,}. "
            "Shorten them."
        )
    return column.to_numpy(dtype=str)


def map_diagnosis(column: pd.Series, spec: TableSpec, subject: np.ndarray) -> np.ndarray:
    """0 control, 1 patient, by the words of the spec; 0 / 1 and control / patient need none."""
    words = column.str.strip()
    if not spec.control and not spec.patient:
        words, control, patient = words.str.lower().str.removesuffix(".0"), CONTROL_WORDS, PATIENT_WORDS
    else:
        control, patient = spec.control, spec.patient
        if set(control) & set(patient):
            raise CohortError(
                f"Expected a word to mean control or patient. Received both for: {set(control) & set(patient)}."
            )
        # where one list is given, a single other word has the other meaning; one of two may be a typing error
        rest = tuple(word for word in words.unique() if word and word not in (*control, *patient))
        if len(rest) == 1:
            control, patient = control or rest, patient or rest
    known = words.isin(control) | words.isin(patient)
    if not known.all():
        unknown = ", ".join(repr(value) for value in sorted(column[~known].unique())[:10])
        control, patient = (" or ".join(map(repr, words)) or "one other word" for words in (control, patient))
        raise CohortError(
            f"Expected diagnosis {control} (control) or {patient} (patient) in column {column.name!r}. "
            f"Received: {unknown} in {name_rows(subject[~known.to_numpy()])}. "
            "Say which words mean what (--control, --patient), or drop these rows."
        )
    return np.where(words.isin(patient), PATIENT, CONTROL)


def map_truth(column: pd.Series, diagnosis: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """(rows,): known subgroup of each patient, -1 where none is known; and the names of the subgroups."""
    words = names_of(column.str.strip())
    names = tuple(sorted({word for word, ill in zip(words, diagnosis, strict=True) if ill == PATIENT and word}))
    code = {name: k for k, name in enumerate(names)}
    return np.array([code.get(word, UNKNOWN) for word in words]), names


def _refuse_divided_groups(held_out: np.ndarray, group: np.ndarray, column: str) -> None:
    """Raise if a group is on both sides of the split, where it would be recognised and not predicted."""
    both = sorted({*group[held_out]} & {*group[~held_out]})
    if both:
        raise CohortError(
            f"Expected every group on one side of the split in column {column!r}. Received: {len(both)} on both "
            f"({', '.join(both[:5])}{', ...' if len(both) > 5 else ''}). Move their rows to one side, or leave the "
            "column out (--split; of a folder, give its train folder alone): a share is then held out by whole groups."
        )


def typed_covariates(covariates: pd.DataFrame, subject: np.ndarray) -> pd.DataFrame:
    """Columns of numbers as numbers, others as words; empty cells as missing."""
    typed = {}
    for name, column in covariates.items():
        column = column.str.strip()
        numbers, missing = pd.to_numeric(column, errors="coerce"), column.str.lower().isin(MISSING)
        words = (numbers.isna() & ~missing).to_numpy()
        if 0 < words.sum() <= 0.1 * (~missing).sum():  # a few words among numbers are typing errors
            values = ", ".join(map(repr, sorted(column[words].unique())[:5]))
            raise CohortError(
                f"Expected numbers in the covariate {name!r}, as most rows have. Received: {values} in "
                f"{name_rows(subject[words])}. Correct them, or empty the cells if unknown; "
                "if all are codes, write them as words (site1, site2)."
            )
        is_numeric = bool((~missing).any()) and not words.any()
        typed[name] = numbers if is_numeric else column.astype(object).where(~missing, None)
    return pd.DataFrame(typed, index=covariates.index)


def patient_value(values: list[Any], named: Any = None) -> Any:
    """Which of the one or two values of a diagnosis array means patient; None where all are controls.

    Of two numbers the greater means patient, and a single 0 means control. Of two words exactly one must be among
    CONTROL_VALUES (capital letters and underscores do not matter), unless the patients' word is `named`.
    """
    if named is not None:
        if named not in values and len(values) > 1:
            raise CohortError(f"Expected patient={named!r} among the values of y. Received: {_listed(values)}.")
        return named if named in values else None
    numbers = [_number(value) for value in values]
    if None not in numbers:
        greatest = max(zip(numbers, values, strict=True), key=lambda pair: pair[0])  # pyright: ignore
        return None if len(values) == 1 and greatest[0] == 0 else greatest[1]
    others = [value for value in values if _plain(value) not in CONTROL_VALUES]
    if len(others) == len(values) - 1:
        return others[0] if others else None
    raise CohortError(
        "Expected y as 0 (control) and 1 (patient), or as two words of which one is known to mean control "
        f"({', '.join(CONTROL_VALUES)}). Received: {_listed(values)}. Say which value means patient, for "
        f"example fit(X, y, patient={values[0]!r})."
    )


def _number(value: Any) -> float | None:
    word = _plain(value)
    try:
        number = NUMBERS[word] if word in NUMBERS else float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> str:
    return " ".join(str(value).lower().replace("_", " ").split())


def _listed(values: list[Any]) -> str:
    return " and ".join(map(repr, values))
