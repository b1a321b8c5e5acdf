"""Networks from the tensors of a model file."""

from collections.abc import Mapping

import torch
from torch import Tensor

from phenogroups.networks.encoders import Encoder, build_encoder, encoder_of_file


def restored_encoder(name: str, input_shape: tuple[int, ...], saved: Mapping[str, Tensor]) -> Encoder:
    """A frozen encoder from its tensors alone."""
    name = encoder_of_file(input_shape, saved) if name == "auto" else name
    with torch.device("meta"):
        require_tensors(build_encoder(name, input_shape, saved=saved).state_dict(), saved)
    encoder = build_encoder(name, input_shape, saved=saved)
    encoder.load_state_dict(saved)
    return encoder.freeze()


def require_tensors(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors given are those expected, by name, shape and type."""
    missing, strange = (
        [name for name in expected if name not in given],
        [name for name in given if name not in expected],
    )
    if missing or strange:
        raise ValueError(
            f"Expected the {len(expected)} tensors of the network. Received: {len(missing)} missing "
            f"({', '.join(missing[:3])}), {len(strange)} others ({', '.join(strange[:3])})."
        )
    for name, like in expected.items():
        if given[name].shape != like.shape or given[name].dtype != like.dtype:
            raise ValueError(
                f"Expected {name} of shape {tuple(like.shape)}, {like.dtype}. Received: a size mismatch, "
                f"{tuple(given[name].shape)}, {given[name].dtype}."
            )
