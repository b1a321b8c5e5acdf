"""What sees the inputs: every encoder maps a batch to embeddings (n, dim), in 2-D, in 3-D or from features."""

from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from math import ceil, log2, prod
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from phenogroups.data.batches import rows_at_once
from phenogroups.data.reading import PRETRAINED_CHANNELS, PRETRAINED_FROM
from phenogroups.data.stored import Inputs
from phenogroups.networks.weights import IMAGENET, RANDOM, load_weights, read_weights

Shape = tuple[int, ...]  # of one input: (features,), (channels, H, W) or (channels, D, H, W)

CHANNELS = (16, 32, 64, 128)  # of the paper's network (appendix, MNIST), kept by `light`
MAP_SIDE = 12  # `light` halves larger maps until they are about 8 x 8
HUGGING_FACE = "hf:"  # before the name or the folder of one of its models
LEAST_SIDE = 32  # of MONAI's encoders and lite0: they halve five times, and need a pixel left to pool
LITE0, LIGHT, STRIDED, VAE64 = "lite0", "light", "strided", "vae64"
STEM = "_conv_stem.weight"  # a tensor that only lite0 has
FIRST = "layers.0.weight"  # a tensor of the others, whose kernel tells them apart
BY_KERNEL = {5: LIGHT, 3: STRIDED, 4: VAE64}
CODE = 32  # numbers of the authors' autoencoder (py_ucsl)
VAE_CHANNELS, VAE_SIDE = (32, 32, 64, 128, 256), 64  # of the VAE that the paper follows (Joy et al. 2021)
IDENTITY = 1  # raised when an encoder makes other embeddings of the same weights

# between which inputs of an intensity lie; also those standardised by other images than ImageNet's, but not 0 to 255
TELLING = 1000  # inputs that are looked at for their units
LIMITS: dict[str | None, tuple[float, float]] = {"unit": (0, 1), "imagenet": (-20, 20)}

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MAX_POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
MEAN_POOL = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}  # on a CPU, 1.5 times faster
MONAI_FORMAT = {2: torch.channels_last, 3: torch.contiguous_format}  # its volumes are slower channels last


