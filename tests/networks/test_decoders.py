"""A decoder gives back the shape of an input, whatever it is, and compares in units of the inputs."""

import numpy as np
import pytest
import torch

from phenogroups.networks.decoders import build_decoder

SHAPES = [
    (1, 32, 32),
    (1, 28, 28),
    (3, 17, 33),
    (1, 5, 100),
    (2, 1, 1),
    (1, 16, 16, 16),
    (2, 9, 20, 13),
    (1, 5, 64, 3),
    (1,),
    (7,),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_copy_has_the_shape_of_the_input_and_every_layer_learns(shape):
    torch.manual_seed(0)
    decoder = build_decoder(8, shape)
    code, x = torch.randn(3, 8), torch.randn(3, *shape)
    assert decoder(code).shape == x.shape
    decoder.squared_error(code, x).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())


def test_every_pixel_of_the_copy_hangs_on_the_code():
    torch.manual_seed(0)
    decoder = build_decoder(8, (1, 37, 50))
    with torch.no_grad():
        assert (decoder(torch.randn(20, 8)).std(0) > 1e-4).all()


def test_features_are_compared_each_in_its_own_unit():
    torch.manual_seed(0)
    unit = np.array([1.0, 1e6, 1e-3, 1.0])
    x = (np.random.default_rng(0).normal(5, 1, size=(200, 4)) * unit).astype(np.float32)
    x[:, 3] = 7  # says nothing
    decoder = build_decoder(8, (4,))
    decoder.fit_scaling(x)
    code, x = torch.randn(200, 8), torch.tensor(x)
    by_hand = ((decoder(code) - x) / torch.tensor([*x[:, :3].std(0, correction=0), 1.0])).square()
    torch.testing.assert_close(decoder.squared_error(code, x), by_hand, rtol=1e-3, atol=1e-4)
    each = decoder.squared_error(code, x).mean(0)
    assert each[:3].max() < 2 * each[:3].min()


@pytest.mark.parametrize("space", [(6, 6), (6, 6, 6)])
def test_pixels_share_one_unit(space):
    x = np.random.default_rng(0).integers(0, 256, size=(20, 1, *space), dtype=np.uint8)
    x[:, :, 0] = 3  # a border that never varies counts for little
    decoder = build_decoder(8, (1, *space))
    decoder.fit_scaling(x)
    assert decoder.scale.item() == pytest.approx(x.std(), rel=1e-5)
    assert decoder.mean.item() == pytest.approx(x.mean(), rel=1e-5)
