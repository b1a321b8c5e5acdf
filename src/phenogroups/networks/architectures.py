"""The architectures of encoders: convolutional networks of images and volumes, and a small network of features."""

from collections.abc import Sequence
from functools import partial
from math import ceil, log2, prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from phenogroups.networks.encoder import Encoder, Shape
from phenogroups.networks.fourier import FourierConv2d, PixelsFirstNorm2d

CHANNELS = (16, 32, 64, 128)  # of the paper's network (appendix, MNIST), kept by `light`
MAP_SIDE = 12  # `light` halves larger maps until they are about 8 x 8
CODE = 32  # numbers of the authors' autoencoder (py_ucsl)
VAE_CHANNELS, VAE_SIDE = (32, 32, 64, 128, 256), 64  # of the VAE that the paper follows (Joy et al. 2021)
VAE_CHANNELS_3D = (32, 64, 128, 256, 512)  # of the VAE of brain volumes in the published code

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MAX_POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}  # on a CPU, 1.5 times faster
MONAI_FORMAT = {2: torch.channels_last, 3: torch.contiguous_format}  # its volumes are slower channels last


class MeanOverPixels(nn.Module):
    """The mean of each channel over all pixels.

    torch's average pooling gives back a gradient with channels first, after which the layers before it are slower.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2).mean(1)


class ConvEncoder(Encoder):
    """Layers that end in one vector per image, which is first resized if a `side` is given."""

    def __init__(
        self, layers: nn.Module, dim: int, memory_format: torch.memory_format, side: int | None = None
    ) -> None:
        super().__init__()
        self.layers, self.dim, self.side, self.memory_format = layers, dim, side, memory_format
        for weight in layers.parameters():
            # a dimension of one has two valid strides: take those of the gradient, or distributed training warns
            if weight.ndim > 2 and weight.is_contiguous(memory_format=memory_format):
                weight.data = weight.data.to(memory_format=memory_format)

    def resized(self, x: Tensor) -> Tensor:
        # means of pixels, which reduce images without aliasing, in 2-D and in 3-D
        return x if self.side is None else F.interpolate(x, size=(self.side,) * (x.ndim - 2), mode="area")

    def forward(self, x: Tensor) -> Tensor:
        # not `.contiguous`: it would leave the strides of one-channel images as they are
        return self.layers(self.resized(x).to(memory_format=self.memory_format))


def paper(shape: Shape, kernel: int = 7) -> Encoder:
    """Four 7x7 convolutions without pooling before the end (appendix, MNIST: implementation details)."""
    space = len(shape) - 1
    by_fourier = space == 2 and kernel % 2 == 1
    convolution, norm = partial(CONV[space], padding=kernel // 2), NORM[space]
    if by_fourier:
        convolution, norm = FourierConv2d, PixelsFirstNorm2d
    layers = []
    for before, channels in zip((shape[0], *CHANNELS), CHANNELS, strict=False):
        # this norm returns a view, whose gradient torch would lay out anew if it were changed in place
        layers += [convolution(before, channels, kernel), norm(channels), nn.ReLU(inplace=not by_fourier)]
    return ConvEncoder(nn.Sequential(*layers, MeanOverPixels()), CHANNELS[-1], CHANNELS_LAST[space])


def paper_2x2(shape: Shape) -> Encoder:
    """The same with 2x2 kernels, a twelfth of the multiplications: the published SimCLR and PCL of MNIST have it."""
    return paper(shape, kernel=2)


def strided(shape: Shape) -> Encoder:
    """Four convolutions of stride 2 and a code of the whole map, which keeps positions.

    As the autoencoder of the authors' earlier work (py_ucsl): a pooled code does not allow a reconstruction.
    """
    layers, numbers = _halving(shape, CHANNELS)
    return ConvEncoder(nn.Sequential(*layers, nn.Linear(numbers, CODE)), CODE, CHANNELS_LAST[len(shape) - 1])


def vae128(shape: Shape) -> Encoder:
    """The network of the published VAE of brain volumes of 128 voxels a side: five convolutions, nothing pooled."""
    layers, numbers = _halving(shape, VAE_CHANNELS_3D)
    return ConvEncoder(nn.Sequential(*layers), numbers, CHANNELS_LAST[len(shape) - 1])


def _halving(shape: Shape, widths: Sequence[int]) -> tuple[list[nn.Module], int]:
    """Convolutions of stride 2, whose last map is made one vector, and the length of it."""
    space = len(shape) - 1
    layers: list[nn.Module] = []
    for before, channels in zip((shape[0], *widths), widths, strict=False):
        layers += [CONV[space](before, channels, 3, 2, 1), NORM[space](channels), nn.ReLU(inplace=True)]
    return [*layers, nn.Flatten()], widths[-1] * prod(ceil(side / 2 ** len(widths)) for side in shape[1:])


def vae64(shape: Shape) -> Encoder:
    """The network of the paper's VAE: 64 pixels a side and five convolutions (appendix; Joy et al. 2021)."""
    space = len(shape) - 1
    layers = []
    for i, (before, channels) in enumerate(zip((shape[0], *VAE_CHANNELS), VAE_CHANNELS, strict=False)):
        stride_and_padding = (2, 1) if i < len(VAE_CHANNELS) - 1 else ()  # the last covers the whole map of 4 x 4
        layers += [CONV[space](before, channels, 4, *stride_and_padding), nn.ReLU(inplace=True)]
    return ConvEncoder(nn.Sequential(*layers, nn.Flatten()), VAE_CHANNELS[-1], CHANNELS_LAST[space], VAE_SIDE)


