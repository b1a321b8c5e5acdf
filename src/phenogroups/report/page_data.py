"""The data of a page: what its script draws from, and one card for each subgroup."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps

from phenogroups.data.cohort import UNKNOWN, Cohort, subgroup_letter
from phenogroups.report.figures import COLORS, GRAY, MARKERS, overlay, subgroup_name
from phenogroups.report.material import subjects_shown
from phenogroups.report.pictures import data_url, sheet_of
from phenogroups.report.run_folder import Run

LEVELS = 16  # kinds of a covariate that still get a colour each
SCALE = 1000  # coordinates are whole numbers up to this
CONTROLS = {"name": "Controls", "colour": GRAY, "shape": "o"}
NOT_KNOWN = {"name": "Unknown", "colour": "#666666", "shape": "open"}


def run_data(run: Run) -> dict[str, Any]:
    m = run.material
    rows = run.subjects.iloc[m.shown]
    table = {str(name): rows[name] for name in rows.columns if name != "part"}
    by_subgroup = [_style(k, subgroup_name(k)) for k in range(m.n_subgroups)]
    ways = [{"name": "subgroup", "styles": [CONTROLS, *by_subgroup], "values": (run.subgroup + 1).tolist()}]
    ways += colour_ways(run.is_patient, m.truth, m.truth_names, m.truth_styles, m.covariates)
    data = _subjects_data(table, run.is_patient, m.truth, m.truth_names, m.covariates, m.thumbnails)
    data |= {
        "colours": ways, "points": _whole(m.points), "share": [round(float(s), 4) for s in m.share],
        "umap": None if m.umap is None else _whole(m.umap), "film": None,
    }  # fmt: skip
    if m.bars is not None:
        data["bars"] = {"names": m.features, "values": [[round(float(v), 2) for v in row] for row in m.bars]}
    if m.film is not None and m.film_epochs is not None and m.film_ratio is not None and m.film_subgroup is not None:
        data["film"] = {
            "frames": _whole(m.film.astype(np.float32)), "epochs": m.film_epochs.tolist(),
            "ratio": [None if not np.isfinite(r) else round(float(r), 3) for r in m.film_ratio],
            "label": m.film_subgroup.tolist(), "styles": by_subgroup,
        }  # fmt: skip
    return data


def comparison_data(cohort: Cohort, rows: np.ndarray, points: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The same subjects (`rows`) where each method puts them."""
    ill, truth, names, covariates, thumbnails = subjects_shown(cohort, rows)
    table = {"subject": cohort.subject[rows], "diagnosis": np.where(ill, "patient", "control")}
    ways = colour_ways(ill, truth, names, range(len(names)), covariates)
    return _subjects_data(table, ill, truth, names, covariates, thumbnails) | {
        "colours": sorted(ways, key=lambda way: way["name"] != "truth"),  # the first is shown at the beginning
        "methods": [{"points": _whole(where)} for where in points.values()],
    }  # fmt: skip


def _subjects_data(
    table: Mapping[str, Iterable[Any]], is_patient: np.ndarray, truth: np.ndarray, names: Sequence[str],
    covariates: pd.DataFrame, thumbnails: np.ndarray | None,
) -> dict[str, Any]:  # fmt: skip
    known = {"truth": [names[k] if k != UNKNOWN else "" for k in truth]} if names else {}
    listed = {**table, **known, **{str(name): covariates[name] for name in covariates.columns}}
    return {
        "control": [int(not ill) for ill in is_patient], "columns": list(listed),
        "rows": [list(row) for row in zip(*([as_text(v) for v in values] for values in listed.values()), strict=True)],
        "sheet": None if thumbnails is None else sheet_of(thumbnails), "bars": None,
    }  # fmt: skip


def _whole(points: np.ndarray) -> list[Any]:
    """One scale for all axes: a distance means the same in every direction."""
    middle = (points.max(axis=tuple(range(points.ndim - 1))) + points.min(axis=tuple(range(points.ndim - 1)))) / 2
    away = points - middle
    return np.rint(away * (SCALE / max(float(np.abs(away).max(initial=0)), 1e-12))).astype(int).tolist()


def as_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _style(k: int, name: str) -> dict[str, Any]:
    return {"name": name, "colour": COLORS[k % len(COLORS)], "shape": MARKERS[k % len(MARKERS)]}


def colour_ways(
    is_patient: np.ndarray, truth: np.ndarray, names: Sequence[str], styles: Sequence[int], covariates: pd.DataFrame
) -> list[dict[str, Any]]:
    """By diagnosis, by truth where it is known, and by each covariate that a few colours or a ramp can show."""
    patients = {"name": "Patients", "colour": "#000000", "shape": "o"}
    ways = [{"name": "diagnosis", "styles": [CONTROLS, patients], "values": is_patient.astype(int).tolist()}]
    if names:
        of_truth = [_style(styles[k], name) for k, name in enumerate(names)]
        label = np.where(is_patient, np.where(truth == UNKNOWN, 1, truth + 2), 0)
        ways.append({"name": "truth", "styles": [CONTROLS, NOT_KNOWN, *of_truth], "values": label.tolist()})
    for name in covariates.columns:
        values = covariates[name]
        if pd.api.types.is_numeric_dtype(values) and values.nunique() > LEVELS:
            low, high = float(values.min()), float(values.max())
            share = (values - low) / max(high - low, 1e-12)
            numbers = [None if np.isnan(v) else round(float(v), 3) for v in share]
            ways.append({"name": str(name), "low": as_text(low), "high": as_text(high), "numbers": numbers})
        elif 0 < values.nunique() <= LEVELS:
            levels = sorted(values.dropna().unique())
            place = {level: i + 1 for i, level in enumerate(levels)}
            kinds = [NOT_KNOWN, *(_style(i, as_text(level)) for i, level in enumerate(levels))]
            ways.append({"name": str(name), "styles": kinds, "values": [place.get(value, 0) for value in values]})
    return ways


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
