"""What each part of Deep UCSL's defaults is worth: one part changed at a time, over seeds, on both development cohorts.

python benchmarks/ablations.py mnist7 --data DIR --labels FILE --subjects 6000
python benchmarks/ablations.py pneumonia --data DIR
Finished cells are kept in the JSON and not run again, so it can be interrupted, or run by two processes with --rows.
"""

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from common import ERR, OUT, RESULTS, PublicData, fit, machine, main, scores_of, summary
from rich.markdown import Markdown
from torch import Tensor
from tyro.conf import Positional, arg

from phenogroups.cli import parse_settings, say
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.sinkhorn import sinkhorn
from phenogroups.data.cohort import Cohort
from phenogroups.data.examples.mnist import mnist
from phenogroups.data.examples.pneumonia import pneumonia_embeddings
from phenogroups.data.writing import write_whole
from phenogroups.methods import DeepMethod, DeepUCSL
from phenogroups.methods.deep_ucsl import PAPER, Beliefs
from phenogroups.training.run import versions


@dataclass(eq=False, repr=False)
class Damped(DeepUCSL):
    """Beliefs follow each E-step only slowly."""

    damping: float = 0.8

    def e_step(self, embedding: Tensor, diagnosis: Tensor, previous: Any, epoch: int, **options: Any) -> Beliefs:
        found = super().e_step(embedding, diagnosis, previous, epoch, **options)
        if not isinstance(previous, Beliefs):
            return found
        return replace(found, q=self.damping * previous.q + (1 - self.damping) * found.q)


@dataclass(eq=False, repr=False)
class Marginals(DeepUCSL):
    """Subgroup sizes are pulled from what the data say (balance 0) towards equal ones (1) by Sinkhorn."""

    balance: float = 1.0

    def _cluster(self, *inputs: Any) -> tuple[Any, ...]:
        *found, soft = super()._cluster(*inputs)
        sizes = self.balance / self.n_subgroups + (1 - self.balance) * soft.mean(0)
        return *found, sinkhorn(soft.clamp_min(1e-12).log(), epsilon=1.0, sizes=sizes)


@dataclass(eq=False, repr=False)
class Likeliest(DeepUCSL):
    """The first subgroups are the most likely mixture of the patients in one encoder; nobody asks the controls."""

    def elect(self, *inputs: Any) -> tuple[int, Beliefs]:
        return DeepMethod.elect(self, *inputs)

    def _cluster(self, z: Tensor, controls: Tensor, space: Any, before: Tensor | None, held: bool) -> tuple[Any, ...]:
        if before is None:
            before = tied_mixture(z, self.n_subgroups, seed=self.seed).log_posterior(z.double()).exp().to(z)
        return super()._cluster(z, controls, space, before, held)


# the paper's recipe with the encoder of the cohort: its own takes hours on a CPU (docs/deep_ucsl.md)
RECIPE = {key: value for key, value in PAPER.items() if key != "encoder"}

ROWS: dict[str, Callable[..., DeepUCSL]] = {
    "defaults": DeepUCSL,
    "no warm-up": lambda **kw: DeepUCSL(warmup=0, **kw),
    "warm-up of 3 epochs": lambda **kw: DeepUCSL(warmup=3, epochs=8, **kw),
    "one encoder, no vote": lambda **kw: DeepUCSL(restarts=1, **kw),
    "first split: the most likely, not the most specific": Likeliest,
    "K-means instead of the mixture": lambda **kw: DeepUCSL(clusterer="kmeans", **kw),
    "Sinkhorn K-means instead of the mixture": lambda **kw: DeepUCSL(clusterer="sinkhorn_kmeans", **kw),
    "severity axis kept": lambda **kw: DeepUCSL(remove_severity=False, **kw),
    "no winsorising": lambda **kw: DeepUCSL(winsorise=None, **kw),
    "marginals equal": lambda **kw: Marginals(balance=1.0, **kw),
    "marginals half-way to equal": lambda **kw: Marginals(balance=0.5, **kw),
    "pseudo-labels soft": lambda **kw: DeepUCSL(pseudo_labels="soft", **kw),
    "pseudo-labels hard": lambda **kw: DeepUCSL(pseudo_labels="hard", **kw),
    "damping 0.8": Damped,
    "E-steps start anew": lambda **kw: DeepUCSL(warm_start=False, **kw),
    "robust scaler": lambda **kw: DeepUCSL(scaler="robust", **kw),
    "no scaler": lambda **kw: DeepUCSL(scaler="none", **kw),
    "10 components": lambda **kw: DeepUCSL(components=10, **kw),
    "all components": lambda **kw: DeepUCSL(components=None, **kw),
    "all 6 epochs": lambda **kw: DeepUCSL(stop_below=0.0, **kw),
    "all of 12 epochs": lambda **kw: DeepUCSL(stop_below=0.0, epochs=12, **kw),
    "gate as trained": lambda **kw: DeepUCSL(refit_gate=False, **kw),
    "constant learning rate": lambda **kw: DeepUCSL(schedule="constant", **kw),
    "statistics of batch norm as trained": lambda **kw: DeepUCSL(recalibrate_batch_norm=False, **kw),
    "paper's recipe, default encoder": lambda **kw: DeepUCSL(**{**RECIPE, **kw}),
    "paper's recipe, default encoder, rate 1e-3": lambda **kw: DeepUCSL(**{**RECIPE, "learning_rate": 1e-3, **kw}),
}


