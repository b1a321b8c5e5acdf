"""What a picture looks like without an encoder."""

import pytest
import torch

from phenogroups.networks.image_statistics import image_statistics, number_of_statistics


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 224, 224), (1, 5, 7), (2, 16, 16, 16), (1, 3, 40, 9)])
def test_its_size_is_known_beforehand(shape):
    seen = image_statistics(torch.rand(3, *shape))
    assert seen.shape == (3, number_of_statistics(shape))
    assert seen.isfinite().all()


def test_brightness_roughness_and_histogram_are_seen():
    torch.manual_seed(0)
    plain = torch.full((1, 1, 32, 32), 0.5)
    noisy = plain + 0.1 * torch.randn_like(plain)
    ramp = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
    flat, rough, tilted = (image_statistics(x)[0] for x in (plain, noisy, ramp))
    assert torch.allclose(flat[:64], torch.full((64,), 0.5))
    assert (rough[64:112] - flat[64:112]).min() > 2
    assert torch.allclose(tilted[:64].view(8, 8).mean(0), ramp[0, 0, 0].view(8, 4).mean(1), atol=1e-6)
    torch.testing.assert_close(tilted[-5:], torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]), atol=0.02, rtol=0)
