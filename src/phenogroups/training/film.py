"""The film: the embeddings of some subjects after each of several epochs, which the report animates."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# largest number of subjects, of frames, and of numbers in all (64 MB)
SUBJECTS, FRAMES, NUMBERS = 600, 40, 2**24
TRAINED_PER_FILMED = 16  # an epoch trains on at least so many inputs for each one filmed, so that a film costs little


@dataclass(frozen=True)
class Film:
    rows: np.ndarray  # (filmed,): positions among the subjects trained on
    epochs: np.ndarray  # (frames,): after how many M-steps
    embedding: np.ndarray  # (frames, filmed, dims)


class FilmRecorder:
    """Records one frame after each epoch, with its own random generator, so that training is the same without it."""

    def __init__(self, subjects: int, trained_per_epoch: int, dims: int, seed: int) -> None:
        filmed = min(
            subjects, SUBJECTS, max(trained_per_epoch // TRAINED_PER_FILMED, 1), max(NUMBERS // (FRAMES * dims), 1)
        )
        self.rows = np.sort(np.random.default_rng(seed).choice(subjects, filmed, replace=False))
        self.frames: dict[int, np.ndarray] = {}  # epoch -> embeddings of the filmed subjects

    def record(self, epoch: int, embed: Callable[[Tensor], Tensor]) -> None:
        """Add a frame; when there are too many, every second one is dropped, but never the newest."""
        self.frames[epoch] = embed(torch.as_tensor(self.rows)).numpy(force=True).astype(np.float32)
        if len(self.frames) > FRAMES:
            newest = len(self.frames) - 1
            self.frames = {e: frame for i, (e, frame) in enumerate(self.frames.items()) if i % 2 == 0 or i == newest}

    def film(self) -> Film:
        return Film(self.rows, np.array(list(self.frames)), np.stack(list(self.frames.values())))
