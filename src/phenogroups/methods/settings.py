"""Annotations of fields: limits of a method's settings, and shapes of the tensors that it learns."""

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from phenogroups.data.untrusted import check_types

Extra = TypeVar("Extra")


@dataclass(frozen=True)
class AtLeast:
    """The smallest value of a setting: ``epochs: Annotated[int, AtLeast(1)] = 6``. Subclasses inherit it."""

    value: float


@dataclass(frozen=True)
class Shape:
    """The dimensions of a tensor by name: ``centroids: Annotated[Tensor, Shape("subgroups", "dims")]``.

    The same name means the same size in all fields of a dataclass.
    """

    dims: tuple[str, ...]

    def __init__(self, *dims: str):
        object.__setattr__(self, "dims", dims)


def stated(cls: type, kind: type[Extra]) -> dict[str, Extra]:
    """The annotations of this kind in a dataclass and its parents, by field."""
    found = {}
    for owner in reversed(cls.__mro__):
        for name, annotation in inspect.get_annotations(owner, eval_str=True).items():
            if get_origin(annotation) is Annotated:
                found.update((name, extra) for extra in get_args(annotation)[1:] if isinstance(extra, kind))
    return found


def check_limits(settings: Any) -> None:
    """Raise where a setting is not of its declared type or is below its limit; None has no limit."""
    check_types(settings)
    for name, least in stated(type(settings), AtLeast).items():
        value = getattr(settings, name)
        if value is not None and value < least.value:
            raise ValueError(f"Expected {name} of at least {least.value}. Received: {value!r}.")


def check_shapes(beliefs: Any, **sizes: int) -> None:
    """Raise where tensors do not have the shapes of their annotations; `sizes` are known sizes by name."""
    for name, shape in stated(type(beliefs), Shape).items():
        received = tuple(getattr(beliefs, name).shape)
        sizes = dict(zip(shape.dims, received, strict=False)) | sizes
        if received != tuple(sizes.get(dim) for dim in shape.dims):
            known = ", ".join(f"{dim} is {sizes[dim]}" for dim in dict.fromkeys(shape.dims) if dim in sizes)
            raise ValueError(
                f"Expected {name} of shape ({', '.join(shape.dims)}), where {known}. Received: {received}."
            )
