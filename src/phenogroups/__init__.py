"""Find disease subgroups by contrasting patients with healthy controls."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phenogroups.data.cohort import Cohort
    from phenogroups.data.examples.drawn import drawn_digits
    from phenogroups.data.examples.drawn_brains import drawn_brains
    from phenogroups.data.examples.drawn_table import drawn_table
    from phenogroups.evaluation.scores import score
    from phenogroups.methods import METHODS, DeepUCSL, Prediction, load
    from phenogroups.recipes import recipe
    from phenogroups.training.distributed import launch
    from phenogroups.workflows.choose import number_of_subgroups
    from phenogroups.workflows.compare import compare
    from phenogroups.workflows.discover import discover

# what a user imports, and where it lives; loaded when first asked for, so that `phenogroups --help` is quick
_CONTENTS = {
    "Cohort": "phenogroups.data.cohort",
    "drawn_digits": "phenogroups.data.examples.drawn",
    "drawn_brains": "phenogroups.data.examples.drawn_brains",
    "drawn_table": "phenogroups.data.examples.drawn_table",
    "DeepUCSL": "phenogroups.methods",
    "METHODS": "phenogroups.methods",
    "Prediction": "phenogroups.methods",
    "load": "phenogroups.methods",
    "launch": "phenogroups.training.distributed",
    "discover": "phenogroups.workflows.discover",
    "recipe": "phenogroups.recipes",
    "compare": "phenogroups.workflows.compare",
    "number_of_subgroups": "phenogroups.workflows.choose",
    "score": "phenogroups.evaluation.scores",
}

__all__ = [
    "METHODS", "Cohort", "DeepUCSL", "Prediction", "compare", "discover", "drawn_brains", "drawn_digits", "drawn_table",
    "launch", "load", "number_of_subgroups", "recipe", "score",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _CONTENTS:
        raise AttributeError(f"module 'phenogroups' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_CONTENTS[name]), name)