class Encoder(nn.Module):
    dim: int  # the length of its embeddings
    expects: str | None = None  # intensity of images (as `data.reading` names them) that its weights were learned on
    has_learned: bool = False  # elsewhere, before it came here

    def resized(self, x: Tensor) -> Tensor:
        """The inputs at the size at which it sees them, and at which a decoder copies them."""
        return x

    def freeze(self) -> Self:
        """It learns nothing from here on, so that an input always has the same embedding."""
        self.__dict__.pop("identity", None)
        self.__dict__.pop("fast", None)
        return self.requires_grad_(False).eval()

    @property
    def fast(self) -> nn.Module:
        """What makes the embeddings of a frozen encoder, to rounding, soonest."""
        return self

    def rows_at_once(self, shape: Shape) -> int:
        """How many inputs of this shape it sees soonest together."""
        return rows_at_once(shape)

    @cached_property
    def identity(self) -> str:
        """All that the embeddings of a frozen encoder depend on beside the input: its kind and its weights."""
        digest = sha256(repr((IDENTITY, self.dim, self.expects)).encode())
        for name, value in self.state_dict().items():
            digest.update(repr((name, value.dtype, tuple(value.shape))).encode())
            digest.update(value.cpu().contiguous().numpy().data)
        return f"{type(self).__name__.lower()}-{digest.hexdigest()[:32]}"

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise where inputs cannot be in the units that its weights were learned in."""
        low, high = LIMITS.get(self.expects, (-np.inf, np.inf))
        found = value_range(inputs)
        if found[0] < low or found[1] > high:
            how = "--intensity minmax" if self.expects == "unit" else f"--intensity {self.expects}"
            raise ValueError(
                f"Expected images of intensity {self.expects!r} for these weights, between {low} and {high}. Received: "
                f"values from {found[0]:.4g} to {found[1]:.4g}. Read the files so ({how}), or rescale the arrays."
            )


def value_range(inputs: Inputs) -> tuple[float, float]:
    """The least and the greatest value of some inputs: enough to tell units, however large the cohort."""
    ranges = [(float(row.min()), float(row.max())) for row in inputs[:: -(-len(inputs) // TELLING)]]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


class ConvEncoder(Encoder):
    """Layers that end in one vector per image, which is first resized if a `side` is given."""

    def __init__(
        self, layers: nn.Module, dim: int, memory_format: torch.memory_format, side: int | None = None
    ) -> None:
        super().__init__()
        self.layers = layers
        self.dim = dim
        self.side = side
        self.memory_format = memory_format
        for weight in layers.parameters():
            # a dimension of one has two right strides: take those of the gradient, else distributed training warns
            if weight.ndim > 2 and weight.is_contiguous(memory_format=memory_format):
                weight.data = weight.data.to(memory_format=memory_format)

    def resized(self, x: Tensor) -> Tensor:
        # means of pixels: smaller pictures without aliasing, in 2-D and in 3-D
        return x if self.side is None else F.interpolate(x, size=(self.side,) * (x.ndim - 2), mode="area")

    def forward(self, x: Tensor) -> Tensor:
        # not `.contiguous`: it would leave the strides of one-channel images as they are
        return self.layers(self.resized(x).to(memory_format=self.memory_format))


class MLP(Encoder):
    """Two layers for a table of features; it carries the scaling of its features, so a model file is complete."""

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
        # to learn, single precision will do; to predict, sums in it would depend on who else is predicted
        exact = {name: value.double() for name, value in self.layers.state_dict(keep_vars=True).items()}
        return functional_call(self.layers, exact, z.double()).to(z)


def paper(shape: Shape, kernel: int = 7) -> Encoder:
    """Four 7x7 convolutions, nothing pooled before the end (appendix, MNIST: implementation details)."""
    space = len(shape) - 1
    layers, previous = [], shape[0]
    for channels in CHANNELS:
        convolution = CONV[space](previous, channels, kernel, padding=kernel // 2)
        layers += [convolution, NORM[space](channels), nn.ReLU(inplace=True)]
        previous = channels
    return ConvEncoder(nn.Sequential(*layers, MEAN_POOL[space](1), nn.Flatten()), CHANNELS[-1], CHANNELS_LAST[space])


def paper_2x2(shape: Shape) -> Encoder:
    """The same with 2x2 kernels, a twelfth of the price: the published SimCLR and PCL of MNIST were trained with it."""
    return paper(shape, kernel=2)


def strided(shape: Shape) -> Encoder:
    """Four convolutions of stride 2 and a code made of the whole map, so that it tells where things are.

    As the autoencoder of the authors' earlier work (py_ucsl): a code that is pooled over the map could not be copied.
    """
    space = len(shape) - 1
    layers, previous, sides = [], shape[0], shape[1:]
    for channels in CHANNELS:
        layers += [CONV[space](previous, channels, 3, 2, 1), NORM[space](channels), nn.ReLU(inplace=True)]
        previous, sides = channels, tuple(ceil(side / 2) for side in sides)
    layers += [nn.Flatten(), nn.Linear(previous * prod(sides), CODE)]
    return ConvEncoder(nn.Sequential(*layers), CODE, CHANNELS_LAST[space])


def vae64(shape: Shape) -> Encoder:
    """The network of the paper's VAE: 64 pixels a side and five convolutions (appendix; Joy et al. 2021)."""
    space = len(shape) - 1
    layers, previous = [], shape[0]
    for channels in VAE_CHANNELS[:-1]:
        layers += [CONV[space](previous, channels, 4, 2, 1), nn.ReLU(inplace=True)]
        previous = channels
    dim = VAE_CHANNELS[-1]
    layers += [CONV[space](previous, dim, 4), nn.ReLU(inplace=True), nn.Flatten()]  # of a map of 4 pixels a side
    return ConvEncoder(nn.Sequential(*layers), dim, CHANNELS_LAST[space], VAE_SIDE)


