import numpy as np
import pytest
import torch

from phenogroups.data.cohort import Cohort
from phenogroups.methods import VAE, Autoencoder


@pytest.mark.parametrize("kind", ["images", "features"])
def test_the_copy_becomes_better(kind, request):
    method = Autoencoder(epochs=4, steps=10).fit(request.getfixturevalue(kind))
    errors = [row["reconstruction"] for row in method.history_]
    assert errors[-1] < 0.7 * errors[0]
    assert errors[-1] < 0.9  # 1 would be the error of the mean input


def test_the_loss_is_the_mean_squared_error_of_the_copy(images):
    method = Autoencoder(epochs=1, steps=2, batch_size=32).fit(images)
    network, x = method.network_, torch.tensor(images.inputs[:8])
    batch = type("Batch", (), {"views": (x,)})
    copy = network.heads["decoder"](network.encoder(x))
    patients = images.patients.inputs
    by_hand = ((copy - x) ** 2).mean().item() / patients.var()
    assert method.losses(network, batch, None)["reconstruction"].item() == pytest.approx(by_hand, rel=1e-4)


def test_volumes_of_odd_size():
    rng = np.random.default_rng(0)
    cohort = Cohort(rng.normal(size=(12, 1, 9, 6, 11)).astype(np.float32), np.arange(12) % 2)
    method = Autoencoder(epochs=1, steps=1).fit(cohort)
    assert method.predict_subgroup(cohort).shape == (12,)


def test_the_plain_input_is_copied_unless_an_augmentation_is_asked_for():
    for make in (Autoencoder, VAE):
        assert make().augment((1, 32, 32)).rotation == 0
        assert make().augment((5,)).noise == 0
        assert make(augmentation="digits").augment((1, 32, 32)).rotation == 25


def test_units_of_features_do_not_matter(features):
    scaled = Cohort(features.inputs * np.float32([1, 4, 1024, 1, 0.25, 1]), features.diagnosis)
    plain, other = (Autoencoder(epochs=2, steps=5).fit(cohort) for cohort in (features, scaled))
    np.testing.assert_allclose(plain.transform(features), other.transform(scaled), atol=1e-4)


def test_controls_are_not_looked_at(features):
    inputs = features.inputs.copy()
    inputs[~features.is_patient] += 5
    plain, other = (
        Autoencoder(epochs=1, steps=2).fit(Cohort(x, features.diagnosis)) for x in (features.inputs, inputs)
    )
    np.testing.assert_array_equal(plain.transform(features), other.transform(features))


def test_the_code_tells_where_something_is():
    """Pooled over the picture, it could not: four strided convolutions and 32 numbers of the whole map."""
    x = torch.zeros(2, 1, 32, 32)
    x[0, 0, 8, 8] = x[1, 0, 24, 24] = 100
    torch.manual_seed(0)
    network = Autoencoder().build((1, 32, 32)).eval()
    codes = network.encoder(x)
    assert codes.shape == (2, 32)
    assert (codes[0] - codes[1]).abs().max() > 1e-2
    assert not any("Pool" in type(layer).__name__ for layer in network.encoder.modules())
    strides = [layer.stride for layer in network.encoder.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert strides == [(2, 2)] * 4


@pytest.mark.parametrize(("side", "settings"), [(32, {"encoder": "vae64"}), (96, {})])
def test_the_vae_sees_and_copies_64_pixels(side, settings):
    below = np.full((4, 1, side, side), -1, np.float32)  # which lite0 is not for
    network = VAE(**settings).build((1, side, side), below)
    x = torch.rand(3, 1, side, side)
    assert network.encoder.resized(x).shape == (3, 1, 64, 64)
    assert network.encoder(x).shape == (3, 256)
    assert network.heads["decoder"](torch.zeros(3, 32)).shape == (3, 1, 64, 64)
    channels = [layer.out_channels for layer in network.encoder.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert channels == [32, 32, 64, 128, 256]
    batch = type("Batch", (), {"views": (x,)})
    assert VAE().losses(network, batch, None)["reconstruction"].isfinite()


def test_a_model_of_the_pooled_encoder_is_still_read(images, tmp_path):
    """Earlier versions took `light` where the recipe says auto."""
    for make in (Autoencoder, VAE):
        method = make(epochs=1, steps=1, encoder="light").fit(images)
        again = make().restore(images.input_shape, method.state())
        np.testing.assert_array_equal(again.transform(images), method.transform(images))
