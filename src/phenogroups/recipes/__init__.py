"""Settings by name: how a cohort is read and which method finds its subgroups, one readable TOML file each.

The files beside this one are the paper's cohorts as published, and a faster version of each for a CPU (-fast).
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from phenogroups.data.cohort import Cohort
from phenogroups.data.opening import TableRecipe, open_cohort
from phenogroups.data.reading import Reading
from phenogroups.data.selection import Selection
from phenogroups.data.tables import TableSpec
from phenogroups.data.untrusted import check_types, read_limited, refuse_strange, shortened
from phenogroups.methods import DeepMethod, Method, build_method
from phenogroups.methods.registry import class_of, preset_of

FOLDER = Path(__file__).parent
RECIPES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
COLUMNS = tuple(f.name for f in fields(TableSpec) if f.name != "reading")
# the network that sees the data and how it is trained on them; what a method adds to these is a part of the method
OF_THE_DATA = DeepMethod.setting_names()


@dataclass(frozen=True)
class Recipe(TableRecipe):
    """How a cohort is read and which method finds its subgroups; other options override it.

    Parameters
    ----------
    method
        A name in `METHODS`.
    subgroups
        Number of subgroups.
    held_out
        Share of the subjects that is held out, where the cohort does not say who.
    table
        Which column means what, as in `phenogroups.data.tables.TableSpec`.
    rows
        Which rows are studied, and which of them are held out.
    reading
        How images are read, as in `phenogroups.data.reading.Reading`.
    settings
        Settings of the method; of other methods too, as far as they are about the data (`settings_of`).
    methods
        Settings of one method each, by its name.
    name
        Name of the recipe.
    """

    method: str = "deep_ucsl"
    subgroups: int = 2
    held_out: float = 0.2
    settings: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = ""

    def build(self, method: str | None = None, **settings: Any) -> Method:
        """The method of this name, by default the recipe's own; not yet fitted."""
        name = method or self.method
        return build_method(name, {"n_subgroups": self.subgroups, **self.settings_of(name), **settings})

    def settings_of(self, method: str) -> dict[str, Any]:
        """What the recipe says of a method: all `settings` to its own; to another, those about the data.

        What another method or preset is made of stays as it is. A preset that extends the recipe's own, such as an
        ablation, differs from it in nothing else. What `methods` says of a method counts most.
        """
        of_one = dict(self.methods.get(method, {}))
        if method == self.method:
            return {**self.settings, **of_one}
        cls, ours, theirs = class_of(method), preset_of(self.method), preset_of(method)
        if cls is class_of(self.method) and ours.keys() <= theirs.keys():
            kept = {key for key, value in theirs.items() if key not in ours or value != ours[key]}
            told = set(self.settings)
        else:
            kept, told = {*theirs, *cls.settings_of_its_own}, {*OF_THE_DATA} & {*cls.setting_names()}
        return {key: value for key, value in self.settings.items() if key in told - kept} | of_one

    def read(
        self, table: str | Path, *, folder: str | Path | None = None, cache: str | Path | None = None, **columns: Any
    ) -> Cohort:
        """The cohort of a table or folder, read as the recipe says."""
        resized = self.build().by_lite0
        return open_cohort(table, columns, recipe=self, cache=cache, folder=folder, resized=resized)


def recipe(name: str | Path) -> Recipe:
    """Read a recipe: how a cohort is read and which method finds its subgroups.

    Parameters
    ----------
    name
        Name of one of the paper's cohorts, such as ``odir`` or ``odir-fast``, or the path of a TOML file.

    Returns
    -------
    Recipe
        `read` gives its cohort, `build` its method.

    Examples
    --------
    >>> from phenogroups import recipe
    >>> chosen = recipe("mnist7-fast")
    >>> chosen.method, chosen.build(seed=1).n_subgroups
    ('deep_ucsl', 2)
    """
    path = FOLDER / f"{name}.toml" if str(name) in RECIPES else Path(name)
    if path.suffix != ".toml" or not path.is_file():
        raise ValueError(
            f"Expected a recipe among {', '.join(RECIPES)}, or the path of a TOML file. Received: {str(name)!r}."
        )
    try:
        told = tomllib.loads(read_limited(path).decode())
        refuse_strange(told)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected a recipe in TOML. Received: {path}, unreadable ({shortened(error, quoted=False)})."
        ) from error
    try:
        return _checked(told, path.stem)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: {shortened(error, quoted=False, most=2000)}") from error


def _checked(told: dict[str, Any], name: str) -> Recipe:
    _refuse_unknown("recipe", told, [f.name for f in fields(Recipe) if f.name != "name"])
    for section, known in (
        ("table", COLUMNS),
        ("rows", [f.name for f in fields(Selection)]),
        ("reading", [f.name for f in fields(Reading)]),
        ("settings", None),  # the method knows them
        ("methods", None),
    ):
        part = told.setdefault(section, {})
        if not isinstance(part, dict):
            raise ValueError(f"Expected [{section}] with keys of its own. Received: {part!r}.")
        if known is not None:
            _refuse_unknown(f"[{section}]", part, known)
    for section in ("table", "reading"):
        told[section] = {key: tuple(v) if isinstance(v, list) else v for key, v in told[section].items()}
    found = Recipe(**{**told, "rows": Selection(**told["rows"]), "name": name})
    if not isinstance(found.held_out, float) or not 0 < found.held_out < 1:
        raise ValueError(f"Expected held_out as a share between 0 and 1. Received: {found.held_out!r}.")
    check_types(found)
    for part in (found.rows, found.spec(TableSpec(), {}, {}), Reading(**found.reading)):
        check_types(part)
    for method in (found.method, *found.methods):
        found.build(method)
    return found


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    strange = [key for key in given if key not in known]
    if strange:
        raise ValueError(f"Expected keys of {what} among {', '.join(known)}. Received: {', '.join(strange)}.")
