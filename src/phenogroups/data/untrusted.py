"""Checks of untrusted files before they are parsed: size, nesting and types (docs/reference/untrusted_files.md)."""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor
from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

MOST_TEXT = 2**24  # bytes of a recipe or of any other small file
DEEPEST = 20  # levels of nested lists and tables
LARGEST = 2**64  # limit of numbers; no setting is as large
SHOWN = 200  # characters of a wrong value that a message shows
SHARE = 0.5  # of the machine's memory that one input may fill


def machine_memory() -> int | None:
    """Bytes of memory; None where the operating system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def refuse_more_than_memory(bytes_: int, what: str) -> None:
    """Raise before memory is allocated."""
    memory = machine_memory()
    if memory is not None and bytes_ > SHARE * memory:
        raise ValueError(f"{what} would take {bytes_ / 1e9:.1f} GB; this machine has {memory / 1e9:.1f} GB")


def read_limited(path: Path, most: int = MOST_TEXT) -> bytes:
    """The content of a regular file of at most `most` bytes."""
    if not path.is_file():  # a pipe or a device would never end
        raise FileNotFoundError(f"{path} is no file")
    with path.open("rb") as file:
        content = file.read(most + 1) if path.stat().st_size <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"{path.name} is larger than the {most:,} bytes that are read of it")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it raises a ValueError."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it holds more than {DEEPEST} lists inside each other") from error
    refuse_strange(content)
    return content


def as_bytes(content: Any) -> Tensor:
    """Content as JSON in a tensor of bytes: model files hold tensors and nothing else."""
    return torch.tensor(list(json.dumps(content).encode()), dtype=torch.uint8)


def from_bytes(tensor: Tensor) -> Any:
    if tensor.dtype != torch.uint8 or tensor.ndim != 1 or len(tensor) > MOST_TEXT:
        raise ValueError(f"Expected text as bytes in a row. Received: {tensor.dtype} of shape {tuple(tensor.shape)}.")
    return parse_json(tensor.numpy(force=True).tobytes())


def refuse_strange(content: Any, depth: int = 0) -> None:
    """Raise if content is nested too deeply, or has numbers or characters that no setting has."""
    if depth > DEEPEST:
        raise ValueError(f"it holds more than {DEEPEST} lists inside each other")
    if isinstance(content, dict):
        for key, value in content.items():
            refuse_strange(key, depth + 1)
            refuse_strange(value, depth + 1)
    elif isinstance(content, list):
        for value in content:
            refuse_strange(value, depth + 1)
    elif isinstance(content, str):
        content.encode()  # half of a surrogate pair can be neither written nor printed
    elif isinstance(content, int | float) and not abs(content) < LARGEST:
        raise ValueError("it holds a number that is not finite, or too large")


def check_types(instance: Any) -> None:
    """Raise where a field of a dataclass is not of its declared type."""
    hints = get_type_hints(type(instance))
    for f in fields(instance):
        value = getattr(instance, f.name)
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            check_type(plain, hints[f.name], collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
        except TypeCheckError:
            kind = hints[f.name].__name__ if isinstance(hints[f.name], type) else str(hints[f.name])
            raise ValueError(f"Expected {f.name} as {kind}. Received: {shortened(value)}.") from None


def shortened(value: Any, *, quoted: bool = True, most: int = SHOWN) -> str:
    """The representation of a value, cut to a length that fits into a message."""
    text = repr(value) if quoted else str(value) or type(value).__name__
    return text if len(text) <= most else f"{text[:most]}..."
