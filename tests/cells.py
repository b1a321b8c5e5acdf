"""Cells of a comparison, made by hand."""

import pandas as pd

from phenogroups.evaluation.ranking import COSTS, RANKED

BOTH, ONLY, BOUND = "patients and controls", "patients only", "upper bound"


def cells_of(**scores):
    """One row per seed; a number is the Subgroup score of a finished cell, None a failed cell."""
    rows = []
    for method, values in scores.items():
        for seed, value in enumerate(values):
            numbers = dict.fromkeys([*RANKED, *COSTS]) | {"subgroup_bacc": value, "seconds": 1.0}
            status = "failed" if value is None else "finished"
            rows.append({"method": method, "seed": seed, "status": status, **numbers})
    return pd.DataFrame(rows)
