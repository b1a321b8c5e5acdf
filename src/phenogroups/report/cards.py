"""The cards of a page, one for each subgroup: sizes, exemplars, borderline patients, and what drives it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps

from phenogroups.data.cohort import subgroup_letter
from phenogroups.report.figures import COLORS, overlay, subgroup_name
from phenogroups.report.pictures import data_url
from phenogroups.report.run_folder import Run


def subgroup_cards(run: Run) -> list[dict[str, Any]]:
    """One card for each subgroup."""
    m = run.material
    confidence, names = run.subjects["confidence"].to_numpy(), run.subjects["subject"].to_numpy()
    at = {int(position): i for i, position in enumerate(m.mapped)}
    limit = max(float(np.abs(m.gallery_bars).max(initial=0)), 1e-12) if m.gallery_bars is not None else 1.0
    cards = []
    for k in range(m.n_subgroups):
        people: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for position in map(int, np.flatnonzero(m.gallery_subgroup == k)):
            row = int(m.gallery[position])
            one: dict[str, Any] = {"name": names[row], "p": f"{confidence[row]:.2f}"}
            if m.pictures is not None:
                one["url"] = data_url(m.pictures[position])
                if position in at and m.maps[at[position]].any():
                    one["map"] = data_url(overlay(m.pictures[position], m.maps[at[position]]))
            if m.gallery_bars is not None:
                one["url"], one["profile"] = data_url(_bar_picture(m.gallery_bars[position] / limit)), True
            people[bool(m.gallery_borderline[position])].append(one)
        card: dict[str, Any] = {
            "letter": subgroup_letter(k), "colour": COLORS[k % len(COLORS)], "train": run.sizes("train")[k],
            "held_out": run.sizes("held-out")[k], "exemplars": people[False], "borderline": people[True],
        }  # fmt: skip
        if m.mean_bars is not None:
            card["bars"] = _bars(m.features, m.mean_bars[k], max(float(np.abs(m.mean_bars).max()), 1e-12))
            card["drives"] = _bars(m.features, m.mean_maps[k].astype(np.float32), 1.0) if m.mean_maps[k].any() else []
        elif m.pictures is not None and m.mean_maps[k].any():
            typical = m.pictures[(m.gallery_subgroup == k) & ~m.gallery_borderline].mean(axis=0)
            card["map"] = data_url(overlay(typical, m.mean_maps[k] / m.mean_maps[k].max()))
        if m.difference is not None:
            card["difference"] = data_url(_signed(m.difference[k], m.difference))
        cards.append(card)
    return cards


def _bars(names: Sequence[str], values: np.ndarray, limit: float) -> list[dict[str, Any]]:
    """Signed bars: where each begins and how long it is, in percent of the whole width."""
    return [
        {
            "name": name, "value": f"{value:+.2f}", "sign": "plus" if value >= 0 else "minus",
            "left": round(50 + min(float(value), 0) / limit * 50, 1), "width": round(abs(float(value)) / limit * 50, 1),
        }
        for name, value in zip(names, values, strict=True)
    ]  # fmt: skip


def _bar_picture(values: np.ndarray, half: int = 24, width: int = 6) -> np.ndarray:
    """Upright bars on white, one per feature: blue above the middle, orange below."""
    picture = np.full((2 * half + 1, width * len(values) + 1, 3), 255, np.uint8)
    picture[half] = 75
    for j, value in enumerate(values):
        long = round(float(np.clip(value, -1, 1)) * half)
        rows = slice(half - long, half) if long >= 0 else slice(half + 1, half + 1 - long)
        picture[rows, width * j + 1 : width * (j + 1)] = (0, 114, 178) if long >= 0 else (213, 94, 0)
    return picture


def _signed(one: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Red where a subgroup is brighter than the other patients, blue where it is darker."""
    limit = max(float(np.abs(every.astype(np.float32)).max()), 1e-12)
    return np.rint(colormaps["RdBu_r"](0.5 + one.astype(np.float32) / limit / 2)[..., :3] * 255).astype(np.uint8)


def subgroup_rows(run: Run) -> list[dict[str, Any]]:
    """One row per subgroup, of patients."""
    train, held_out = run.sizes("train"), run.sizes("held-out")
    rows = []
    for k in range(run.material.n_subgroups):
        own = run.held_out[run.held_out["subgroup"] == subgroup_letter(k)]
        rows.append(
            {
                "name": subgroup_name(k), "train": train[k], "held_out": held_out[k],
                "share": f"{held_out[k] / max(sum(held_out), 1):.0%}",
                "confidence": f"{own['confidence'].median():.2f}" if len(own) else "–",
                "undecided": int(own["undecided"].sum()),
            }
        )  # fmt: skip
    return rows
