"""Find disease subgroups by contrasting patients with healthy controls.

Examples
--------
>>> from phenogroups import DeepUCSL, drawn_table, score
>>> train, test = drawn_table(200).split(held_out=0.2)
>>> model = DeepUCSL(n_subgroups=2, epochs=2, steps=2).fit(train)
>>> scores = score(test, model.predict_cohort(test))
"""

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

    __version__: str

# what a user imports, and where it is defined; imported when first used, so that `phenogroups --help` is quick
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
    "METHODS", "Cohort", "DeepUCSL", "Prediction", "__version__", "compare", "discover", "drawn_brains", "drawn_digits",
    "drawn_table", "launch", "load", "number_of_subgroups", "recipe", "score",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("phenogroups")
    if name not in _CONTENTS:
        raise AttributeError(f"module 'phenogroups' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_CONTENTS[name]), name)


def __dir__() -> list[str]:
    return __all__
