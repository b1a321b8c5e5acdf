"""The page a reader opens: one HTML file that needs nothing beside it and no network; and its figures as files."""

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from pandas.api.types import is_numeric_dtype
from PIL import Image

from phenogroups.data.cohort import UNKNOWN, Cohort, subgroup_letter
from phenogroups.data.table_files import MOST_TABLE
from phenogroups.data.untrusted import check_types, parse_json, read_limited
from phenogroups.data.writing import write_whole
from phenogroups.evaluation.scores import SCORE_NAMES, Scores
from phenogroups.report import figures as draw
from phenogroups.report.figures import COLORS, GRAY, MARKERS, as_file, overlay, subgroup_name
from phenogroups.report.material import Material, require_within, subjects_shown
from phenogroups.report.tables import defined, format_score
from phenogroups.training.run import PAGE, RunError, member, read_recipe

LEVELS = 16  # kinds of a covariate that still get a colour each
SCALE = 1000  # coordinates travel as whole numbers up to this
CONTROLS = {"name": "Controls", "colour": GRAY, "shape": "o"}
NOT_KNOWN = {"name": "Unknown", "colour": "#666666", "shape": "open"}
# the other figures are for papers only: on the page, cards show the same
ON_PAGE = ("embedding", "confusion", "confidence", "criteria", "diagnosis", "film", "history")
SHEET = 16_000  # pixels that a browser shows of one picture's side


@dataclass(frozen=True)
class Run:
    """A run folder as the page reads it."""

    material: Material
    subjects: pd.DataFrame  # subgroups.csv
    history: pd.DataFrame | None
    scores: dict[str, Scores]
    recipe: dict[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> "Run":
        folder = Path(folder)
        recipe = read_recipe(folder)
        try:
            told = parse_json(read_limited(member(folder, "scores.json")))
            scores = {name: Scores(**{f.name: row[f.name] for f in fields(Scores)}) for name, row in told.items()}
            history = member(folder, "history.csv")
            run = cls(
                Material.read(folder), read_subgroups(member(folder, "subgroups.csv")),
                pd.read_csv(BytesIO(read_limited(history))) if history.is_file() else None, scores, recipe,
            )  # fmt: skip
            run.check()
            return run
        except RunError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"Expected {folder} as a run wrote it. Received: {error}.") from error

    def check(self) -> None:
        """Raise where its files are not of one run."""
        for row in self.scores.values():
            check_types(row)
        letters = {subgroup_letter(k) for k in range(self.material.n_subgroups)}
        if not {*self.subjects["subgroup"]} <= {"", *letters}:
            raise ValueError(f"subgroups beyond {', '.join(sorted(letters))} in subgroups.csv")
        for name in ("shown", "gallery"):
            require_within(name, getattr(self.material, name), 0, len(self.subjects))
        # confidence, probabilities, distances and losses are drawn
        numbers = self.subjects.drop(columns=["subject", "part", "diagnosis", "subgroup"])
        for table in (numbers, self.history):
            if table is not None and not all(is_numeric_dtype(kind) for kind in table.dtypes):
                raise ValueError("words where numbers are expected")
        if "confidence" not in numbers or "undecided" not in numbers:
            raise ValueError("no column confidence or undecided in subgroups.csv")

    @property
    def held_out(self) -> pd.DataFrame:
        return self.subjects[self.subjects["part"] == "held-out"]

    def sizes(self, part: str) -> list[int]:
        """Patients of each subgroup."""
        counts = self.subjects.loc[self.subjects["part"] == part, "subgroup"].value_counts()
        return [int(counts.get(subgroup_letter(k), 0)) for k in range(self.material.n_subgroups)]


def read_subgroups(path: Path) -> pd.DataFrame:
    """subgroups.csv; whoever is called NA is called so."""
    words = ("subject", "part", "diagnosis", "subgroup")
    content = read_limited(path, MOST_TABLE)
    columns = pd.read_csv(BytesIO(content), nrows=0).columns
    numbers: Any = {name: [""] for name in columns if name not in words}
    return pd.read_csv(BytesIO(content), dtype=dict.fromkeys(words, str), keep_default_na=False, na_values=numbers)  # pyright: ignore


