"""One file per method of the paper; `METHODS` is their table of contents."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from phenogroups.data.augment import Augmentation
from phenogroups.methods.base import DeepMethod, Method, Prediction
from phenogroups.methods.deep_ucsl import PAPER, DeepUCSL
from phenogroups.methods.kmeans import PlainKMeans
from phenogroups.training.run import RunError, read_recipe, read_tensors

METHODS = {
    "deep_ucsl": DeepUCSL,
    "deep_ucsl_paper": partial(DeepUCSL, **PAPER),
    "kmeans": PlainKMeans,
}

__all__ = ["METHODS", "DeepMethod", "DeepUCSL", "Method", "Prediction", "build_method", "load", "settings_of"]


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """A method by its name, with settings that override its defaults; says which names there are."""
    if name not in METHODS:
        raise ValueError(f"Expected a method among {', '.join(METHODS)}. Received: {name!r}.")
    make = METHODS[name]
    kind = make.func if isinstance(make, partial) else make
    known = {f.name: f for f in fields(kind)}
    strange = [key for key in settings if key not in known]
    if strange:
        raise ValueError(f"Expected settings of {name} among {', '.join(known)}. Received: {', '.join(strange)}.")
    return make(**{key: _as_setting(value) for key, value in settings.items()})


def settings_of(method: Method) -> dict[str, Any]:
    """The settings as JSON can hold them; an estimator given as a setting is named, not stored."""
    plain = {}
    for key, value in method.get_params(deep=False).items():
        value = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        try:
            plain[key] = json.loads(json.dumps(value))
        except TypeError:
            plain[key] = repr(value)
    return plain


def name_of(method: Method) -> str:
    return next(name for name, make in METHODS.items() if make is type(method))


def load(folder: str | Path) -> Method:
    """The fitted method of a run folder, ready to predict."""
    recipe = read_recipe(folder)
    try:
        method = build_method(recipe["method"], recipe["settings"])
        method.restore(tuple(recipe["input_shape"]), read_tensors(folder))
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        raise RunError(f"Expected recipe and model of {folder} to fit together. Received: {error}") from error
    return method


def _as_setting(value: Any) -> Any:
    if isinstance(value, dict):
        return Augmentation(**{key: tuple(v) if isinstance(v, list) else v for key, v in value.items()})
    return tuple(value) if isinstance(value, list) else value
