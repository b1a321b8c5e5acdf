"""What every method in METHODS promises, whatever it does inside."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from sklearn.base import clone

from closeness import assert_same_prediction
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.methods import METHODS, Prediction, build_method, name_of, settings_of
from phenogroups.methods.registry import class_of

pytestmark = pytest.mark.anew
# of the settings that a method has; the paper's encoder has tests of its own and takes seconds for a handful of images
QUICK = {"epochs": 2, "steps": 2, "batch_size": 32, "restarts": 2, "encoder": "auto", "n_consensus": 3}
QUICK |= {"runs": 2, "settings": {"epochs": 1, "steps": 2, "batch_size": 32, "restarts": 1}}  # of a consensus
OF_IMAGES = {"foundation": {"weights": "random"}}  # no learned ones are at hand
CASES = [(name, kind) for name in METHODS for kind in ("images", "features")]


def quick(name, cohort, **settings):
    known = class_of(name).setting_names()
    of_images = {} if cohort.inputs.ndim == 2 else OF_IMAGES.get(name, {})
    chosen = {key: value for key, value in {**QUICK, **of_images, **settings}.items() if key in known}
    if cohort.inputs.ndim == 2 and "augmentation" in known:
        chosen["augmentation"] = "auto"  # a preset may have chosen one for images
    return METHODS[name](**class_of(name).parse_settings(chosen))


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request) -> tuple[str, str]:
    return request.param


@pytest.fixture(scope="module")
def name(case) -> str:
    return case[0]


@pytest.fixture(scope="module")
def cohort(case, request) -> Cohort:
    return request.getfixturevalue(case[1])


@pytest.fixture(scope="module")
def fit(name, cohort):
    """A fitted method, what it told of its progress, and torch's and numpy's randomness before and after."""
    told, method = [], quick(name, cohort)
    torch.manual_seed(3)
    before = (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    method.fit(cohort, progress=told.append)
    after = (torch.get_rng_state(), np.random.get_state()[1].copy())  # noqa: NPY002
    return method, told, before, after


@pytest.fixture
def fitted(fit):
    return fit[0]


def bits(method, cohort) -> dict[str, np.ndarray]:
    return {key: value for key, value in vars(method.predict_cohort(cohort)).items() if value is not None}


def assert_same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def test_shapes_and_probabilities(fitted, cohort):
    found = fitted.predict_cohort(cohort)
    for probability in (found.subgroup, found.by_centroid):
        if probability is not None:
            assert probability.shape == (len(cohort), fitted.n_subgroups)
            assert probability.min() >= 0
            np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-5)
    if found.diagnosis is not None:
        assert found.diagnosis.shape == (len(cohort),)
        assert 0 <= found.diagnosis.min() <= found.diagnosis.max() <= 1
    assert found.embedding.shape[0] == len(cohort)
    assert found.embedding.ndim == 2
    assert np.isfinite(found.embedding).all()


def test_every_reading_is_of_the_same_prediction(fitted, cohort):
    found = fitted.predict_cohort(cohort)
    np.testing.assert_array_equal(fitted.predict_subgroup_proba(cohort), found.subgroup)
    np.testing.assert_array_equal(fitted.predict_subgroup(cohort), found.subgroup.argmax(axis=1))
    np.testing.assert_array_equal(fitted.transform(cohort), found.embedding)
    if found.diagnosis is None:
        with pytest.raises(AttributeError, match="no diagnosis head"):
            fitted.predict(cohort)
    else:
        np.testing.assert_array_equal(fitted.predict_proba(cohort)[:, 1], found.diagnosis)
        assert set(fitted.predict(cohort)) <= {0, 1}


def test_labels_are_those_of_patients(fitted, cohort):
    assert (fitted.labels_[~cohort.is_patient] == -1).all()
    expected = fitted.predict_subgroup(cohort)[cohort.is_patient]
    np.testing.assert_array_equal(fitted.labels_[cohort.is_patient], expected)


def test_the_largest_subgroup_is_first(fitted, cohort):
    if fitted.reads_truth:
        pytest.skip("known subgroups keep the order of their names")
    first, second = np.bincount(fitted.labels_[cohort.is_patient], minlength=2)
    between = (fitted.predict_cohort(cohort.patients).confidence < 0.65).sum()  # who counts for both
    assert first >= second - between - 0.01 * cohort.is_patient.sum()


def test_same_seed_same_bits_whatever_the_truth(fitted, name, cohort):
    other = replace(cohort, truth=np.random.default_rng(9).permutation(cohort.truth))
    again = quick(name, cohort).fit(cohort if fitted.reads_truth else other)
    assert_same_bits(bits(again, cohort), bits(fitted, cohort))
    np.testing.assert_array_equal(again.labels_, fitted.labels_)


def test_arrays_and_three_subgroups(name, cohort):
    method = quick(name, cohort, n_subgroups=3, epochs=1)
    if method.reads_truth:
        with pytest.raises(CohortError, match="Expected a cohort with truth"):
            method.fit(cohort.inputs.tolist(), cohort.diagnosis)
        return
    method.fit(cohort.inputs.tolist(), cohort.diagnosis)
    assert method.predict_subgroup_proba(cohort.inputs).shape == (len(cohort), 3)
    assert_same_bits(bits(method, cohort.inputs), bits(method, cohort))


def test_diagnosis_of_the_predicted_changes_nothing(fitted, cohort):
    other = replace(cohort, diagnosis=1 - cohort.diagnosis, truth=None)
    assert_same_bits(bits(fitted, other), bits(fitted, cohort))


def test_a_subject_alone_is_predicted_as_in_company(fitted, cohort):
    together = fitted.predict_cohort(cohort)
    alone = [fitted.predict_cohort(cohort.inputs[row : row + 1]) for row in range(len(cohort))]
    joined = {
        name: None if value is None else np.concatenate([getattr(one, name) for one in alone])
        for name, value in vars(together).items()
    }
    assert_same_prediction(Prediction(**joined), together)


def test_saved_and_loaded_is_the_same(fitted, cohort):
    model = save({key: value.contiguous() for key, value in fitted.state().items()})
    again = build_method(name_of(fitted), settings_of(fitted)).restore(cohort.input_shape, load(model))
    assert_same_bits(bits(again, cohort), bits(fitted, cohort))
    assert settings_of(again) == settings_of(fitted)


def test_clone_and_parameters(fitted):
    copy = clone(fitted)
    assert settings_of(copy) == settings_of(fitted)
    assert not hasattr(copy, "labels_")
    assert copy.set_params(n_subgroups=3).n_subgroups == 3


def test_history_is_one_finite_row_per_epoch(fitted):
    for epoch, row in enumerate(getattr(fitted, "history_", []), start=1):
        assert row["epoch"] == epoch
        assert row["seconds"] > 0
        assert len(row) > 2
        assert np.isfinite(list(row.values())).all()
    assert len(getattr(fitted, "history_", [])) == getattr(fitted, "epochs", 0)


def test_progress_is_told_of_every_epoch(fit):
    method, told, *_ = fit
    epochs = [row["epoch"] for row in told]
    assert epochs == sorted(epochs)
    assert set(epochs) >= set(range(1, getattr(method, "passes", 0) + 1))
    assert max(epochs, default=0) == getattr(method, "passes", 0)
    assert all(len(row) > 1 and np.isfinite(list(row.values())).all() for row in told)


def test_randomness_of_the_caller_is_left_alone(fit):
    _, _, before, after = fit
    assert torch.equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])


def test_wrong_inputs_are_refused_before_anything_is_computed(fitted, cohort, monkeypatch):
    monkeypatch.setattr(type(fitted), "_predict", lambda *_: pytest.fail("computed something"))
    with pytest.raises(ValueError, match=r"Expected inputs of shape|features, but .* is expecting"):
        fitted.predict_subgroup(np.concatenate([cohort.inputs, cohort.inputs], axis=1))
    broken = cohort.inputs.copy()
    broken[5] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict_subgroup(broken)


def test_wrong_cohorts_are_refused_before_training(name, cohort, monkeypatch):
    method = quick(name, cohort)
    monkeypatch.setattr(type(method), "_fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(CohortError, match="all controls"):
        method.fit(cohort[~cohort.is_patient])
    with pytest.raises(CohortError, match="1 patients for 2 subgroups"):
        method.fit(cohort[np.r_[np.flatnonzero(cohort.is_patient)[:1], np.flatnonzero(~cohort.is_patient)]])
    if method.needs_controls:
        with pytest.raises(CohortError, match="all patients"):
            method.fit(cohort.patients)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"n_subgroups": 1}, "n_subgroups of at least 2"), ({"seed": "zero"}, "Expected seed as int. Received: 'zero'")],
)
def test_wrong_settings_are_refused_before_training(name, cohort, settings, words, monkeypatch):
    method = quick(name, cohort, **settings)
    monkeypatch.setattr(type(method), "_fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(ValueError, match=words):
        method.fit(cohort)
