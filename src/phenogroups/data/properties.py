"""Properties of images that depend on how they were taken, such as brightness, sharpness and voxel size.

Methods do not learn from them. Subgroups are compared with them as with age or site, since a subgroup of overexposed or
blurred pictures is not one of the disease. Properties of the file are read from its header, before anything is resized;
the others are measured on the input of the network.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from phenogroups.data.decoding import DICOM, PICTURES, VOLUMES, UnreadableInput, nifti_header, says_dicom
from phenogroups.data.reading import ImagePath, read_ahead
from phenogroups.data.stored import Inputs

# name: description of a subgroup with more of it, and with less
OF_NUMBERS = {
    "image_brightness": ("brighter", "darker"),
    "image_contrast": ("richer in contrast", "poorer in contrast"),
    "image_near_black": ("nearly black in larger parts", "nearly black in smaller parts"),
    "image_near_white": ("nearly white in larger parts", "nearly white in smaller parts"),
    "image_sharpness": ("sharper", "more blurred"),
    "image_noise": ("noisier", "smoother"),
    "image_red": ("redder", "less red"),
    "image_blue": ("bluer", "less blue"),
}
OF_FILES = {
    "image_width": ("wider as files", "narrower as files"),
    "image_height": ("higher as files", "lower as files"),
    "image_aspect": ("wider for their height as files", "narrower for their height as files"),
    "image_depth": ("of more slices", "of fewer slices"),
    "image_voxel_size": ("of coarser pixels or voxels", "of finer pixels or voxels"),
    "image_field_of_view": ("of a larger field of view", "of a smaller field of view"),
}
WORDS = {**OF_NUMBERS, **OF_FILES}
NAMES = {  # where the name of the column does not say it plainly
    "image_near_black": "share of nearly black pixels",
    "image_near_white": "share of nearly white pixels",
    "image_red": "redness",
    "image_blue": "blueness",
    "image_aspect": "ratio of width to height",
    "image_depth": "number of slices",
}
NEAR = 0.02  # share of the range of grey: 5 of 255
FINE = 24  # pixels a side from which differences between neighbours are measured
MOST_NUMBERS = 2**18  # voxels of a volume that are measured


def is_measured(name: str) -> bool:
    """Whether a covariate of this name is measured on images or read from their files, without a column of a table."""
    return name in WORDS


def plain_name(name: str) -> str:
    """A property in plain words."""
    return NAMES.get(name, name.removeprefix("image_").replace("_", " "))


def pixel_properties(inputs: Inputs) -> pd.DataFrame:
    """One row per input (n, channels, *space); without columns for a table of features. Rows on disk are read once."""
    if inputs.ndim == 2:
        return pd.DataFrame(index=range(len(inputs)))
    rows = [_measured(np.asarray(row)) for row in inputs]
    return pd.DataFrame(rows, columns=list(OF_NUMBERS)).dropna(axis=1, how="all")


def _measured(image: np.ndarray) -> dict[str, float]:
    """Of one image (channels, *space)."""
    # evenly spaced planes of a volume, within which neighbours stay neighbours
    planes = image[:, :: -(-image.size // MOST_NUMBERS)] if image.ndim == 4 else image[:, None]
    scale = np.float32(np.iinfo(image.dtype).max if image.dtype.kind in "iu" else 1)
    planes = planes.astype(np.float32, copy=False)
    grey = (planes.mean(axis=0) if len(planes) > 1 else planes[0]) / scale
    low, high = float(grey.min()), float(grey.max())
    if not 0 <= low <= high <= 1:  # in units of its own, such as those of a scanner
        range_ = max(high - low, 1e-12)
        black, white = low + NEAR * range_, high - NEAR * range_
    else:
        black, white = NEAR, 1 - NEAR
    contrast = float(grey.std())
    found = {
        "image_brightness": float(grey.mean()),
        "image_contrast": contrast,
        "image_near_black": float(np.mean(grey <= black)),
        "image_near_white": float(np.mean(grey >= white)),
    }
    if min(grey.shape[-2:]) >= FINE:
        across, down = np.diff(grey, axis=-1), np.diff(grey, axis=-2)
        # differences between neighbours in units of the contrast, so that it depends on neither brightness nor contrast
        steps = float(np.abs(across).mean()) + float(np.abs(down).mean())
        found["image_sharpness"] = steps / max(contrast, 1e-12)
        # Immerkaer 1996: second differences along both axes, which edges along either do not change
        second = across[..., 1:] - across[..., :-1]
        residual = second[..., 2:, :] - 2 * second[..., 1:-1, :] + second[..., :-2, :]
        found["image_noise"] = float(np.abs(residual).mean()) * float(np.sqrt(np.pi / 2)) / 6
    if len(planes) == 3:
        found["image_red"], found["image_blue"] = (
            float(planes[channel].mean() / scale) - found["image_brightness"] for channel in (0, 2)
        )
    return found


def file_properties(paths: Sequence[ImagePath]) -> pd.DataFrame:
    """One row per file, from headers alone; NaN where a header does not say."""
    rows = [{} if isinstance(one, UnreadableInput) else one for one in read_ahead(paths, _of_header)]
    return pd.DataFrame(rows, columns=list(OF_FILES), dtype=float).dropna(axis=1, how="all")


def _of_header(path: Path) -> dict[str, float]:
    name = path.name.lower()
    sides: Sequence[float] = ()  # depth, height, width; or height, width
    spacing: Sequence[float] = ()  # in mm, of the same axes
    try:
        if name.endswith(PICTURES):
            from PIL import Image

            with Image.open(path, formats=("PNG", "JPEG", "TIFF", "BMP")) as image:
                sides = image.height, image.width
        elif name.endswith(".npy"):
            sides = np.load(path, allow_pickle=False, mmap_mode="r").shape
            sides = sides[1:] if len(sides) in (3, 4) else sides  # channels first
        elif name.endswith(VOLUMES):
            header = nifti_header(path)
            sides, spacing = header.get_data_shape()[:3], header.get_zooms()[:3]
        elif name.endswith(DICOM) or says_dicom(path):
            sides, spacing = _of_dicom(path)
    except Exception as error:  # reported where the numbers of the file are read
        raise UnreadableInput(f"has no header that can be read ({error})") from error
    sides = [float(side) for side in sides]
    if len(sides) not in (2, 3):
        return {}
    height, width = sides[-2], sides[-1]
    found = {"image_height": height, "image_width": width, "image_aspect": width / max(height, 1)}
    if len(sides) == 3:
        found["image_depth"] = sides[0]
    if len(spacing) == len(sides) and min(spacing) > 0:
        found["image_voxel_size"] = float(np.prod(spacing)) ** (1 / len(spacing))
        found["image_field_of_view"] = float(np.prod(np.multiply(spacing, sides))) ** (1 / len(spacing))
    return {key: float(value) for key, value in found.items()}


def _of_dicom(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    import pydicom

    tags = ["Rows", "Columns", "NumberOfFrames", "PixelSpacing", "ImagerPixelSpacing", "SliceThickness"]
    file = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=tags)
    plane = tuple(map(float, file.get("PixelSpacing") or file.get("ImagerPixelSpacing") or ()))
    frames = int(file.get("NumberOfFrames", 1) or 1)
    if frames == 1:
        return (int(file.Rows), int(file.Columns)), plane
    thick = file.get("SliceThickness")
    return (frames, int(file.Rows), int(file.Columns)), (float(thick), *plane) if thick and plane else ()
