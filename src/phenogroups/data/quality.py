"""Whether a cohort can be trained on: everything is read once, and anything unusual is named with its remedy.

Nothing here changes a file. A problem stops training; a warning is left to the judgement of the reader.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from phenogroups.data.cache import Progress
from phenogroups.data.cohort import PATIENT, Cohort, CohortError, name_rows
from phenogroups.data.columns import read_columns
from phenogroups.data.decoding import UnreadableInput, decode
from phenogroups.data.inputs import features_in_words, image_paths, read_inputs, refuse_broken, require_one_shape
from phenogroups.data.reading import prepare, read_ahead
from phenogroups.data.tables import Table

COLUMNS = ("subject", "diagnosis", "group", "covariates", "truth", "truth_names", "is_test")  # of a cohort
FEWEST = 5  # smallest number of subjects of either class for a comparison of their images
SHARE_APART = 0.25  # total variation distance of size, format, ... between the classes, from which it is a shortcut
RANKED_APART = 0.9  # area under the ROC curve of size, from which it is a shortcut
BRIGHTNESS_APART = 0.98  # the same for brightness, which a disease may change as well
RARE = 0.02  # share of rows below which a code of a covariate may be a typing error


@dataclass
class Findings:
    """Results in sentences: facts, warnings to judge, and problems that stop training."""

    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def attempt(self, step: Callable[[], Any]) -> Any:
        """The result of the step; None if it raised, with its message among the problems, so that checks continue."""
        try:
            return step()
        except CohortError as error:
            self.problems.append(str(error))
            return None

    @property
    def may_start(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        if self.problems:
            return f"Training should not start: {_count(len(self.problems), 'problem')} to mend."
        if self.warnings:
            return f"Training may start; {_count(len(self.warnings), 'warning')} to judge first."
        return "Training may start."


@dataclass(frozen=True)
class InputSummary:
    """Properties of one input, which is not held in memory."""

    shape: tuple[int, ...]  # as the file has it, channels first
    kind: str  # png, jpeg, ..., features or array
    dtype: str
    digest: bytes  # of its exact numbers
    mean: float
    constant: bool
    read_as: tuple[int, ...]  # shape that the network would see


PROPERTIES: tuple[
    tuple[str, str, Callable[[InputSummary], str]], ...
] = (  # what inputs have in common, or classes differ in
    ("Formats", "format", lambda one: one.kind),
    ("Types", "number type", lambda one: one.dtype),
    ("Channels", "channels", lambda one: str(one.shape[0])),
    ("Sizes", "size", lambda one: " x ".join(map(str, one.shape[1:]))),
)


def check_table(
    table: Table, *, subgroups: int = 2, held_out: float = 0.2, progress: Progress | None = None
) -> Findings:
    """All checks of `discover`, and others; reads every file once.

    `subgroups` and `held_out` are those of the planned run.
    """
    found = Findings()
    columns = read_columns(table.rows, table.spec, found.attempt)
    _check_columns(found, columns, subgroups, held_out)
    if table.spec.image is None:
        values = found.attempt(lambda: read_inputs(table))
        seen = [None] * len(table.rows) if values is None else [_describe_row(row) for row in values]
        if values is not None:
            _check_features(found, values, table.spec.features)
        files = columns["subject"]
    else:
        seen = _describe_files(found, table, columns["subject"], progress)
        files = table.rows.get(table.spec.image, columns["subject"])
    _compare(found, seen, _labels(columns["subject"], files), columns)
    return found


def check_cohort(cohort: Cohort, *, subgroups: int = 2, held_out: float = 0.2) -> Findings:
    """The same checks of a cohort in memory."""
    found = Findings()
    columns = {name: getattr(cohort, name) for name in COLUMNS}
    _check_columns(found, columns, subgroups, held_out)
    if cohort.inputs.ndim == 2:
        _check_features(found, np.asarray(cohort.inputs), ())
    _compare(found, [_describe_row(row) for row in cohort.inputs], _labels(cohort.subject, cohort.subject), columns)
    return found


def _describe_row(row: np.ndarray) -> InputSummary:
    return _describe(row, "features" if row.ndim == 1 else "array", row.shape)


def _describe(array: np.ndarray, kind: str, read_as: tuple[int, ...]) -> InputSummary:
    digest = hashlib.sha256(repr(array.shape).encode())
    digest.update(np.ascontiguousarray(array).data)
    range_ = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else 1
    constant = bool(array.ndim > 1 and array.min() == array.max())
    mean = float(array.mean(dtype=np.float64)) / range_
    return InputSummary(array.shape, kind, str(array.dtype), digest.digest(), mean, constant, read_as)


def _describe_files(
    found: Findings, table: Table, subject: np.ndarray, progress: Progress | None
) -> list[InputSummary | None]:
    def describe(path: Path) -> InputSummary:
        file = decode(path)
        return _describe(file.array, file.format, prepare(file.array, table.spec.reading).shape)

    paths = found.attempt(lambda: image_paths(table))
    if paths is None:
        return [None] * len(table.rows)
    seen: list[InputSummary | None] = []
    broken, shapes, constant = {}, {}, []
    for row, one in enumerate(read_ahead(paths, describe)):
        if isinstance(one, UnreadableInput):
            broken[row] = str(one)
        else:
            shapes[row] = one.read_as
            constant += [f"row {row + 1} ({subject[row]}): {paths[row]}"] if one.constant else []
        seen.append(None if isinstance(one, UnreadableInput) else one)
        if progress is not None:
            progress(row + 1, len(paths))
    found.attempt(lambda: refuse_broken(broken, subject, paths))
    found.attempt(lambda: require_one_shape(shapes, subject))
    if constant:
        listed = "\n    ".join(constant)
        found.warnings.append(
            f"{_count(len(constant), 'image')} of one value throughout, with nothing to see; drop them unless an empty "
            f"map has a meaning:\n    {listed}"
        )
    return seen


def _check_columns(found: Findings, columns: Mapping[str, Any], subgroups: int, held_out: float) -> None:
    """Who is in the cohort, and whether they are enough to train on and to hold out."""
    diagnosis, group, truth = (columns[name] for name in ("diagnosis", "group", "truth"))
    count = len(columns["subject"])
    if diagnosis is None:
        found.facts.append(f"{_count(count, 'row')}, whose diagnosis could not be read.")
    else:
        ill = int((diagnosis == PATIENT).sum())
        found.facts.append(f"{_count(count, 'row')}: {_count(ill, 'patient')}, {_count(count - ill, 'control')}.")
        if truth is not None:
            names = enumerate(columns["truth_names"])
            sizes = ", ".join(f"{word} {int((truth == k).sum())}" for k, word in names) or "none"
            unknown = int(((truth < 0) & (diagnosis == PATIENT)).sum())
            found.facts.append(f"Known subgroups of patients: {sizes}; {unknown} unknown.")
        if not found.problems:  # otherwise they would be repeated
            blank = Cohort(np.zeros((count, 1), np.float32), **columns)
            found.attempt(lambda: blank.require(subgroups))
            if not found.problems:
                found.attempt(lambda: blank.split(held_out))
    if group is not None:
        sizes = pd.Series(group).value_counts()
        if len(sizes) < count:
            found.facts.append(f"{_count(len(sizes), 'group')}, the largest of {_count(int(sizes.iloc[0]), 'row')}.")
    if columns["covariates"] is not None:
        _check_covariates(found, columns["covariates"], columns["subject"])


def _check_covariates(found: Findings, covariates: pd.DataFrame, subject: np.ndarray) -> None:
    for name, column in covariates.items():
        known, missing = column.dropna(), int(column.isna().sum())
        lacking = f", {missing} missing" if missing else ""
        if pd.api.types.is_numeric_dtype(column):
            between = f"{known.min():g} to {known.max():g}" if len(known) else "none"
            found.facts.append(f"Covariate {name}: numbers, {between}{lacking}.")
            continue
        sizes = known.astype(str).value_counts()
        shown = ", ".join(f"{word} {n}" for word, n in sizes[:8].items()) + (", ..." if len(sizes) > 8 else "")
        found.facts.append(f"Covariate {name}: {_count(len(sizes), 'word')} ({shown}){lacking}.")
        folded = sizes.index.to_series().groupby(lambda word: "".join(word.lower().split()))  # of case and blanks
        alike = [[*words] for _, words in folded if len(words) > 1]
        odd = {word for words in alike for word in words}
        if len(sizes) - len(odd) <= 20:  # of codes, not of names
            common = int((sizes >= max(2, RARE * len(known))).sum())
            odd |= {word for word, n in sizes.items() if common >= 2 and n < max(2, RARE * len(known))}
        if odd:
            rows = column.astype(str).isin(odd - {max(words, key=lambda w: sizes[w]) for words in alike}).to_numpy()
            found.warnings.append(
                f"Covariate {name} has codes that may be slips: {', '.join(map(repr, sorted(odd)))} in "
                f"{name_rows(subject[rows])}. Recode them, or empty the cells if nobody knows."
            )


def _check_features(found: Findings, values: np.ndarray, names: tuple[str, ...]) -> None:
    low, high = values.min(axis=0), values.max(axis=0)
    which = features_in_words(names) if names else _count(values.shape[1], "feature")
    found.facts.append(f"{which}; values from {low.min():g} to {high.max():g}.")
    constant = np.flatnonzero(low == high)
    if len(constant) and len(values) > 1:
        which = ", ".join(names[j] if len(names) else f"number {j + 1}" for j in constant[:5])
        found.warnings.append(f"{_count(len(constant), 'feature')} with one value in all rows ({which}); drop them.")


def _compare(
    found: Findings, seen: Sequence[InputSummary | None], labels: list[str], columns: Mapping[str, Any]
) -> None:
    """Compare the inputs: formats and sizes, copies, and differences between the classes."""
    good = np.array([i for i, one in enumerate(seen) if one is not None], dtype=int)
    inputs = [one for one in seen if one is not None]
    if not inputs:
        return
    if len(inputs[0].shape) > 1:
        found.facts += [f"{title}: {_most([of(one) for one in inputs])}." for title, _, of in PROPERTIES]
        read_as = Counter(one.read_as for one in inputs).most_common(1)[0][0]
        found.facts.append(f"The network would see {read_as}, channels first.")
    _check_duplicates(found, inputs, good, labels, columns)
    if columns["diagnosis"] is not None:
        _check_shortcuts(found, inputs, columns["diagnosis"][good] == PATIENT)


def _check_duplicates(
    found: Findings, inputs: list[InputSummary], good: np.ndarray, labels: list[str], columns: Mapping[str, Any]
) -> None:
    same: dict[bytes, list[int]] = defaultdict(list)
    for i, one in zip(good, inputs, strict=True):
        same[one.digest].append(int(i))
    copies = [rows for rows in same.values() if len(rows) > 1]
    left = copies
    for what, values, remedy in (
        ("diagnoses", columns["diagnosis"], "one of them must be wrong: find out which and drop it"),
        ("parts of the split", columns["is_test"], "they would be recognised, not predicted: drop them from one part"),
    ):
        if values is None:
            continue
        across = [rows for rows in left if len({str(values[i]) for i in rows}) > 1]
        left = [rows for rows in left if rows not in across]
        if across:
            found.problems.append(f"{_count(len(across), 'input')} in both {what}; {remedy}:{_pairs(across, labels)}")
    if left:
        group = columns["group"]
        apart = [rows for rows in left if group is None or len({str(group[i]) for i in rows}) > 1]
        remedy = "drop the copies" + (", or give them one group: else one may be held out" if apart else "")
        found.warnings.append(f"{_count(len(left), 'input')} more than once; {remedy}:{_pairs(left, labels)}")


def _check_shortcuts(found: Findings, inputs: list[InputSummary], ill: np.ndarray) -> None:
    """Warn of properties of the files that distinguish patients from controls: a network would learn them first."""
    if min(ill.sum(), (~ill).sum()) < FEWEST or len(inputs[0].shape) == 1:
        return
    remedy = "a network would learn this instead of the disease; bring both to one"
    for _, what, of in PROPERTIES:
        values = np.array([of(one) for one in inputs])
        shares = pd.crosstab(values, ill, normalize="columns")
        # where nearly every image has a size of its own, sizes are compared by rank below
        if abs(shares[True] - shares[False]).sum() / 2 > SHARE_APART and len(shares) <= 0.1 * len(values) + 2:
            patients, controls = _most(values[ill]), _most(values[~ill])
            found.warnings.append(
                f"Patients and controls differ in {what} (patients: {patients}; controls: {controls}): {remedy}."
            )
    for what, values, limit in (
        ("size", [float(np.prod(one.shape[1:])) for one in inputs], RANKED_APART),
        ("mean brightness", [one.mean for one in inputs], BRIGHTNESS_APART),
    ):
        auc = roc_auc_score(ill, values)
        if max(auc, 1 - auc) > limit and not any(f"differ in {what} (" in words for words in found.warnings):
            middle = [float(np.median(np.array(values)[which])) for which in (ill, ~ill)]
            found.warnings.append(
                f"Patients and controls differ in {what} (medians {middle[0]:.3g} and {middle[1]:.3g}): {remedy}, or "
                "standardise (--size, --intensity standardise)."
            )


def _labels(subject: np.ndarray, files: np.ndarray) -> list[str]:
    """`row 4 (sub-03): 3.png`: how messages name a row."""
    pairs = enumerate(zip(subject, files, strict=True), start=1)
    return [f"row {i} ({name})" + (f": {file}" if file != name else "") for i, (name, file) in pairs]


def _pairs(copies: list[list[int]], labels: list[str], most: int = 20) -> str:
    lines = [f"\n    {' = '.join(labels[i] for i in rows[:4])}" for rows in copies[:most]]
    return "".join(lines) + (f"\n    and {len(copies) - most} more" if len(copies) > most else "")


def _most(values: Iterable[str], most: int = 4) -> str:
    counts = Counter(values).most_common()
    shown = ", ".join(f"{value} ({n})" for value, n in counts[:most])
    return shown + (f", {len(counts) - most} others" if len(counts) > most else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
