"""Whether fine-tuning helps: chest X-rays, the encoder lite0 frozen and fine-tuned, scored on held-out patients.

python benchmarks/fine_tune.py --data FOLDER [--size 128] [--epochs 2]. Of the public training images a fifth is held
out by patient; both are trained on the others with the same seeds. What the run itself says of the fine-tuning, by a
tenth of the training subjects, stands beside.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from common import ERR, OUT, RESULTS, PublicData, fit, machine, peak_memory_mb, scores_of
from common import main as run_main
from pneumonia import read_xrays
from rich.table import Table

from phenogroups.cli import parse_settings, say
from phenogroups.data.embeddings import embeddings_folder, keeping_embeddings
from phenogroups.data.writing import write_whole
from phenogroups.methods import build_method, settings_of
from phenogroups.methods.deep import DeepMethod
from phenogroups.training.run import versions


@dataclass(frozen=True, kw_only=True)
class FineTune(PublicData):
    """Class and Subgroup before and after, and whether it was kept."""

    seeds: int = 1
    """How many: 0, 1, 2, ..."""
    size: int = 128
    """Pixels a side."""
    epochs: int = 2
    """Of fine-tuning, at most."""
    cache: Path | None = None
    """Where embeddings are kept; by default the user's cache."""

    def run(self) -> None:
        cohort = self.some(read_xrays(self.data, self.size, labels=self.labels))
        rows = []
        with keeping_embeddings(embeddings_folder(self.cache)):
            for seed in range(self.seeds):
                train, test = cohort.split(0.2, seed)
                for tuned in (False, True):
                    rows.append({"seed": seed, "fine_tune": tuned, **self.one(train, test, seed, tuned)})
                    say(str({name: value for name, value in rows[-1].items() if name != "epochs"}), ERR)
        table = Table("seed", "fine-tuned", "Class", "Subgroup", "held-out log-loss by epoch", "seconds")
        for row in rows:
            losses = ", ".join(f"{one['held_out_loss']:.3f}" for one in row["epochs"])
            numbers = ("–" if row[name] is None else f"{row[name]:.3f}" for name in ("class_bacc", "subgroup_gate"))
            table.add_row(str(row["seed"]), row["kept"], *numbers, losses, f"{row['seconds']:.0f}")
        OUT.print(table)
        path = self.json or RESULTS / f"fine_tune{'-smoke' * (self.subjects is not None)}.json"
        about = {"options": vars(self), "settings": settings_of(self.method_of(0, tuned=True)), "rows": rows}
        found = {"benchmark": "fine_tune", **about, "machine": machine(), "versions": versions()}
        write_whole(path, json.dumps(found, indent=2, default=str) + "\n")
        say(f"Written: {path}", ERR)

    def method_of(self, seed: int, *, tuned: bool) -> DeepMethod:
        fixed = {"encoder": "lite0", "seed": seed, "fine_tune": tuned, "fine_tune_epochs": self.epochs}
        method = build_method(self.method_name, {"augmentation": "xray", **parse_settings(self.set), **fixed})
        if not isinstance(method, DeepMethod):
            raise ValueError(f"Expected a method with an encoder. Received: {self.method_name}.")
        return method

    def one(self, train: Any, test: Any, seed: int, tuned: bool) -> dict[str, Any]:
        method, began = self.method_of(seed, tuned=tuned), perf_counter()
        fit(method, train)
        scores, epochs = scores_of(test, method.predict_cohort(test)), method.fine_tuning_
        kept = "no" if not tuned else "kept" if any(one["kept"] for one in epochs[1:]) else "not kept"
        return {
            **scores, "kept": kept, "epochs": epochs, "remarks": method.remarks(), "seconds": perf_counter() - began,
            "peak_memory_mb": peak_memory_mb(),
        }  # fmt: skip


if __name__ == "__main__":
    run_main(FineTune)
