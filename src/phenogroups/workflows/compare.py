"""Several methods with several seeds on one cohort: the paper's table, cell by cell, resumable.

A finished cell (one method with one seed) has a file of its own, named by a checksum of all that it depends on.
"""

import importlib
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from phenogroups.data.cohort import Cohort
from phenogroups.data.embeddings import embedding_progress, keeping_embeddings, kept_in
from phenogroups.data.study import Study
from phenogroups.evaluation.projection import EMBEDDED, principal_axes, some_rows
from phenogroups.evaluation.ranking import KINDS, RANKED
from phenogroups.evaluation.scores import SCORE_NAMES, score
from phenogroups.methods import METHODS, Method, Prediction, build_method, settings_of
from phenogroups.methods.registry import class_of
from phenogroups.recipes import Recipe
from phenogroups.report import tables
from phenogroups.report.tables import OUTPUTS
from phenogroups.training.cells import Cell, Cells, Found
from phenogroups.training.em import Progress
from phenogroups.training.isolated import Isolated, JobFailed, peak_memory_mb
from phenogroups.training.run import RunError, versions

FORMAT = 1  # of cells; raised when what they hold changes
CELLS = "cells"  # folder of finished cells
SEEDS, HELD_OUT, VALIDATION = 3, 0.2, 0.1  # defaults; VALIDATION is the held-out share of splits (paper, Section 4)
POLL = 0.5  # seconds between two checks of a cell that another process is running

# called with the share of a cell that is trained (None while images are embedded), and with words
CellProgress = Callable[[tuple[float | None, str]], None]


@dataclass(frozen=True)
class Step:
    """The state of a running comparison, for progress bars."""

    doing: Literal["begins", "embeds", "trains", "waits", "finished", "failed"]
    cell: int  # of `cells`, counted from one
    cells: int
    method: str
    seed: int
    share: float = 0.0  # of the cell that is done
    left: float | None = None  # seconds until all is done, as far as known
    words: str = ""  # the epoch, the number of embedded images, or the scores

    def __str__(self) -> str:
        words = "another process is at it" if self.doing == "waits" else self.words
        return f"cell {self.cell} of {self.cells}  {self.method}  seed {self.seed}  {words}".rstrip()


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
        Share of the cohort that is held out: by default 0.2, with splits 0.1.
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
    study = _study(cohort, test, held_out, splits)
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
        ran = _run_all(study, before, done, store, isolated, progress)
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


