"""The data of a page: what its script draws from, and one card for each subgroup."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from phenogroups.data.cohort import UNKNOWN, Cohort, subgroup_letter
from phenogroups.data.properties import plain_name
from phenogroups.report.figures import COLORS, GRAY, MARKERS, overlay, subgroup_name
from phenogroups.report.material import FEATURES, LEAST_PICTURE, THUMBNAIL, shown_covariates
from phenogroups.report.pictures import draw_inputs, grey_levels, picture_url, sheet_of
from phenogroups.report.run_folder import Run
from phenogroups.report.tables import page_table

LEVELS = 16  # kinds of a covariate that still get a colour each
SCALE = 1000  # coordinates are whole numbers up to this
CONTROLS = {"name": "Controls", "colour": GRAY, "shape": "o"}
INK = (75, 87, 102)  # of bars, whose side says their sign
# Paul Tol's muted colours: kinds of a covariate are no subgroups
KINDS = ("#332288", "#117733", "#882255", "#44AA99", "#AA4499", "#999933", "#CC6677", "#661100")
SMALL = 100  # pixels below which each is shown as a square
AXES, AT_AN_END = 3, 6  # that a page without subgroups shows, and patients at either end
NOT_KNOWN = {"name": "Unknown", "colour": "#666666", "shape": "open"}


def run_data(run: Run) -> dict[str, Any]:
    m = run.material
    rows = run.subjects.iloc[m.shown]
    left_out = ("part",) if run.several_runs else ("part", "undecided")  # of one run it is not computed
    table = {str(name): rows[name] for name in rows.columns if name not in left_out}
    by_subgroup = [_style(k, subgroup_name(k)) for k in range(m.n_subgroups)]
    way = {"name": "subgroup", "styles": [CONTROLS, *by_subgroup], "values": (run.subgroup + 1).tolist()}
    truth = (m.truth, m.truth_names, m.truth_styles)
    data = _subjects_data(table, run.is_patient, truth, m.covariates, m.thumbnails)
    data |= {
        "colours": [way, *data["colours"]], "points": _whole(m.points), "share": [round(float(s), 4) for s in m.share],
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
    """The same subjects (`rows`) in the embedding of each method."""
    data = _cohort_data(cohort, rows)
    data["colours"].sort(key=lambda way: way["name"] != "truth")  # the first is shown at the beginning
    return data | {"methods": [{"points": _whole(where)} for where in points.values()]}


def none_data(cohort: Cohort, vectors: np.ndarray) -> dict[str, Any]:
    """A cohort without subgroups, on the first three axes of the space in which they were looked for."""
    points = np.pad(vectors[:, :3], [(0, 0), (0, max(3 - vectors.shape[1], 0))])
    data = {"points": _whole(points), "share": axis_shares(vectors[cohort.is_patient]), "umap": None, "film": None}
    return _cohort_data(cohort, np.arange(len(cohort))) | data


def axis_shares(vectors: np.ndarray) -> list[float]:
    """Of the first three axes, the share of the variance."""
    variance = vectors.var(axis=0)
    return [round(float(v), 4) for v in variance[:3] / max(float(variance.sum()), 1e-12)]


def axis_cards(cohort: Cohort, vectors: np.ndarray, feature_names: Sequence[str] | None) -> list[dict[str, Any]]:
    """What varies most among patients: those at both ends of the first axes, or the features that follow each axis."""
    patients, cards = np.flatnonzero(cohort.is_patient), []
    levels = None if cohort.inputs.ndim == 2 else grey_levels(cohort, patients)
    for axis, share in enumerate(axis_shares(vectors[patients])[:AXES]):
        along = vectors[patients, axis]
        order = patients[np.argsort(along, kind="stable")]
        card: dict[str, Any] = {"number": axis + 1, "share": f"{share:.0%}", "bars": [], "ends": {}}
        if levels is None:
            inputs = np.asarray(cohort.inputs, np.float64)[patients]
            spread = np.maximum(inputs.std(axis=0) * along.std(), 1e-12)
            follows = ((inputs - inputs.mean(axis=0)) * (along - along.mean())[:, None]).mean(axis=0) / spread
            most = np.argsort(-np.abs(follows), kind="stable")[:FEATURES]
            names = feature_names or [f"feature {j}" for j in range(inputs.shape[1])]
            card["bars"] = _bars([str(names[j]) for j in most], follows[most], 1.0)
        else:
            for end, rows in {"one": order[:AT_AN_END], "the other": order[::-1][:AT_AN_END]}.items():
                drawn = zip(cohort.subject[rows], draw_inputs(cohort, rows, LEAST_PICTURE, levels), strict=True)
                alt = f"at {end} end of axis {axis + 1}"
                card["ends"][end] = [shown_picture(p, alt=f"Patient {name} {alt}", name=str(name)) for name, p in drawn]
        cards.append(card)
    return cards


def _cohort_data(cohort: Cohort, rows: np.ndarray) -> dict[str, Any]:
    """Some subjects of a cohort, without a run."""
    ill = cohort.is_patient[rows]
    truth = np.full(len(rows), UNKNOWN) if cohort.truth is None else cohort.truth[rows]
    names = list(cohort.truth_names) if (truth != UNKNOWN).any() else []
    is_table = cohort.inputs.ndim == 2
    thumbnails = None if is_table else draw_inputs(cohort, rows, THUMBNAIL, grey_levels(cohort, rows))
    table = {"subject": cohort.subject[rows], "diagnosis": np.where(ill, "patient", "control")}
    return _subjects_data(table, ill, (truth, names, range(len(names))), shown_covariates(cohort, rows), thumbnails)


def _subjects_data(
    table: Mapping[str, Iterable[Any]],
    is_patient: np.ndarray,
    truth: tuple[np.ndarray, Sequence[str], Sequence[int]],  # of each subject; names and styles
    covariates: pd.DataFrame,
    thumbnails: np.ndarray | None,
) -> dict[str, Any]:
    """Columns, colours and small pictures of the subjects shown."""
    known = {"truth": [truth[1][k] if k != UNKNOWN else "" for k in truth[0]]} if truth[1] else {}
    listed = {**table, **known, **{str(name): covariates[name] for name in covariates.columns}}
    return {
        "control": [int(not ill) for ill in is_patient], "columns": list(listed),
        "rows": [list(row) for row in zip(*([as_text(v) for v in values] for values in listed.values()), strict=True)],
        "sheet": None if thumbnails is None else sheet_of(thumbnails), "bars": None,
        "colours": colour_ways(is_patient, *truth, covariates),
    }  # fmt: skip


def _whole(points: np.ndarray) -> list[Any]:
    """Coordinates as whole numbers, with one scale for all axes."""
    middle = (points.max(axis=tuple(range(points.ndim - 1))) + points.min(axis=tuple(range(points.ndim - 1)))) / 2
    away = points - middle
    return np.rint(away * (SCALE / max(float(np.abs(away).max(initial=0)), 1e-12))).astype(int).tolist()


def as_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _style(k: int, name: str, colours: Sequence[str] = COLORS) -> dict[str, Any]:
    return {"name": name, "colour": colours[k % len(colours)], "shape": MARKERS[k % len(MARKERS)]}


def colour_ways(
    is_patient: np.ndarray, truth: np.ndarray, names: Sequence[str], styles: Sequence[int], covariates: pd.DataFrame
) -> list[dict[str, Any]]:
    """Ways to colour the subjects: diagnosis, truth where it is known, and covariates with few or numeric values."""
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
            kinds = [NOT_KNOWN, *(_style(i, as_text(level), KINDS) for i, level in enumerate(levels))]
            ways.append({"name": str(name), "styles": kinds, "values": [place.get(value, 0) for value in values]})
    return ways


def subgroup_cards(run: Run) -> list[dict[str, Any]]:
    """One card for each subgroup."""
    m = run.material
    cards = []
    for k in range(m.n_subgroups):
        letter, own = subgroup_letter(k), m.gallery_subgroup == k
        typical = own & ~m.gallery_borderline
        card: dict[str, Any] = {
            "letter": letter, "colour": COLORS[k % len(COLORS)], "train": run.sizes("train")[k],
            "held_out": run.sizes("held-out")[k],
            "exemplars": _people(run, np.flatnonzero(typical), "Typical patient"),
            "borderline": _people(run, np.flatnonzero(own & m.gallery_borderline), "Borderline patient"),
            "maps": [], "means": [],
        }  # fmt: skip
        if m.mean_bars is not None:
            card["bars"] = _bars(m.features, m.mean_bars[k], max(float(np.abs(m.mean_bars).max()), 1e-12))
            card["drives"] = _bars(m.features, m.mean_maps[k].astype(np.float32), 1.0) if m.mean_maps[k].any() else []
        elif m.pictures is not None and m.mean_maps[k].any():
            card["maps"] = _mapped(run, k)
            mean = overlay(m.pictures[typical].mean(axis=0), m.mean_maps[k] / m.mean_maps[k].max())
            words = "mean of the maps, on the mean of the typical pictures"
            card["means"].append(shown_picture(mean, alt=f"Subgroup {letter}: {words}", words=words))
        elif m.map_test is not None and typical.any():
            card["no_map"] = f"{m.map_test[k]:.0%}"
        if m.difference is not None and m.difference[k].any():
            words = "mean image of its training patients, less that of the other patients"
            signed = _signed(m.difference[k], m.difference)
            card["means"].append(shown_picture(signed, alt=f"Subgroup {letter}: {words}", words=words))
        cards.append(card)
    return cards


def property_strips(run: Run) -> list[dict[str, Any]]:
    """Of each property of images that subgroups follow, the patients at both ends, below the warning of it."""
    m, shown = run.material, []
    if m.strip_rows is None or m.strip_values is None or m.strip_pictures is None:
        return []
    for i, strip in enumerate(m.strips or []):
        name, pictures = plain_name(strip["property"]), []
        for at in np.flatnonzero(m.strip_of == i):
            one, value = run.subjects.iloc[int(m.strip_rows[at])], f"{m.strip_values[at]:.3g}"
            letter = one["subgroup"]
            alt = f"Patient {one['subject']} of subgroup {letter}, {name} {value}"
            pictures.append(shown_picture(m.strip_pictures[at], alt=alt, words=f"{letter}: {value}"))
        half = len(pictures) // 2
        ends = [("Lowest", pictures[:half]), ("Highest", pictures[half:])]
        shown.append({"warning": strip["warning"], "name": name, "ends": ends, "pictures": pictures})
    return shown


def shown_picture(picture: np.ndarray, *, alt: str, name: str = "", words: str = "") -> dict[str, Any]:
    """A picture of a gallery, its caption, and how it is shown: a small one by pixels, three slices with more space."""
    height, width = picture.shape[:2]
    return {
        "url": picture_url(picture), "alt": alt, "name": name, "words": words, "pixels": max(height, width) < SMALL,
        "montage": width > 2 * height,
    }  # fmt: skip


def _people(run: Run, positions: np.ndarray, kind: str) -> list[dict[str, Any]]:
    """Patients of the gallery, each with its probability."""
    m, shown = run.material, []
    limit = 1.0 if m.gallery_bars is None else max(float(np.abs(m.gallery_bars).max(initial=0)), 1e-12)
    for position in map(int, positions):
        one = run.subjects.iloc[int(m.gallery[position])]
        p = f"{one['confidence']:.2f}"
        is_table = m.gallery_bars is not None
        picture = _bar_picture(m.gallery_bars[position] / limit) if is_table else m.pictures[position]  # pyright: ignore
        alt = f"{kind} {one['subject']}, probability {p}"
        shown.append(shown_picture(picture, alt=alt, name=one["subject"], words=f"p = {p}") | {"upright": is_table})
    return shown


def _mapped(run: Run, k: int) -> list[dict[str, Any]]:
    """Typical patients of subgroup k, each as it is and beside it with its map."""
    m, letter, shown = run.material, subgroup_letter(k), []
    for i, position in enumerate(map(int, m.mapped)):
        if m.gallery_subgroup[position] == k and m.pictures is not None:
            picture, name = m.pictures[position], run.subjects["subject"].iloc[int(m.gallery[position])]
            shown.append(shown_picture(picture, alt=f"Typical patient {name}", name=name, words="as it is"))
            alt = f"Map of what speaks for subgroup {letter} in {name}"
            marked = overlay(picture, m.maps[i])
            shown.append(shown_picture(marked, alt=alt, name=name, words=f"what speaks for {letter}"))
    return shown


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
    """Upright bars on white, one per feature: above the middle for more, below for less."""
    picture = np.full((2 * half + 1, width * len(values) + 1, 3), 255, np.uint8)
    picture[half] = 75
    for j, value in enumerate(values):
        long = round(float(np.clip(value, -1, 1)) * half)
        rows = slice(half - long, half) if long >= 0 else slice(half + 1, half + 1 - long)
        picture[rows, width * j + 1 : width * (j + 1)] = INK
    return picture


def _signed(one: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Brighter where a subgroup is brighter than the other patients, darker where it is darker, else mid-grey."""
    limit = max(float(np.abs(every.astype(np.float32)).max()), 1e-12)
    return np.rint(255 * (0.5 + one.astype(np.float32) / limit / 2)).astype(np.uint8)


def subgroup_rows(run: Run) -> dict[str, Any]:
    """A table of the subgroups: sizes, and how sure the assignment of held-out patients is."""
    train, held_out = run.sizes("train"), run.sizes("held-out")
    rows = []
    for k in range(run.material.n_subgroups):
        own = run.held_out[run.held_out["subgroup"] == subgroup_letter(k)]
        share, median = held_out[k] / max(sum(held_out), 1), f"{own['confidence'].median():.2f}" if len(own) else "–"
        undecided = int(own["undecided"].sum()) if run.several_runs else "not computed"
        rows.append([subgroup_name(k), train[k], held_out[k], f"{share:.0%}", median, undecided])
    columns = ["Subgroup", "Training patients", "Held-out patients", "Share", "Median probability", "Undecided"]
    return page_table(columns, rows)
