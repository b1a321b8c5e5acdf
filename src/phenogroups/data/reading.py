"""From one file to one array: how inputs are read, declared once and applied identically at prediction."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
VOLUMES = (".nii", ".nii.gz")


@dataclass(frozen=True)
class Reading:
    """What is done to every file between disk and network; part of the recipe."""

    size: tuple[int, ...] | None = None  # resize to; None: every input must have one size already
    channels: int | None = None  # 1 grey, 3 colour; None: as found
    intensity: Literal["unit", "minmax", "standardise"] = "unit"  # unit: integers to 0..1, floats as they are


class UnreadableInput(ValueError):
    """One file cannot be used; the message says why."""


def read_input(path: Path, reading: Reading) -> np.ndarray:
    """(channels, *space), float32."""
    try:
        array = _decode(path)
    except UnreadableInput:
        raise
    except Exception as error:  # decoders raise whatever they like on a broken file
        raise UnreadableInput(f"cannot be read ({type(error).__name__}: {error})") from error
    if not np.isfinite(array).all():
        raise UnreadableInput("holds NaN or infinite values")
    array = _intensity(_to_unit(array), reading.intensity)
    array = _channels(array, reading.channels)
    return _resize(array, reading.size)


def _decode(path: Path) -> np.ndarray:
    """(channels, *space), in the file's own dtype."""
    name = path.name.lower()
    if not path.is_file():
        raise UnreadableInput("does not exist")
    if name.endswith(PICTURES):
        from PIL import Image

        with Image.open(path) as image:
            if image.mode in ("P", "RGBA", "LA", "CMYK", "YCbCr", "1"):
                image = image.convert("RGB" if image.mode in ("P", "RGBA", "CMYK", "YCbCr") else "L")
            array = np.asarray(image)
        return array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
    if name.endswith(".npy"):
        array = np.load(path, allow_pickle=False)
        if array.ndim not in (2, 3, 4):
            raise UnreadableInput(f"holds an array of shape {array.shape}; expected (H, W), (C, H, W) or (C, D, H, W)")
        return array[None] if array.ndim == 2 else array
    if name.endswith(VOLUMES):
        import nibabel

        array = np.asarray(nibabel.load(path).get_fdata(dtype=np.float32))  # pyright: ignore
        if array.ndim != 3:
            raise UnreadableInput(f"holds {array.ndim} dimensions; expected one volume of three")
        return array[None]
    raise UnreadableInput(f"has an unknown ending; known: {', '.join((*PICTURES, '.npy', *VOLUMES))}")


def _to_unit(array: np.ndarray) -> np.ndarray:
    if np.issubdtype(array.dtype, np.integer):
        return array.astype(np.float32) / np.iinfo(array.dtype).max
    if array.dtype == bool or np.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32)
    raise UnreadableInput(f"holds values of type {array.dtype}; expected numbers")


def _intensity(array: np.ndarray, how: str) -> np.ndarray:
    if how == "unit":
        return array
    low, spread = (array.mean(), array.std()) if how == "standardise" else (array.min(), np.ptp(array))
    if spread == 0:
        raise UnreadableInput("is constant: there is nothing to see in it")
    return (array - low) / spread


def _channels(array: np.ndarray, wanted: int | None) -> np.ndarray:
    found = len(array)
    if wanted is None or wanted == found:
        return array
    if found == 1:
        return np.repeat(array, wanted, axis=0)
    if wanted == 1 and found == 3:
        luma = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R 601, as Pillow's conversion to grey
        return np.tensordot(luma, array, axes=1)[None]
    raise UnreadableInput(f"has {found} channels; expected {wanted}")


def _resize(array: np.ndarray, size: tuple[int, ...] | None) -> np.ndarray:
    if size is None or array.shape[1:] == tuple(size):
        return np.ascontiguousarray(array, dtype=np.float32)
    if len(size) != array.ndim - 1:
        raise UnreadableInput(f"has {array.ndim - 1} spatial dimensions; the size asked for, {size}, has {len(size)}")
    x = torch.from_numpy(np.ascontiguousarray(array))[None]
    smaller = all(new <= old for new, old in zip(size, array.shape[1:], strict=True))
    if len(size) == 2:
        x = torch.nn.functional.interpolate(x, size=size, mode="bilinear", antialias=smaller)
    else:
        x = torch.nn.functional.interpolate(x, size=size, mode="area" if smaller else "trilinear")
    return x[0].numpy()