def light(shape: Shape) -> Encoder:
    """The paper's channels at a cost that suits a CPU: smaller kernels, and maps halved to at most 12 pixels a side.

    Up to 48 pixels, two max-pools (after layers 1 and 2). Beyond, the first convolution has stride 2 (up to 96), then
    layer 3 pools too (up to 192), then layers of 128 channels follow, each with one more max-pool. For volumes, the
    first convolution has stride 2 at any size, in place of a max-pool: at full resolution it would dominate the cost.
    """
    space = len(shape) - 1
    halvings = max(2, ceil(log2(max(shape[1:]) / MAP_SIDE)))
    stride = 2 if halvings > 2 or space == 3 else 1
    pools = halvings - (stride - 1)
    layers, previous = [], shape[0]
    for i in range(max(len(CHANNELS), pools + 1)):
        channels, kernel = CHANNELS[min(i, 3)], 5 if i < 2 else 3
        convolution = CONV[space](previous, channels, kernel, stride if i == 0 else 1, kernel // 2, bias=False)
        layers += [convolution, NORM[space](channels)]
        if i < pools:  # after the norm: with the opposite order, the first subgroups were worse (docs/deep_ucsl.md)
            layers.append(MAX_POOL[space](2, ceil_mode=True))  # ceil: a thin side never vanishes
        layers.append(nn.ReLU(inplace=True))
        previous = channels
    return ConvEncoder(nn.Sequential(*layers, MeanOverPixels()), previous, CHANNELS_LAST[space])


def resnet18(shape: Shape) -> Encoder:
    """ResNet-18 without its classifier, the geometry and weight names of torchvision's (He et al. 2016)."""
    from monai.networks.nets.resnet import resnet18 as monai_resnet18  # here, as MONAI takes seconds to import

    space = len(shape) - 1
    layers = monai_resnet18(
        spatial_dims=space, n_input_channels=shape[0], conv1_t_stride=2, bias_downsample=False, feed_forward=False
    )
    return ConvEncoder(layers, 512, MONAI_FORMAT[space])


def densenet121(shape: Shape, out: nn.Module | None = None, dim: int = 1024) -> Encoder:
    """DenseNet-121 without its classifier (Huang et al. 2017)."""
    from monai.networks.nets.densenet import DenseNet121

    space = len(shape) - 1
    layers = DenseNet121(spatial_dims=space, in_channels=shape[0], out_channels=1)
    layers.class_layers.out = out or nn.Identity()
    return ConvEncoder(layers, dim, MONAI_FORMAT[space])


def densenet121_projected(shape: Shape) -> Encoder:
    """The paper's encoder of brain volumes: its published code clusters this projection of DenseNet-121."""
    out = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(inplace=True), nn.Linear(512, 128))
    return densenet121(shape, out, 128)


class MLP(Encoder):
    """Two layers for a table of features; the scaling of the features is part of it, so a model file is complete."""

    mean: Tensor  # (features,)
    scale: Tensor  # (features,)

    def __init__(self, features: int, hidden: int = 256, dim: int = 128, dropout: float = 0.5) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, dim), nn.BatchNorm1d(dim), nn.ReLU(inplace=True),
        )  # fmt: skip

    @torch.no_grad()
    def fit_scaling(self, x: Tensor) -> None:
        """Standardise by the mean and deviation of these subjects; a constant feature keeps scale 1."""
        x = x.to(self.mean.device, torch.float64)
        deviation = x.std(dim=0, correction=0)
        # rounding leaves a constant feature a deviation of about 1e-16 of its size
        constant = deviation <= 1e-12 * x.abs().amax(dim=0)
        self.mean.copy_(x.mean(dim=0))
        self.scale.copy_(torch.where(constant, 1.0, deviation))

    def forward(self, x: Tensor) -> Tensor:
        z = (x - self.mean) / self.scale
        if self.training:
            return self.layers(z)
        # predictions are computed in float64: float32 sums would depend on the other subjects of the batch
        exact = {name: value.double() for name, value in self.layers.state_dict(keep_vars=True).items()}
        return functional_call(self.layers, exact, z.double()).to(z)
