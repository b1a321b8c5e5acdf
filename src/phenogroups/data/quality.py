"""Whether a cohort can be trained on: everything is read once, and anything unusual is named with its remedy.

Nothing here changes a file. A problem stops training; a warning is left to the judgement of the reader.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from phenogroups.data.cache import Progress
from phenogroups.data.cohort import PATIENT, Cohort, CohortError, count_of, name_rows
from phenogroups.data.columns import read_columns
from phenogroups.data.decoding import UnreadableInput, decode
from phenogroups.data.inputs import features_in_words, image_paths, read_inputs, refuse_broken, require_one_shape
from phenogroups.data.reading import prepare, read_ahead
from phenogroups.data.tables import Table

COLUMNS = ("subject", "diagnosis", "group", "covariates", "truth", "truth_names", "is_test")  # of a cohort
FEW_OF_SUBGROUP = 10  # patients for each subgroup, below which `check` warns
FEWEST = 5  # smallest number of subjects of either class for a comparison of their images
SHARE_APART = 0.25  # total variation distance of size, format, ... between the classes, from which it is a shortcut
RANKED_APART = 0.9  # area under the ROC curve of size, from which it is a shortcut
BRIGHTNESS_APART = 0.98  # the same for brightness, which a disease may change as well
PROPERTIES = {"format": "Formats", "number type": "Types", "channels": "Channels", "size": "Sizes"}  # of inputs
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
            return f"Training should not start: {count_of(len(self.problems), 'problem')} to correct."
        if self.warnings:
            return f"Training may start; {count_of(len(self.warnings), 'warning')} to judge first."
        return "Training may start."


def check_table(
    table: Table, *, subgroups: int = 2, held_out: float = 0.2, progress: Progress | None = None
) -> Findings:
    """All checks of `discover`, and others; reads every file once.

    `subgroups` and `held_out` are those of the planned run.
    """
    found = Findings()
    columns = read_columns(table.rows, table.spec, found.attempt)
    subject = files = columns["subject"]
    _check_columns(found, columns, subgroups, held_out)
    if table.spec.image is None:
        values = found.attempt(lambda: read_inputs(table))
        inputs = {} if values is None else {row: _describe(array) for row, array in enumerate(values)}
        if values is not None:
            _check_features(found, values, table.spec.features)
    else:
        inputs = _describe_files(found, table, subject, progress)
        files = table.rows.get(table.spec.image, subject)
    _compare(found, inputs, subject, files, columns)
    return found


def check_cohort(cohort: Cohort, *, subgroups: int = 2, held_out: float = 0.2) -> Findings:
    """The same checks of a cohort in memory."""
    found = Findings()
    columns = {name: getattr(cohort, name) for name in COLUMNS}
    _check_columns(found, columns, subgroups, held_out)
    if cohort.inputs.ndim == 2:
        _check_features(found, np.asarray(cohort.inputs), ())
    inputs = {row: _describe(array) for row, array in enumerate(cohort.inputs)}
    _compare(found, inputs, cohort.subject, cohort.subject, columns)
    return found


def _describe(array: np.ndarray, format_: str = "array", input_shape: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Properties of one input, by which it is compared with others after it is released from memory."""
    digest = hashlib.sha256(repr(array.shape).encode())
    digest.update(np.ascontiguousarray(array).data)
    range_ = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else 1
    return {
        "format": format_,
        "number type": str(array.dtype),
        "channels": str(array.shape[0]),
        "size": " x ".join(map(str, array.shape[1:])),
        "pixels": math.prod(array.shape[1:]),
        "digest": digest.digest(),
        "mean": float(array.mean(dtype=np.float64)) / range_,
        "is_image": array.ndim > 1,
        "is_constant": array.ndim > 1 and array.min() == array.max(),
        "input_shape": input_shape or array.shape,
    }