def run_figures(run: Run) -> dict[str, Callable[[], Figure]]:
    """How to draw every figure that this run has material for, by the name of its file."""
    m, held_out = run.material, run.held_out
    ill = (held_out["diagnosis"] == "patient").to_numpy()
    own = np.array([_place(letter) for letter in held_out["subgroup"]])
    exemplar = ~m.gallery_borderline
    p = run.subjects["confidence"].to_numpy()[m.gallery[exemplar]]
    every: dict[str, tuple[bool, Callable[..., Figure], tuple[Any, ...]]] = {  # whether there is material, and which
        "embedding": (True, draw.embedding_figure, (m.points[:, :2], m.share, _panels(run), _is_patient(run))),
        "exemplars": (
            m.pictures is not None and bool(exemplar.any()), draw.exemplars_figure,
            (_rows(m.pictures, exemplar), m.gallery_subgroup[exemplar], p, run.sizes("held-out")),
        ),
        "drivers": (m.difference is not None, draw.drivers_figure, (m.mean_maps, m.difference)),
        "features": (
            m.mean_bars is not None, draw.bars_figure, (m.mean_bars, m.features, run.sizes("train"), _whom(run))
        ),
        "confusion": (m.confusion is not None, draw.confusion_figure, (m.confusion, m.truth_names)),
        "confidence": (True, draw.confidence_figure, (held_out["confidence"].to_numpy(), own, m.n_subgroups)),
        "criteria": (m.criteria is not None, draw.criteria_figure, (m.criteria,)),
        "diagnosis": ("p_patient" in held_out, draw.diagnosis_figure, (held_out.get("p_patient"), ill)),
        "film": (m.film is not None, draw.film_figure, (m.film, m.film_epochs, m.film_ratio, m.film_subgroup)),
        "history": (run.history is not None, draw.history_figure, (run.history,)),
    }  # fmt: skip
    return {name: partial(function, *material) for name, (is_there, function, material) in every.items() if is_there}


def write_figures(run: str | Path, folder: str | Path) -> list[Path]:
    """Every figure of a run as PNG and SVG."""
    read = Run.read(run)
    with drawing(run):
        return save_figures(run_figures(read), folder)


def save_figures(made: Mapping[str, Callable[[], Figure]], folder: str | Path) -> list[Path]:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Expected a folder for the figures. Received: {error}.") from error
    paths = []
    for name, drawn in made.items():
        figure = drawn()
        for kind in ("png", "svg"):
            paths.append(folder / f"{name}.{kind}")
            write_whole(paths[-1], as_file(figure, kind))
    return paths


def write_page(folder: str | Path) -> Path:
    """report.html of a run folder, from what lies in it: whole, or not at all."""
    run = Run.read(folder)
    with drawing(folder):
        html = page_of(run)
    path = Path(folder) / PAGE
    write_whole(path, html)
    return path


