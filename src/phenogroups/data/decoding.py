"""Decode one file: pictures, NumPy arrays, NIfTI volumes and DICOM.

The sizes that a header may announce are limited, so that a damaged or malicious file cannot fill all memory.
"""

import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
VOLUMES = (".nii", ".nii.gz")
DICOM = (".dcm", ".dicom", ".ima")
ENDINGS = (*PICTURES, ".npy", *VOLUMES, *DICOM)
MOST_NUMBERS = 2**28  # in one file: a gigabyte as float32, a volume of 640 voxels a side
MOST_BYTES = 2**32  # of one file on disk
MOST_HEADER = 2**24  # bytes before the voxels of a NIfTI file
DEFLATED = "1.2.840.10008.1.2.1.99"  # DICOM that is compressed as a whole, so that its size is unknown
NOT_THERE = "does not exist"
DICOM_REMEDY = "pip install 'phenogroups[dicom]'"


class UnreadableInput(ValueError):
    """One file cannot be used; the message says why."""


@dataclass(frozen=True)
class Decoded:
    """The content of a file, unchanged."""

    array: np.ndarray  # (channels, *space), in the file's own type
    format: str  # png, jpeg, tiff, bmp, npy, nifti or dicom


def decode(path: Path) -> Decoded:
    """Decode a file by its ending; a file without one may be DICOM by its first bytes."""
    name = path.name.lower()
    try:
        if not path.is_file():
            raise UnreadableInput(NOT_THERE)
        size = path.stat().st_size
        if size == 0:
            raise UnreadableInput("is an empty file")
        if size > MOST_BYTES:
            raise UnreadableInput(f"has {size:,} bytes; at most {MOST_BYTES:,} are read")
        if name.endswith(PICTURES):
            return _decode_picture(path)
        if name.endswith(".npy"):
            return Decoded(_decode_npy(path), "npy")
        if name.endswith(VOLUMES):
            return Decoded(_decode_nifti(path), "nifti")
        if name.endswith(DICOM) or says_dicom(path):
            return Decoded(_decode_dicom(path), "dicom")
    except UnreadableInput:
        raise
    except Exception as error:  # decoders raise errors of any kind on a damaged file
        raise UnreadableInput(f"cannot be read ({type(error).__name__}: {error})") from error
    raise UnreadableInput(f"has an unknown ending; known: {', '.join(ENDINGS)}")


def _refuse_huge(shape: tuple[int, ...]) -> None:
    if math.prod(map(int, shape)) > MOST_NUMBERS:
        raise UnreadableInput(f"announces {' x '.join(map(str, shape))} numbers; at most {MOST_NUMBERS:,} are read")


def _decode_picture(path: Path) -> Decoded:
    from PIL import Image

    with Image.open(path, formats=("PNG", "JPEG", "TIFF", "BMP")) as image:  # no other decoder is run
        kind, mode = str(image.format).lower(), image.mode
        if image.width * image.height > (Image.MAX_IMAGE_PIXELS or MOST_NUMBERS):
            raise UnreadableInput(f"announces {image.width} x {image.height} pixels, more than are read")
        if getattr(image, "is_animated", False):  # pages are not counted: there may be millions
            raise UnreadableInput("holds several pages; expected one picture")
        bits = image.tag_v2.get(258, (0,)) if kind == "tiff" else (0,)  # pyright: ignore[reportAttributeAccessIssue]
        if mode in ("P", "RGBA", "LA", "CMYK", "YCbCr", "1"):
            image = image.convert("RGB" if mode in ("P", "RGBA", "CMYK", "YCbCr") else "L")
        array = np.asarray(image)
    if mode == "I" and bits[0] == 16:  # Pillow widens 16-bit numbers; their range is that of the narrow type
        array = array.astype(np.int16)
    return Decoded(array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0), kind)


def _decode_npy(path: Path) -> np.ndarray:
    array = np.load(path, allow_pickle=False, mmap_mode="r")  # the header only; a file that is too short is refused
    if array.ndim not in (2, 3, 4):
        raise UnreadableInput(f"holds an array of shape {array.shape}; expected (H, W), (C, H, W) or (C, D, H, W)")
    _refuse_huge(array.shape)
    array = np.array(array)
    return array[None] if array.ndim == 2 else array