def _describe_files(
    found: Findings, table: Table, subject: np.ndarray, progress: Progress | None
) -> dict[int, dict[str, Any]]:
    """Properties of every readable file, by row."""

    def describe(path: Path) -> dict[str, Any]:
        file = decode(path)
        return _describe(file.array, file.format, prepare(file.array, table.spec.reading).shape)

    paths = found.attempt(lambda: image_paths(table)) or []
    inputs, broken = {}, {}
    for row, described in enumerate(read_ahead(paths, describe)):
        if isinstance(described, UnreadableInput):
            broken[row] = str(described)
        else:
            inputs[row] = described
        if progress is not None:
            progress(row + 1, len(paths))
    found.attempt(lambda: refuse_broken(broken, subject, paths))
    found.attempt(lambda: require_one_shape({row: one["input_shape"] for row, one in inputs.items()}, subject))
    constant = [f"row {row + 1} ({subject[row]}): {paths[row]}" for row, one in inputs.items() if one["is_constant"]]
    if constant:
        listed = "\n    ".join(constant)
        found.warnings.append(
            f"{count_of(len(constant), 'image')} of one value throughout, with nothing to see; drop them unless an "
            f"empty map has a meaning:\n    {listed}"
        )
    return inputs


def _check_columns(found: Findings, columns: Mapping[str, Any], subgroups: int, held_out: float) -> None:
    """Who is in the cohort, and whether they are enough to train on and to hold out."""
    diagnosis, group, truth = (columns[name] for name in ("diagnosis", "group", "truth"))
    count = len(columns["subject"])
    if diagnosis is None:
        found.facts.append(f"{count_of(count, 'row')}, whose diagnosis could not be read.")
    else:
        ill = int((diagnosis == PATIENT).sum())
        found.facts.append(f"{count_of(count, 'row')}: {count_of(ill, 'patient')}, {count_of(count - ill, 'control')}.")
        if truth is not None:
            names = enumerate(columns["truth_names"])
            sizes = ", ".join(f"{word} {int((truth == k).sum())}" for k, word in names) or "none"
            unknown = int(((truth < 0) & (diagnosis == PATIENT)).sum())
            found.facts.append(f"Known subgroups of patients: {sizes}; {unknown} unknown.")
        if 0 < ill < FEW_OF_SUBGROUP * subgroups:
            found.warnings.append(
                f"{count_of(ill, 'patient')} for {subgroups} subgroups: with fewer than {FEW_OF_SUBGROUP} for each, "
                "subgroups are hardly ever found again. Bring more patients."
            )
        if not found.problems:  # otherwise they would be repeated
            blank = Cohort(np.zeros((count, 1), np.float32), **columns)
            found.attempt(lambda: blank.require(subgroups))
            if not found.problems:
                found.attempt(lambda: blank.split(held_out))
    if group is not None:
        sizes = pd.Series(group).value_counts()
        if len(sizes) < count:
            found.facts.append(
                f"{count_of(len(sizes), 'group')}, the largest of {count_of(int(sizes.iloc[0]), 'row')}."
            )
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
        found.facts.append(f"Covariate {name}: {count_of(len(sizes), 'word')} ({shown}){lacking}.")
        folded = sizes.index.to_series().groupby(lambda word: "".join(word.lower().split()))  # of case and blanks
        alike = [[*words] for _, words in folded if len(words) > 1]
        unusual = {word for words in alike for word in words}
        if len(sizes) - len(unusual) <= 20:  # of codes, not of names
            common = int((sizes >= max(2, RARE * len(known))).sum())
            unusual |= {word for word, n in sizes.items() if common >= 2 and n < max(2, RARE * len(known))}
        if unusual:
            rows = column.astype(str).isin(unusual - {max(words, key=lambda w: sizes[w]) for words in alike}).to_numpy()
            found.warnings.append(
                f"Covariate {name} has codes that may be typing errors: {', '.join(map(repr, sorted(unusual)))} in "
                f"{name_rows(subject[rows])}. Recode them, or empty the cells if unknown."
            )


def _check_features(found: Findings, values: np.ndarray, names: tuple[str, ...]) -> None:
    low, high = values.min(axis=0), values.max(axis=0)
    which = features_in_words(names) if names else count_of(values.shape[1], "feature")
    found.facts.append(f"{which}; values from {low.min():g} to {high.max():g}.")
    constant = np.flatnonzero(low == high)
    if len(constant) and len(values) > 1:
        which = ", ".join(names[j] if len(names) else f"number {j + 1}" for j in constant[:5])
        found.warnings.append(f"{count_of(len(constant), 'feature')} with one value in all rows ({which}); drop them.")


