"""Means, deviations and significance of a comparison of methods (paper, tables)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind_from_stats

from phenogroups.evaluation.scores import SCORE_NAMES

KINDS = ("patients only", "patients and controls", "upper bound")  # what a method learns from; the last: the truth

RANKED = ("class_bacc", "subgroup_bacc", "overall_bacc", "ari")  # the greater, the better
COSTS = {"seconds": "Seconds", "peak_memory_mb": "Peak MB"}
TITLES = {**{column: SCORE_NAMES[column] for column in RANKED}, **COSTS}
ALPHA = 0.05


def summarise(cells: pd.DataFrame, kinds: Mapping[str, str]) -> pd.DataFrame:
    """One row per method, grouped by kind: mean, standard deviation (n - 1), and p against the best, of each column.

    `cells` has method, status (finished or failed) and the columns in TITLES; upper bounds are not ranked.
    """
    finished = cells[cells["status"] == "finished"]
    order = sorted(kinds, key=lambda method: KINDS.index(kinds[method]))
    rows: dict[str, dict[str, Any]] = {}
    for method in order:
        of_method = cells["method"] == method
        failed = int((of_method & (cells["status"] == "failed")).sum())
        rows[method] = {"kind": kinds[method], "seeds": int(of_method.sum()) - failed, "failed": failed}
    for column in TITLES:
        values = {method: _numbers(finished.loc[finished["method"] == method, column]) for method in order}
        fair = {method: found for method, found in values.items() if kinds[method] != KINDS[-1] and len(found)}
        verdicts = _ranked(fair) if column in RANKED else {}
        for method, found in values.items():
            rows[method][f"{column}_mean"] = float(found.mean()) if len(found) else None
            rows[method][f"{column}_deviation"] = _deviation(found)
            if column in RANKED:
                verdict = verdicts.get(method, {"p": None, "best": False, "star": False})
                rows[method] |= {f"{column}_{word}": value for word, value in verdict.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").reset_index()


def welch(a: np.ndarray, b: np.ndarray) -> float | None:
    """p of the two-sided two-sample t-test with unequal variances (Welch); None where either has fewer than two."""
    if min(len(a), len(b)) < 2:
        return None
    of_a, of_b = _deviation(a), _deviation(b)
    if of_a == of_b == 0:  # without spread, every difference is significant
        return float(a.mean() == b.mean())
    return float(ttest_ind_from_stats(a.mean(), of_a, len(a), b.mean(), of_b, len(b), equal_var=False).pvalue)


def _ranked(values: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """The best methods (equal means as printed), p of the others against the best, and whether it beats all others."""
    if len(values) < 2:
        return {}
    means = {method: float(found.mean()) for method, found in values.items()}
    top = max(means, key=lambda method: means[method])
    p = {method: welch(values[top], found) for method, found in values.items() if method != top}
    star = all(value is not None and value <= ALPHA for value in p.values())
    printed = {method: f"{mean:.3f}" for method, mean in means.items()}
    return {
        method: {"p": p.get(method), "best": printed[method] == printed[top], "star": star and method == top}
        for method in values
    }


def _numbers(column: pd.Series) -> np.ndarray:
    return column.dropna().to_numpy(dtype=np.float64)


def _deviation(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1)) if np.ptp(values) else 0.0  # equal values: 0 without rounding error
