"""Properties of images: each measures what its name says, from headers, arrays and rows on disk alike."""

import nibabel
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from phenogroups.data.cohort import Cohort
from phenogroups.data.opening import open_cohort
from phenogroups.data.properties import OF_FILES, OF_NUMBERS, WORDS, file_properties, pixel_properties
from phenogroups.data.reading import ImagePath
from phenogroups.evaluation.confounds import associations, followed, warnings


def plain(count=4, channels=1, side=32, seed=0):
    """Noise around 0.5 with a bright square in the middle."""
    images = 0.5 + np.random.default_rng(seed).normal(0, 0.02, (count, channels, side, side))
    images[..., side // 4 : -side // 4, side // 4 : -side // 4] += 0.2
    return images.astype(np.float32)


def blurred(images):
    return (images + np.roll(images, 1, -1) + np.roll(images, 1, -2) + np.roll(images, 2, -1)) / 4


def clipped(images, value):
    images = images.copy()
    images[..., :6, :] = value
    return images


CHANGES = {
    "image_brightness": lambda x: x + 0.1,
    "image_contrast": lambda x: 0.6 + (x - 0.6) * 1.3,
    "image_near_black": lambda x: clipped(x, 0.0),
    "image_near_white": lambda x: clipped(x, 1.0),
    "image_sharpness": lambda x: x + 0.03 * (np.arange(32) % 2 - 0.5),
    "image_noise": lambda x: x + np.random.default_rng(9).normal(0, 0.03, x.shape),
    "image_red": lambda x: x + np.array([0.1, 0, -0.1]).reshape(3, 1, 1),
    "image_blue": lambda x: x + np.array([-0.1, 0, 0.1]).reshape(3, 1, 1),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_each_property_measures_what_it_says(name):
    images = plain(channels=3)
    before, after = pixel_properties(images), pixel_properties(CHANGES[name](images).astype(np.float32))
    assert (after[name] > before[name]).all()


def test_numbers_by_hand():
    grey = np.zeros((1, 1, 24, 24), np.float32)
    grey[..., :12] = 1
    found = pixel_properties(grey).iloc[0]
    assert found["image_brightness"] == 0.5
    assert found["image_contrast"] == 0.5
    assert found["image_near_black"] == found["image_near_white"] == 0.5
    assert found["image_sharpness"] == pytest.approx(24 / (24 * 23) / 0.5)  # one step of 1 in each of 24 lines
    assert found["image_noise"] == 0  # an edge along an axis is no noise
    noisy = 0.5 + np.random.default_rng(0).normal(0, 0.1, (1, 1, 96, 96))
    assert pixel_properties(noisy.astype(np.float32))["image_noise"][0] == pytest.approx(0.1, rel=0.05)


def test_blur_is_less_sharp_whatever_the_contrast():
    images = plain()
    sharp = pixel_properties(images)["image_sharpness"]
    assert (pixel_properties(blurred(images))["image_sharpness"] < sharp).all()
    np.testing.assert_allclose(pixel_properties(0.3 * images + 0.2)["image_sharpness"], sharp, rtol=1e-4)


def test_whole_numbers_volumes_units_and_small_images():
    images = plain()
    whole = pixel_properties((images * 255).round().astype(np.uint8))
    pd.testing.assert_frame_equal(whole, pixel_properties(images), atol=0.004, rtol=0.02)
    volume = np.random.default_rng(0).random((2, 1, 40, 40, 40)).astype(np.float32)
    other = pixel_properties(1000 * volume - 400)  # units of a scanner
    np.testing.assert_allclose(
        other["image_brightness"], 1000 * pixel_properties(volume)["image_brightness"] - 400, rtol=1e-5
    )
    np.testing.assert_allclose(other["image_near_black"], 0.02, atol=0.01)
    assert "image_noise" not in pixel_properties(plain(side=16))  # so coarse that neighbours differ by what is shown
    assert pixel_properties(np.zeros((5, 3))).shape == (5, 0)


def test_headers_tell_size_and_spacing(tmp_path):
    Image.new("L", (30, 20)).save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", np.zeros((3, 10, 40)))
    volume = nibabel.Nifti1Image(np.zeros((8, 10, 12), np.float32), np.diag([2.0, 3.0, 4.5, 1]))
    nibabel.save(volume, tmp_path / "c.nii.gz")
    (tmp_path / "d.png").write_bytes(b"broken")
    found = file_properties([ImagePath(name, tmp_path) for name in ("a.png", "b.npy", "c.nii.gz", "d.png")])
    assert found.iloc[0].dropna().to_dict() == {"image_width": 30, "image_height": 20, "image_aspect": 1.5}
    assert found.iloc[1].dropna().to_dict() == {"image_width": 40, "image_height": 10, "image_aspect": 4}
    of_volume = found.iloc[2]
    assert (of_volume["image_depth"], of_volume["image_height"], of_volume["image_width"]) == (8, 10, 12)
    assert of_volume["image_voxel_size"] == pytest.approx(3)  # the side of a cube of 27 cubic mm
    assert of_volume["image_field_of_view"] == pytest.approx((16 * 30 * 54) ** (1 / 3))
    assert found.iloc[3].isna().all()


def test_a_cohort_in_memory_on_disk_and_in_part_has_the_same_properties(tmp_path):
    images = plain(12, seed=1)
    for i, image in enumerate(images[:, 0]):
        picture = Image.fromarray((255 * image).clip(0, 255).astype(np.uint8)).resize((40 + i, 40))
        picture.save(tmp_path / f"{i}.png")
    rows = pd.DataFrame({"image": [f"{i}.png" for i in range(12)], "diagnosis": np.arange(12) % 2})
    asked = {"image": "image"}
    read = {"size": (32, 32)}
    cohort = open_cohort(rows.astype(str), asked, read, folder=tmp_path)
    stored = open_cohort(rows.astype(str), asked, read, cache=tmp_path / "cache", folder=tmp_path)
    assert not isinstance(stored.inputs, np.ndarray)
    pd.testing.assert_frame_equal(stored.image_properties, cohort.image_properties)
    assert cohort.image_properties["image_width"].tolist() == [40.0 + i for i in range(12)]
    some = cohort[[7, 3]]
    pd.testing.assert_frame_equal(some.image_properties, cohort.image_properties.iloc[[7, 3]].reset_index(drop=True))
    assert "image_brightness" in Cohort(images, np.arange(12) % 2).image_properties


def planted(name, *, in_controls=True, count=400, seed=0):
    """A cohort whose subgroups are one property of the images; controls have it too, or not."""
    ill, second = np.arange(count) % 2, np.arange(count) // 2 % 2
    changed = (second == 1) & (in_controls | (ill == 1))
    images = plain(count, channels=3, seed=seed)
    files = pd.DataFrame({"image_width": 300.0 + np.random.default_rng(seed).integers(0, 9, count)})
    if name in OF_NUMBERS:
        images[changed] = CHANGES[name](images[changed])
    else:
        files[name] = 100.0 + np.random.default_rng(seed + 1).integers(0, 9, count) + 50 * changed
    q = np.where(ill[:, None] == 1, np.eye(2)[second], 0.5)
    return Cohort(images, ill, files=files), q


@pytest.mark.parametrize("name", WORDS)
def test_a_planted_property_is_warned_of_in_words(name):
    cohort, q = planted(name)
    table = associations(q, cohort.diagnosis, cohort.covariates, images=cohort.image_properties)
    found = followed(table)
    assert all(one.artefact for one in found)
    assert any(WORDS[name][0] in one.words or WORDS[name][1] in one.words for one in found)
    assert "it is likely how the picture was taken and not the disease" in found[0].words
    assert set(OF_FILES) | set(OF_NUMBERS) >= set(table["covariate"])


def test_what_controls_do_not_have_may_be_the_disease():
    cohort, q = planted("image_brightness", in_controls=False)
    (one,) = followed(associations(q, cohort.diagnosis, cohort.covariates, images=cohort.image_properties))
    assert not one.artefact
    assert one.name == "the brightness of the images"
    assert one.words.startswith("The images of subgroup A are darker: this is true in 100% of all pairs of")
    assert "may be the disease itself" in one.words


def test_a_covariate_with_the_name_of_a_property_is_tested_once():
    cohort, q = planted("image_brightness")
    covariates = cohort.image_properties[["image_brightness"]]
    table = associations(q, cohort.diagnosis, covariates, images=cohort.image_properties)
    assert (table["covariate"] == "image_brightness").sum() == 2  # among patients and among controls
    assert any("Subgroups follow image_brightness" in said for said in warnings(table))


def test_properties_that_subgroups_do_not_follow_are_not_warned_of_and_cost_covariates_no_power():
    cohort, _ = planted("image_brightness")
    other = np.where(cohort.diagnosis[:, None] == 1, np.eye(2)[np.arange(400) // 4 % 2], 0.5)
    covariates = pd.DataFrame({"age": np.arange(400) // 4 % 2 + np.random.default_rng(0).normal(0, 1.2, 400)})
    with_images = associations(other, cohort.diagnosis, covariates, images=cohort.image_properties)
    alone = associations(other, cohort.diagnosis, covariates)
    assert not [said for said in warnings(with_images) if "images" in said]
    of_age = with_images[with_images["source"] == "covariate"].reset_index(drop=True)
    pd.testing.assert_series_equal(of_age["p_corrected"], alone["p_corrected"], atol=0.01)
