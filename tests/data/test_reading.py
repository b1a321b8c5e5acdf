"""Files of every kind become the numbers that they hold, and what is done to them is what was declared."""

import io
import struct
import sys
import zlib

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.pixels import apply_voi_lut
from pydicom.uid import ExplicitVRLittleEndian

from phenogroups.data.decoding import UnreadableInput, decode
from phenogroups.data.reading import Reading, prepare, read_input

RAMP = np.arange(64).reshape(8, 8)


def write_dicom(path, array, **tags):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", "1.2.3"
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.Rows, file.Columns = array.shape[-3:-1] if array.ndim > 2 and array.shape[-1] == 3 else array.shape[-2:]
    colour = array.ndim > 2 and array.shape[-1] == 3
    file.SamplesPerPixel, file.PhotometricInterpretation = (3, "RGB") if colour else (1, "MONOCHROME2")
    if colour:
        file.PlanarConfiguration = 0
    elif array.ndim == 3:
        file.NumberOfFrames = len(array)
    file.BitsAllocated = 8 * array.dtype.itemsize
    file.BitsStored = tags.pop("BitsStored", file.BitsAllocated)
    file.HighBit, file.PixelRepresentation = file.BitsStored - 1, int(array.dtype.kind == "i")
    file.PixelData = array.tobytes()
    for name, value in tags.items():
        setattr(file, name, value)
    file.save_as(path, enforce_file_format=True)
    return path


