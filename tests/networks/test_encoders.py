"""Every encoder gives (n, dim) and learns; the paper's network is the paper's, ResNet-18 is torchvision's."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from phenogroups.networks.architectures import MeanOverPixels
from phenogroups.networks.encoders import ENCODERS, build_encoder, default_encoder

CASES = [
    ("paper", (1, 16, 16), 128),
    ("paper", (2, 8, 8, 8), 128),
    ("paper_2x2", (1, 16, 16), 128),
    ("strided", (1, 28, 30), 32),
    ("strided", (2, 9, 12, 7), 32),
    ("vae64", (3, 96, 80), 256),
    ("vae128", (1, 64, 40, 32), 512 * 2 * 2 * 1),
    ("light", (1, 28, 28), 128),
    ("light", (3, 64, 64), 128),
    ("light", (3, 100, 224), 128),
    ("light", (1, 5, 64, 3), 128),
    ("light", (2, 24, 24, 24), 128),
    ("lite0", (1, 32, 48), 384),
    ("lite0", (3, 64, 64), 384),
    ("resnet18", (3, 64, 64), 512),
    ("resnet18", (1, 32, 32, 32), 512),
    ("densenet121", (1, 32, 32), 1024),
    ("densenet121", (1, 32, 32, 32), 1024),
    ("densenet121_projected", (1, 32, 32, 32), 128),
    ("mlp", (7,), 128),
]


@pytest.fixture(autouse=True)
def _one_thread():
    """The hundreds of small layers of DenseNet wait for each other for seconds when other work fills the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "shape", "dim"), CASES)
def test_an_encoder_embeds_and_learns(name, shape, dim):
    torch.manual_seed(0)
    encoder = build_encoder(name, shape, "random")
    embedding = encoder(torch.randn(4, *shape))
    assert embedding.shape == (4, dim)
    assert encoder.dim == dim
    assert isinstance(encoder.dim, int)
    (embedding**2 * torch.randn(4, dim)).sum().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.stride() == parameter.stride(), parameter_name  # or distributed training warns
    assert next(encoder.parameters()).grad.abs().max() > 0  # the first layer hears of the last


def test_the_published_encoder_of_simclr_has_2x2_kernels():
    weights = {
        name: sum(p.numel() for p in build_encoder(name, (1, 32, 32)).parameters()) for name in ("paper_2x2", "paper")
    }
    assert weights["paper_2x2"] == 43_792  # as counted in the published notebook
    assert weights["paper"] > 11 * weights["paper_2x2"]


def test_the_cases_name_every_encoder():
    assert {name for name, _, _ in CASES} == set(ENCODERS)


@pytest.mark.parametrize(("name", "shape"), [("paper", (1, 8, 8)), ("light", (2, 16, 16)), ("mlp", (5,))])
def test_weights_make_the_round_trip(name, shape):
    x = torch.randn(6, *shape)
    first, second = build_encoder(name, shape), build_encoder(name, shape)
    first(x)  # moves the running statistics
    if name == "mlp":
        first.fit_scaling(3 * x + 1)
    second.load_state_dict(first.state_dict())
    assert all(tensor.is_contiguous() for tensor in first.state_dict().values())  # as safetensors asks
    torch.testing.assert_close(first.eval()(x), second.eval()(x), rtol=0, atol=0)


def test_the_papers_network_layer_by_layer():
    layers = list(build_encoder("paper", (1, 32, 32)).layers)
    kinds = [nn.Conv2d, nn.BatchNorm2d, nn.ReLU] * 4 + [MeanOverPixels]
    assert len(layers) == len(kinds)
    assert all(isinstance(layer, kind) for layer, kind in zip(layers, kinds, strict=True))
    convolutions = layers[:12:3]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [(1, 16), (16, 32), (32, 64), (64, 128)]
    assert all(c.kernel_size == (7, 7) and c.padding == (3, 3) and c.stride == (1, 1) for c in convolutions)
    # 49 weights per pair of channels and one bias each, then two numbers per channel of each batch norm
    by_hand = (49 * 1 * 16 + 16) + (49 * 16 * 32 + 32) + (49 * 32 * 64 + 64) + (49 * 64 * 128 + 128) + 2 * 240
    assert by_hand == 528_352
    assert _count(build_encoder("paper", (1, 32, 32))) == by_hand


@pytest.mark.parametrize(
    ("side", "memory_format"), [((6, 5), torch.channels_last), ((4, 3, 5), torch.channels_last_3d)]
)
def test_the_mean_over_pixels_gives_gradients_as_the_input_lies_in_memory(side, memory_format):
    x = torch.randn(7, 3, *side, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
    found, expected = MeanOverPixels()(x), x.mean(tuple(range(2, x.ndim)))
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.square().sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.square().sum(), x)[0])
    assert gradient.is_contiguous(memory_format=memory_format)  # else each layer before it lays it out anew


@pytest.mark.parametrize(
    ("side", "final_map", "convolutions"), [(28, 7, 4), (32, 8, 4), (48, 12, 4), (64, 8, 4), (128, 8, 4), (224, 7, 5)]
)
def test_light_brings_every_image_to_a_small_map(side, final_map, convolutions):
    encoder = build_encoder("light", (1, side, side)).eval()
    assert encoder.layers[:-1](torch.zeros(1, 1, side, side)).shape == (1, 128, final_map, final_map)
    assert sum(isinstance(layer, nn.Conv2d) for layer in encoder.layers) == convolutions


