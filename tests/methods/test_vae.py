import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.methods import VAE
from phenogroups.methods.vae import divergence_from_prior


@pytest.fixture(scope="module")
def digits():
    return drawn_digits(160, size=16, seed=2).patients


@pytest.fixture(scope="module")
def fitted(digits):
    return VAE(epochs=5, steps=20).fit(digits)


def test_divergence_is_that_of_torch():
    mean, log_variance = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0)).double()
    q = Independent(Normal(mean, (log_variance / 2).exp()), 1)
    prior = Independent(Normal(torch.zeros(7, 5).double(), 1.0), 1)
    torch.testing.assert_close(divergence_from_prior(mean, log_variance), kl_divergence(q, prior))


def test_the_bound_is_that_of_torch_distributions(fitted, digits):
    """Up to the constant of the Gaussian likelihood, for the same draw from q."""
    network, x = fitted.network_.eval(), torch.tensor(digits.inputs[:16])
    batch = type("Batch", (), {"views": (x,)})
    torch.manual_seed(5)
    losses = fitted.losses(network, batch, None)
    torch.manual_seed(5)
    with torch.no_grad():
        h = network.encoder(x)
        mean, log_variance = network.heads["mean"](h), network.heads["log_variance"](h)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        decoder = network.heads["decoder"]
        likelihood = Normal(decoder(z), fitted.noise * decoder.scale)
        constant = likelihood.log_prob(likelihood.mean).sum((1, 2, 3))
        expected = -(likelihood.log_prob(x).sum((1, 2, 3)) - constant).mean()
    assert losses["reconstruction"].item() == pytest.approx(expected.item(), rel=1e-4)


def error_of_copies(method, x, code) -> float:
    return method.network_.heads["decoder"].squared_error(torch.tensor(code), torch.tensor(x)).mean().item()


@torch.no_grad()
def test_the_mean_depends_on_the_input(fitted, digits):
    means = fitted.transform(digits)
    assert means.shape == (len(digits), fitted.latent)
    own = error_of_copies(fitted, digits.inputs, means)
    other = error_of_copies(fitted, digits.inputs, np.roll(means, 1, axis=0))
    assert own < 0.7 * other
    assert fitted.history_[-1]["divergence"] > 5  # nats that the code says of a patient


def test_a_heavy_prior_silences_the_code(digits):
    """What the test above would find if the posterior had collapsed."""
    method = VAE(epochs=3, steps=20, beta=1e4).fit(digits)
    assert method.transform(digits).std(0).max() < 0.1


def test_features_that_hang_together_by_nothing_are_coded_all_the_same(features):
    method = VAE(epochs=6, steps=20).fit(features)
    assert method.history_[-1]["divergence"] > 2
    assert method.transform(features.patients).std(0).max() > 0.5


def test_subgroups_are_read_from_the_mean(fitted, digits):
    means, centroids = fitted.transform(digits), fitted.beliefs_.centroids.numpy()[fitted.by_size_]
    nearest = ((means[:, None] - centroids) ** 2).sum(2).argmin(1)
    np.testing.assert_array_equal(fitted.predict_subgroup(digits), nearest)


def test_another_e_step_may_see_the_controls_too(features):
    """The seam for VAE + UCSL: trained on all, concluded otherwise."""
    seen = []

    class OfAll(VAE):
        needs_controls = True

        def e_step(self, embedding, diagnosis, previous, epoch):
            seen.append((embedding.shape, diagnosis.float().mean().item()))
            return super().e_step(embedding, diagnosis, previous, epoch)

    OfAll(epochs=1, steps=1, latent=3).fit(features)
    assert seen == [((120, 3), 0.5)]