@pytest.mark.parametrize("ending", ["png", "tif", "tiff"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_grey_pictures_keep_their_depth(tmp_path, ending, dtype):
    pixels = (RAMP * (np.iinfo(dtype).max // 63)).astype(dtype)
    Image.fromarray(pixels).save(tmp_path / f"a.{ending}")
    found = decode(tmp_path / f"a.{ending}")
    assert found.array.dtype == dtype
    assert found.format == {"png": "png"}.get(ending, "tiff")
    np.testing.assert_array_equal(found.array, pixels[None])
    np.testing.assert_allclose(
        read_input(tmp_path / f"a.{ending}", Reading()), pixels[None] / np.iinfo(dtype).max, rtol=1e-6
    )


@pytest.mark.parametrize("ending", ["png", "tif", "bmp"])
def test_colour_pictures(tmp_path, ending):
    pixels = np.stack([RAMP, RAMP * 2, RAMP * 3], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(decode(tmp_path / f"a.{ending}").array, np.moveaxis(pixels, -1, 0))


def test_jpeg(tmp_path):
    Image.fromarray((RAMP * 4).astype(np.uint8)).save(tmp_path / "a.jpeg", quality=95)
    assert abs(decode(tmp_path / "a.jpeg").array.astype(int) - RAMP * 4).max() < 12


@pytest.mark.parametrize("bits", [8, 16])
def test_colour_of_16_bits_keeps_its_range(tmp_path, bits):
    """Pillow reads 16 bits of colour as 8, which a network does not miss."""
    raw = np.stack([RAMP * 1000, RAMP * 500, 65535 - RAMP * 1000], axis=-1).astype(">u2")
    raw = raw if bits == 16 else (raw >> 8).astype(np.uint8)
    lines = b"".join(b"\0" + line.tobytes() for line in raw)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, bits, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(png)
    expected = np.moveaxis(raw.astype(float) / (2**bits - 1), -1, 0)
    np.testing.assert_allclose(read_input(tmp_path / "a.png", Reading()), expected, atol=1 / 255)


def test_signed_tiff_keeps_its_range(tmp_path):
    pixels = np.where(RAMP % 2, -RAMP * 100, RAMP * 100).astype("<i2")
    Image.fromarray(pixels.view(np.uint16)).save(tmp_path / "a.tif", tiffinfo={339: 2})
    np.testing.assert_array_equal(decode(tmp_path / "a.tif").array[0], pixels)


def test_dicom_is_rescaled_and_windowed(tmp_path):
    raw = (RAMP * 40).astype(np.uint16)
    tags = {"BitsStored": 12, "RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400}
    path = write_dicom(tmp_path / "a.dcm", raw, **tags)
    expected = np.clip((raw - 1024.0 - 39.5) / 399 + 0.5, 0, 1)  # DICOM PS3.3 C.11.2.1.2.1
    np.testing.assert_allclose(decode(path).array[0], expected, atol=1e-6)
    file = pydicom.dcmread(path)
    oracle = apply_voi_lut(raw - 1024.0, file)
    np.testing.assert_allclose(decode(path).array[0], (oracle + 1024) / 4095, atol=1e-6)
    assert 0 < expected.mean() < 1


def test_dicom_without_window(tmp_path):
    raw = (RAMP * 60).astype(np.uint16)
    plain = write_dicom(tmp_path / "a.dcm", raw, BitsStored=12)
    np.testing.assert_allclose(decode(plain).array[0], raw / 4095, atol=1e-6)
    units = write_dicom(tmp_path / "b.dcm", raw, BitsStored=12, RescaleSlope=2, RescaleIntercept=-1000)
    np.testing.assert_allclose(decode(units).array[0], raw * 2.0 - 1000)
    dark = write_dicom(tmp_path / "c.dcm", raw, BitsStored=12, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_allclose(decode(dark).array[0], 1 - raw / 4095, atol=1e-6)
    dark = write_dicom(
        tmp_path / "e.dcm", raw, BitsStored=12, RescaleSlope=2, RescaleIntercept=-1000,
        PhotometricInterpretation="MONOCHROME1",
    )  # fmt: skip
    np.testing.assert_allclose(decode(dark).array[0], (4095.0 - raw) * 2 - 1000)  # as if stored the other way round
    signed = write_dicom(tmp_path / "d.dcm", (RAMP * 60 - 2000).astype(np.int16), BitsStored=12)
    np.testing.assert_allclose(decode(signed).array[0], (RAMP * 60 - 2000 + 2048) / 4095, atol=1e-6)


def test_dicom_colour_volume_and_no_ending(tmp_path):
    colour = np.stack([RAMP, RAMP * 2, RAMP * 3], axis=-1).astype(np.uint8)
    np.testing.assert_array_equal(decode(write_dicom(tmp_path / "a.dcm", colour)).array, np.moveaxis(colour, -1, 0))
    volume = np.stack([RAMP, RAMP * 2]).astype(np.uint8)
    found = decode(write_dicom(tmp_path / "IM0001", volume))
    assert found.format == "dicom"
    np.testing.assert_allclose(found.array, volume[None] / 255, rtol=1e-6)


def test_dicom_without_pydicom_says_what_to_install(tmp_path, monkeypatch):
    path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint8))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UnreadableInput, match=r"pip install 'phenogroups\[dicom\]'"):
        decode(path)


def test_one_time_point_is_a_volume(tmp_path):
    volume = np.random.default_rng(0).random((3, 4, 5, 1)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "a.nii.gz")
    np.testing.assert_allclose(decode(tmp_path / "a.nii.gz").array, volume[None, ..., 0])


def npy_bomb(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (100000, 1000000)})
    path = path / "a.npy"
    path.write_bytes(header.getvalue())
    return path


def npy_huge(path):
    """As large as it says, but sparse on disk."""
    path = path / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (2**15, 2**14)})
        file.truncate(file.tell() + 2**29)
    return path


def nifti_bomb(path):
    image = nibabel.Nifti1Image(np.zeros((2, 2, 2), dtype=np.float32), np.eye(4))
    raw = bytearray(image.to_bytes())
    raw[40:56] = struct.pack("<8h", 3, 32000, 32000, 32000, 1, 1, 1, 1)
    (path / "a.nii").write_bytes(bytes(raw))
    return path / "a.nii"


def png_bomb(path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 12000, 12000, 8, 0, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    (path / "a.png").write_bytes(png)
    return path / "a.png"


def dicom_bomb(path):
    return write_dicom(path / "a.dcm", RAMP.astype(np.uint8), Rows=60000, Columns=60000)


@pytest.mark.parametrize("bomb", [npy_bomb, npy_huge, nifti_bomb, png_bomb, dicom_bomb])
def test_absurd_headers_are_refused_before_memory_is_taken(tmp_path, bomb):
    path = bomb(tmp_path)
    with pytest.raises(UnreadableInput, match=r"announces|cannot be read"):
        decode(path)


def test_no_code_runs_from_a_file(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UnreadableInput, match="cannot be read"):
        decode(tmp_path / "a.npy")


def test_frame_crops_and_pads_about_the_centre():
    volume = np.random.default_rng(0).normal(size=(1, 7, 4, 3)).astype(np.float32)
    framed = prepare(volume, Reading(frame=(4, 4, 6)))
    assert framed.shape == (1, 4, 4, 6)
    np.testing.assert_array_equal(framed[..., 1:4], volume[:, 1:5])
    assert (framed[..., [0, 4, 5]] == volume.min()).all()
    brain = prepare(np.random.default_rng(0).random((1, 121, 145, 121)).astype(np.float32), Reading(frame=(128,) * 3))
    assert brain.shape == (1, 128, 128, 128)


def test_imagenet_statistics():
    grey = (RAMP * 4).astype(np.uint8)[None]
    seen = prepare(grey, Reading(intensity="imagenet", size=(16, 16), frame=(20, 20)))
    assert seen.shape == (3, 20, 20)
    np.testing.assert_allclose(seen[1].min(), (0 - 0.456) / 0.224, rtol=1e-5)
    exact = prepare(grey, Reading(intensity="imagenet"))
    np.testing.assert_allclose(exact[2], (grey[0] / 255 - 0.406) / 0.225, rtol=1e-4, atol=1e-5)
    units = prepare((RAMP * 50.0 - 1000)[None], Reading(intensity="imagenet"))
    np.testing.assert_allclose(units[0], (RAMP / 63 - 0.485) / 0.229, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"intensity": "imagenet", "channels": 1},
        {"intensity": "wild"},
        {"size": (0, 3)},
        {"frame": (3,)},
        {"channels": 0},
    ],
)
def test_a_reading_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="Expected"):
        Reading(**wrong)


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path):
    picture, volume = (RAMP * 4).astype(np.uint8), np.random.default_rng(0).random((4, 4, 4)).astype(np.float32)
    for ending in ("png", "jpeg", "tif", "bmp"):
        Image.fromarray(picture).save(tmp_path / f"a.{ending}")
    np.save(tmp_path / "a.npy", volume)
    for ending in ("nii", "nii.gz"):
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / f"a.{ending}")
    write_dicom(tmp_path / "a.dcm", picture, WindowCenter=100, WindowWidth=50)
    rng = np.random.default_rng(0)
    refused = 0
    for path in sorted(tmp_path.iterdir()):
        whole = np.frombuffer(path.read_bytes(), np.uint8)
        for attempt in range(60):
            spoilt = whole.copy()
            spoilt[rng.integers(0, min(len(whole), 400), 3)] = rng.integers(0, 256, 3)
            path.write_bytes(spoilt[: rng.integers(1, len(whole))].tobytes() if attempt % 2 else spoilt.tobytes())
            try:
                assert prepare(decode(path).array, Reading(size=None)).dtype == np.float32
            except UnreadableInput:
                refused += 1
    assert refused > 200
