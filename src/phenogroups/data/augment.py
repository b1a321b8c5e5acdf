"""Batched augmentation on the device of the batch, of images, volumes and features."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

FLIPS = ("horizontal_flip", "vertical_flip", "depth_flip")  # along x, y, z: the last axis first
CROPS_TRIED = 10  # as torchvision's RandomResizedCrop
WARPS = ("rotation", "translation", "zoom", "shear", *FLIPS, "crop")
SHARES = ("translation", "zoom", *FLIPS, "crop", "erosion", "dilation", "blur", "noise", "cutout", "cutout_size")


@dataclass(frozen=True)
class Augmentation:
    """Random changes of an input, drawn for every sample from torch's generator; by default none."""

    first_rotation: float = 0.0  # degrees: a rotation of its own, interpolated before all other movements
    rotation: float = 0.0  # degrees: drawn from +- this, in every plane of the space
    translation: float = 0.0  # share of each side: drawn from +- this
    zoom: float = 0.0  # size is multiplied by 1 +- this
    shear: float = 0.0  # degrees, as in torchvision: drawn from +- this, in every plane
    horizontal_flip: float = 0.0  # probability of mirroring the last axis
    vertical_flip: float = 0.0  # probability of mirroring the last axis but one
    depth_flip: float = 0.0  # probability of mirroring the first axis of a volume (left-right in NIfTI)
    crop: float = 0.0  # probability of a random crop, resized to the full size
    crop_scale: tuple[float, float] = (0.75, 1.0)  # share of the area or volume that a crop keeps: from, to
    crop_ratio: tuple[float, float] = (1.0, 1.0)  # width over height of the crop of an image: from, to
    fill: Literal["border", "zeros"] = "border"  # values beyond the edge; zeros are grey if images are standardised
    interpolation: Literal["linear", "nearest"] = "linear"
    dilation: float = 0.0  # probability of bolder strokes
    erosion: float = 0.0  # probability of thinner strokes; after dilation, so that thin strokes survive
    kernel: tuple[int, int] = (2, 3)  # pixels a side of dilation and erosion: from, to
    kernel_seed: int | None = None  # seed of one kernel of dilation and one of erosion for all samples; None: one each
    blur: float = 0.0  # probability of a Gaussian blur
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # pixels: from, to (torchvision's default)
    blur_radius: int = 1  # pixels: the kernel has 2 radius + 1
    noise: float = 0.0  # probability of Gaussian noise
    noise_sigma: tuple[float, float] = (0.1, 1.0)  # deviations of the image, or of the feature in the batch: from, to
    cutout: float = 0.0  # probability of a patch set to 0, or of features set to their mean in the batch
    cutout_size: float = 0.25  # share of each side, or of the features

    def __post_init__(self) -> None:
        for name in ("crop_scale", "crop_ratio", "kernel", "blur_sigma", "noise_sigma"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected a number between 0 and 1 for {name}. Received: {getattr(self, name)}.")

    def __call__(self, x: Tensor) -> Tensor:
        """A new batch like `x`: (n, channels, *space) or (n, features), floating."""
        self._validate(x)
        if self.first_rotation:
            turn = Augmentation(rotation=self.first_rotation)
            x = warp(x, turn._draw_matrices(x), self.fill, self.interpolation)
        if any(getattr(self, name) for name in WARPS):
            x = warp(x, self._draw_matrices(x), self.fill, self.interpolation)
        for place, (chance, operate) in enumerate(((self.dilation, dilate), (self.erosion, erode))):
            if chance:
                x = self._change_strokes(x, chance, operate, place)
        if self.blur:
            blurred = blur(x, _draw(x, self.blur_sigma), self.blur_radius)
            x = torch.where(_broadcast(_bernoulli(x, self.blur), x), blurred, x)
        if self.noise:
            deviation = x.std(0, correction=0) if x.ndim == 2 else _broadcast(x.flatten(1).std(1, correction=0), x)
            sigma = torch.where(_bernoulli(x, self.noise), _draw(x, self.noise_sigma), 0.0).to(x.dtype)
            x = x + torch.randn_like(x) * deviation * _broadcast(sigma, x)
        if self.cutout:
            # features are not yet standardised, so that their mean is neutral and 0 is not
            hidden = _broadcast(_bernoulli(x, self.cutout), x) & self._draw_patches(x)
            x = torch.where(hidden, x.mean(0) if x.ndim == 2 else 0.0, x)
        return x

    def _validate(self, x: Tensor) -> None:
        if x.ndim not in (2, 4, 5) or not x.is_floating_point():
            raise ValueError(
                "Expected floating numbers (n, features), (n, channels, H, W) or (n, channels, D, H, W). "
                f"Received: {x.dtype} of shape {tuple(x.shape)}. Reshape it, or call .float() on it."
            )
        for_images = [name for name in ("first_rotation", *WARPS, "erosion", "dilation", "blur") if getattr(self, name)]
        if x.ndim == 2 and for_images:
            raise ValueError(
                f"Expected only noise and cutout for features. Received: {', '.join(for_images)}. "
                "Choose the augmentation 'features' or 'none'."
            )
        if x.ndim == 4 and self.depth_flip:
            raise ValueError("Expected volumes for depth_flip. Received: images. Use horizontal_flip or vertical_flip.")
        if x.ndim == 5 and self.crop_ratio != (1, 1):
            raise ValueError(f"Expected crop_ratio (1, 1) for volumes. Received: {self.crop_ratio}. Leave it out.")

    def _change_strokes(self, x: Tensor, chance: float, operate: Callable[[Tensor, int], Tensor], place: int) -> Tensor:
        low, high = self.kernel
        changed = _bernoulli(x, chance)
        if self.kernel_seed is None:
            sizes = torch.randint(low, high + 1, (len(x),), device=x.device)
        else:
            generator = torch.Generator().manual_seed(self.kernel_seed)
            sizes = torch.randint(low, high + 1, (2,), generator=generator)[place].to(x.device)
        sizes = torch.where(changed, sizes, 1)
        for size in range(max(low, 2), high + 1):
            x = torch.where(_broadcast(sizes == size, x), operate(x, size), x)
        return x

    def _draw_patches(self, x: Tensor) -> Tensor:
        """(n, 1, *space): True inside one box per sample; (n, features): True for a share of them."""
        if x.ndim == 2:
            return torch.rand_like(x) < self.cutout_size
        inside = torch.ones_like(x[:, :1], dtype=torch.bool)
        for axis, side in enumerate(x.shape[2:]):
            patch = min(side, max(1, round(self.cutout_size * side)))
            start = torch.randint(0, side - patch + 1, (len(x), 1), device=x.device)
            offset = torch.arange(side, device=x.device) - start
            shape = [side if i == axis else 1 for i in range(x.ndim - 2)]
            inside &= ((offset >= 0) & (offset < patch)).view(len(x), 1, *shape)
        return inside

    def _draw_matrices(self, x: Tensor) -> Tensor:
        d = x.ndim - 2
        planes = d * (d - 1) // 2
        mirror = torch.stack([1 - 2 * _bernoulli(x, getattr(self, name)).float() for name in FLIPS[:d]], dim=1)
        kept = self._draw_crops(x)
        return affine_matrices(
            x.shape[2:],
            angles=_draw(x, (-self.rotation, self.rotation), planes),
            shears=_draw(x, (-self.shear, self.shear), planes),
            scales=mirror * kept / _draw(x, (1 - self.zoom, 1 + self.zoom), 1),
            shifts=_draw(x, (-self.translation, self.translation), d),
            centres=_draw(x, (-1, 1), d) * (1 - kept),
        )

    def _draw_crops(self, x: Tensor) -> Tensor:
        """(n, 1) or (n, d): share of each side that is seen, along x, y(, z)."""
        d, is_cropped = x.ndim - 2, _bernoulli(x, self.crop)
        if self.crop_ratio == (1, 1):
            return torch.where(is_cropped, _draw(x, self.crop_scale), 1.0)[:, None] ** (1 / d)
        # the first of several draws that fits, as in torchvision; without one, the sample is not cropped
        low, high = (math.log(ratio) for ratio in self.crop_ratio)
        area, ratio = _draw(x, self.crop_scale, CROPS_TRIED), _draw(x, (low, high), CROPS_TRIED).exp()
        ratio = ratio * x.shape[2] / x.shape[3]  # of pixels -> of shares
        sides = torch.stack([area * ratio, area / ratio], dim=2).sqrt()
        fits = (sides <= 1).all(dim=2)
        first = sides[torch.arange(len(x), device=x.device), fits.int().argmax(1)]
        return torch.where((is_cropped & fits.any(1))[:, None], first, 1.0)


def affine_matrices(
    sides: tuple[int, ...], *, angles: Tensor, shears: Tensor, scales: Tensor, shifts: Tensor, centres: Tensor
) -> Tensor:
    """(n, d, d + 1): where each output pixel is looked up, in `grid_sample`'s coordinates x, y(, z) from -1 to 1.

    angles, shears: (n, planes) degrees in the planes xy(, xz, yz); scales: (n, d) share of the side that is seen,
    negative to mirror; shifts: (n, d) shares of the side by which the content moves; centres: (n, d) of what is seen.
    """
    n, d = scales.shape
    matrix = torch.eye(d, device=scales.device).expand(n, d, d)
    angles, slopes = angles.deg2rad(), shears.deg2rad().tan()
    cosines, sines = angles.cos(), angles.sin()
    for plane, (i, j) in enumerate(combinations(range(d), 2)):
        cos, sin, slope = cosines[:, plane], sines[:, plane], slopes[:, plane]
        turn = torch.eye(d, device=scales.device).repeat(n, 1, 1)  # shear @ rotation
        turn[:, i, i], turn[:, i, j] = cos + slope * sin, slope * cos - sin
        turn[:, j, i], turn[:, j, j] = sin, cos
        matrix = matrix @ turn
    length = torch.tensor(sides[::-1], device=scales.device)
    matrix = matrix * (length / length[:, None]) * scales[:, :, None]  # a circle stays round when sides differ
    return torch.cat([matrix, centres[:, :, None] - 2 * matrix @ shifts[:, :, None]], dim=2)


def warp(x: Tensor, matrices: Tensor, fill: str, interpolation: str = "linear") -> Tensor:
    """Apply affine maps by one interpolation of the batch."""
    n, d, space = len(x), x.ndim - 2, x.shape[2:]
    axes = [(2 * torch.arange(side, device=x.device) + 1) / side - 1 for side in space]
    points = torch.stack([*torch.meshgrid(*axes, indexing="ij")[::-1], torch.ones(space, device=x.device)])
    # one matrix product, with coordinates on the first axis: four times faster than affine_grid
    grid = (matrices.reshape(n * d, d + 1) @ points.flatten(1)).view(n, d, *space).movedim(1, -1)
    full = x if x.dtype == torch.float64 else x.float()  # half precision is too coarse for coordinates
    mode = "bilinear" if interpolation == "linear" else interpolation
    return F.grid_sample(full, grid.to(full.dtype), mode, padding_mode=fill, align_corners=False).to(x.dtype)


def dilate(x: Tensor, size: int) -> Tensor:
    """The maximum over `size` pixels a side; of an even window, the longer arm points right."""
    return _extreme(x, torch.maximum, (size - 1) // 2, size // 2)


def erode(x: Tensor, size: int) -> Tensor:
    """The minimum over `size` pixels a side; the longer arm points left, so that dilation undoes the shift."""
    return _extreme(x, torch.minimum, size // 2, (size - 1) // 2)


def _extreme(x: Tensor, pick: Callable[[Tensor, Tensor], Tensor], before: int, after: int) -> Tensor:
    padded = F.pad(x, (before, after) * (x.ndim - 2), mode="replicate")
    for axis in range(2, x.ndim):  # axis by axis: ten times faster than max_pool on a CPU, and d-dimensional
        padded = reduce(pick, (padded.narrow(axis, i, x.shape[axis]) for i in range(before + after + 1)))
    return padded


def blur(x: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """A Gaussian of each sample's own sigma (n,) in pixels, axis by axis; edges are repeated."""
    offsets = torch.arange(-radius, radius + 1, device=x.device)
    weights = (-0.5 * (offsets / sigma[:, None].clamp(min=1e-3)) ** 2).softmax(dim=1).to(x.dtype)
    first, *others = [_broadcast(weight, x) for weight in weights.T]
    padded = F.pad(x, (radius, radius) * (x.ndim - 2), mode="replicate")
    for axis, side in enumerate(x.shape[2:], start=2):
        total = first * padded.narrow(axis, 0, side)
        for i, weight in enumerate(others, start=1):
            total.addcmul_(weight, padded.narrow(axis, i, side))
        padded = total
    return padded


def _bernoulli(x: Tensor, chance: float) -> Tensor:
    return torch.rand(len(x), device=x.device) < chance


def _draw(x: Tensor, between: tuple[float, float], *size: int) -> Tensor:
    low, high = between
    return low + (high - low) * torch.rand(len(x), *size, device=x.device)


def _broadcast(values: Tensor, x: Tensor) -> Tensor:
    """Reshape (n,) to (n, 1, ..., 1), which broadcasts with `x`."""
    return values.view(-1, *[1] * (x.ndim - 1))


_DIGITS = Augmentation(rotation=25, translation=0.1, shear=0.1)
# as published: torchvision's RandomRotation(25), then RandomAffine(15), by the nearest pixel and black beyond the edge
_DIGITS_PAPER = Augmentation(
    first_rotation=25, rotation=15, translation=0.1, shear=0.1, fill="zeros", interpolation="nearest"
)
_MORPHO = {"dilation": 0.4, "erosion": 0.4, "kernel_seed": 0}  # `DeepMethod.augment` replaces the seed
_XRAY = Augmentation(horizontal_flip=0.5, blur=1, rotation=25, translation=0.1)
_BRAIN = Augmentation(
    cutout=0.5, crop=0.5, crop_scale=(0.75**3, 0.75**3),  # 96 of 128 voxels a side
    blur=0.5, blur_sigma=(0.1, 1.0), blur_radius=2,  # the appendix prints (0.1, 0.1), which would blur nothing
)  # fmt: skip
_FUNDUS = Augmentation(blur=1, blur_radius=2, rotation=45, translation=0.05)
AUGMENTATIONS = {  # from the paper's appendix, otherwise from its published code
    "none": Augmentation(),
    "digits": _DIGITS,
    "digits_morpho": replace(_DIGITS, **_MORPHO),
    "digits_paper": _DIGITS_PAPER,
    "digits_morpho_paper": replace(_DIGITS_PAPER, **_MORPHO),
    "digits_morpho_pcl_paper": replace(
        _DIGITS_PAPER, rotation=10, translation=0.05, shear=0, crop=1, crop_ratio=(3 / 4, 4 / 3), **_MORPHO
    ),
    "xray": _XRAY,
    "xray_crop": replace(_XRAY, crop=1, crop_scale=(0.08, 1.0), crop_ratio=(3 / 4, 4 / 3)),  # of the baselines
    "fundus": replace(_FUNDUS, vertical_flip=0.5),
    "fundus_paper": _FUNDUS,  # its code asks for the flip, and ignores it
    "oct": Augmentation(crop=1, horizontal_flip=0.5, blur=1, rotation=25, translation=0.1),
    "brain": replace(_BRAIN, depth_flip=0.5, noise=0.5),
    "brain_code": _BRAIN,  # of Deep UCSL
    # not in the paper; without movements, since interpolation would smooth the noise
    "volumes": Augmentation(depth_flip=0.5, noise=0.5, noise_sigma=(0.0, 0.1)),
    "features": Augmentation(noise=1, noise_sigma=(0.0, 0.2)),
}  # fmt: skip


def resolve_augmentation(setting: str | Augmentation) -> Augmentation:
    """The augmentation of this name, or the given one."""
    if isinstance(setting, Augmentation):
        return setting
    if setting not in AUGMENTATIONS:
        known = ", ".join(AUGMENTATIONS)
        raise ValueError(
            f"Expected an augmentation among {known}. Received: {setting!r}. Choose one, or make your own."
        )
    return AUGMENTATIONS[setting]
