"""Augmentations against scipy, torch.rot90 and plain arithmetic."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy import ndimage

from phenogroups.data.augment import (
    AUGMENTATIONS,
    Augmentation,
    affine_matrices,
    blur,
    dilate,
    erode,
    resolve_augmentation,
    warp,
)

IMAGES, VOLUMES = (6, 2, 12, 12), (6, 2, 8, 8, 8)


def _moved(x, fill="zeros", **given):
    """`x` under given parameters, the same for each sample; the others at rest."""
    n, d = len(x), x.ndim - 2
    rest = {"angles": [0.0] * (d * (d - 1) // 2), "scales": [1.0] * d, "shifts": [0.0] * d, "centres": [0.0] * d}
    rest["shears"] = rest["angles"]
    parameters = {name: torch.tensor([values] * n) for name, values in (rest | given).items()}
    return warp(x, affine_matrices(tuple(x.shape[2:]), **parameters), fill)


def _close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("shape", [IMAGES, VOLUMES, (3, 1, 7, 10)])
def test_at_rest_nothing_moves(shape):
    x = torch.randn(shape)
    _close(_moved(x), x)
    _close(_moved(x, fill="border"), x)
    assert Augmentation()(x) is x


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_rotation_is_rot90(quarters):
    x = torch.randn(IMAGES)
    _close(_moved(x, angles=[90.0 * quarters]), torch.rot90(x, quarters, (2, 3)))


@pytest.mark.parametrize(("plane", "axes"), [(0, (3, 4)), (1, (2, 4)), (2, (2, 3))])
def test_rotation_of_a_volume_is_rot90_in_each_plane(plane, axes):
    x = torch.randn(VOLUMES)
    angles = [0.0, 0.0, 0.0]
    angles[plane] = 90.0
    _close(_moved(x, angles=angles), torch.rot90(x, 1, axes))


def test_rotation_keeps_proportions_when_sides_differ():
    x = torch.zeros(1, 1, 9, 21)
    x[..., 4, 8:13] = 1  # a bar of 5 x 1 around the centre
    upright = torch.zeros_like(x)
    upright[..., 2:7, 10] = 1
    _close(_moved(x, angles=[90.0]), upright)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_flips_mirror_their_axis(axis):
    x = torch.randn(VOLUMES)
    scales = [1.0, 1.0, 1.0]
    scales[axis] = -1.0
    mirrored = x.flip(4 - axis)  # x, y, z are the last axis first
    _close(_moved(x, scales=scales), mirrored)
    name = ("horizontal_flip", "vertical_flip", "depth_flip")[axis]
    _close(Augmentation(**{name: 1.0})(x), mirrored)
    if axis < 2:
        _close(Augmentation(**{name: 1.0})(x[..., 0, :, :]), x[..., 0, :, :].flip(3 - axis))


def test_translation_moves_the_content_right_and_down():
    x = torch.zeros(1, 1, 10, 10)
    x[..., 2, 3] = 1
    assert _moved(x, shifts=[0.2, 0.1])[0, 0].argmax() == 3 * 10 + 5
    assert (_moved(x + 1, shifts=[0.5, 0.0])[..., :5] == 0).all()
    assert (_moved(x + 1, fill="border", shifts=[0.5, 0.0])[..., :5] >= 1).all()


def test_shear_slides_rows():
    x = torch.zeros(1, 1, 9, 9)
    x[..., 4] = 1
    sheared = _moved(x, shears=[45.0])[0, 0]
    _close(sheared, torch.eye(9).flip(1))


def test_one_warp_equals_scipys_affine_transform():
    image = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(15, 15)), 1)
    angle, size, shift = np.deg2rad(20), 0.8, np.array([0.1, -0.06]) * 15  # shift: x, y in pixels
    turn = size * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # in rows, columns
    centre = np.array([7.0, 7.0])
    expected = ndimage.affine_transform(image, turn, centre - turn @ (centre + shift[::-1]), order=1)
    moved = _moved(torch.tensor(image)[None, None], angles=[20.0], scales=[size, size], shifts=[0.1, -0.06])
    inner = (slice(4, 11), slice(4, 11))  # scipy and grid_sample fade out differently at the edge
    np.testing.assert_allclose(moved[0, 0].numpy()[inner], expected[inner], atol=1e-5)


@pytest.mark.parametrize("shape", [(300, 1, 16, 16), (100, 1, 8, 8, 8)])
def test_a_crop_stays_inside_and_keeps_its_share(shape):
    d = len(shape) - 2
    matrices = Augmentation(crop=1.0, crop_scale=(0.5, 0.8))._draw_matrices(torch.zeros(shape))
    kept = matrices[:, :, :d].diagonal(dim1=1, dim2=2)
    share = kept.prod(dim=1)
    assert share.min() >= 0.5 - 1e-5
    assert share.max() <= 0.8 + 1e-5
    assert share.std() > 0.05
    assert (matrices[:, :, d].abs() + kept <= 1 + 1e-6).all()
    half = Augmentation(crop=0.5, crop_scale=(0.5, 0.5))._draw_matrices(torch.zeros(shape))[:, 0, 0] < 1
    assert 0.3 < half.float().mean() < 0.7


@pytest.mark.parametrize("shape", [(3, 2, 9, 11), (2, 1, 6, 7, 8)])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_erosion_and_dilation_are_scipys(shape, size):
    x = torch.randn(shape)
    window = (1, 1, *[size] * (len(shape) - 2))
    np.testing.assert_array_equal(erode(x, size).numpy(), ndimage.grey_erosion(x.numpy(), size=window))
    np.testing.assert_array_equal(dilate(x, size).numpy(), ndimage.grey_dilation(x.numpy(), size=window))


def test_strokes_become_thinner_or_bolder_with_the_chance_asked_for():
    x = torch.zeros(400, 1, 16, 16)
    x[..., 4:12, 4:12] = 1
    area = Augmentation(dilation=0.4)(x).sum(dim=(1, 2, 3))
    assert set(area.tolist()) == {64.0, 81.0, 100.0}
    assert 0.3 < (area > 64).float().mean() < 0.5
    assert set(Augmentation(erosion=1.0)(x).sum(dim=(1, 2, 3)).tolist()) == {49.0, 36.0}


def test_a_thin_stroke_survives_dilation_with_erosion():
    """Eroded first, it would be gone before it could be made bolder."""
    x = torch.zeros(50, 1, 16, 16)
    x[..., 8, 3:13] = 1
    assert torch.equal(Augmentation(dilation=1, erosion=1, kernel=(3, 3))(x), x)


def test_one_kernel_can_be_drawn_for_all():
    x = torch.zeros(200, 1, 16, 16)
    x[..., 4:12, 4:12] = 1
    areas = [Augmentation(dilation=1, kernel_seed=seed)(x).sum(dim=(1, 2, 3)).unique().tolist() for seed in range(20)]
    assert all(len(of_seed) == 1 for of_seed in areas)
    assert {area for (area,) in areas} == {81.0, 100.0}
    pairs = set()  # of dilation and of erosion, each drawn for itself
    for seed in range(20):
        made = [Augmentation(**{name: 1.0}, kernel_seed=seed)(x)[0].sum().item() for name in ("dilation", "erosion")]
        pairs.add(tuple(made))
    assert len(pairs) == 4
    assert AUGMENTATIONS["digits_morpho"].kernel_seed is not None


def test_a_random_resized_crop_is_torchvisions():
    """Area of 0.08 to 1 and width over height of 3/4 to 4/3 in pixels, all of it inside the picture."""
    plain = dataclasses.replace(AUGMENTATIONS["xray_crop"], rotation=0, translation=0, horizontal_flip=0)
    matrices = plain._draw_matrices(torch.zeros(4000, 1, 64, 96))
    width, height = matrices[:, 0, 0], matrices[:, 1, 1]
    assert 0.08 <= (width * height).min() < 0.1
    assert 0.85 < (width * height).max() < 8 / 9  # all of the height of this wide picture, and 4/3 of it in width
    ratio = width * 96 / (height * 64)
    assert 0.75 - 1e-4 < ratio.min() < 0.78
    assert 1.29 < ratio.max() < 4 / 3 + 1e-4
    assert (matrices[:, :, 2].abs() + matrices[:, :, :2].diagonal(dim1=1, dim2=2) <= 1 + 1e-5).all()


def test_published_digits_turn_in_two_steps_by_the_nearest_pixel_and_black_beyond_the_edge():
    augment = dataclasses.replace(AUGMENTATIONS["digits_paper"], translation=0, shear=0)
    x = torch.zeros(3000, 1, 65, 65)
    x[..., 32, 32:] = torch.linspace(0.5, 1, 33)  # a pointer from the middle to the right
    seen = augment(x)
    assert {*seen.unique().tolist()} <= {0.0, *x.unique().tolist()}
    rows, columns = torch.meshgrid(torch.arange(65.0) - 32, torch.arange(65.0) - 32, indexing="ij")
    far = (seen[:, 0] > 0) & (rows.square() + columns.square() > 400)
    degrees = torch.atan2((far * rows).sum((1, 2)), (far * columns).sum((1, 2))).rad2deg()
    assert 36 < degrees.abs().max() < 41
    assert 15.5 < degrees.std() < 18  # of two uniform draws, 25 and 15: 16.8; of a single one of 25: 14.4


@pytest.mark.parametrize("shape", [(3, 2, 9, 11), (3, 1, 6, 7, 8)])
def test_blur_is_scipys_with_each_samples_sigma(shape):
    x, sigma = torch.randn(shape, dtype=torch.float64), torch.tensor([0.4, 1.0, 2.0])
    for radius in (1, 2):
        blurred = blur(x, sigma, radius)
        for i, s in enumerate(sigma.tolist()):
            wide = (0, *[s] * (len(shape) - 2))
            expected = ndimage.gaussian_filter(x[i].numpy(), wide, mode="nearest", radius=radius)
            np.testing.assert_allclose(blurred[i].numpy(), expected, atol=1e-6)
    _close(blur(x, torch.zeros(3), 1), x)


def test_noise_is_measured_in_deviations_of_the_image():
    x = torch.randn(200, 1, 16, 16) * 50
    noise = (Augmentation(noise=0.5, noise_sigma=(0.1, 0.1))(x) - x).flatten(1).std(1) / x.flatten(1).std(1)
    hit = noise > 0
    assert 0.35 < hit.float().mean() < 0.65
    assert (noise[hit] - 0.1).abs().max() < 0.02


@pytest.mark.parametrize(("shape", "area"), [((200, 2, 16, 20), 4 * 5), ((200, 1, 8, 8, 8), 2**3)])
def test_cutout_hides_one_box(shape, area):
    hidden = Augmentation(cutout=0.5)(torch.ones(shape)) == 0
    assert torch.equal(hidden[:, 0], hidden[:, -1])
    sizes = hidden[:, 0].flatten(1).sum(1)
    assert set(sizes.tolist()) == {0, area}
    assert 0.25 < (sizes > 0).float().mean() < 0.75
    for axis in range(2, len(shape)):  # every row of every axis is reached by somebody
        assert hidden.movedim(axis, 0).flatten(1).any(dim=1).all()


def test_features_take_noise_and_dropout_in_their_own_units():
    x = torch.randn(500, 3) * torch.tensor([1.0, 1000.0, 0.0]) + 7
    noise = Augmentation(noise=1.0, noise_sigma=(0.1, 0.1))(x) - x
    torch.testing.assert_close(
        noise.std(0) / torch.tensor([1.0, 1000.0, 1.0]), torch.tensor([0.1, 0.1, 0.0]), rtol=0.2, atol=0
    )
    dropped = Augmentation(cutout=1.0, cutout_size=0.3)(x)
    changed = dropped != x
    assert 0.25 < changed[:, :2].float().mean() < 0.35
    torch.testing.assert_close(dropped[:, 1][changed[:, 1]], x[:, 1].mean().expand(int(changed[:, 1].sum())))


EVERYTHING = Augmentation(
    rotation=30, translation=0.1, zoom=0.2, shear=5, horizontal_flip=0.5, vertical_flip=0.5, crop=0.5, erosion=0.5,
    dilation=0.5, blur=0.5, noise=0.5, cutout=0.5,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [IMAGES, VOLUMES, (1, 1, 3, 5)])
@pytest.mark.parametrize("fill", ["border", "zeros"])
def test_everything_at_once_keeps_shape_type_and_sense(shape, dtype, fill):
    augment = dataclasses.replace(EVERYTHING, fill=fill)
    x = torch.randn(shape).to(dtype)
    before = x.clone()
    first = augment(x)
    assert first.shape == x.shape
    assert first.dtype == dtype
    assert first.isfinite().all()
    assert torch.equal(x, before)  # the batch given is left alone
    assert augment(torch.zeros_like(x)).isfinite().all()


def test_the_seed_decides_and_samples_are_independent():
    x = torch.randn(1, 1, 12, 12).repeat(8, 1, 1, 1)
    torch.manual_seed(1)
    first = EVERYTHING(x)
    torch.manual_seed(1)
    assert torch.equal(first, EVERYTHING(x))
    assert len({tuple(image.flatten().tolist()) for image in first}) == 8
    other = x.clone()
    other[3:] = torch.randn(5, 1, 12, 12)
    torch.manual_seed(1)
    torch.testing.assert_close(EVERYTHING(other)[:3], first[:3], rtol=0, atol=1e-6)


def test_rotations_fill_their_range():
    matrices = Augmentation(rotation=25.0)._draw_matrices(torch.zeros(2000, 1, 8, 8))
    degrees = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0]).rad2deg()
    assert -25.01 < degrees.min() < -24
    assert 24 < degrees.max() < 25.01
    assert degrees.mean().abs() < 1.5


def test_volumes_are_mirrored_and_not_smoothed():
    x = torch.rand(VOLUMES)
    mirrored = x.flip(2)
    for seen, plain, other in zip(dataclasses.replace(AUGMENTATIONS["volumes"], noise=0)(x), x, mirrored, strict=True):
        assert min((seen - plain).abs().max(), (seen - other).abs().max()) < 1e-5


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_presets_run_and_survive_json(name):
    augment = resolve_augmentation(name)
    shape = {"features": (4, 5), "brain": VOLUMES, "volumes": VOLUMES}.get(name, IMAGES)
    x = torch.randn(shape)
    assert augment(x).shape == x.shape
    assert augment(x).isfinite().all()
    assert Augmentation(**json.loads(json.dumps(dataclasses.asdict(augment)))) == augment
    assert resolve_augmentation(augment) is augment


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: resolve_augmentation("wild"), "among none, digits.*Received: 'wild'"),
        (lambda: Augmentation(blur=2.0), "between 0 and 1 for blur. Received: 2.0"),
        (lambda: Augmentation(rotation=5.0)(torch.zeros(3, 4)), "features. Received: rotation. Choose"),
        (lambda: Augmentation(depth_flip=0.5)(torch.zeros(3, 1, 4, 4)), "Expected volumes for depth_flip"),
        (lambda: Augmentation()(torch.zeros(3, 1, 4, 4, dtype=torch.uint8)), r"Received: torch.uint8.*\.float\(\)"),
        (lambda: Augmentation(crop_ratio=(0.5, 2))(torch.zeros(VOLUMES)), r"Expected crop_ratio \(1, 1\) for volumes"),
        (lambda: Augmentation()(torch.zeros(3, 4, 4)), r"Received.*\(3, 4, 4\)"),
    ],
)
def test_a_wrong_setting_is_explained(act, message):
    with pytest.raises(ValueError, match=message):
        act()
