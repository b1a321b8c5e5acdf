"""The page a reader opens: one HTML file that needs nothing beside it and no network."""

import base64
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from phenogroups.evaluation.scores import SCORE_NAMES, Scores, defined, format_score


def write_report(
    path: str | Path,
    *,
    title: str,
    sentences: list[str],  # what was found, in plain words
    scores: dict[str, Scores],  # row name -> scores; may be empty
    figures: dict[str, Figure],  # caption -> figure; its label, where set, is the text for who cannot see it
    recipe: dict[str, Any],  # how to make the run again
) -> None:
    """Write report.html at `path`: whole, or not at all."""
    columns = defined(scores)
    html = (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            sentences=sentences,
            columns=[SCORE_NAMES[column] for column in columns],
            rows=[(name, [format_score(getattr(row, column)) for column in columns]) for name, row in scores.items()],
            figures=[(caption, figure.get_label() or caption, *_png(figure)) for caption, figure in figures.items()],
            recipe=list(_flat(recipe)),
        )
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # a reader who opens the page while it is written sees the old page, never half of the new one
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(html, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _environment() -> Environment:
    # autoescape by hand: jinja2 would look for .html at the end of the name and find .j2
    return Environment(
        loader=PackageLoader("phenogroups.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _png(figure: Figure, dpi: int = 200, shown_dpi: int = 110) -> tuple[str, int]:
    """Base64 of the picture and its width on the page, the same scale for all so that their letters are equal."""
    buffer = io.BytesIO()
    # without matplotlib's version in it, equal figures are equal bytes
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.05, metadata={"Software": None})
    content = buffer.getvalue()
    width = int.from_bytes(content[16:20], "big")  # in pixels, by the PNG header
    return base64.b64encode(content).decode("ascii"), round(width * shown_dpi / dpi)


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as `network.width` rows."""
    for key, value in recipe.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{key}", "–" if value is None else str(value)
