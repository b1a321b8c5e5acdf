"""Docstrings of methods: a class documents its own settings, and those that it inherits are added from its parents."""

import inspect
import re
import sys
from dataclasses import Field
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from phenogroups.methods.registry import class_of, preset_of
from phenogroups.methods.settings import AtLeast, stated

INHERITED = ("Parameters", "Attributes")
QUICK = {"epochs": 2, "steps": 2, "n_consensus": 3}  # of these settings, an example gives those that a method has
EXAMPLE = """\
>>> from phenogroups import METHODS, drawn_table
>>> cohort = drawn_table(80)
>>> method = METHODS["{name}"]({settings}).fit(cohort)
>>> method.predict_subgroup_proba(cohort).shape
(80, 2)"""


def sections(text: str | None) -> dict[str, str]:
    """A numpy-style docstring by section; the text before the first section has the name ''."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(text or ""), flags=re.MULTILINE)
    return {"": parts[0].strip()} | {
        name: body.strip("\n") for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def entries(section: str) -> dict[str, tuple[str, str]]:
    """The type and the indented text of each name in a section such as Parameters."""
    parts = re.split(r"^(\w+)(?: : (.*))?\n(?=    )", section, flags=re.MULTILINE)
    return {parts[i]: (parts[i + 1] or "", parts[i + 2].rstrip()) for i in range(1, len(parts), 3)}


def complete_docstring(cls: type, name: str | None = None) -> None:
    """Give a method's class the docstring of all its settings, also of those that its parents document.

    A class without a summary gets that of its file; a class with a `name` and without an example gets one. Types,
    limits and defaults are those of the fields.
    """
    own = sections(cls.__dict__.get("__doc__"))
    summary = own.pop("") or (sys.modules[cls.__module__].__doc__ or cls.__name__).strip()
    parents = [sections(parent.__doc__) for parent in cls.__bases__ if hasattr(parent, "setting_names")]
    if name is not None and "Examples" not in own:
        settings = ", ".join(f"{key}={value}" for key, value in QUICK.items() if hasattr(cls, key))
        own["Examples"] = EXAMPLE.format(name=name, settings=settings)
    parts = [summary]
    for section in INHERITED:
        known: dict[str, tuple[str, str]] = {}
        for parent in parents:
            known |= entries(parent.get(section, ""))
        known |= entries(own.pop(section, ""))
        if section == "Parameters":
            known = {setting: (_kind(cls, setting), text) for setting, (_, text) in known.items()}
        body = "\n".join(f"{key} : {kind}\n{text}" if kind else f"{key}\n{text}" for key, (kind, text) in known.items())
        parts += [_titled(section, body)] if body else []
    parts += [_titled(section, body) for section, body in own.items()]
    cls.__doc__ = "\n\n".join(parts) + "\n"


def _titled(section: str, body: str) -> str:
    return f"{section}\n{'-' * len(section)}\n{body}"


def describe(name: str) -> str:
    """The text that `phenogroups methods NAME` prints: the method, its settings, limits and defaults."""
    cls, changed = class_of(name), preset_of(name)
    different = f" with {', '.join(f'{key}={value!r}' for key, value in changed.items())}" if changed else ""
    return f"{name}: {cls.__name__}{different}\n\n{inspect.cleandoc(cls.__doc__ or '')}"


def one_line(name: str) -> str:
    """The first line of a method's docstring, or the settings that a preset changes."""
    if changed := preset_of(name):
        return f"{class_of(name).__name__} with another {', '.join(changed)}."
    return (class_of(name).__doc__ or "").partition("\n")[0]


def _kind(cls: type, setting: str) -> str:
    """Type, limit and default of a setting, in the words of numpy-style docstrings."""
    annotation = next(each[setting] for each in map(inspect.get_annotations, cls.__mro__) if setting in each)
    annotation = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    least = stated(cls, AtLeast).get(setting)
    limit = [] if least is None else [f"at least {least.value}"]
    default = getattr(cls, setting)
    default = default.default if isinstance(default, Field) else default  # as it is before `dataclass` is applied
    return ", ".join([_words(annotation), *limit, f"default {default!r}"])


def _words(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(map(_words, get_args(annotation)))
    if get_origin(annotation) is Literal:
        return "{" + ", ".join(map(repr, get_args(annotation))) + "}"
    if annotation is type(None):
        return "None"
    if annotation is Any:
        return "object"
    return annotation.__name__ if isinstance(annotation, type) else inspect.formatannotation(annotation)
