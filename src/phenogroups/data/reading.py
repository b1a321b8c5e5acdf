"""From one file to one array, in the same way at training and at prediction."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from os.path import abspath
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch

from phenogroups.data.decoding import MOST_NUMBERS, UnreadableInput, decode
from phenogroups.data.threads import map_ahead
from phenogroups.data.untrusted import shortened

Found = TypeVar("Found")
Intensity = Literal["unit", "minmax", "standardise", "imagenet"]
MOST_CHANNELS = 2**12
MOST_WORKERS = 4  # threads that decode: more would wait for each other
# images for which an encoder trained on photographs is the default, and the side at which it was trained
PRETRAINED_FROM, PRETRAINED_CHANNELS, PRETRAINED_SIDE = 64, (1, 3), 224
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Reading:
    """How every file is prepared for the network, in the order intensity, channels, size, frame; part of the recipe."""

    size: tuple[int, ...] | None = None  # resize to; None: every input must have one size already
    channels: int | None = None  # 1 grey, 3 colour (grey is repeated); None: as found, but 3 with imagenet
    # unit: integers to 0..1, floats as they are; minmax, standardise: by each image's own numbers;
    # imagenet: to 0..1 (floats by their own minimum and maximum), then ImageNet's mean and deviation per channel
    intensity: Intensity = "unit"
    frame: tuple[int, ...] | None = None  # then crop what is larger and pad what is smaller, centred, to this

    def __post_init__(self) -> None:
        for name in ("size", "frame"):
            sides = getattr(self, name)
            if sides is not None and (len(sides) not in (2, 3) or min(sides) < 1):
                raise ValueError(f"Expected {name} as 2 or 3 sides of at least 1. Received: {shortened(sides)}.")
            if sides is not None and prod(sides) > MOST_NUMBERS:
                raise ValueError(f"Expected {name} of at most {MOST_NUMBERS:,} numbers. Received: {shortened(sides)}.")
        if self.channels is not None and not 1 <= self.channels <= MOST_CHANNELS:
            raise ValueError(f"Expected 1 to {MOST_CHANNELS} channels. Received: {self.channels}.")
        if self.intensity not in ("unit", "minmax", "standardise", "imagenet"):
            raise ValueError(
                f"Expected intensity 'unit', 'minmax', 'standardise' or 'imagenet'. "
                f"Received: {shortened(self.intensity)}."
            )
        if self.intensity == "imagenet" and self.channels not in (None, 3):
            raise ValueError(
                f"Expected 3 channels with intensity 'imagenet', whose statistics are of colours. "
                f"Received: {self.channels}. Leave channels out, and grey is repeated."
            )


def suits_pretrained(image: np.ndarray) -> bool:
    """Whether an encoder trained on photographs is the default for images like this one."""
    return (
        image.ndim == 3
        and len(image) in PRETRAINED_CHANNELS
        and min(image.shape[1:]) >= PRETRAINED_FROM
        and image.min() >= 0
        and image.max() <= 1
    )


def read_input(path: Path, reading: Reading) -> np.ndarray:
    """(channels, *space), float32."""
    return prepare(decode(path).array, reading)


@dataclass(frozen=True)
class ImagePath:
    """A cell of the image column: a path in the folder that images lie in."""

    cell: str
    folder: Path | None  # None: a frame made in Python, whose paths may lie anywhere

    def locate(self) -> Path:
        """The file, in the folder or else, by a path from the working directory, also in the folder.

        Raises if the path leads out of the folder: a table from elsewhere must not choose what is read here.
        """
        if not self.cell:
            raise UnreadableInput("is empty")
        try:
            return self._located()
        except UnreadableInput:
            raise
        except (ValueError, OSError, RuntimeError) as error:  # an invalid character, too long, links in a circle
            raise UnreadableInput(f"is no path ({error})") from error

    def _located(self) -> Path:
        home = Path() if self.folder is None else self.folder
        is_there = "\\" not in self.cell or os.path.lexists(home / self.cell)
        cell = self.cell if is_there else self.cell.replace("\\", "/")  # in tables written on Windows
        if self.folder is None:
            return Path(cell)
        path, here = home / cell, Path(cell).absolute()
        if not self._holds(path):
            raise UnreadableInput(
                f"leads out of the folder {self.folder.resolve()}; move it there, or name its folder "
                f"(--folder {path.parent.resolve()})"
            )
        if path.exists() or not here.is_file():
            return path
        if not self._holds(here):
            raise UnreadableInput(f"is not in {self.folder.resolve()} but in the working directory (--folder .)")
        return here

    def _holds(self, path: Path) -> bool:
        """Whether a path is in the folder by its name or after links are resolved: the folder may contain links."""
        folder = Path(str(self.folder))
        return any(whole(path).is_relative_to(whole(folder)) for whole in (Path.resolve, lambda p: Path(abspath(p))))

    def __str__(self) -> str:
        return self.cell or "the cell"


def read_ahead(
    paths: Iterable[ImagePath], read: Callable[[Path], Found], ahead: int | None = None
) -> Iterator[Found | UnreadableInput]:
    """Yield the result of `read` for each file, in order, or the error that says why it cannot be used."""

    def attempt(path: ImagePath) -> Found | UnreadableInput:
        try:
            return read(path.locate())
        except UnreadableInput as error:
            return error

    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    return map_ahead(attempt, paths, workers=workers, ahead=ahead or 2 * workers)


def prepare(array: np.ndarray, reading: Reading) -> np.ndarray:
    """A decoded array as input of a network: (channels, *space), float32."""
    if array.dtype.kind not in "biuf":
        raise UnreadableInput(f"holds values of type {array.dtype}; expected numbers")
    if array.size == 0:
        raise UnreadableInput(f"holds no numbers: its shape is {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UnreadableInput(f"holds NaN or infinite values ({(~np.isfinite(array)).sum()} of {array.size})")
    if array.ndim == 3 and 3 in (len(reading.size or ()), len(reading.frame or ())):
        array = array[None]  # a volume was meant, not an image of many channels
    array = _intensity(_to_unit(array), reading.intensity, is_float=array.dtype.kind == "f")
    array = _channels(array, 3 if reading.intensity == "imagenet" else reading.channels)
    for sides in (reading.size, reading.frame):
        if sides is not None and len(array) * prod(sides) > MOST_NUMBERS:
            raise UnreadableInput(f"would be {len(array)} x {sides} numbers; at most {MOST_NUMBERS:,} are made of it")
    array = _frame(_resize(array, reading.size), reading.frame)
    if reading.intensity == "imagenet":  # after padding, which is as dark as the darkest pixel
        beside = (3, *[1] * (array.ndim - 1))
        mean, deviation = (np.reshape(v, beside).astype(np.float32) for v in (IMAGENET_MEAN, IMAGENET_DEVIATION))
        array = (array - mean) / deviation
    return np.ascontiguousarray(array, dtype=np.float32)


def _to_unit(array: np.ndarray) -> np.ndarray:
    # made contiguous before the conversion and divided in place, which takes half the time
    unit = np.ascontiguousarray(array).astype(np.float32)
    if np.issubdtype(array.dtype, np.integer):
        unit /= np.iinfo(array.dtype).max
    return unit


def _intensity(array: np.ndarray, how: str, *, is_float: bool) -> np.ndarray:
    if how == "unit" or (how == "imagenet" and not is_float):
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
        return array
    _require_dimensions(array, size)
    x = torch.from_numpy(np.ascontiguousarray(array))[None]
    smaller = all(new <= old for new, old in zip(size, array.shape[1:], strict=True))
    if len(size) == 2:
        x = torch.nn.functional.interpolate(x, size=size, mode="bilinear", antialias=smaller)
    else:
        x = torch.nn.functional.interpolate(x, size=size, mode="area" if smaller else "trilinear")
    return x[0].numpy()


def _frame(array: np.ndarray, size: tuple[int, ...] | None) -> np.ndarray:
    """Crop or pad about the centre, with the image's minimum: 0 is not its background once it is standardised."""
    if size is None or array.shape[1:] == tuple(size):
        return array
    _require_dimensions(array, size)
    low = array.min()
    for axis, (old, new) in enumerate(zip(array.shape[1:], size, strict=True), start=1):
        cut, before = max(old - new, 0) // 2, max(new - old, 0) // 2
        array = np.take(array, range(cut, cut + min(old, new)), axis=axis)
        around = [(0, 0)] * array.ndim
        around[axis] = (before, new - array.shape[axis] - before)
        array = np.pad(array, around, constant_values=low)
    return array


def _require_dimensions(array: np.ndarray, size: tuple[int, ...]) -> None:
    if len(size) != array.ndim - 1:
        raise UnreadableInput(f"has {array.ndim - 1} spatial dimensions; the size asked for, {size}, has {len(size)}")