@pytest.mark.parametrize(("side", "final_map"), [(16, 4), (32, 8), (48, 12), (96, 12)])
def test_light_strides_on_every_volume(side, final_map):
    encoder = build_encoder("light", (1, side, side, side)).eval()
    assert encoder.layers[0].stride == (2, 2, 2)
    assert encoder.layers[:-1](torch.zeros(1, 1, side, side, side)).shape == (1, 128, *[final_map] * 3)


def test_light_pools_before_the_relu_without_changing_the_result():
    x = torch.randn(4, 8, 6, 6)
    assert torch.equal(torch.max_pool2d(x, 2).relu(), torch.max_pool2d(x.relu(), 2))


def test_resnet18_is_torchvisions():
    encoder = build_encoder("resnet18", (3, 64, 64))
    assert _count(encoder) == 11_176_512  # torchvision's 11,689,512 without the classifier's 512 * 1000 + 1000
    shapes = {key: tuple(tensor.shape) for key, tensor in encoder.layers.state_dict().items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer4.0.downsample.0.weight"] == (512, 256, 1, 1)
    assert "layer4.0.downsample.0.bias" not in shapes
    assert "layer4.1.bn2.running_var" in shapes
    sides = []
    for name in ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4"):
        getattr(encoder.layers, name).register_forward_hook(lambda _, __, out: sides.append(out.shape[-1]))
    encoder.eval()(torch.zeros(1, 3, 64, 64))
    assert sides == [32, 16, 16, 8, 4, 2]


def test_densenet121_is_torchvisions():
    assert _count(build_encoder("densenet121", (3, 32, 32))) == 6_953_856  # 7,978,856 without 1024 * 1000 + 1000


def test_mlp_predicts_a_row_alone_as_in_company():
    torch.manual_seed(0)
    encoder, x = build_encoder("mlp", (300,), "random"), torch.randn(200, 300)
    encoder(x)  # statistics of batch normalisation
    encoder.eval()
    with torch.no_grad():
        together, alone = encoder(x), torch.cat([encoder(row[None]) for row in x])
    torch.testing.assert_close(alone, together, rtol=2e-7, atol=1e-12)  # the last bit, also of what is next to nothing
    assert together.dtype == x.dtype
    x.requires_grad_()
    encoder(x).sum().backward()  # what drives a prediction is asked of it as well
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert encoder.layers[0].weight.grad is not None


def test_mlp_standardises_its_features():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal([5, -2, 0.1], [10, 0.01, 0], (50, 3)), dtype=torch.float32)
    encoder = build_encoder("mlp", (3,)).eval()
    assert torch.equal(encoder.mean, torch.zeros(3))
    assert torch.equal(encoder.scale, torch.ones(3))
    identity = encoder(x)
    torch.testing.assert_close(identity, encoder.layers(x))
    encoder.fit_scaling(x)
    assert encoder.scale[2] == 1  # a constant feature is not divided by nothing
    standard = (x.double().numpy() - x.double().numpy().mean(0)) / np.array([*x.double().numpy().std(0)[:2], 1])
    torch.testing.assert_close(encoder(x), encoder.layers(torch.tensor(standard).float()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((9,), "mlp"), ((1, 8, 8), "light"), ((1, 8, 8, 8), "light"), ((1, 64, 64), "lite0"), ((3, 224, 64), "lite0"),
        ((3, 224, 63), "light"), ((2, 224, 224), "light"), ((1, 64, 64, 64), "light"),
    ],
)  # fmt: skip
def test_default_encoders(shape, name):
    assert default_encoder(shape) == name
    assert default_encoder(shape, "a file") == ("mlp" if name == "mlp" else "light")


@pytest.mark.parametrize(("low", "high", "name"), [(0, 1, "lite0"), (-0.1, 1, "light"), (0, 255, "light")])
def test_the_default_looks_at_values(low, high, name):
    inputs = np.full((3, 1, 64, 64), low, np.float32)
    inputs[-1, 0, 5, 7] = high
    assert default_encoder((1, 64, 64), None, inputs) == name


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("vgg", (1, 32, 32), "among paper, paper_2x2, light.*Received: 'vgg'"),
        ("mlp", (1, 32, 32), r"Expected features.*Received.*\(1, 32, 32\).*'light'"),
        ("light", (12,), r"Expected images.*Received.*\(12,\).*'mlp'"),
        ("densenet121", (12, 3), "Expected images.*'mlp'"),
        ("lite0", (3, 28, 64), r"at least 32 pixels.*\(3, 28, 64\).*'light'"),
        ("lite0", (2, 64, 64), r"1 or 3 channels.*\(2, 64, 64\).*'light'"),
        ("lite0", (1, 64, 64, 64), r"1 or 3 channels.*'light' for volumes"),
        ("resnet18", (3, 28, 64), r"at least 32 pixels.*\(3, 28, 64\).*'light'"),
    ],
)
def test_a_wrong_choice_is_explained(name, shape, message):
    with pytest.raises(ValueError, match=message):
        build_encoder(name, shape)


def test_monai_waits_until_it_is_needed():
    code = "import sys, phenogroups.networks.encoders; raise SystemExit('monai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_library_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"package transformers.*pip install 'phenogroups\[foundation\]'"):
        build_encoder("hf:some/model", (3, 32, 32))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
