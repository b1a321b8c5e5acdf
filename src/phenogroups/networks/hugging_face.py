"""Any vision model of Hugging Face as an encoder of images, by its name on the hub or by a local folder.

The embedding is what the model itself calls its pooled output, if all weights of its pooler came with it; otherwise the
first token (CLS) of a transformer, or the mean of the last map of a convolutional network.
"""

from collections.abc import Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phenogroups.data.untrusted import as_bytes, from_bytes, shortened
from phenogroups.networks.encoder import Encoder, Shape

HUGGING_FACE = "hf:"  # before the name or the folder of one of its models
# a masked autoencoder drops patches at random; its encoder is a plain ViT whose tensors have the same names
UNMASKED = {"vit_mae": "vit"}
# parts of names of settings by which a stored configuration could fetch or run code that is not the library's
UNWANTED = ("auto_map", "implementation", "quantization", "kernel_config", "_name_or_path", "_commit_hash")
ELSEWHERE = ("backbone", "timm")  # of models whose parts come from other libraries, or from the hub during building
COUNTING = ("layer", "depth", "block", "stage")  # parts of names of settings that repeat parts of a network
DEFAULT_SIDE, MOST_SIDE, MOST_WIDE = 224, 2048, 2**20


class HuggingFaceEncoder(Encoder):
    """It resizes and standardises images itself, and holds its configuration, so that a model file is complete."""

    expects = "unit"
    has_learned = True
    description: Tensor  # (bytes,): configuration, size, mean and deviation, as JSON
    mean: Tensor  # (channels, 1, 1)
    deviation: Tensor  # (channels, 1, 1)

    def __init__(self, model: nn.Module, described: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.size = tuple(described["size"])
        self.pooled = bool(described["pooled"])
        self.register_buffer("description", as_bytes(described))
        self.register_buffer("mean", torch.tensor(described["mean"])[:, None, None])
        self.register_buffer("deviation", torch.tensor(described["deviation"])[:, None, None])
        training = model.training
        with torch.no_grad():
            self.dim = self.eval()(torch.zeros(1, len(self.mean), *self.size)).shape[1]
        self.train(training)

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(-1, len(self.mean), -1, -1)  # a grey image becomes equal channels
        if x.shape[2:] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True, align_corners=False)
        found = self.model(pixel_values=(x - self.mean) / self.deviation)
        if self.pooled:
            return found.pooler_output.flatten(1)
        last = found.last_hidden_state
        return last[:, 0] if last.ndim == 3 else last.mean((2, 3))


def hugging_face(name: str, shape: Shape) -> HuggingFaceEncoder:
    """The model `hf:NAME` with its weights, from the hub's cache, the hub, or a local folder."""
    transformers = _library()
    where = name.removeprefix(HUGGING_FACE)
    common: dict[str, Any] = {"trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(where, **common)
        config = _rebuilt(transformers, _of_vision(config.to_dict()))
        processor, _ = transformers.ImageProcessingMixin.get_image_processor_dict(where)
        with _quiet(transformers):
            model, loaded = transformers.AutoModel.from_pretrained(
                where, config=config, use_safetensors=True, output_loading_info=True, dtype=torch.float32, **common
            )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"Expected a vision model of Hugging Face, by name or folder, with config.json, model.safetensors and "
            f"preprocessor_config.json. Received: {where}, of which {str(error).strip().splitlines()[0]} "
            "Without a network, give a folder that holds these files."
        ) from error
    missing = [key for key in loaded["missing_keys"] if "pooler" not in key]
    if missing:
        raise ValueError(
            f"Expected all weights of the model in {where}. Received: {len(missing)} missing "
            f"({', '.join(sorted(missing)[:5])}). Choose a model that was saved whole."
        )
    described = {
        "config": _plain(config.to_dict()),
        **_preprocessing(processor, config),
        "pooled": not loaded["missing_keys"] and _gives_pooled(model),
    }
    return _checked(HuggingFaceEncoder(model, described), name, shape)


