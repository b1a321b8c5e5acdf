"""Several methods with several seeds on one cohort: the paper's table, cell by cell, resumable.

A finished cell (one method with one seed) has a file of its own, named by a checksum of all that it depends on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from phenogroups.data.cohort import Cohort
from phenogroups.data.study import Study
from phenogroups.evaluation.ranking import KINDS
from phenogroups.methods import METHODS, Method, build_method, settings_of
from phenogroups.methods.registry import class_of
from phenogroups.recipes import Recipe
from phenogroups.report import tables
from phenogroups.report.tables import OUTPUTS
from phenogroups.training.cells import Cell, Cells
from phenogroups.training.run import RunError, versions
from phenogroups.workflows.run_cells import Step, check_found, run_all

FORMAT = 1  # of cells; raised when what they hold changes
CELLS = "cells"  # folder of finished cells
SEEDS, VALIDATION = 3, 0.1  # defaults; VALIDATION is the held-out share of splits (paper, Section 4)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`; `print` shows its table.

    Parameters
    ----------
    cells
        One row per method and seed.
    summary
        One row per method: means and standard deviations over seeds.
    failures
        Which cells failed, and why.
    ran
        Number of cells that this call ran; the others were finished before, or by another process.
    folder
        Where the tables and the page were written.
    """

    cells: pd.DataFrame
    summary: pd.DataFrame
    failures: list[str]
    ran: int
    folder: Path

    def print_table(self, console: Console) -> None:
        console.print(tables.comparison_table(self.summary))

    def sentences(self) -> list[str]:
        """What the columns of the table mean, and which cells failed."""
        return [*tables.legend(self.summary), *self.failures]

    def __str__(self) -> str:
        page = StringIO()
        self.print_table(Console(file=page, width=500))
        lines = [line.rstrip() for line in page.getvalue().splitlines()]
        return "\n".join([*filter(None, lines), *self.sentences()])