def light(shape: Shape) -> Encoder:
    """The paper's channels at the price of a CPU: smaller kernels, and maps halved twice or until 12 pixels a side.

    Up to 48 pixels, two max-pools (after layers 1 and 2). Beyond, the first convolution strides by 2 (up to 96), then
    layer 3 pools too (up to 192), then layers of 128 channels follow, each bringing one more max-pool. Of volumes, the
    first convolution strides at any size, in place of a max-pool: at full resolution it would be most of the price.
    """
    space = len(shape) - 1
    halvings = max(2, ceil(log2(max(shape[1:]) / MAP_SIDE)))
    stride = 2 if halvings > 2 or space == 3 else 1
    pools = halvings - (stride - 1)
    depth = max(len(CHANNELS), pools + 1)
    layers, previous = [], shape[0]
    for i in range(depth):
        channels, kernel = CHANNELS[min(i, 3)], 5 if i < 2 else 3
        layers += [
            CONV[space](previous, channels, kernel, stride if i == 0 else 1, kernel // 2, bias=False),
            NORM[space](channels),
        ]
        if i < pools:  # after the norm: pooled first, the first subgroups were found less well (docs/deep_ucsl.md)
            layers.append(MAX_POOL[space](2, ceil_mode=True))  # ceil: a thin side never vanishes
        layers.append(nn.ReLU(inplace=True))
        previous = channels
    return ConvEncoder(nn.Sequential(*layers, MEAN_POOL[space](1), nn.Flatten()), previous, CHANNELS_LAST[space])


def resnet18(shape: Shape) -> Encoder:
    """ResNet-18 without its classifier, the geometry and weight names of torchvision's (He et al. 2016)."""
    from monai.networks.nets.resnet import resnet18 as monai_resnet18  # here, as MONAI takes seconds to import

    space = len(shape) - 1
    layers = monai_resnet18(
        spatial_dims=space, n_input_channels=shape[0], conv1_t_stride=2, bias_downsample=False, feed_forward=False
    )
    return ConvEncoder(layers, 512, MONAI_FORMAT[space])


def densenet121(shape: Shape) -> Encoder:
    """DenseNet-121 without its classifier (Huang et al. 2017)."""
    return _densenet121(shape, nn.Identity(), 1024)


def densenet121_projected(shape: Shape) -> Encoder:
    """The paper's encoder of brain volumes: its published code clusters this projection of DenseNet-121."""
    return _densenet121(shape, nn.Sequential(nn.Linear(1024, 512), nn.ReLU(inplace=True), nn.Linear(512, 128)), 128)


def _densenet121(shape: Shape, out: nn.Module, dim: int) -> Encoder:
    from monai.networks.nets.densenet import DenseNet121

    space = len(shape) - 1
    layers = DenseNet121(spatial_dims=space, in_channels=shape[0], out_channels=1)
    layers.class_layers.out = out
    return ConvEncoder(layers, dim, MONAI_FORMAT[space])


def lite0(shape: Shape) -> Encoder:
    """EfficientNet-Lite0, small and with weights that need no hub (Tan & Le 2019)."""
    from phenogroups.networks.lite0 import Lite0  # here, as it is made of what stands above

    return Lite0()


def mlp(shape: Shape) -> Encoder:
    return MLP(*shape)


ENCODERS: dict[str, Callable[[Shape], Encoder]] = {
    "paper": paper,
    "paper_2x2": paper_2x2,
    "light": light,
    STRIDED: strided,
    VAE64: vae64,
    "lite0": lite0,
    "resnet18": resnet18,
    "densenet121": densenet121,
    "densenet121_projected": densenet121_projected,
    "mlp": mlp,
}


def has_weights(name: str, weights: str | None) -> bool:
    """Whether an encoder so chosen has learned something elsewhere."""
    return weights != RANDOM and (weights is not None or name == LITE0 or name.startswith(HUGGING_FACE))


def default_encoder(input_shape: Shape, weights: str | None = None, inputs: Inputs | None = None) -> str:
    """`mlp` for features, `lite0` for images it was made for, `light` for other images and for volumes.

    Weights given are of the small network: those of `lite0` come with it.
    """
    if len(input_shape) == 1:
        return "mlp"
    channels, *sides = input_shape
    if weights is not None or len(sides) != 2 or channels not in PRETRAINED_CHANNELS or min(sides) < PRETRAINED_FROM:
        return LIGHT
    low, high = (0, 1) if inputs is None else value_range(inputs)
    return LITE0 if low >= 0 and high <= 1 else LIGHT


def is_lite0(name: str, weights: str | None) -> bool:
    """Whether an encoder so chosen is lite0 for images that suit it."""
    return name == LITE0 or (name == "auto" and weights is None)


def encoder_of_file(input_shape: Shape, saved: Mapping[str, Tensor]) -> str:
    """Which of the default encoders these tensors are of: the default has changed, and looks at inputs too."""
    if len(input_shape) == 1:
        return "mlp"
    if STEM in saved:
        return LITE0
    return BY_KERNEL.get(saved[FIRST].shape[-1], LIGHT) if FIRST in saved else LIGHT


def build_encoder(
    name: str, input_shape: Shape, weights: str | None = None, saved: Mapping[str, Tensor] | None = None
) -> Encoder:
    """The named encoder for inputs of this shape, with its own weights, random ones, those of a file, or `imagenet`.

    `saved` are the tensors that it will be filled with by the caller: then no weights are looked for.
    """
    shape = tuple(int(side) for side in input_shape)
    if name.startswith(HUGGING_FACE):
        from phenogroups.networks.hugging_face import from_description, hugging_face

        if weights is not None:
            raise ValueError(
                f"Expected no weights beside the encoder {name!r}, which has its own. Received: {weights}."
            )
        return hugging_face(name, shape) if saved is None else from_description(name, shape, saved)
    _check_choice(name, shape)
    encoder = ENCODERS[name](shape)
    if saved is not None or not has_weights(name, weights):
        return encoder
    encoder.has_learned = True
    if weights is None:
        from phenogroups.networks.lite0 import Lite0, fill, imagenet_weights

        if isinstance(encoder, Lite0):
            fill(encoder, imagenet_weights())
        return encoder
    state = read_weights(weights, name, len(shape) - 1)
    network: nn.Module = encoder
    if isinstance(encoder, ConvEncoder):  # its layers are the network that others know
        network = encoder.layers
        state = {key.removeprefix("layers."): value for key, value in state.items()}
    load_weights(network, state, name=name, source=weights)
    if name != LITE0:  # which standardises by itself, whatever its weights
        encoder.expects = IMAGENET if weights == IMAGENET else None
    return encoder


def _check_choice(name: str, shape: Shape) -> None:
    if name not in ENCODERS:
        raise ValueError(
            f"Expected an encoder among {', '.join(ENCODERS)}, or {HUGGING_FACE}NAME for a model of Hugging Face. "
            f"Received: {name!r}. Choose one of these."
        )
    if name == "mlp" and len(shape) != 1:
        raise ValueError(
            f"Expected features, one row of numbers per subject, for the encoder 'mlp'. Received: inputs of shape "
            f"{shape}. Choose {LIGHT!r} for images and volumes."
        )
    if name != "mlp" and len(shape) not in (3, 4):
        raise ValueError(
            f"Expected images (channels, H, W) or volumes (channels, D, H, W) for the encoder {name!r}. Received: "
            f"inputs of shape {shape}. Choose 'mlp' for features."
        )
    if name == LITE0 and (len(shape) != 3 or shape[0] not in PRETRAINED_CHANNELS):
        raise ValueError(
            f"Expected images of 1 or 3 channels (channels, H, W) for the encoder {name!r}. Received: inputs of shape "
            f"{shape}. Choose {LIGHT!r} for volumes and other channels."
        )
    if name.startswith(("resnet", "densenet", LITE0)) and min(shape[1:]) < LEAST_SIDE:
        raise ValueError(
            f"Expected at least {LEAST_SIDE} pixels a side for the encoder {name!r}. Received: inputs of shape "
            f"{shape}. Enlarge the images, or choose 'light'."
        )