def _decode_nifti(path: Path) -> np.ndarray:
    from nibabel.arrayproxy import ArrayProxy

    header = nifti_header(path)
    shape = tuple(header.get_data_shape())
    while len(shape) > 3 and shape[-1] == 1:  # one time point
        shape = shape[:-1]
    if len(shape) != 3:
        raise UnreadableInput(f"holds {len(shape)} dimensions, {shape}; expected one volume of three")
    if not all(shape):
        raise UnreadableInput(f"holds no voxels: its shape is {shape}")
    _refuse_huge(shape)
    if not 0 <= header.get_data_offset() <= MOST_HEADER:  # in a compressed file, all before the voxels is unpacked too
        raise UnreadableInput(f"has its voxels at byte {header.get_data_offset()}; at most {MOST_HEADER:,} may precede")
    if header.get_data_dtype().kind not in "iuf":
        raise UnreadableInput(f"holds values of type {header.get_data_dtype()}; expected numbers")
    return np.asarray(ArrayProxy(str(path), header), dtype=np.float32).reshape(shape)[None]


def nifti_header(path: Path) -> Any:
    """The header without its extensions, whose announced sizes nibabel would not check."""
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as file:
        start = file.read(Nifti2Header.template_dtype.itemsize)
    for kind, place, magic in ((Nifti1Header, 344, b"n+1\0"), (Nifti2Header, 4, b"n+2\0")):
        if start[place : place + 4] == magic:
            return kind(start[: kind.template_dtype.itemsize])
    raise UnreadableInput("is no NIfTI file: its mark is missing")


def says_dicom(path: Path) -> bool:
    """Whether a file without an ending, as scanners export them, has the mark of DICOM."""
    if path.suffix and not path.suffix[1:].isdigit():  # 1.2.840.113619 is a name, not an ending
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _decode_dicom(path: Path) -> np.ndarray:
    """Values from 0 to 1 in the window of the file, or in its own units if it has a rescaling and no window."""
    try:
        import pydicom
        from pydicom.filereader import read_file_meta_info
        from pydicom.pixels.processing import apply_modality_lut, apply_voi, apply_windowing
    except ImportError:
        raise UnreadableInput(f"is DICOM, which needs pydicom: {DICOM_REMEDY}") from None
    if getattr(read_file_meta_info(path), "TransferSyntaxUID", "") == DEFLATED:
        raise UnreadableInput("is DICOM compressed as a whole (deflated), which is not read; save it in another way")
    file = pydicom.dcmread(path)
    if "PixelData" not in file:
        raise UnreadableInput("is DICOM without an image")
    frames, colours = int(file.get("NumberOfFrames", 1) or 1), int(file.SamplesPerPixel)
    shape = (frames, int(file.Rows), int(file.Columns), colours)
    _refuse_huge(shape)
    if len(file.PixelData) > 2 * math.prod(shape) * max(int(file.BitsAllocated) // 8, 1) + MOST_HEADER:
        raise UnreadableInput(f"holds {len(file.PixelData):,} bytes of image for {' x '.join(map(str, shape))} numbers")
    try:
        array = file.pixel_array
    except (RuntimeError, NotImplementedError) as error:
        raise UnreadableInput(
            f"is DICOM compressed as {file.file_meta.TransferSyntaxUID.name}, which could not be undone ({error}); "
            "try pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
        ) from error
    if colours > 1:
        if frames > 1:
            raise UnreadableInput(f"is DICOM of {frames} colour pictures; expected one picture or a grey volume")
        return np.moveaxis(array, -1, 0)
    values = apply_modality_lut(array, file)
    own_units = False
    if file.get("WindowCenter") is not None:
        # two appended values show what the window's dark and bright end become
        ends = np.array([-1e9, 1e9])
        with np.errstate(over="ignore"):  # of a sigmoid window
            windowed = apply_windowing(np.concatenate([np.asarray(values, dtype=np.float64).ravel(), ends]), file)
        low, high = windowed[-2:]
        values = ((windowed[:-2] - low) / (high - low)).reshape(array.shape)
    elif "VOILUTSequence" in file:
        values = apply_voi(values, file)
        values = values / float(2 ** int(file.VOILUTSequence[0].LUTDescriptor[2]) - 1)
    else:
        most = 2 ** int(file.BitsStored) - 1
        low = -(most + 1) / 2 * int(file.PixelRepresentation)  # of stored numbers
        own_units = not np.array_equal(values, array)
        values = np.asarray(values, dtype=np.float64) if own_units else (array - low) / most
    if file.get("PhotometricInterpretation") == "MONOCHROME1":  # its low values are bright
        turn = 1.0
        if own_units:
            turn = float(apply_modality_lut(np.array([0.0]), file)[0]) * 2 + float(file.RescaleSlope) * (2 * low + most)
        values = turn - values
    return np.asarray(values, dtype=np.float32)[None]
