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
OF_THE_DATA = DeepMethod.setting_names()  # settings of the network and its training, which all deep methods share


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
        """The settings of this recipe for a method: all `settings` for its own method, for others those about the data.

        Settings that define another method or preset are not changed. A preset that extends the recipe's own, such as
        an ablation, takes all others. The entry of `methods` for this method overrides both.
        """
        of_one = dict(self.methods.get(method, {}))
        if method == self.method:
            return {**self.settings, **of_one}
        cls, own_preset, preset = class_of(method), preset_of(self.method), preset_of(method)
        if cls is class_of(self.method) and own_preset.keys() <= preset.keys():
            fixed = {key for key, value in preset.items() if key not in own_preset or value != own_preset[key]}
            allowed = set(self.settings)
        else:
            fixed, allowed = {*preset, *cls.settings_of_its_own}, {*OF_THE_DATA} & {*cls.setting_names()}
        return {key: value for key, value in self.settings.items() if key in allowed - fixed} | of_one

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
        content = tomllib.loads(read_limited(path).decode())
        refuse_strange(content)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected a recipe in TOML. Received: {path}, unreadable ({shortened(error, quoted=False)})."
        ) from error
    try:
        return _checked(content, path.stem)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: {shortened(error, quoted=False, most=2000)}") from error


def _checked(content: dict[str, Any], name: str) -> Recipe:
    _refuse_unknown("recipe", content, [f.name for f in fields(Recipe) if f.name != "name"])
    rows, reading = ([f.name for f in fields(of)] for of in (Selection, Reading))
    # settings are checked by the method
    known = {"table": COLUMNS, "rows": rows, "reading": reading, "settings": None, "methods": None}
    for section, keys in known.items():
        part = content.setdefault(section, {})
        if not isinstance(part, dict):
            raise ValueError(f"Expected [{section}] with keys of its own. Received: {part!r}.")
        if keys is not None:
            _refuse_unknown(f"[{section}]", part, keys)
    for section in ("table", "reading"):
        content[section] = {key: tuple(v) if isinstance(v, list) else v for key, v in content[section].items()}
    found = Recipe(**{**content, "rows": Selection(**content["rows"]), "name": name})
    if not isinstance(found.held_out, float) or not 0 < found.held_out < 1:
        raise ValueError(f"Expected held_out as a share between 0 and 1. Received: {found.held_out!r}.")
    for part in (found, found.rows, found.spec(TableSpec(), {}, {}), Reading(**found.reading)):
        check_types(part)
    for method in (found.method, *found.methods):
        found.build(method)
    return found


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"Expected keys of {what} among {', '.join(known)}. Received: {', '.join(unknown)}.")
