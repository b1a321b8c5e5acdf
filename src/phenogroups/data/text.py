"""Text as a tensor: model files hold tensors and nothing else, so a name or a configuration travels as its bytes."""

import json
from typing import Any

import torch
from torch import Tensor


def as_bytes(content: Any) -> Tensor:
    """(bytes,), uint8: the content as JSON."""
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


def from_bytes(tensor: Tensor) -> Any:
    return json.loads(bytes(tensor.tolist()))
