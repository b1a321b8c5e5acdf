"""Text as a tensor: model files hold tensors and nothing else, so a name or a configuration is stored as bytes."""

import json
from typing import Any

import torch
from torch import Tensor

from phenogroups.data.untrusted import MOST_TEXT, parse_json


def as_bytes(content: Any) -> Tensor:
    """(bytes,), uint8: the content as JSON."""
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


def from_bytes(tensor: Tensor) -> Any:
    if tensor.dtype != torch.uint8 or tensor.ndim != 1 or len(tensor) > MOST_TEXT:
        raise ValueError(f"Expected text as bytes in a row. Received: {tensor.dtype} of shape {tuple(tensor.shape)}.")
    return parse_json(tensor.numpy(force=True).tobytes())
