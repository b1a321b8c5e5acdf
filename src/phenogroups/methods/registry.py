"""Methods by name: how they are built from settings that JSON can hold, and loaded from run folders."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from phenogroups.data.augment import Augmentation
from phenogroups.data.untrusted import check_types, shortened
from phenogroups.training.run import RunError, read_recipe, read_tensors

if TYPE_CHECKING:
    from phenogroups.methods.base import Method

MEANS = "subgroup_means"  # name of this tensor in a model file
RENAMED = {"settle": "recalibrate_batch_norm"}  # settings: name in earlier versions -> name now
METHODS: dict[str, Callable[..., "Method"]] = {}  # filled by `Method.__init_subclass__` as classes are defined


def register(name: str, cls: type["Method"], presets: Mapping[str, Mapping[str, Any]]) -> None:
    """Add a method, and the same method with other defaults under the names of `presets`."""
    known = METHODS.get(name)
    if known is not None and f"{known.__module__}.{known.__qualname__}" != f"{cls.__module__}.{cls.__qualname__}":
        raise ValueError(
            f"Expected a name that no other method has. Received: {name!r} for {cls.__qualname__}, which is that of "
            f"{known.__module__}.{known.__qualname__}. Choose another."
        )
    METHODS[name] = cls
    METHODS.update({preset: partial(cls, **settings) for preset, settings in presets.items()})


def class_of(name: str) -> type["Method"]:
    """The class of a method or preset; an unknown name is refused with a list of those known."""
    if name not in METHODS:
        raise ValueError(f"Expected a method among {', '.join(METHODS)}. Received: {shortened(name)}.")
    make = METHODS[name]
    return make.func if isinstance(make, partial) else make  # pyright: ignore[reportReturnType]


def preset_of(name: str) -> dict[str, Any]:
    """The settings that a preset changes; none for a method."""
    make = METHODS[name]
    return dict(make.keywords) if isinstance(make, partial) else {}


def build_method(name: str, settings: Mapping[str, Any]) -> "Method":
    """Build a method by its name, with settings that override its defaults.

    Parameters
    ----------
    name
        A name in `METHODS`.
    settings
        Values by the name of the setting, as JSON can hold them.

    Returns
    -------
    Method
        The method, not yet fitted.

    Examples
    --------
    >>> from phenogroups.methods import build_method
    >>> build_method("simclr", {"n_subgroups": 3}).n_subgroups
    3
    """
    cls = class_of(name)
    known = cls.setting_names()
    refuse_unknown(settings, known, f"settings of {name} among {', '.join(known)}")
    method = METHODS[name](**cls.parse_settings(settings))
    method.check_settings()
    return method


def settings_of(method: "Method") -> dict[str, Any]:
    """The settings of a method as JSON can hold them; an estimator given as a setting is named, not stored.

    Parameters
    ----------
    method
        Any method, fitted or not.

    Returns
    -------
    dict
        Settings that `build_method` takes together with `name_of(method)`.

    Examples
    --------
    >>> from phenogroups.methods import PlainKMeans, settings_of
    >>> settings_of(PlainKMeans(n_starts=3))
    {'adjust': [], 'n_starts': 3, 'n_subgroups': 2, 'seed': 0}
    """
    return json.loads(json.dumps(method.settings_for_json(), default=_to_json))


def name_of(method: "Method") -> str:
    """The name of a method's class in `METHODS`.

    Parameters
    ----------
    method
        Any method, fitted or not.

    Returns
    -------
    str
        A preset has the name of its class, from which it differs in its settings.

    Examples
    --------
    >>> from phenogroups.methods import SimCLR, name_of
    >>> name_of(SimCLR())
    'simclr'
    """
    for name, make in METHODS.items():
        if make is type(method):
            return name
    raise ValueError(
        f"Expected a method among {', '.join(METHODS)}. Received: {type(method).__name__}, which has no name. "
        "Define it with one: class MyMethod(DeepMethod, name='my_method')."
    )


def load(folder: str | Path) -> "Method":
    """Load the fitted method of a run folder, or one that was saved by its `save`.

    Nothing in the folder is executed. Files that do not fit together are refused.

    Parameters
    ----------
    folder
        A folder that `discover` or `save` wrote.

    Returns
    -------
    Method
        The method, ready to predict.

    Examples
    --------
    >>> from phenogroups import METHODS, discover, drawn_table, load
    >>> cohort = drawn_table(80)
    >>> found = discover(cohort, METHODS["kmeans"](), "run")
    >>> load("run").predict_subgroup(cohort).shape
    (80,)
    """
    recipe = read_recipe(folder)
    try:
        settings = in_current_names(recipe["settings"], recipe["method"])
        method = build_method(recipe["method"], settings)  # before the larger file is read
        tensors = read_tensors(folder, recipe)
        _refuse_broken(tensors)
        method.restore(tuple(recipe["input_shape"]), tensors).restore_names(recipe)
        return method
    except RunError:
        raise
    except Exception as error:  # libraries raise many kinds of errors on unexpected sizes and names
        message = shortened(error, quoted=False, most=2000)
        raise RunError(f"Expected recipe and model of {folder} to fit together. Received: {message}") from error


def in_current_names(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The settings of a run folder, renamed if an earlier version wrote it; also those of the runs of a consensus."""
    named = {RENAMED.get(name, name): value for name, value in settings.items()}
    if isinstance(named.get("settings"), dict):
        named["settings"] = in_current_names(named["settings"], named.get("method", ""))
    if method == "pcl" and isinstance(named.get("warmup"), int):  # was a number of epochs
        named["pretext"] = named.pop("warmup") / max(named.get("epochs", 1), 1)
    return named


def _refuse_broken(tensors: Mapping[str, Tensor]) -> None:
    """Raise for NaN, which would assign all subjects to the first subgroup; only an empty subgroup has no mean."""
    for name, tensor in tensors.items():
        if not name.endswith(MEANS) and tensor.is_floating_point() and torch.isnan(tensor).any():
            raise ValueError(f"Expected numbers in {name}. Received: NaN.")


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else repr(value)


def refuse_unknown(settings: Mapping[str, Any], known: list[str], expected: str) -> None:
    """Raise where settings have names that are not known."""
    unknown = [shortened(key, quoted=False) for key in settings if key not in known]
    if unknown:
        raise ValueError(f"Expected {expected}. Received: {', '.join(unknown[:5])}.")


def from_json(value: Any) -> Any:
    """A setting from JSON: a dict is an augmentation, the only setting with fields of its own."""
    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    refuse_unknown(value, [f.name for f in fields(Augmentation)], "an augmentation's settings")
    augmentation = Augmentation(**value)
    check_types(augmentation)
    return augmentation
