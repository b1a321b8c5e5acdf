"""Methods that can embed images by a pretrained encoder, once: everything after is work on a table of embeddings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from phenogroups.data.stored import Inputs
from phenogroups.methods.base import Method
from phenogroups.networks.encoder import Encoder
from phenogroups.networks.encoders import build_encoder, default_encoder, encoder_of_file, is_lite0
from phenogroups.training.checkpoint import with_prefix, without_prefix
from phenogroups.training.distributed import on_device
from phenogroups.training.embedding import embed_once

Module = TypeVar("Module", bound=nn.Module)


@dataclass(eq=False, repr=False)
class WithEncoder(Method):
    """A method with an encoder of images.

    Parameters
    ----------
    encoder
        A name in `phenogroups.networks.encoders`, ``hf:NAME`` for a model of transformers, or ``auto``: ``mlp``,
        ``light`` or ``lite0``, by the inputs.
    weights
        First weights of the encoder: a file, ``imagenet`` (for ``resnet18``), ``random``, or None: its own if it has
        any.
    """

    encoder: str = "auto"
    weights: str | None = None

    encoder_prefix: ClassVar[str] = "eyes."  # before the names of the frozen encoder's tensors in a model file

    @property
    def by_lite0(self) -> bool:
        return is_lite0(self.encoder, self.weights)

    def encoder_for(self, inputs: Inputs) -> str:
        """Name of the encoder for these inputs."""
        return self.encoder_by_default(inputs.shape[1:], inputs) if self.encoder == "auto" else self.encoder

    def encoder_by_default(self, input_shape: tuple[int, ...], inputs: Inputs | None = None) -> str:
        """Name of the encoder that `auto` means for these inputs."""
        return default_encoder(input_shape, self.weights, inputs)

    def build_frozen_encoder(self, inputs: Inputs) -> Encoder:
        """The encoder for these inputs with its weights, frozen."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)  # for random weights
            encoder = build_encoder(self.encoder_for(inputs), inputs.shape[1:], self.weights)
        encoder.check_inputs(inputs)
        return encoder.freeze()

    def embed_cohort(self, encoder: Encoder, inputs: Inputs, device: str) -> np.ndarray:
        """(subjects, dims): embeddings by a frozen encoder on this accelerator; each process computes a part."""
        own = inputs[self.comm.shard(len(inputs))]
        z = embed_once(encoder, own, next(on_device(encoder, device).parameters()).device)
        encoder.cpu()
        return self.comm.gather(torch.from_numpy(z)).numpy()

    def encoder_tensors(self) -> dict[str, Tensor]:
        """The tensors of the frozen encoder by their names in a model file."""
        saved = {} if self.frozen_encoder_ is None else self.frozen_encoder_.state_dict()
        return with_prefix(self.encoder_prefix, {name: value.contiguous() for name, value in saved.items()})

    def restore_encoder(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Restore the frozen encoder, if there are tensors of one; returns all other tensors."""
        saved = without_prefix(self.encoder_prefix, tensors)
        self.frozen_encoder_ = None
        if saved:
            name = encoder_of_file(self.input_shape_, saved) if self.encoder == "auto" else self.encoder
            encoder = build_restored(lambda: build_encoder(name, self.input_shape_, saved=saved), saved)
            self.frozen_encoder_ = encoder.freeze()
        return {name: value for name, value in tensors.items() if not name.startswith(self.encoder_prefix)}


def build_restored(build: Callable[[], Module], given: Mapping[str, Tensor]) -> Module:
    """A module with these tensors; raises unless they are those that it expects, by name, shape and type."""
    with torch.device("meta"):  # without memory: a wrong recipe may ask for a network far larger than the file
        expected = build().state_dict()
    missing = [name for name in expected if name not in given]
    unexpected = [name for name in given if name not in expected]
    if missing or unexpected:
        raise ValueError(
            f"Expected the {len(expected)} tensors of the network. Received: {len(missing)} missing "
            f"({', '.join(missing[:3])}), {len(unexpected)} others ({', '.join(unexpected[:3])})."
        )
    for name, like in expected.items():
        if given[name].shape != like.shape or given[name].dtype != like.dtype:
            raise ValueError(
                f"Expected {name} of shape {tuple(like.shape)}, {like.dtype}. Received: a size mismatch, "
                f"{tuple(given[name].shape)}, {given[name].dtype}."
            )
    module = build()
    module.load_state_dict(given)
    return module
