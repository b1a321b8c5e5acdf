import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from phenogroups.data.cohort import Cohort
from phenogroups.methods import Foundation
from phenogroups.networks.encoders import build_encoder


@pytest.fixture(scope="module")
def embeddings() -> Cohort:
    rng = np.random.default_rng(0)
    ill, truth = np.arange(200) % 2, rng.integers(0, 3, 200)
    inputs = rng.normal(size=(200, 12))
    inputs[:, :4] += ill[:, None]
    inputs[:, 4:10] += 4 * ill[:, None] * np.eye(3)[truth].repeat(2, axis=1)
    return Cohort((inputs * np.logspace(-3, 3, 12)).astype(np.float32), ill, truth=truth)


def test_subgroups_are_those_of_scikit_learn_on_standardised_patients(embeddings):
    method = Foundation(n_subgroups=3).fit(embeddings)
    scaler = StandardScaler().fit(embeddings.patients.inputs)
    oracle = KMeans(3, n_init=10, random_state=0).fit(scaler.transform(embeddings.patients.inputs))
    pairs = set(zip(oracle.labels_, method.labels_[embeddings.is_patient], strict=True))
    assert len(pairs) == 3  # the same subgroups under other numbers
    squared = oracle.transform(scaler.transform(embeddings.inputs)) ** 2
    expected = (1 / squared) / (1 / squared).sum(1, keepdims=True)
    order = [k for _, k in sorted(pairs)]
    np.testing.assert_allclose(method.predict_subgroup_proba(embeddings)[:, order], expected, atol=1e-4)


def test_diagnosis_is_that_of_scikit_learn(embeddings):
    z = StandardScaler().fit_transform(embeddings.inputs.astype(np.float64))
    oracle = LogisticRegression(class_weight="balanced", max_iter=1000).fit(z, embeddings.diagnosis)
    found = Foundation(n_subgroups=3).fit(embeddings).predict_proba(embeddings)
    np.testing.assert_allclose(found, oracle.predict_proba(z), atol=1e-3)


def test_the_table_is_the_embedding(embeddings):
    np.testing.assert_array_equal(Foundation().fit(embeddings).transform(embeddings), embeddings.inputs)


def test_images_without_an_encoder_are_refused_with_a_remedy(images):
    with pytest.raises(ValueError, match=r"pretrained encoder.*\(1, 16, 16\).*hf:NAME.*embeddings as features"):
        Foundation().fit(images)
    with pytest.raises(ValueError, match=r"pretrained encoder.*'light' with weights None"):
        Foundation(encoder="light").fit(images)


def test_a_table_is_not_embedded_again(embeddings):
    with pytest.raises(ValueError, match=r"Expected images for encoder 'hf:some/model'.*leave both out"):
        Foundation(encoder="hf:some/model").fit(embeddings)


def test_images_are_embedded_first(images, tmp_path):
    """The same as embedding them elsewhere and giving the table."""
    encoder = build_encoder("light", images.input_shape)
    encoder(torch.rand(8, *images.input_shape))  # moves the running statistics
    torch.save(encoder.state_dict(), tmp_path / "light.pth")
    method = Foundation(encoder="light", weights=str(tmp_path / "light.pth")).fit(images)
    with torch.no_grad():
        z = encoder.eval()(torch.tensor(images.inputs).float()).numpy()
    np.testing.assert_allclose(method.transform(images), z, atol=1e-5)
    table = Foundation().fit(Cohort(method.transform(images), images.diagnosis))
    expected, found = table.predict_cohort(method.transform(images)), method.predict_cohort(images)
    np.testing.assert_array_equal(found.subgroup, expected.subgroup)
    np.testing.assert_array_equal(found.diagnosis, expected.diagnosis)


def test_random_weights_hang_on_the_seed_alone(images):
    a, b, other = (Foundation(weights="random", seed=seed).fit(images).transform(images) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - other).max() > 1e-3
