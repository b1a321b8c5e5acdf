"""Removes the effects of covariates (age, sex, site) from inputs.

The effects are estimated on controls: among patients they are mixed with those of the illness.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_numeric_dtype
from torch import Tensor

from phenogroups.data.cohort import Cohort, CohortError, name_rows
from phenogroups.data.properties import is_measured
from phenogroups.data.untrusted import as_bytes, from_bytes, shortened

Column = tuple[str, list[str] | None]  # its name, and its codes if it is one of codes; the first is the reference


@dataclass(frozen=True)
class Adjustment:
    """A few tensors, saved with the model, that adjust one new subject as well as a cohort."""

    columns: Tensor  # (bytes,): the columns as JSON
    center: Tensor  # (regressors,): means of the controls, whose own mean is thus left as it was
    slopes: Tensor  # (regressors, numbers of an input)

    def check(self, names: Sequence[str], numbers: int) -> None:
        """Raise unless this adjusts inputs of so many numbers for these covariates."""
        columns = from_bytes(self.columns)
        for name, codes in columns:
            if not isinstance(name, str) or not (codes is None or all(isinstance(code, str) for code in codes)):
                raise ValueError(f"Expected covariates by name and code. Received: {shortened([name, codes])}.")
        regressors = sum(1 if codes is None else len(codes) - 1 for _, codes in columns)
        sizes = tuple(self.center.shape), tuple(self.slopes.shape)
        if [name for name, _ in columns] != list(names) or sizes != ((regressors,), (regressors, numbers)):
            raise ValueError(f"Expected an adjustment for {', '.join(names)}. Received: another, of sizes {sizes}.")

    def regressors_of(self, cohort: Cohort) -> np.ndarray:
        return regressors(cohort, from_bytes(self.columns))

    def check_covariates(self, cohort: Cohort) -> None:
        """Raise where a covariate is missing or unusable; properties of images without a column are not looked at."""
        columns = from_bytes(self.columns)
        regressors(
            cohort, [(name, codes) for name, codes in columns if name in cohort.covariates or not is_measured(name)]
        )

    def __call__(self, cohort: Cohort) -> np.ndarray:
        """The cohort's inputs, float32, as if all subjects had the covariates of the mean control."""
        away = self.regressors_of(cohort) - self.center.numpy()
        adjusted = np.asarray(cohort.inputs).reshape(len(cohort), -1).astype(np.float64)
        # one by one: the rounding of a matrix product depends on the number of its rows
        for amount, slope in zip(away.T, self.slopes.numpy(), strict=True):
            adjusted -= amount[:, None] * slope
        return adjusted.astype(np.float32).reshape(cohort.inputs.shape)


def fit_adjustment(cohort: Cohort, names: Sequence[str]) -> Adjustment:
    """Least squares on the controls; `C(site)` takes a column as codes even where they are numbers."""
    if cohort.is_patient.all():
        raise CohortError(
            f"Expected controls, to learn what {', '.join(names)} does without the illness. Received: patients only. "
            "Bring controls, or do not adjust."
        )
    controls = cohort[~cohort.is_patient]
    columns = [_column(controls, name) for name in names]
    x = regressors(controls, columns)
    if len(controls) <= x.shape[1] + 1:
        raise CohortError(
            f"Expected more controls than the {x.shape[1] + 1} numbers that adjusting for {', '.join(names)} takes. "
            f"Received: {len(controls)} controls. Bring more, or adjust for less."
        )
    center, scale = x.mean(axis=0), x.std(axis=0)
    y = np.asarray(controls.inputs).reshape(len(controls), -1).astype(np.float64)
    slopes, _, rank, _ = np.linalg.lstsq((x - center) / scale, y - y.mean(axis=0), rcond=None)
    if rank < x.shape[1]:
        raise CohortError(
            f"Expected covariates that vary independently among controls. Received: {', '.join(names)}, of which one "
            "follows from the others. Drop it."
        )
    learned = (center, slopes / scale[:, None])
    return Adjustment(as_bytes(columns), *(torch.as_tensor(np.ascontiguousarray(each)) for each in learned))


def regressors(cohort: Cohort, columns: Sequence[Any]) -> np.ndarray:
    """(subjects, regressors): one regressor per number, and one indicator per code except the reference code."""
    found = []
    for name, codes in columns:
        values = covariate(cohort, name)
        if codes is None:
            amounts = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            _refuse(cohort, ~np.isfinite(amounts), f"a number as covariate {name!r}", values)
            found.append(amounts[:, None])
        else:
            written = np.array([_code(value) for value in values])
            _refuse(cohort, ~np.isin(written, codes), f"{name!r} among those of the controls ({_some(codes)})", values)
            found.append((written[:, None] == np.array(codes[1:])).astype(np.float64))
    return np.concatenate(found, axis=1) if found else np.empty((len(cohort), 0))


def column_name(asked: str) -> str:
    """Without the mark of codes."""
    return re.sub(r"^C\((.+)\)$", r"\1", asked)


def _column(controls: Cohort, asked: str) -> Column:
    name, marked = column_name(asked), column_name(asked) != asked
    values = covariate(controls, name)
    missing = values.isna().to_numpy() | (values.astype(str) == "").to_numpy()
    _refuse(controls, missing, f"the covariate {name!r} of every subject", values)
    codes = None if is_numeric_dtype(values) and not marked else sorted({_code(value) for value in values})
    if values.nunique() < 2:
        raise CohortError(
            f"Expected controls that differ in {name!r}, to learn what it does. Received: {_some(codes or values)} in "
            "all of them. Leave it out, or bring other controls."
        )
    return name, codes


def covariate(cohort: Cohort, name: str) -> pd.Series:
    """A property of the images, which new subjects have as well, or else a column of the covariates."""
    if name in cohort.files:  # no pixel is read
        return cohort.files[name]
    if is_measured(name) and name in cohort.image_properties:
        return cohort.image_properties[name]
    if name not in cohort.covariates:
        there = ", ".join(map(repr, [*cohort.covariates, *cohort.image_properties])) or "none"
        raise CohortError(
            f"Expected the covariate {name!r}, which inputs are adjusted for. Received: {there}. Bring it with the "
            "cohort: Cohort(inputs, diagnosis, covariates=...), or --covariates of a table."
        )
    return cohort.covariates[name]


def _code(value: Any) -> str:
    """One spelling: a column of codes becomes 1.0, 2.0 where a cell is empty."""
    return str(int(value)) if isinstance(value, float | np.floating) and value.is_integer() else str(value)


def _refuse(cohort: Cohort, where: np.ndarray, expected: str, values: pd.Series) -> None:
    """Raise if any row is marked; missing values are never imputed, as a subgroup could consist of guesses."""
    if where.any():
        raise CohortError(
            f"Expected {expected}. Received: {_some(sorted({str(value) for value in values[where]}))} in "
            f"{name_rows(cohort.subject[where])}. Fill them in, or drop these rows."
        )


def _some(values: Any, most: int = 5) -> str:
    values = list(dict.fromkeys(map(str, values)))
    return ", ".join(values[:most]) + (", ..." if len(values) > most else "")
