import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.methods import Foundation


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


def test_images_are_refused_with_a_remedy(images):
    with pytest.raises(CohortError, match=r"table of embeddings.*\(1, 16, 16\).*Embed them"):
        Foundation().fit(images)