@contextmanager
def drawing(folder: str | Path) -> Iterator[None]:
    """Whatever cannot be drawn of a folder is said of the folder."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise RunError(f"Expected {folder} as a run wrote it. Received: {type(error).__name__}: {error}.") from error


def page_of(run: Run) -> str:
    m = run.material
    columns = defined(run.scores)
    return render(
        "run.html.j2",
        data=_data(run),
        m=m,
        title=m.title,
        figures={name: _embedded(drawn()) for name, drawn in run_figures(run).items() if name in ON_PAGE},
        cards=_cards(run),
        who=_who(run),
        held_out=len(run.held_out),
        counts=pd.crosstab(run.subjects["part"], run.subjects["diagnosis"]).to_dict("index"),
        score_columns=[SCORE_NAMES[column] for column in columns],
        score_rows=[
            (name, [format_score(getattr(row, column)) for column in columns]) for name, row in run.scores.items()
        ],
        confounds=_table(m.confounds),
        profiles=_table(m.profiles),
        criteria=_table(m.criteria),
        whom=_whom(run),
        recipe=list(_flat(run.recipe)),
    )


def write_page_of_none(
    folder: str | Path, *, title: str, sentences: Sequence[str], criteria: pd.DataFrame, recipe: Mapping[str, Any]
) -> None:
    """report.html of a run that found no subgroups: why, and what was tried."""
    html = render(
        "none.html.j2",
        data={},
        title=title,
        sentences=sentences,
        criteria=_table(criteria),
        figure=_embedded(draw.criteria_figure(criteria)),
        recipe=list(_flat(recipe)),
    )
    write_whole(Path(folder) / PAGE, html)


def comparison_page(
    cohort: Cohort,
    rows: np.ndarray,
    points: Mapping[str, np.ndarray],
    *,
    title: str,
    sentences: Sequence[str],
    columns: Sequence[str],
    table: Sequence[tuple[str, str, list[tuple[str, bool]]]],
    figures: Mapping[str, Figure],
    recipe: Mapping[str, Any],
) -> str:
    """Methods beside each other: the table, the bars, and where each method puts the same subjects (`rows`)."""
    shown = subjects_shown(cohort, rows)
    covariates, truth, names = shown["covariates"], shown["truth"], shown["names"]
    columns_of = {"subject": cohort.subject[rows], "diagnosis": np.where(shown["is_patient"], "patient", "control")}
    if names:
        columns_of["truth"] = np.array([names[k] if k != UNKNOWN else "" for k in truth])
    listed = {**columns_of, **{str(name): covariates[name] for name in covariates.columns}}
    ways = colour_ways(shown["is_patient"], truth, names, range(len(names)), covariates)
    data = {
        "colours": sorted(ways, key=lambda way: way["name"] != "truth"),  # what is asked for first
        "control": [int(not ill) for ill in shown["is_patient"]], "columns": list(listed),
        "rows": [list(row) for row in zip(*([_say(v) for v in values] for values in listed.values()), strict=True)],
        "sheet": None if shown["thumbnails"] is None else sheet_of(shown["thumbnails"]), "bars": None,
        "methods": [{"points": _whole(where)} for where in points.values()],
    }  # fmt: skip
    return render(
        "compare.html.j2", data=data, title=title, sentences=sentences, columns=columns, table=table,
        methods=list(points), subjects=len(rows), recipe=list(_flat(recipe)),
        figures={name: _embedded(figure) for name, figure in figures.items()},
    )  # fmt: skip


def render(template: str, *, data: Mapping[str, Any], **values: Any) -> str:
    """A page with its style, its script and its data; the browser runs this script and no other."""
    here = files("phenogroups.report")
    script = here.joinpath("page.js").read_text(encoding="utf-8")
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    # autoescape by hand: jinja2 would look for .html at the end of the name and find .j2
    environment = Environment(
        loader=PackageLoader("phenogroups.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # no "<" in the data: nothing that stands in a table can end the script element
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return environment.get_template(template).render(
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        script=script,
        checksum=checksum,
        data=text,
        **values,
    )


def data_url(picture: np.ndarray, kind: str = "png", **options: Any) -> str:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def sheet_of(pictures: np.ndarray) -> dict[str, Any]:
    """Many small pictures as one; lossy, for a glance."""
    count, height, width = pictures.shape[:3]
    columns = max(1, min(SHEET // width, round((count * height / width) ** 0.5)))
    rows = -(-count // columns)
    sheet = np.zeros((rows * columns, *pictures.shape[1:]), np.uint8)
    sheet[:count] = pictures
    sheet = sheet.reshape(rows, columns, *pictures.shape[1:]).swapaxes(1, 2)
    flat = sheet.reshape(rows * height, columns * width, *pictures.shape[3:])
    kind = "webp" if rows * height <= SHEET else "jpeg"  # WebP ends at 16,383 pixels
    return {"url": data_url(flat, kind, quality=80), "width": width, "height": height, "columns": columns}


def _rows(values: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[rows]


def _is_patient(run: Run) -> np.ndarray:
    return (run.subjects["diagnosis"].to_numpy() == "patient")[run.material.shown]


def _found(run: Run) -> np.ndarray:
    """Subgroup of each subject shown; -1 for controls."""
    return np.array([_place(letter) for letter in run.subjects["subgroup"].to_numpy()[run.material.shown]])


def _place(letter: str) -> int:
    """The number of a subgroup by its letter; a control has none."""
    number = 0
    for one in letter:
        number = 26 * number + ord(one) - ord("A") + 1
    return number - 1


def _panels(run: Run) -> list[draw.Panel]:
    m = run.material
    names = [subgroup_name(k) for k in range(m.n_subgroups)]
    panels: list[draw.Panel] = [("Subgroups found", _found(run), names, range(m.n_subgroups))]
    return [*panels, ("Truth", m.truth, m.truth_names, m.truth_styles)] if m.truth_names else panels


def _whom(run: Run) -> str:
    return "controls" if (run.subjects["diagnosis"] == "control").any() else "all patients"


def _embedded(figure: Figure, dpi: int = 220, shown_dpi: int = 135) -> dict[str, Any]:
    """The picture and its width on the page, the same scale for all so that their letters are equal."""
    buffer = io.BytesIO()
    # without matplotlib's version in it, equal figures are equal bytes
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.05, metadata={"Software": None})
    with Image.open(buffer) as picture:
        width, height = (round(side * shown_dpi / dpi) for side in picture.size)
        small = io.BytesIO()
        # pictures of few colours: a palette is a third of the size
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    url = f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}"
    return {"url": url, "width": width, "height": height, "alt": figure.get_label()}


def _data(run: Run) -> dict[str, Any]:
    """What the script draws from."""
    m = run.material
    rows = run.subjects.iloc[m.shown]
    shown = rows[[name for name in rows.columns if name != "part"]]
    table = {str(name): [_say(value) for value in shown[name]] for name in shown.columns}
    if m.truth_names:
        table["truth"] = [m.truth_names[k] if k != UNKNOWN else "" for k in m.truth]
    table |= {str(name): [_say(value) for value in m.covariates[name]] for name in m.covariates.columns}
    data: dict[str, Any] = {
        "points": _whole(m.points), "share": [round(float(s), 4) for s in m.share],
        "umap": None if m.umap is None else _whole(m.umap),
        "control": [int(not ill) for ill in _is_patient(run)],
        "colours": _colours(run), "columns": list(table),
        "rows": [list(row) for row in zip(*table.values(), strict=True)],
        "sheet": None if m.thumbnails is None else sheet_of(m.thumbnails),
        "bars": None if m.bars is None else {
            "names": m.features, "values": [[round(float(v), 2) for v in row] for row in m.bars]
        },
        "film": None,
    }  # fmt: skip
    if m.film is not None and m.film_epochs is not None and m.film_ratio is not None and m.film_subgroup is not None:
        k = m.n_subgroups
        styles = [_style(i, subgroup_name(i)) for i in range(k)]
        data["film"] = {
            "frames": _whole(m.film.astype(np.float32)), "epochs": m.film_epochs.tolist(),
            "ratio": [None if not np.isfinite(r) else round(float(r), 3) for r in m.film_ratio],
            "label": m.film_subgroup.tolist(), "styles": styles,
        }  # fmt: skip
    return data


def _whole(points: np.ndarray) -> list[Any]:
    """One scale for all axes: a distance means the same in every direction."""
    middle = (points.max(axis=tuple(range(points.ndim - 1))) + points.min(axis=tuple(range(points.ndim - 1)))) / 2
    away = points - middle
    return np.rint(away * (SCALE / max(float(np.abs(away).max(initial=0)), 1e-12))).astype(int).tolist()


def _say(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _style(k: int, name: str) -> dict[str, Any]:
    return {"name": name, "colour": COLORS[k % len(COLORS)], "shape": MARKERS[k % len(MARKERS)]}


def _colours(run: Run) -> list[dict[str, Any]]:
    """The ways to colour the subjects."""
    m = run.material
    of_subgroups = [_style(k, subgroup_name(k)) for k in range(m.n_subgroups)]
    by_subgroup = {"name": "subgroup", "styles": [CONTROLS, *of_subgroups], "values": (_found(run) + 1).tolist()}
    return [by_subgroup, *colour_ways(_is_patient(run), m.truth, m.truth_names, m.truth_styles, m.covariates)]


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
            ways.append({"name": str(name), "low": _say(low), "high": _say(high), "numbers": numbers})
        elif 0 < values.nunique() <= LEVELS:
            levels = sorted(values.dropna().unique())
            place = {level: i + 1 for i, level in enumerate(levels)}
            kinds = [NOT_KNOWN, *(_style(i, _say(level)) for i, level in enumerate(levels))]
            ways.append({"name": str(name), "styles": kinds, "values": [place.get(value, 0) for value in values]})
    return ways


def _cards(run: Run) -> list[dict[str, Any]]:
    """One for each subgroup: sizes, exemplars, borderline patients, what speaks for it."""
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
    """Red where a subgroup is brighter than the other patients, blue where darker, white where alike."""
    limit = max(float(np.abs(every.astype(np.float32)).max()), 1e-12)
    return np.rint(draw.colormaps["RdBu_r"](0.5 + one.astype(np.float32) / limit / 2)[..., :3] * 255).astype(np.uint8)


def _who(run: Run) -> list[dict[str, Any]]:
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


def _table(table: pd.DataFrame | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {
        "columns": [str(name).replace("_", " ") for name in table.columns],
        "rows": [[_say(value) for value in row] for row in table.itertuples(index=False)],
    }


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as `network.width` rows."""
    for key, value in recipe.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", "–" if value is None else str(value)
