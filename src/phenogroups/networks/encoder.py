"""The base class of encoders: from a batch of inputs to embeddings (n, dim), in 2-D, in 3-D or from features."""

from functools import cached_property
from hashlib import sha256
from typing import Self

import numpy as np
from torch import Tensor, nn

from phenogroups.data.batches import rows_at_once
from phenogroups.data.stored import Inputs

Shape = tuple[int, ...]  # of one input: (features,), (channels, H, W) or (channels, D, H, W)

IDENTITY = 1  # raised when an encoder computes other embeddings from the same weights
SAMPLED = 1000  # inputs from which the range of values is taken
# range of the values of each intensity; also of images standardised by other statistics than ImageNet's, not 0 to 255
LIMITS: dict[str | None, tuple[float, float]] = {"unit": (0, 1), "imagenet": (-20, 20)}
ROUNDING = 1e-3  # beyond these limits: a white image of 224 pixels resized to 96 reaches 1.0000002


class Encoder(nn.Module):
    dim: int  # the length of its embeddings
    expects: str | None = None  # intensity of images (as `data.reading` names them) on which its weights were trained
    has_learned: bool = False  # whether its weights are pretrained

    def resized(self, x: Tensor) -> Tensor:
        """The inputs at the size at which they are encoded, and at which a decoder reconstructs them."""
        return x

    def freeze(self) -> Self:
        """Stop training of the weights and of batch statistics, so that an input always has the same embedding."""
        self.__dict__.pop("identity", None)
        self.__dict__.pop("fast", None)
        return self.requires_grad_(False).eval()

    @property
    def fast(self) -> nn.Module:
        """The fastest module that computes the embeddings of a frozen encoder, up to rounding."""
        return self

    def rows_at_once(self, shape: Shape) -> int:
        """The batch size for inputs of this shape that is fastest per input."""
        return rows_at_once(shape)

    @cached_property
    def identity(self) -> str:
        """A checksum of the kind and the weights of a frozen encoder, on which its embeddings depend."""
        digest = sha256(repr((IDENTITY, self.dim, self.expects)).encode())
        for name, value in self.state_dict().items():
            digest.update(repr((name, value.dtype, tuple(value.shape))).encode())
            digest.update(value.cpu().contiguous().numpy().data)
        return f"{type(self).__name__.lower()}-{digest.hexdigest()[:32]}"

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise where inputs cannot have the intensity that the weights were trained on."""
        low, high = LIMITS.get(self.expects, (-np.inf, np.inf))
        found = value_range(inputs)
        if found[0] < low - ROUNDING or found[1] > high + ROUNDING:
            how = "--intensity minmax" if self.expects == "unit" else f"--intensity {self.expects}"
            raise ValueError(
                f"Expected images of intensity {self.expects!r} for these weights, between {low} and {high}. Received: "
                f"values from {found[0]:.4g} to {found[1]:.4g}. Read the files so ({how}), or rescale the arrays."
            )


def value_range(inputs: Inputs) -> tuple[float, float]:
    """The smallest and the largest value in a sample of the inputs, which is enough to recognise the intensity."""
    ranges = [(float(row.min()), float(row.max())) for row in inputs[:: -(-len(inputs) // SAMPLED)]]
    return min(low for low, _ in ranges), max(high for _, high in ranges)