def compare(
    cohort: Cohort | Study,
    methods: Sequence[str],
    folder: str | Path,
    *,
    seeds: int | None = None,
    splits: int | None = None,
    n_subgroups: int | None = None,
    settings: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    test: Cohort | None = None,
    held_out: float | None = None,
    isolated: bool = True,
    progress: Callable[[Step], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Comparison:
    """Run several methods with several seeds on one cohort; write the paper's table, a picture and a page.

    A cell is one method with one seed. Finished cells are kept in the folder and not run again.

    Parameters
    ----------
    cohort
        The subjects; known subgroups are read to score only.
    methods
        Names in `METHODS`, or "all".
    folder
        Folder to write, or to continue in.
    seeds
        Number of seeds, by default 3. Each seed holds out another part of the cohort, the same for all methods.
    splits
        Instead of seeds: number of divisions into a training and a validation part. Subjects whom the cohort itself
        holds out are the test cohort of every division (paper, Section 4).
    n_subgroups
        Number of subgroups to look for; by default as many as are known, or 2.
    settings
        Settings of all methods that have them, or of one: ``{"epochs": 20, "simclr.temperature": 0.5}``.
    recipe
        Recipe whose settings of each method hold unless `settings` override them.
    test
        Other subjects to score; all of the cohort is then trained on.
    held_out
        Share of the cohort that is held out: by default that of the recipe or 0.2, with splits 0.1.
    isolated
        Whether each cell has a process of its own, which measures its memory and survives its crash. A method of your
        own must then be defined in a module that can be imported.
    progress
        Called with each step.
    note
        Called with messages for the user.

    Returns
    -------
    Comparison
        Cells and summary as tables; `print` shows them.

    Examples
    --------
    >>> from phenogroups import compare, drawn_table
    >>> found = compare(drawn_table(80), ["kmeans", "gaussian_mixture"], "compared", seeds=2, isolated=False)
    >>> len(found.cells), list(found.summary["method"])
    (4, ['kmeans', 'gaussian_mixture'])
    """
    note = note or (lambda _: None)
    folder, runs = Path(folder), _number_of_runs(seeds, splits)
    study = _study(cohort, test, held_out, splits, recipe or Recipe())
    k = n_subgroups if n_subgroups is not None else max(study.known_subgroups, 2)
    built = build_methods(methods, settings or {}, k, recipe)
    check_folder(folder)
    for run in range(runs):  # raises before anything is trained
        train = study.parts(run)[0]
        for method in built.values():
            train.require(k, controls=method.needs_controls)
    if study.known_subgroups < 2:
        note("No subgroups are known where they would be scored: only the diagnosis is compared. Give the truth.")
    cells = plan(study, built, runs)
    with Cells(folder / CELLS, check_found) as store:
        before = {cell: store.read(cell, note) for cell in cells}
        done = {cell: found for cell, found in before.items() if found and found["status"] == "finished"}
        others = len(store.files() - {cell.file for cell in cells})
        if others:
            note(f"{others} cells in {folder} are of other settings, seeds, cohorts or versions: kept, not shown.")
        if done:
            note(f"{len(done)} of {len(cells)} cells were finished before and are not run again.")
        ran = run_all(study, before, done, store, isolated, progress)
        found = {cell: done[cell] for cell in cells}
        kinds = {name: kind_of(method) for name, method in built.items()}
        about = {"subgroups": k, "seeds": runs, "splits": splits is not None}
        # imported here, because no cell's process needs matplotlib
        from phenogroups.report.comparison import write_comparison

        with store.claim(None):
            return Comparison(*write_comparison(folder, study, found, kinds, about), ran, folder)


def build_methods(
    names: Sequence[str], settings: Mapping[str, Any], n_subgroups: int, recipe: Recipe | None = None
) -> dict[str, Method]:
    """Each method with its settings; raises where a name or a setting is wrong."""
    names = [names] if isinstance(names, str) else list(names)
    names = list(METHODS) if "all" in names else list(dict.fromkeys(names))
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        received = ", ".join(unknown) or "none"
        raise ValueError(f"Expected methods among {', '.join(METHODS)}, or all. Received: {received}.")
    known = {name: class_of(name).setting_names() for name in names}
    of_recipe = (recipe or Recipe()).settings_of
    chosen: dict[str, dict[str, Any]] = {name: {**of_recipe(name), "n_subgroups": n_subgroups} for name in names}
    for key in sorted(settings, key=lambda key: "." in key):  # settings of one method override those of all
        name, _, setting = key.rpartition(".")
        if setting in ("seed", "n_subgroups"):
            raise ValueError(f"Expected seeds and subgroups as options of their own. Received the setting {key!r}.")
        meant = [name] if name in names else [] if name else [other for other in names if setting in known[other]]
        if not meant:
            every = sorted({setting for of_method in known.values() for setting in of_method})
            raise ValueError(
                f"Expected NAME=VALUE or METHOD.NAME=VALUE with a setting of the methods {', '.join(names)}: "
                f"{', '.join(every)}. Received: {key!r}."
            )
        for one in meant:
            chosen[one][setting] = settings[key]
    return {name: build_method(name, chosen[name]) for name in names}


def kind_of(method: Method) -> str:
    if getattr(method, "reads_truth", False):
        return KINDS[2]
    return KINDS[1] if method.needs_controls else KINDS[0]


def plan(study: Study, methods: Mapping[str, Method], runs: int) -> list[Cell]:
    """Seed by seed, so that an interrupted comparison has the same seeds of all methods."""
    same = {"format": FORMAT, "study": study.fingerprint, "version": versions()["phenogroups"]}
    cells = []
    for seed in range(runs):
        for name, method in methods.items():
            settings = {**settings_of(method), "seed": seed}
            epochs = getattr(method, "epochs", None)
            cells.append(Cell(name, seed, settings, {**same, "method": name, "settings": settings}, epochs))
    return cells


def check_folder(folder: Path) -> None:
    """Raise before training where the folder cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"Expected a folder to write. Received: {folder}, which is a file. Choose another (--out).")
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = sorted(name for name in inside - {CELLS, *OUTPUTS} if not name.endswith(".partial"))
    if others:
        raise RunError(
            f"Expected a new folder or an earlier comparison to go on with. Received: {folder}, which holds other "
            f"things ({', '.join(others[:5])}). Choose another folder (--out)."
        )


def _number_of_runs(seeds: int | None, splits: int | None) -> int:
    if seeds is not None and splits is not None:
        raise ValueError(f"Expected seeds or splits. Received both: {seeds} and {splits}. A split has its own seed.")
    runs = seeds if seeds is not None else splits if splits is not None else SEEDS
    if runs < 1:
        raise ValueError(f"Expected at least 1 seed or split. Received: {runs}.")
    return runs


def _study(
    cohort: Cohort | Study, test: Cohort | None, held_out: float | None, splits: int | None, recipe: Recipe
) -> Study:
    if isinstance(cohort, Study):
        if test is not None:
            raise ValueError("Expected a study, which has its own test cohort, or a cohort and a test. Received both.")
        usual, study = cohort.held_out, cohort
    else:
        usual, study = recipe.held_out if test is None else None, Study(cohort, test, held_out=recipe.held_out)
    share = held_out if held_out is not None else VALIDATION if splits is not None else usual
    if share is not None and not 0 < share < 1:
        raise ValueError(f"Expected a share between 0 and 1 to hold out. Received: {share}.")
    return replace(study if splits is None else study.with_fixed_test(), held_out=share)