def from_description(name: str, shape: Shape, saved: Mapping[str, Tensor]) -> HuggingFaceEncoder:
    """The architecture that a model file describes, whose weights the caller loads; nothing is downloaded."""
    described = from_bytes(saved["description"])
    sides = described["size"]
    if len(sides) != 2 or not all(isinstance(side, int) and 0 < side <= MOST_SIDE for side in sides):
        raise ValueError(f"Expected images of at most {MOST_SIDE} pixels a side. Received: {shortened(sides)}.")
    transformers = _library()
    _refuse_huge(described["config"], len(saved))
    config = _rebuilt(transformers, _plain(described["config"]))
    model = transformers.AutoModel.from_config(config, trust_remote_code=False, dtype=torch.float32)
    return _checked(HuggingFaceEncoder(model, described), name, shape)


def _library() -> Any:
    """The package transformers, which takes seconds to import and which most runs do not need."""
    try:
        return import_module("transformers")
    except ImportError as error:
        raise ValueError(
            f"Expected the package transformers for encoders named {HUGGING_FACE}... Received: {error}. "
            "Install it: pip install 'phenogroups[foundation]'."
        ) from error


def _of_vision(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the vision part, where a model has a text part too."""
    config = config.get("vision_config") or config
    kind = config.get("model_type", "")
    return _plain({**config, "model_type": UNMASKED.get(kind, kind)})


def _plain(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _plain(value) for key, value in config.items() if not any(word in str(key) for word in UNWANTED)}
    return config


def _refuse_huge(config: Mapping[str, Any], most: int, *, counting: bool = False) -> None:
    """Raise where a configuration asks for more layers than the file has tensors, or for a huge layer."""
    for key, value in config.items() if isinstance(config, Mapping) else [("", one) for one in config]:
        counts = counting or any(word in str(key) for word in COUNTING)
        if isinstance(value, Mapping | list):
            _refuse_huge(value, most, counting=counts)  # pyright: ignore[reportArgumentType]
        elif isinstance(value, int) and abs(value) > (most if counts else MOST_WIDE):
            raise ValueError(f"Expected a model of {most} tensors. Received: {key or 'a part'} of {value}.")


def _rebuilt(transformers: Any, config: dict[str, Any]) -> Any:
    elsewhere = [key for key, value in config.items() if value and any(word in str(key) for word in ELSEWHERE)]
    if elsewhere or any(word in str(config.get("model_type")) for word in ELSEWHERE):
        raise ValueError(
            f"Expected a model without parts of other libraries. Received: {config.get('model_type')!r} with "
            f"{', '.join(elsewhere) or 'parts of another library'}. Choose another."
        )
    rest = {key: value for key, value in config.items() if key not in ("model_type", "transformers_version")}
    return transformers.AutoConfig.for_model(config["model_type"], **rest)


@torch.no_grad()
def _gives_pooled(model: nn.Module) -> bool:
    """Whether the model has a pooled output, which has the same name in all models."""
    config: Any = model.config
    side = getattr(config, "image_size", None) or DEFAULT_SIDE
    height, width = side if isinstance(side, list | tuple) else (side, side)
    found = model(pixel_values=torch.zeros(1, getattr(config, "num_channels", 3), height, width))
    return getattr(found, "pooler_output", None) is not None


def _preprocessing(processor: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Size, mean and deviation of the model's processor. Whole images are resized: a crop could lose the lesion."""
    channels = getattr(config, "num_channels", 3)
    mean, deviation = [0.0] * channels, [1.0] * channels
    if processor.get("do_normalize", True) and "image_mean" in processor:
        mean, deviation = list(processor["image_mean"]), list(processor["image_std"])
    size = processor.get("crop_size") or processor.get("size") or getattr(config, "image_size", None) or DEFAULT_SIDE
    if isinstance(size, Mapping):
        size = [size["height"], size["width"]] if "height" in size else size.get("shortest_edge", DEFAULT_SIDE)
    sides = list(size) if isinstance(size, list | tuple) else [size, size]
    return {"size": sides, "mean": mean, "deviation": deviation}


def _checked(encoder: HuggingFaceEncoder, name: str, shape: Shape) -> HuggingFaceEncoder:
    channels = len(encoder.mean)
    if len(shape) != 3 or shape[0] not in (1, channels):
        raise ValueError(
            f"Expected images (channels, H, W) of 1 or {channels} channels for the encoder {name!r}. Received: inputs "
            f"of shape {shape}. Choose another encoder for volumes and features."
        )
    return encoder


@contextmanager
def _quiet(transformers: Any):
    """Hide the progress bars of transformers, which would interrupt ours."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
