"""Pretrained weights: ImageNet's for ResNet-18, or a file for any encoder, matched by the names of tensors."""

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.error import URLError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

IMAGENET = "imagenet"
RANDOM = "random"  # in place of a file: weights that are not pretrained
# torchvision's ResNet-18 (IMAGENET1K_V1); the name of the file holds the checksum that torch.hub compares
IMAGENET_FILE = "https://download.pytorch.org/models/resnet18-f37072fd.pth"

NESTED = ("state_dict", "model_state_dict", "model")  # under which training scripts keep the weights
WRAPPERS = ("module.", "model.", "network.", "encoder.", "backbone.")  # from the outermost on
# prefix of the classifier, which is part of the whole network and not of the encoder
CLASSIFIER = {"resnet18": "fc.", "densenet121": "class_layers.out.", "lite0": "_fc."}
MOST_NAMES = 5  # in a message


def read_weights(source: str, name: str, space: int) -> dict[str, Tensor]:
    """The tensors of a file, or of ImageNet's file for the word `imagenet`, by their names in the bare network."""
    found = imagenet(name, space) if source == IMAGENET else read_file(Path(source))
    for key in NESTED:
        if isinstance(found.get(key), Mapping):
            found = found[key]
            break
    state = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    for wrapper in WRAPPERS:
        # tensors outside of the encoder, such as the heads it was trained with, are left out
        inside = {key.removeprefix(wrapper): value for key, value in state.items() if key.startswith(wrapper)}
        state = inside or state
    return state


def imagenet(name: str, space: int) -> Mapping[str, Any]:
    if name != "resnet18" or space != 2:
        raise ValueError(
            f"Expected the encoder 'resnet18' on images for weights={IMAGENET!r}. Received: {name!r} on "
            f"{'volumes' if space == 3 else 'images' if space == 2 else 'features'}. Give a file of weights instead."
        )
    try:
        return torch.hub.load_state_dict_from_url(
            IMAGENET_FILE, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except (URLError, OSError, RuntimeError) as error:
        raise ValueError(
            f"Expected to download {Path(IMAGENET_FILE).name}. Received: {error}. Download the file on another machine "
            "and give its path as weights."
        ) from error


def read_file(path: Path) -> Mapping[str, Any]:
    """Tensors only: a file that would execute code is refused."""
    if not path.is_file():
        raise ValueError(
            f"Expected {IMAGENET!r}, {RANDOM!r} or a file as weights. Received: {path}, which does not exist."
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, SafetensorError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise ValueError(
            f"Expected {path} to hold tensors by name and nothing else. Received: {str(error).splitlines()[0]} "
            "Save the network's state_dict() to a file of its own."
        ) from error
    if not isinstance(found, Mapping):
        raise ValueError(f"Expected {path} to hold tensors by name. Received: {type(found).__name__}.")
    return found


def load_weights(network: nn.Module, state: Mapping[str, Tensor], *, name: str, source: str) -> None:
    """Load every weight of the network; raises with a list of what is missing, unexpected or of another shape."""
    expected = network.state_dict()
    classifier = CLASSIFIER.get(name)
    given = {key: value for key, value in state.items() if classifier is None or not key.startswith(classifier)}
    # a counter that no computation reads, and that older files do not have
    counters = {key: value for key, value in expected.items() if key.endswith("num_batches_tracked")}
    given = {**counters, **given}
    for key, value in given.items():
        if key in expected and _has_three_channels_for_one(value, expected[key]):
            # the sum over channels gives for a grey image what all channels give for three copies of it
            given[key] = value.sum(1, keepdim=True)
    wrong = {
        "missing": [key for key in expected if key not in given],
        "unexpected": [key for key in given if key not in expected],
        "of another shape": [
            f"{key} {tuple(given[key].shape)} for {tuple(value.shape)}"
            for key, value in expected.items()
            if key in given and given[key].shape != value.shape
        ],
    }
    if any(wrong.values()):
        raise ValueError(
            f"Expected the {len(expected)} tensors of the encoder {name!r} in {source}. Received: "
            f"{'; '.join(f'{len(keys)} {what} ({_some(keys)})' for what, keys in wrong.items() if keys)}. "
            "Choose the encoder and the shape of inputs that the file was saved with."
        )
    network.load_state_dict(given)


def _has_three_channels_for_one(value: Tensor, expected: Tensor) -> bool:
    return value.ndim > 3 and value.shape[1] == 3 and expected.shape == (len(value), 1, *value.shape[2:])


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
