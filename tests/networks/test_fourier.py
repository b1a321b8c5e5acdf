"""Convolutions by Fourier transforms: the numbers and gradients of torch's own convolution."""

import pytest
import torch
from torch import nn

from phenogroups.networks import fourier
from phenogroups.networks.architectures import paper
from phenogroups.networks.fourier import FourierConv2d, PixelsFirstNorm2d


def results(forward, layer, x):
    """Output, and gradients of the input, the kernels and the bias."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y = forward(layer, x)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    return y.detach(), x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()


@pytest.mark.parametrize("kernel", [3, 7])
@pytest.mark.parametrize("shape", [(9, 12), (13, 8), (3, 2), (1, 1)])
def test_output_and_gradients_are_those_of_torch(kernel, shape, monkeypatch):
    monkeypatch.setattr(fourier, "IMAGES", 4)  # so that there are several parts, the last of them smaller
    torch.manual_seed(0)
    layer = FourierConv2d(16, 5, kernel)
    x = torch.randn(10, 16, *shape)
    for found, expected in zip(
        results(FourierConv2d.forward, layer, x), results(nn.Conv2d.forward, layer, x), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


def test_what_would_not_be_faster_is_left_to_torch():
    torch.manual_seed(0)
    few, layer, precise = FourierConv2d(3, 4, 7), FourierConv2d(16, 4, 7), FourierConv2d(16, 4, 7).double()
    for convolution, x in (
        (few, torch.randn(2, 3, 8, 8)),
        (precise, torch.randn(2, 16, 8, 8).double()),
        (layer, torch.randn(0, 16, 8, 8)),
        (layer, torch.randn(16, 8, 8)),
        (layer, torch.randn(1, 16, 65, 3)),
    ):
        assert not convolution.is_faster_for(x)
        assert torch.equal(convolution(x), nn.Conv2d.forward(convolution, x))
    assert layer.is_faster_for(torch.randn(1, 16, 64, 3))
    with torch.autocast("cpu", torch.bfloat16):
        assert FourierConv2d(16, 4, 7)(torch.randn(2, 16, 8, 8)).dtype == torch.bfloat16


def test_a_network_that_embedded_first_can_be_trained():
    fourier.transforms.cache_clear()
    layer, x = FourierConv2d(16, 4, 7), torch.randn(2, 16, 11, 11)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("training", [True, False])
def test_the_norm_is_that_of_torch_and_leaves_pixels_first(training):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 6).permute(2, 3, 0, 1)  # pixels, images, channels in memory
    norms = [norm(6).train(training) for norm in (PixelsFirstNorm2d, nn.BatchNorm2d)]
    found, expected = (norm(x) for norm in norms)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(norms[0].state_dict(), norms[1].state_dict())
    assert found.permute(2, 3, 0, 1).is_contiguous()
    assert not expected.permute(2, 3, 0, 1).is_contiguous()  # or a norm of its own would not be needed


def test_an_even_kernel_has_no_middle():
    with pytest.raises(ValueError, match="odd kernel"):
        FourierConv2d(16, 4, 2)


def test_the_papers_network_has_the_weights_of_plain_convolutions():
    """A model that was saved before can be read."""
    encoder = paper((1, 12, 12))
    names = {name for name, _ in encoder.named_parameters()}
    assert {"layers.0.weight", "layers.0.bias", "layers.9.weight", "layers.9.bias"} <= names
    assert encoder(torch.zeros(2, 1, 12, 12)).shape == (2, 128)
