"""The report: one self-contained HTML file that needs no network; and its figures as files."""

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image

from phenogroups.data.cohort import UNKNOWN, Cohort
from phenogroups.data.writing import write_whole
from phenogroups.methods import METHODS
from phenogroups.methods.documentation import one_line
from phenogroups.report import figures as draw
from phenogroups.report import page_data, tables
from phenogroups.report.figures import as_file, subgroup_name
from phenogroups.report.pictures import image_url
from phenogroups.report.run_folder import Run
from phenogroups.training.run import PAGE, RunError

# the other figures are for papers only: on the page, cards show the same
ON_PAGE = ("embedding", "confidence", "criteria", "diagnosis", "film", "history")


def run_figures(run: Run) -> dict[str, Callable[[], Figure]]:
    """Functions that draw the figures of this run, by the name of the file."""
    m, held_out = run.material, run.held_out
    ill = (held_out["diagnosis"] == "patient").to_numpy()
    own = run.numbers_of(held_out["subgroup"])
    exemplar = ~m.gallery_borderline
    pictures = None if m.pictures is None else m.pictures[exemplar]
    p = run.subjects["confidence"].to_numpy()[m.gallery[exemplar]]
    every: dict[str, tuple[bool, Callable[..., Figure], tuple[Any, ...]]] = {  # whether there is material, and which
        "embedding": (True, draw.embedding_figure, (m.points[:, :2], m.share, _panels(run), run.is_patient)),
        "exemplars": (
            m.pictures is not None and bool(exemplar.any()), draw.exemplars_figure,
            (pictures, m.gallery_subgroup[exemplar], p, run.sizes("held-out")),
        ),
        "drivers": (m.difference is not None, draw.drivers_figure, (m.mean_maps, m.difference)),
        "features": (
            m.mean_bars is not None, draw.bars_figure, (m.mean_bars, m.features, run.sizes("train"), run.reference)
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
        return save_figures(((name, drawn()) for name, drawn in run_figures(read).items()), Path(folder))


def save_figures(figures: Iterable[tuple[str, Figure]], folder: Path) -> list[Path]:
    """Each named figure as PNG and SVG."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Expected a folder for the figures. Received: {error}.") from error
    paths = []
    for name, figure in figures:
        for kind in ("png", "svg"):
            paths.append(folder / f"{name}.{kind}")
            write_whole(paths[-1], as_file(figure, kind))
    return paths


def write_page(folder: str | Path) -> Path:
    """Write report.html of a run folder from its other files."""
    run = Run.read(folder)
    with drawing(folder):
        html = page_of(run)
    path = Path(folder) / PAGE
    write_whole(path, html)
    return path


@contextmanager
def drawing(folder: str | Path) -> Iterator[None]:
    """Errors while drawing become a RunError that names the folder."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise RunError(f"Expected {folder} as a run wrote it. Received: {type(error).__name__}: {error}.") from error


def page_of(run: Run) -> str:
    m = run.material
    return render(
        "run.html.j2",
        data=page_data.run_data(run),
        m=m,
        title=m.title,
        figures={name: embedded(drawn()) for name, drawn in run_figures(run).items() if name in ON_PAGE},
        cards=page_data.subgroup_cards(run),
        strips=page_data.property_strips(run),
        who=page_data.subgroup_rows(run),
        held_out=len(run.held_out),
        subjects=_parts(run.subjects),
        scores=tables.score_rows(run.scores, run.intervals),
        perfect=any(low == high for row in run.intervals.values() for low, high in row.values()),
        known=None if m.confusion is None else tables.known_rows(m.confusion, m.truth_names),
        stability=tables.stability_rows(m.stability),
        confounds=tables.association_rows(m.confounds) or _table(m.confounds),
        profiles=_table(_without_zeros(m.profiles)),
        whom=run.reference,
        **_appendix(run.recipe, m.criteria),
    )


def _parts(subjects: pd.DataFrame) -> dict[str, Any]:
    """Patients and controls who were used for training and who were held out."""
    counts = subjects.groupby(["part", "diagnosis"]).size()
    words = {"train": "used for training", "held-out": "held out, not used for training"}
    rows = [[name, *(counts.get((part, who), 0) for who in ("patient", "control"))] for part, name in words.items()]
    return tables.page_table(["Subjects", "Patients", "Controls"], rows)


def _appendix(recipe: Mapping[str, Any], criteria: pd.DataFrame | None) -> dict[str, Any]:
    """How the number of subgroups was tested and how the run was made."""
    tested = {"tests": tables.criteria_rows(criteria), "criteria_words": tables.criteria_words(criteria)}
    return {**tested, "criteria": _table(criteria), "made": _made(recipe), "recipe": list(flat(recipe))}


def write_page_of_none(
    folder: str | Path,
    cohort: Cohort,
    vectors: np.ndarray,
    *,
    title: str,
    sentences: Sequence[str],
    criteria: pd.DataFrame,
    recipe: Mapping[str, Any],
    feature_names: Sequence[str] | None = None,
    verdict: Mapping[str, Any] | None = None,
) -> None:
    """report.html of a run that found no subgroups: why, what was tested, and how patients vary instead.

    `vectors` (n, components) are the subjects of `cohort` where subgroups were looked for.
    """
    data, share = (
        page_data.none_data(cohort, vectors),
        np.array([*page_data.axis_shares(vectors[cohort.is_patient]), 0.0, 0.0]),
    )
    points = np.pad(vectors[:, :2], [(0, 0), (0, max(2 - vectors.shape[1], 0))])
    panel = ("Who is ill", np.where(cohort.is_patient, 0, UNKNOWN), ["Patients"], [draw.PATIENTS])
    html = render(
        "none.html.j2",
        data=data,
        title=title,
        verdict=verdict,
        sentences=sentences,
        subjects=len(cohort),
        patients=int(cohort.is_patient.sum()),
        share=f"{share.sum():.0%}",
        axes=page_data.axis_cards(cohort, vectors, feature_names),
        figures={
            "embedding": embedded(draw.embedding_figure(points, share, [panel], cohort.is_patient)),
            "criteria": embedded(draw.criteria_figure(criteria)),
        },
        **_appendix(recipe, criteria),
    )
    write_whole(Path(folder) / PAGE, html)


def render(template: str, *, data: Mapping[str, Any], **values: Any) -> str:
    """A page with its style, its script and its data; the browser runs this script and no other."""
    here = files("phenogroups.report")
    script = here.joinpath("page.js").read_text(encoding="utf-8")
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    # no "<" in the data: nothing that stands in a table can end the script element
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = _templates().get_template(template)
    return page.render(
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        script=script,
        checksum=checksum,
        data=text,
        **values,
    )


@cache
def _templates() -> Environment:
    # autoescape by hand: jinja2 would look for .html at the end of the name and find .j2
    return Environment(
        loader=PackageLoader("phenogroups.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _panels(run: Run) -> list[draw.Panel]:
    m = run.material
    names = [subgroup_name(k) for k in range(m.n_subgroups)]
    panels: list[draw.Panel] = [("Subgroups found", run.subgroup, names, range(m.n_subgroups))]
    return [*panels, ("Truth", m.truth, m.truth_names, m.truth_styles)] if m.truth_names else panels


def embedded(figure: Figure, dpi: int = 220, shown_dpi: int = 135) -> dict[str, Any]:
    """The picture and its width on the page; one scale, so that all letters have one size."""
    buffer = io.BytesIO()
    # without matplotlib's version in it, equal figures are equal bytes
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.05, metadata={"Software": None})
    with Image.open(buffer) as picture:
        width, height = (round(side * shown_dpi / dpi) for side in picture.size)
        # pictures of few colours: a palette is a third of the size
        url = image_url(picture.convert("RGB").quantize(256, dither=Image.Dither.NONE), "png", optimize=True)
    return {"url": url, "width": width, "height": height, "alt": figure.get_label()}


def _made(recipe: Mapping[str, Any]) -> dict[str, str | None]:
    """When, by which command and with which method; None what an older recipe does not say."""
    name = recipe["method"]
    run = recipe["settings"].get("method")  # of a consensus, the method whose runs it compares
    said = [one_line(each) for each in (name, run) if each in METHODS]
    date, version = recipe.get("date"), recipe.get("versions", {}).get("phenogroups")
    return {
        "date": None if date is None else str(date).replace("T", ", ")[:17],
        "command": recipe.get("command"),
        "version": version,
        "method": name,
        "sentence": " ".join(said) or None,
    }


def _table(table: pd.DataFrame | None) -> dict[str, Any] | None:
    if table is None:
        return None
    rows = [[page_data.as_text(value) for value in row] for row in table.itertuples(index=False)]
    words = [not pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes]
    return tables.page_table([str(name).replace("_", " ") for name in table.columns], rows, words)


def _without_zeros(profiles: pd.DataFrame | None) -> pd.DataFrame | None:
    """Without columns of missing values that are all zero."""
    if profiles is None:
        return None
    counted = [name for name in profiles.columns if str(name).startswith("missing ")]
    return profiles.drop(columns=[name for name in counted if not pd.to_numeric(profiles[name]).any()])


def flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as `network.width` rows."""
    for key, value in recipe.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", "–" if value is None else str(value)
