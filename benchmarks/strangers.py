"""How often `predict` calls pictures of another kind strangers, and how often new subjects of the model's own kind.

python benchmarks/strangers.py --data DIR, where DIR holds oct/, fundus/ and pneumonia/; drawn digits are beside them.
All are seen in grey at 224 pixels a side, as the frozen encoder sees them (`lite0`), and as they are described where an
encoder is trained here (`look`). By each seed, 60 % of a kind's people are known; the others are new.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from cohorts import READERS, SIZE, Absent, Cohorts
from common import ERR, OUT, RESULTS, machine
from rich.table import Table
from tyro.conf import arg

from phenogroups.cli import say
from phenogroups.clustering.familiar import fit_familiar
from phenogroups.data.batches import read_in_blocks
from phenogroups.data.cache import user_cache
from phenogroups.data.embeddings import keeping_embeddings
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.writing import write_whole
from phenogroups.methods.base import KNOWN
from phenogroups.networks.encoders import build_encoder
from phenogroups.networks.image_statistics import image_statistics
from phenogroups.training.embedding import embed_once
from phenogroups.training.run import versions

SHARE = 0.6  # of the people, who are known
MISSED, FALSE = 0.95, 0.05  # strangers to be marked at least, and own to be marked at most

Kind = Literal["oct", "fundus", "pneumonia", "drawn"]


@dataclass(frozen=True, kw_only=True)
class Strangers:
    """Strangers that are marked, and subjects of the own kind that are."""

    data: Path | None = None
    """Folder of the pictures (default: PHENOGROUPS_DATA)."""
    seeds: int = 3
    """How many: 0, 1, 2, ... Each knows other people."""
    subjects: int = 600
    """Of each kind, at most."""
    kinds: tuple[Kind, ...] = ("oct", "fundus", "pneumonia", "drawn")
    """Which ones."""
    json: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: in benchmarks/results)")] = None

    def run(self) -> None:
        eyes, seen, groups = build_encoder("lite0", (1, SIZE, SIZE)).freeze(), {"lite0": {}, "look": {}}, {}
        for kind in self.kinds:
            try:
                pictures, groups[kind] = self.pictures(kind)
            except Absent as reason:
                say(f"{kind} is skipped: {reason}", OUT)
                continue
            with keeping_embeddings(user_cache().with_name("embeddings")):
                seen["lite0"][kind] = torch.as_tensor(embed_once(eyes, pictures))
            seen["look"][kind] = read_in_blocks(pictures, lambda x: {"look": image_statistics(x)})["look"]
        rows = [
            {"by": by, "model": own, "seed": seed, "known": known, "new": other, "marked": share}
            for by, vectors in seen.items()
            for own in vectors
            for seed in range(self.seeds)
            for known, other, share in marked(vectors, own, groups[own], seed)
        ]
        table = Table("seen by", "model of", "given", "marked, by seed")
        for by, own, other in dict.fromkeys((row["by"], row["model"], row["new"]) for row in rows):
            some = [row["marked"] for row in rows if (row["by"], row["model"], row["new"]) == (by, own, other)]
            table.add_row(
                by, own, "new ones of its kind" if own == other else other, " ".join(f"{p:.3f}" for p in some)
            )
        OUT.print(table)
        for by in seen:
            of_own = [row["marked"] for row in rows if row["by"] == by and row["new"] == row["model"]]
            strange = [row["marked"] for row in rows if row["by"] == by and row["new"] != row["model"]]
            say(
                f"{by}: of its own kind {np.mean(of_own):.3f}, at most {max(of_own):.3f} (wanted: at most {FALSE}); of "
                f"strangers at least {min(strange, default=np.nan):.3f} (wanted: {MISSED}).",
                OUT,
            )
        about = {"benchmark": "strangers", "options": {**asdict(self), "data": None, "json": None}}
        path = self.json or RESULTS / "strangers.json"
        result = {**about, "machine": machine(), "versions": versions(), "cells": rows}
        write_whole(path, json.dumps(result, indent=1) + "\n")
        say(f"Written: {path}", ERR)

    def pictures(self, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
        """(n, 1, SIZE, SIZE) in grey, and the person of each."""
        if kind == "drawn":
            drawn = torch.as_tensor(drawn_digits(self.subjects, size=64, seed=0).inputs)
            return F.interpolate(drawn, (SIZE, SIZE), mode="bilinear").numpy(), np.arange(len(drawn))
        cohort = READERS[kind](Cohorts(data=self.data))
        rows = np.sort(np.random.default_rng(0).permutation(len(cohort))[: self.subjects])
        return np.asarray(cohort.inputs[rows], np.float32).mean(axis=1, keepdims=True), cohort.group[rows]


def marked(vectors: dict[str, torch.Tensor], own: str, group: np.ndarray, seed: int) -> list[tuple[int, str, float]]:
    """How many are known, and the share of each kind that is called strange."""
    people = np.random.default_rng(seed).permutation(np.unique(group))
    is_known = np.isin(group, people[: int(SHARE * len(people))])
    rows = np.flatnonzero(is_known)[:KNOWN]
    familiar = fit_familiar(vectors[own][rows], group[rows], seed=seed)
    new = {**vectors, own: vectors[own][torch.as_tensor(~is_known)]}
    return [(len(rows), kind, float((familiar.strangeness(z) > 1).double().mean())) for kind, z in new.items()]


if __name__ == "__main__":
    tyro.cli(Strangers).run()