@dataclass(frozen=True, kw_only=True)
class Ablations(PublicData):
    """One part of Deep UCSL's defaults changed at a time."""

    cohort: Positional[Literal["mnist7", "pneumonia"]]
    """pneumonia: the table of embeddings, a fifth of the patients held out by each seed."""
    rows: Annotated[tuple[str, ...], arg(metavar="ROW ...", help_behavior_hint="(default: all)")] = ()
    """Rows of the table, by any part of their name."""

    def run(self) -> None:
        path = self.json or RESULTS / f"ablations-{self.cohort}.json"
        load = self.mnist7() if self.cohort == "mnist7" else self.pneumonia()
        for seed in range(self.seeds):  # all rows of a seed first: an interrupted table is still fair
            for name, make in ROWS.items():
                if self.rows and not any(part in name for part in self.rows):
                    continue
                cell = f"{name} | {seed}"
                if cell in update(path):
                    continue
                train, scored = load(seed)
                method = make(seed=seed, **parse_settings(self.set))
                seconds = fit(method, train)
                row = {**scores_of(scored, method.predict_cohort(scored)), "epochs": len(method.history_)}
                update(path, {cell: {**row, "seconds": seconds, "subjects": len(train)}})
                say(f"{self.cohort}  {cell}  gate {row['subgroup_gate']:.3f}  {seconds:.0f} s", ERR)
        OUT.print(Markdown(table(update(path))))

    def mnist7(self) -> Callable[[int], tuple[Cohort, Cohort]]:
        cohort = self.some(mnist(7, data=self.data, labels=self.labels))
        return lambda seed: (cohort, cohort)

    def pneumonia(self) -> Callable[[int], tuple[Cohort, Cohort]]:
        cohort = self.some(pneumonia_embeddings(self.data))
        return lambda seed: cohort.split(0.2, seed)


def update(path: Path, new: dict[str, Any] | None = None) -> dict[str, Any]:
    """The finished cells, with new ones written down; two processes may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        cells = json.loads(path.read_text())["cells"] if path.is_file() else {}
        if new:
            cells |= new
            found = {"cells": cells, "machine": machine(), "versions": versions()}
            write_whole(path, json.dumps(found, indent=1) + "\n")
        return cells
    finally:
        os.close(folder)


def table(cells: dict[str, Any]) -> str:
    lines = ["| changed | seeds | Subgroup (gate) | worst | Subgroup (centroid) | Class |", "|---|---|---|---|---|---|"]
    for name in ROWS:
        of_row = [cells[cell] for cell in cells if cell.rpartition(" | ")[0] == name]
        if of_row:
            gate, *others = (summary(key, of_row) for key in ("subgroup_gate", "subgroup_centroid", "class_bacc"))
            shown = " | ".join(_spread(found) for found in others)
            lines.append(f"| {name} | {len(of_row)} | {_spread(gate)} | {gate['worst']:.3f} | {shown} |")
    return "\n".join(lines)


def _spread(found: Any) -> str:
    if found is None:
        return "–"
    return f"{found['mean']:.3f}" + (f" ± {found['deviation']:.3f}" if found["deviation"] is not None else "")


if __name__ == "__main__":
    main(Ablations)
