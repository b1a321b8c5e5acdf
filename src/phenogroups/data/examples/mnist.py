"""MNIST: one digit is the disease, the other nine are the controls (LeCun et al. 1998; paper, Appendix F.2)."""

import gzip
import hashlib
import math
import struct
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.request import urlopen

import numpy as np
import pandas as pd

from phenogroups.data.cache import user_cache
from phenogroups.data.cohort import UNKNOWN, Cohort, CohortError, name_rows
from phenogroups.data.examples.drawn import FORMS
from phenogroups.data.examples.local import VARIABLE, find, read_labels, require
from phenogroups.data.writing import RunError, write_whole

Split = Literal["train", "test"]

FILES = {  # images and their digits
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
TIMEOUT = 60  # seconds without a response before the next mirror is tried
SIDE, PADDED = 28, 32  # pixels
# the words of a label file show the split that it belongs to
LABELS: dict[Split, dict[str, int]] = {"train": {"0": 0, "1": 1}, "test": {"no bar": 0, "with bar": 1}}


def mnist(
    digit: int = 7,
    *,
    data: str | Path | None = None,
    labels: str | Path | None = None,
    split: Split = "train",
    balanced: bool = True,
) -> Cohort:
    """All images of the digit and, balanced, as many of the other nine in equal parts, in the order of the file.

    The four files are read from `data` or from the folder that PHENOGROUPS_DATA names, else downloaded once. `labels`
    is a JSON file of known subgroups by position among the digit's images; the others are unlabelled.
    """
    if digit not in range(10):
        raise CohortError(f"Expected a digit from 0 to 9. Received: {digit!r}.")
    if split not in FILES:
        raise CohortError(f"Expected split 'train' or 'test'. Received: {split!r}.")
    images, digits = (_read_idx(_locate(name, data), ndim) for name, ndim in zip(FILES[split], (3, 1), strict=True))
    if len(images) != len(digits) or images.shape[1:] != (SIDE, SIDE):
        raise CohortError(
            f"Expected as many images of {SIDE} x {SIDE} as digits. Received: images of shape {images.shape} and "
            f"{len(digits)} digits in the {split} files. Fetch the files again."
        )
    rows = _half_and_half(digits, digit) if balanced else np.arange(len(digits))
    margin = (PADDED - SIDE) // 2
    padded = np.pad(images[rows], ((0, 0), (margin, margin), (margin, margin)))
    return Cohort(
        inputs=padded[:, None].astype(np.float32) / 255,
        diagnosis=(digits[rows] == digit).astype(np.int64),
        subject=np.array([f"{split}-{row:05d}" for row in rows]),
        covariates=pd.DataFrame({"digit": digits[rows].astype(np.int64)}),
        truth=None if labels is None else _truth(labels, split, np.flatnonzero(digits == digit), len(digits))[rows],
        truth_names=() if labels is None else tuple(form.name for form in FORMS[digit][:2]),
        name=f"mnist-{digit}",
    )


def parse_labels(path: str | Path) -> tuple[Split, dict[int, int]]:
    """The split that the file belongs to, and the subgroup by position among the digit's images.

    Training images are labelled 0 or 1, test images "No bar" or "With bar".
    """
    labels = {key: str(value).strip().lower() for key, value in read_labels(path).items()}
    for split, codes in LABELS.items():
        if all(key.isdecimal() and value in codes for key, value in labels.items()):
            return split, {int(key): codes[value] for key, value in labels.items()}
    raise CohortError(
        'Expected labels as {"position": 0 or 1} (training images) or {"position": "No bar" or "With bar"} (test '
        f"images), one form throughout. Received: {path} with keys such as {name_rows(list(labels), most=3)} and the "
        f"values {', '.join(map(repr, sorted(set(labels.values()))[:6]))}. Recode or drop the others."
    )


def _truth(path: str | Path, split: Split, positions: np.ndarray, count: int) -> np.ndarray:
    """(images in the file,): the subgroup, -1 where there is no label."""
    belongs, labels = parse_labels(path)
    if belongs != split:
        raise CohortError(f"Expected labels of {split} images. Received: {path}, whose form is for split={belongs!r}.")
    beyond = [str(key) for key in labels if key >= len(positions)]
    if beyond:
        raise CohortError(
            f"Expected positions below {len(positions)}, the images of this digit in the {split} file. "
            f"Received: {name_rows(beyond)} in {path}. Give the labels of this digit and split."
        )
    truth = np.full(count, UNKNOWN)
    truth[positions[list(labels)]] = list(labels.values())
    return truth


def _half_and_half(digits: np.ndarray, digit: int) -> np.ndarray:
    """Positions of all images of the digit and of as many others, of every digit the first ones."""
    place = pd.Series(digits).groupby(digits).cumcount().to_numpy()  # among the images of its own digit
    ill, others = np.flatnonzero(digits == digit), np.flatnonzero(digits != digit)
    controls = others[np.lexsort((others, place[others]))][: len(ill)]
    return np.sort(np.concatenate([ill, controls]))


def _read_idx(path: Path, ndim: int) -> np.ndarray:
    """Unsigned bytes with `ndim` dimensions, from a plain or gzipped file."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error) as error:
        raise CohortError(f"Expected a readable file. Received: {path} ({error}). Fetch it again.") from error
    begin = 4 + 4 * ndim
    magic = 0x0800 + ndim  # 8: unsigned bytes
    if len(raw) < begin or raw[:4] != struct.pack(">I", magic):
        raise CohortError(
            f"Expected an idx file of {ndim} dimensions (first bytes {struct.pack('>I', magic).hex()}). "
            f"Received: {path}, {len(raw)} bytes beginning with {raw[:4].hex() or 'nothing'}. Fetch it again."
        )
    shape = struct.unpack(f">{ndim}I", raw[4:begin])
    if len(raw) - begin != math.prod(shape):
        raise CohortError(
            f"Expected {math.prod(shape)} bytes after the header of {path}, which announces {shape}. "
            f"Received: {len(raw) - begin}. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=begin).reshape(shape)


def _locate(name: str, data: str | Path | None) -> Path:
    """The file in the data folder, in the cache, or downloaded; a folder given by argument must hold it."""
    places = [f"{folder}{name}{ending}" for folder in ("", "mnist/") for ending in ("", ".gz")]
    if data is not None:
        return require(data, *places)
    return find(None, *places) or _cached(f"{name}.gz")


def _cached(name: str) -> Path:
    cache = user_cache().with_name("mnist")
    path = cache / name
    if path.is_file():
        return path
    content = _download(name)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except (OSError, RunError) as error:
        raise CohortError(
            f"Expected to keep {name} in {cache}. Received: {error}. Name another place in XDG_CACHE_HOME."
        ) from error
    return path


def _download(name: str) -> bytes:
    """From the first mirror whose file has the right checksum."""
    failures = []
    for mirror in MIRRORS:
        try:
            with urlopen(mirror + name, timeout=TIMEOUT) as answer:
                content = answer.read()
        except (OSError, HTTPException) as error:
            failures.append(f"{mirror}: {error}")
            continue
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found == MD5[name]:
            return content
        failures.append(f"{mirror}: md5 {found} instead of {MD5[name]}")
    raise CohortError(
        f"Expected to download {name}. Received: {'; '.join(failures)}. "
        f"Try again, or fetch it by other means and name its folder (data=..., --data or {VARIABLE})."
    )