def check_found(found: Found) -> None:
    """Raise unless a cell's file holds what `run_cell` returns."""
    if found.get("status") == "failed" and isinstance(found.get("error"), str):
        return
    kinds: dict[str, Any] = {
        "status": Literal["finished"], "scores": dict[str, float | None], "seconds": float, "caveats": list[str],
        "peak_memory_mb": float | None, "embedding": list[tuple[int, int]], "subjects": dict[str, int],
    }  # fmt: skip
    content = {**found, "embedding": [tuple(point) for point in found.get("embedding", [])]}  # of the first seed only
    try:
        for name, kind in kinds.items():
            check_type(content[name], kind, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
    except TypeCheckError as error:
        raise ValueError(str(error)) from error
    if not {*SCORE_NAMES} <= {*found["scores"]}:
        raise ValueError("scores are missing")


def run_cell(study: Study, job: Mapping[str, Any], progress: CellProgress) -> dict[str, Any]:
    """Train one method and score it."""
    torch.set_num_threads(job["threads"])
    if job["embeddings"] is not None:  # the context of the caller is not that of a process of its own
        with keeping_embeddings(job["embeddings"], lambda _: None):
            return run_cell(study, {**job, "embeddings": None}, progress)
    train, scored, diagnosed = study.parts(job["seed"])
    importlib.import_module(job["module"])  # a method of the caller's own is registered there
    method = build_method(job["method"], job["settings"])
    began = time.perf_counter()
    with embedding_progress(lambda done, total: progress((None, f"embedding images {done:,} of {total:,}"))):
        method.fit(train, progress=_epoch_progress(method, progress))
    seconds = time.perf_counter() - began
    prediction = method.predict_cohort(scored)
    scores = asdict(score(scored, prediction))
    if diagnosed is not scored:
        scores["class_bacc"] = score(diagnosed, method.predict_cohort(diagnosed)).class_bacc
    broken = [name for name, value in scores.items() if value is not None and not math.isfinite(value)]
    if broken:
        raise FloatingPointError(f"Expected finite scores. Received: {', '.join(broken)} not finite.")
    points = {"embedding": _points(scored, prediction)} if job["seed"] == 0 else {}
    return {
        **points, "scores": scores, "seconds": seconds, "peak_memory_mb": peak_memory_mb(), "caveats": method.caveats(),
        "subjects": {"trained": len(train), "scored": len(scored)},
    }  # fmt: skip


def _epoch_progress(method: Any, progress: CellProgress) -> Progress | None:
    """A callback for the rows of a training, which reports the share that is done and the epoch."""
    if not hasattr(method, "passes"):
        return None
    # `passes` may decrease during `fit`, where fewer networks are started than were planned
    return lambda row: progress((row["epoch"] / method.passes, method.epoch_in_words(row["epoch"], row.get("last"))))


def _points(scored: Cohort, prediction: Prediction) -> list[list[int]]:
    """Some of the scored subjects on two principal axes, as whole numbers up to 1,000: a few kilobytes."""
    points, _ = principal_axes(prediction.embedding, prediction.embedding[some_rows(len(scored), EMBEDDED)], 2)
    return np.rint(points * (1000 / max(float(np.abs(points).max()), 1e-12))).astype(int).tolist()


def _run_all(
    study: Study, before: Mapping[Cell, Found | None], done: dict[Cell, Found], store: Cells,
    isolated: bool, progress: Callable[[Step], None] | None,
) -> int:  # fmt: skip
    """Run all cells that are not in `done` and add them; returns how many this process ran."""
    report = progress or (lambda _: None)
    todo = [cell for cell in before if cell not in done]
    ran = 0
    if not todo:
        return ran
    with Isolated(f"{__name__}:run_cell", study) if isolated else nullcontext() as worker:
        while todo:
            first = todo[0]
            for cell in list(todo):
                with store.claim(cell) as is_claimed:
                    if not is_claimed:
                        continue
                    found = store.read(cell)
                    if found is None or found == before[cell]:  # no other process has run it meanwhile
                        first_epoch = f"epoch 1/{cell.epochs}" if cell.epochs else ""
                        step = Step("begins", len(done) + 1, len(before), cell.method, cell.seed, words=first_epoch)
                        found = _run_one(cell, study, worker, _cell_progress(report, step, cell, todo, done))
                        store.write(cell, found)
                        ran += 1
                        report(replace(step, doing=found["status"], words=_result_in_words(found)))
                done[cell] = found
                todo.remove(cell)
            if todo and todo[0] is first:
                report(Step("waits", len(done) + 1, len(before), first.method, first.seed))
                time.sleep(POLL)
    return ran


def _run_one(cell: Cell, study: Study, worker: Isolated | None, progress: CellProgress) -> dict[str, Any]:
    """The result of a cell, or its error: a failing method does not stop the others."""
    job = {
        "method": cell.method, "module": class_of(cell.method).__module__, "settings": cell.settings,
        "seed": cell.seed, "threads": torch.get_num_threads(), "embeddings": kept_in(),
    }  # fmt: skip
    try:
        if worker is not None:
            return {"status": "finished", **worker(job, progress)}
        # the memory of this process is not that of the method alone
        return {"status": "finished", **run_cell(study, job, progress), "peak_memory_mb": None}
    except JobFailed as error:
        return {"status": "failed", "error": str(error), "trace": error.trace}
    except Exception as error:
        if worker is not None:
            raise
        return {"status": "failed", "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _cell_progress(
    report: Callable[[Step], None], step: Step, cell: Cell, todo: list[Cell], done: Mapping[Cell, Found]
) -> CellProgress:
    """Reports the start of a cell, then its progress and the time left, estimated from finished cells."""
    seconds: dict[str, list[float]] = {}
    for other, found in done.items():
        if found["status"] == "finished":
            seconds.setdefault(other.method, []).append(found["seconds"])
    every = [number for numbers in seconds.values() for number in numbers]
    began = time.monotonic()

    def left(share: float) -> float | None:
        """Seconds, from the mean of each method's finished cells, or of all cells where it has none."""
        elapsed = time.monotonic() - began
        usual = float(np.mean(seconds.get(cell.method) or every or [np.nan]))
        whole = elapsed / share if share > 0.05 else usual
        others = [np.mean(seconds.get(other.method) or every or [whole]) for other in todo if other is not cell]
        total = max(whole - elapsed, 0) + sum(others)
        return float(total) if math.isfinite(total) else None

    report(replace(step, left=left(0)))

    def show(progress: tuple[float | None, str]) -> None:
        share, words = progress
        if share is None:
            report(replace(step, doing="embeds", words=words))
        else:
            report(replace(step, doing="trains", share=share, words=words, left=left(share)))

    return show


def _result_in_words(found: Mapping[str, Any]) -> str:
    if found["status"] == "failed":
        return f"failed: {found['error']}"
    known = {SCORE_NAMES[name]: found["scores"][name] for name in RANKED if found["scores"][name] is not None}
    return "  ".join([*(f"{name} {value:.3f}" for name, value in known.items()), f"{found['seconds']:.1f} s"])


def _number_of_runs(seeds: int | None, splits: int | None) -> int:
    if seeds is not None and splits is not None:
        raise ValueError(f"Expected seeds or splits. Received both: {seeds} and {splits}. A split has its own seed.")
    runs = seeds if seeds is not None else splits if splits is not None else SEEDS
    if runs < 1:
        raise ValueError(f"Expected at least 1 seed or split. Received: {runs}.")
    return runs


def _study(cohort: Cohort | Study, test: Cohort | None, held_out: float | None, splits: int | None) -> Study:
    if isinstance(cohort, Study):
        if test is not None:
            raise ValueError("Expected a study, which has its own test cohort, or a cohort and a test. Received both.")
        usual, study = cohort.held_out, cohort
    else:
        usual, study = HELD_OUT if test is None else None, Study(cohort, test, held_out=HELD_OUT)
    share = held_out if held_out is not None else VALIDATION if splits is not None else usual
    if share is not None and not 0 < share < 1:
        raise ValueError(f"Expected a share between 0 and 1 to hold out. Received: {share}.")
    return replace(study if splits is None else study.with_fixed_test(), held_out=share)
