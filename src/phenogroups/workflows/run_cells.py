"""Running the cells of a comparison: one process for each cell, its progress and its result."""

import importlib
import math
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from phenogroups.data.cohort import Cohort
from phenogroups.data.embeddings import current_folder, embedding_progress, keeping_embeddings
from phenogroups.data.study import Study
from phenogroups.evaluation.projection import EMBEDDED, principal_axes, some_rows
from phenogroups.evaluation.ranking import RANKED
from phenogroups.evaluation.scores import SCORE_NAMES, score
from phenogroups.methods import Prediction, build_method
from phenogroups.methods.registry import class_of
from phenogroups.training.cells import Cell, Cells, Found
from phenogroups.training.em import Progress
from phenogroups.training.isolated import Isolated, JobFailed, peak_memory_mb

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


def run_all(
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
        "seed": cell.seed, "threads": torch.get_num_threads(), "embeddings": current_folder(),
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
