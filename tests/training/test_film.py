"""The film: a bounded look at some subjects after each epoch, which changes nothing of the training."""

import numpy as np
import pytest
import torch

from phenogroups.methods import DeepUCSL, SimCLR
from phenogroups.training import film as film_module

QUICK = {"steps": 2, "batch_size": 32}


@pytest.mark.parametrize("method", [DeepUCSL(epochs=3, restarts=2, **QUICK), SimCLR(epochs=2, **QUICK)])
def test_the_last_frame_is_before_recalibration_and_frames_are_of_training_subjects(features, method):
    method.recalibrate_batch_norm = False  # so that the last frame is the embedding itself
    method.fit(features)
    film = method.film_
    assert film.epochs.tolist() == list(range(1, method.epochs + 1))
    seen = method.trained_on(features)
    expected = method.transform(seen.inputs[film.rows])
    np.testing.assert_allclose(film.embedding[-1], expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(film.embedding[0], film.embedding[-1])


def test_being_filmed_changes_no_bit(features, monkeypatch):
    def weights() -> list[torch.Tensor]:
        return list(DeepUCSL(epochs=2, restarts=2, **QUICK).fit(features).state().values())

    filmed = weights()
    blank = np.zeros((1, 1))
    monkeypatch.setattr(film_module.FilmRecorder, "record", lambda self, epoch, _: self.frames.update({epoch: blank}))
    assert all(torch.equal(a, b) for a, b in zip(filmed, weights(), strict=True))


def test_the_film_is_bounded(features, monkeypatch):
    monkeypatch.setattr(film_module, "FRAMES", 4)
    monkeypatch.setattr(film_module, "SUBJECTS", 10)
    monkeypatch.setattr(film_module, "TRAINED_PER_FILMED", 3)
    film = SimCLR(epochs=11, steps=1, batch_size=32).fit(features).film_
    assert len(film.epochs) <= 4
    assert film.epochs[0] == 1
    assert film.epochs[-1] == 11
    assert film.embedding.shape[1] == len(film.rows) == 10
    monkeypatch.setattr(film_module, "TRAINED_PER_FILMED", 8)
    assert len(SimCLR(epochs=1, steps=1, batch_size=32).fit(features).film_.rows) == 4
    monkeypatch.setattr(film_module, "NUMBERS", 4 * 128 * 3)
    assert len(SimCLR(epochs=1, steps=1, batch_size=32).fit(features).film_.rows) == 3
