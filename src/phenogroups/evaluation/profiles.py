"""How subgroups differ in covariates: a table for a paper, as CSV and as LaTeX."""

import numpy as np
import pandas as pd
from scipy.stats import chi2_contingency, kruskal
from scipy.stats.contingency import expected_freq

from phenogroups.evaluation import variables
from phenogroups.evaluation.variables import Variable, holm, variable

SMALL = 5  # expected count of a cell below which the p of chi-square is by permutation
PERMUTATIONS = 9999
MOST_LISTED = 20  # codes of a variable that get a line each
CONTROLS = "controls"
NOTHING = "–"


def profiles(
    assigned: np.ndarray,  # (n,): subgroup of each patient, such as its letter; values of controls are ignored
    is_patient: np.ndarray,
    covariates: pd.DataFrame,
    group: np.ndarray | None = None,  # (n,): where rows share a group, such as two eyes, p is by permutation of groups
    seed: int = 0,
) -> pd.DataFrame:
    """Two rows per amount and one per code: typical values by subgroup and in controls, test, effect, missing values.

    Amounts are compared by Kruskal-Wallis, codes by chi-square, with p by permutation where expected counts are small.
    The tests compare subgroups of patients; missing values are counted and left out.
    """
    assigned, is_patient = np.asarray(assigned).astype(str), np.asarray(is_patient, bool)
    group = np.arange(len(assigned)) if group is None else np.asarray(group)
    names = sorted(set(assigned[is_patient]), key=lambda name: (len(name), name))  # Z comes before AA
    parts = {name: is_patient & (assigned == name) for name in names}
    if not is_patient.all():
        parts[CONTROLS] = ~is_patient
    rows: list[dict[str, object]] = [{"variable": "subjects", **{part: str(who.sum()) for part, who in parts.items()}}]
    rng = np.random.default_rng(seed)
    for name, column in covariates.items():
        one = variable(str(name), column)
        missing = {f"missing {part}": int((~one.known & who).sum()) for part, who in parts.items()}
        compared = _compared(one[is_patient], assigned[is_patient], group[is_patient], rng)
        shown = {part: one.values[who & one.known] for part, who in parts.items()}
        lines = _lines(one, shown)
        rows += [{"variable": one.name, **line} for line in [lines[0] | missing | compared, *lines[1:]]]
    counted = [f"missing {part}" for part in parts]
    columns = ["variable", "value", *parts, "test", "effect", "size", "p", "p_corrected", *counted]
    words = dict.fromkeys(["variable", "value", *parts, "test", "effect"], "")
    table = pd.DataFrame([words | row for row in rows], columns=columns).astype(dict.fromkeys(counted, "Int64"))
    table["p_corrected"] = holm(table["p"].to_numpy(np.float64))
    return table


def _lines(one: Variable, shown: dict[str, np.ndarray]) -> list[dict[str, object]]:
    """Descriptive rows of a variable, without tests."""
    if one.kind == "amount":
        usual = {"mean (SD)": _mean, "median [IQR]": _median}
        return [{"value": name, **{part: say(v) for part, v in shown.items()}} for name, say in usual.items()]
    if len(one.levels) > MOST_LISTED:
        return [{"value": "different codes", **{part: str(len(np.unique(v))) for part, v in shown.items()}}]
    return [
        {"value": level, **{part: _share(v == position) for part, v in shown.items()}}
        for position, level in enumerate(one.levels)
    ] or [dict.fromkeys(shown, NOTHING)]


def _mean(values: np.ndarray) -> str:
    if len(values) == 0:
        return NOTHING
    return f"{values.mean():.4g} ({values.std(ddof=1):.3g})" if len(values) > 1 else f"{values[0]:.4g}"


def _median(values: np.ndarray) -> str:
    if len(values) == 0:
        return NOTHING
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.4g} [{low:.4g}, {high:.4g}]"


def _share(has: np.ndarray) -> str:
    return f"{has.sum()} ({has.mean():.0%})" if len(has) else NOTHING


def _compared(one: Variable, assigned: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    """Test and effect size by type of variable: epsilon squared of ranks, or Cramer's V."""
    assigned, group, one = assigned[one.known], group[one.known], one[one.known]
    names, n = np.unique(assigned), len(assigned)
    if len(names) < 2 or np.ptp(one.values) == 0:
        return {"test": "none: one subgroup or one value"}
    if one.kind == "amount":
        statistic, p = kruskal(*(one.values[assigned == name] for name in names))
        k = len(names)
        size, name, test, small = max(statistic - k + 1, 0) / max(n - k, 1), "epsilon squared", "Kruskal-Wallis", False
    else:
        counts = pd.crosstab(assigned, one.values).to_numpy()
        statistic, p, *_ = chi2_contingency(counts, correction=False)
        small = expected_freq(counts).min() < SMALL
        size, name, test = np.sqrt(statistic / n / (min(counts.shape) - 1)), "Cramer's V", "chi-square"
    repeated = len(np.unique(group)) < n
    if small or repeated:
        a, b = (
            variables.unit_columns(variables.one_hot(np.unique(assigned, return_inverse=True)[1])),
            variables.scores_of(one),
        )
        p = variables.permutation_p(
            variables.permuted_squares(a, b, group, PERMUTATIONS, rng).sum(axis=1), np.square(a.T @ b).sum()
        )
        test += ", permuted by group" if repeated else ", permuted"
    return {"test": test, "effect": name, "size": float(size), "p": float(p)}