def _compare(
    found: Findings, described: Mapping[int, dict[str, Any]], subject: np.ndarray, files: Iterable[str],
    columns: Mapping[str, Any],
) -> None:  # fmt: skip
    """Compare the inputs: formats and sizes, copies, and differences between the classes."""
    if not described:
        return
    inputs = pd.DataFrame.from_dict(dict(described), orient="index")
    is_image = inputs["is_image"].iloc[0]
    if is_image:
        found.facts += [f"{title}: {_most(inputs[name])}." for name, title in PROPERTIES.items()]
        input_shape = Counter(inputs["input_shape"]).most_common(1)[0][0]
        found.facts.append(f"The network would see {input_shape}, channels first.")
    copies = inputs[inputs.duplicated("digest", keep=False)].groupby("digest", sort=False)
    names = [f"row {i} ({name})" + (f": {file}" if file != name else "")
             for i, (name, file) in enumerate(zip(subject, files, strict=True), start=1)]  # fmt: skip
    _check_duplicates(found, [rows.index.tolist() for _, rows in copies], names, columns)
    if columns["diagnosis"] is not None and is_image:
        _check_shortcuts(found, inputs, columns["diagnosis"][inputs.index] == PATIENT)


def _check_duplicates(
    found: Findings, copies: list[list[int]], names: list[str], columns: Mapping[str, Any], most: int = 20
) -> None:
    def listed(copies: list[list[int]]) -> str:
        lines = [f"\n    {' = '.join(names[row] for row in rows[:4])}" for rows in copies[:most]]
        return "".join(lines) + (f"\n    and {len(copies) - most} more" if len(copies) > most else "")

    for what, values, remedy in (
        ("diagnoses", columns["diagnosis"], "one of them must be wrong: find out which and drop it"),
        ("parts of the split", columns["is_test"], "they would be recognised, not predicted: drop them from one part"),
    ):
        across = [] if values is None else [rows for rows in copies if len({str(values[row]) for row in rows}) > 1]
        copies = [rows for rows in copies if rows not in across]
        if across:
            found.problems.append(f"{count_of(len(across), 'input')} in both {what}; {remedy}:{listed(across)}")
    if copies:
        group = columns["group"]
        apart = any(group is None or len({str(group[row]) for row in rows}) > 1 for rows in copies)
        remedy = "drop the copies" + (", or give them one group: else one may be held out" if apart else "")
        found.warnings.append(f"{count_of(len(copies), 'input')} more than once; {remedy}:{listed(copies)}")


def _check_shortcuts(found: Findings, inputs: pd.DataFrame, ill: np.ndarray) -> None:
    """Warn of properties of the files that distinguish patients from controls: a network would learn them first."""
    if min(ill.sum(), (~ill).sum()) < FEWEST:
        return
    remedy = "a network would learn this instead of the disease; bring both to one"
    for name in PROPERTIES:
        shares = pd.crosstab(inputs[name], ill, normalize="columns")
        # where nearly every image has a size of its own, sizes are compared by rank below
        if abs(shares[True] - shares[False]).sum() / 2 > SHARE_APART and len(shares) <= 0.1 * len(inputs) + 2:
            patients, controls = _most(inputs[name][ill]), _most(inputs[name][~ill])
            found.warnings.append(
                f"Patients and controls differ in {name} (patients: {patients}; controls: {controls}): {remedy}."
            )
    for name, values, limit in (
        ("size", inputs["pixels"], RANKED_APART),
        ("mean brightness", inputs["mean"], BRIGHTNESS_APART),
    ):
        auc = roc_auc_score(ill, values)
        if max(auc, 1 - auc) > limit and not any(f"differ in {name} (" in words for words in found.warnings):
            found.warnings.append(
                f"Patients and controls differ in {name} (medians {values[ill].median():.3g} and "
                f"{values[~ill].median():.3g}): {remedy}, or standardise (--size, --intensity standardise)."
            )


def _most(values: Iterable[str], most: int = 4) -> str:
    counts = Counter(values).most_common()
    shown = ", ".join(f"{value} ({n})" for value, n in counts[:most])
    return shown + (f", {len(counts) - most} others" if len(counts) > most else "")
