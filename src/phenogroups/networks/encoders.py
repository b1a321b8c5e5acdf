"""Encoders by name: which one suits an input, and how it is built, with random, pretrained or saved weights."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from phenogroups.data.reading import PRETRAINED_CHANNELS, PRETRAINED_FROM
from phenogroups.data.stored import Inputs
from phenogroups.networks import architectures
from phenogroups.networks.architectures import ConvEncoder
from phenogroups.networks.encoder import Encoder, Shape, value_range
from phenogroups.networks.hugging_face import HUGGING_FACE, from_description, hugging_face
from phenogroups.networks.lite0 import Lite0, imagenet_weights
from phenogroups.networks.weights import IMAGENET, RANDOM, load_weights, read_weights

LEAST_SIDE = 32  # of MONAI's encoders and lite0: they halve five times, and need a pixel left to pool
LITE0, LIGHT, STRIDED, VAE64, MLP = "lite0", "light", "strided", "vae64", "mlp"
STEM = "_conv_stem.weight"  # a tensor that only lite0 has
FIRST = "layers.0.weight"  # a tensor of the others, which differ in the size of its kernel
BY_KERNEL = {5: LIGHT, 3: STRIDED, 4: VAE64}

ENCODERS: dict[str, Callable[[Shape], Encoder]] = {
    "paper": architectures.paper,
    "paper_2x2": architectures.paper_2x2,
    LIGHT: architectures.light,
    STRIDED: architectures.strided,
    VAE64: architectures.vae64,
    "vae128": architectures.vae128,
    LITE0: lambda _: Lite0(),
    "resnet18": architectures.resnet18,
    "densenet121": architectures.densenet121,
    "densenet121_projected": architectures.densenet121_projected,
    MLP: lambda shape: architectures.MLP(*shape),
}


def has_weights(name: str, weights: str | None) -> bool:
    """Whether an encoder of this name, with this setting of `weights`, is pretrained."""
    return weights != RANDOM and (weights is not None or name == LITE0 or name.startswith(HUGGING_FACE))


def default_encoder(input_shape: Shape, weights: str | None = None, inputs: Inputs | None = None) -> str:
    """`mlp` for features, `lite0` for images that its weights suit, `light` for other images and for volumes.

    Where weights are given, `light`: `lite0` has its own.
    """
    if len(input_shape) == 1:
        return MLP
    channels, *sides = input_shape
    if weights is not None or len(sides) != 2 or channels not in PRETRAINED_CHANNELS or min(sides) < PRETRAINED_FROM:
        return LIGHT
    low, high = (0, 1) if inputs is None else value_range(inputs)
    return LITE0 if low >= 0 and high <= 1 else LIGHT


def is_lite0(name: str, weights: str | None) -> bool:
    """Whether these settings mean lite0 for images that suit it."""
    return name == LITE0 or (name == "auto" and weights is None)


def encoder_of_file(input_shape: Shape, saved: Mapping[str, Tensor]) -> str:
    """The default encoder that these tensors belong to: `auto` has had several meanings, and depends on inputs too."""
    if len(input_shape) == 1:
        return MLP
    if STEM in saved:
        return LITE0
    return BY_KERNEL.get(saved[FIRST].shape[-1], LIGHT) if FIRST in saved else LIGHT


def build_encoder(
    name: str, input_shape: Shape, weights: str | None = None, saved: Mapping[str, Tensor] | None = None
) -> Encoder:
    """The named encoder for inputs of this shape, with its own weights, random ones, those of a file, or `imagenet`.

    `saved` are the tensors that the caller will load into it: then no weights are read.
    """
    shape = tuple(int(side) for side in input_shape)
    if name.startswith(HUGGING_FACE):
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
    if weights is None:  # lite0, the only one whose weights are a package; the file has further layers
        encoder.load_state_dict(imagenet_weights(), strict=False)
        return encoder
    state = read_weights(weights, name, len(shape) - 1)
    network: nn.Module = encoder
    if isinstance(encoder, ConvEncoder):  # its layers are the network whose names the file has
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
    if name == MLP and len(shape) != 1:
        raise ValueError(
            f"Expected features, one row of numbers per subject, for the encoder 'mlp'. Received: inputs of shape "
            f"{shape}. Choose {LIGHT!r} for images and volumes."
        )
    if name != MLP and len(shape) not in (3, 4):
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
