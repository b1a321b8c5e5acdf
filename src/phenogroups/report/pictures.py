"""Inputs as pictures: volumes as three slices, all on one grey scale, reduced to what a page shows."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.projection import some_rows
from phenogroups.evaluation.typical import read_blocks

SHEET = 16_000  # pixels that a browser shows of one picture's side
TINY = 64  # pixels of a side up to which a picture is kept without loss


def montage(image: np.ndarray, fill: float = 0.0) -> np.ndarray:
    """(C, H, W) as it is; of a volume (C, D, H, W), three orthogonal slices through its middle, side by side."""
    if image.ndim == 3:
        return image
    d, h, w = (side // 2 for side in image.shape[1:])
    slices = [image[:, d], image[:, :, h], image[:, :, :, w]]
    tallest = max(one.shape[1] for one in slices)
    padded = [np.pad(one, [(0, 0), (0, tallest - one.shape[1]), (0, 0)], constant_values=fill) for one in slices]
    return np.concatenate(padded, axis=2)


def fit_into(image: np.ndarray, side: int) -> np.ndarray:
    """(1, H, W) as (h, w), made smaller where its longer side is more than `side`."""
    picture = Image.fromarray(image[0].astype(np.float32))
    return np.asarray(picture.resize(_size(image, side), Image.Resampling.BOX))


def _size(image: np.ndarray, side: int) -> tuple[int, int]:
    """Width and height; a montage of three slices may be three times as wide."""
    height, width = image.shape[-2:]
    shrink = min(1.0, side / max(height, width / 3 if width > 2 * height else width))
    return max(round(width * shrink), 1), max(round(height * shrink), 1)


def draw_inputs(
    cohort: Cohort, rows: np.ndarray, side: int, levels: tuple[float, float], *, one_slice: bool = False
) -> np.ndarray:
    """(rows, h, w[, 3]): 0..255, all on one grey scale; of a volume three slices, or the middle one alone."""
    low, high = levels
    drawn = []
    for block in read_blocks(cohort, rows):
        for image in block:
            flat = image[:, image.shape[1] // 2] if one_slice and image.ndim == 4 else montage(image, low)
            flat = flat if len(flat) == 3 else flat[:1]  # three channels are colours, of others the first is shown
            grey = np.clip((flat.astype(np.float32) - low) / max(high - low, 1e-12), 0, 1) * 255
            picture = Image.fromarray(
                np.moveaxis(np.rint(grey).astype(np.uint8), 0, -1).squeeze(-1 if len(flat) == 1 else ())
            )
            drawn.append(np.asarray(picture.resize(_size(flat, side), Image.Resampling.BOX)))
    return np.stack(drawn) if drawn else np.zeros((0, 1, 1), np.uint8)


def grey_levels(cohort: Cohort, rows: np.ndarray, most: int = 100) -> tuple[float, float]:
    """The values shown as black and as white: percentiles, so that a few outliers do not darken all pictures."""
    some = [np.percentile(block, (0.5, 99.5)) for block in read_blocks(cohort, rows[some_rows(len(rows), most)])]
    return float(min(low for low, _ in some)), float(max(high for _, high in some))


def image_url(image: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def picture_url(picture: np.ndarray) -> str:
    """A photograph is compressed with loss, to a tenth of its size; each pixel of a small picture counts."""
    image = Image.fromarray(picture)
    return image_url(image, "png") if max(image.size) <= TINY else image_url(image, "webp", quality=80)


def sheet_of(pictures: np.ndarray) -> dict[str, Any]:
    """Many small pictures as one, compressed with loss."""
    count, height, width = pictures.shape[:3]
    columns = max(1, min(SHEET // width, round((count * height / width) ** 0.5)))
    rows = -(-count // columns)
    sheet = np.zeros((rows * columns, *pictures.shape[1:]), np.uint8)
    sheet[:count] = pictures
    sheet = sheet.reshape(rows, columns, *pictures.shape[1:]).swapaxes(1, 2)
    flat = sheet.reshape(rows * height, columns * width, *pictures.shape[3:])
    kind = "webp" if rows * height <= SHEET else "jpeg"  # WebP ends at 16,383 pixels
    url = image_url(Image.fromarray(flat), kind, quality=80)
    return {"url": url, "width": width, "height": height, "columns": columns}
