import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from phenogroups.data.cohort import Cohort
from phenogroups.methods import PlainGaussianMixture


@pytest.mark.parametrize(("kind", "components"), [("images", 4), ("features", 3), ("features", 10)])
def test_subgroups_are_those_of_scikit_learn(kind, components, request):
    cohort = request.getfixturevalue(kind)
    method = PlainGaussianMixture(components=components, seed=1).fit(cohort)
    flat = cohort.inputs.reshape(len(cohort), -1).astype(np.float64)
    x = StandardScaler().fit(flat[cohort.is_patient]).transform(flat) if kind == "features" else flat
    z = PCA(min(components, flat.shape[1]), random_state=1).fit(x[cohort.is_patient]).transform(x)
    deviation = z[cohort.is_patient].std(0, ddof=1)
    oracles = {}
    for units in (deviation[:1], deviation):
        mixture = GaussianMixture(2, n_init=10, max_iter=1000, random_state=1).fit(z[cohort.is_patient] / units)
        density = multivariate_normal  # likelihoods of both in the same units
        joint = sum(
            w * density(m * units, c * np.outer(np.ones_like(m) * units, units)).pdf(z[cohort.is_patient])
            for w, m, c in zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True)
        )
        oracles[np.log(joint).sum()] = mixture.predict_proba(z / units)
    expected = oracles[max(oracles)]
    found = method.predict_subgroup_proba(cohort)
    np.testing.assert_allclose(found, expected[:, method.by_size_], atol=1e-3)
    assert method.transform(cohort).shape == (120, min(components, flat.shape[1]))


def test_units_of_features_do_not_matter(features):
    scaled = Cohort(features.inputs * np.float32([1, 2**20, 2**-20, 1, 1, 1]), features.diagnosis)
    plain, other = (PlainGaussianMixture(components=3).fit(cohort) for cohort in (features, scaled))
    np.testing.assert_array_equal(plain.labels_, other.labels_)


def test_what_never_varies_changes_nothing(features):
    constant = np.concatenate([features.inputs, np.full((120, 3), 7, np.float32)], axis=1)
    plain = PlainGaussianMixture().fit(features)
    other = PlainGaussianMixture().fit(Cohort(constant, features.diagnosis))
    np.testing.assert_allclose(
        plain.predict_subgroup_proba(features), other.predict_subgroup_proba(constant), atol=1e-6
    )


def test_few_patients_of_many_pixels(images):
    few = images[:9]
    assert PlainGaussianMixture().fit(few).transform(few).shape == (9, few.is_patient.sum() - 1)
