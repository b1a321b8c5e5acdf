"""The scikit-learn face of a method: its own checks, pipelines, searches and clones."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_train, parametrize_with_checks

from phenogroups import METHODS, DeepUCSL

QUICK = {"epochs": 2, "steps": 10, "restarts": 1}  # sixty checks fit about sixty times


@parametrize_with_checks([DeepUCSL(**QUICK)])
def test_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_passes_the_check_of_accuracy_as_it_is_by_default():
    check_classifiers_train("DeepUCSL", DeepUCSL())


def test_in_a_pipeline(features):
    pipeline = make_pipeline(StandardScaler(), DeepUCSL(**QUICK)).fit(features.inputs, features.diagnosis)
    assert pipeline.score(features.inputs, features.diagnosis) > 0.8
    assert pipeline.predict_proba(features.inputs).shape == (len(features), 2)
    assert pipeline.transform(features.inputs).shape[0] == len(features)


def test_in_a_grid_search(features):
    search = GridSearchCV(DeepUCSL(**QUICK), {"n_subgroups": np.arange(2, 4)}, cv=2)
    some = features[:60]
    search.fit(some.inputs, some.diagnosis)
    assert search.best_params_["n_subgroups"] in (2, 3)
    assert (search.cv_results_["mean_test_score"] > 0.6).all()
    assert search.best_estimator_.predict_subgroup(features.inputs).max() < search.best_params_["n_subgroups"]


def test_a_clone_keeps_settings_and_forgets_the_rest(features):
    method = DeepUCSL(**QUICK, class_weights=(0.5, 0.5)).fit(features)
    copy = clone(method)
    assert copy.get_params() == method.get_params()
    assert not [name for name in vars(copy) if name.endswith("_")]


def test_words_are_a_diagnosis_too(features):
    words = np.where(features.is_patient, "patient", "control")
    method = DeepUCSL(**QUICK).fit(features.inputs, words)
    assert list(method.classes_) == ["control", "patient"]
    assert set(method.predict(features.inputs)) <= {"control", "patient"}
    np.testing.assert_array_equal(method.labels_ == -1, words == "control")


@pytest.mark.parametrize(
    ("control", "patient", "named"),
    [
        ("CN", "AD", {}), ("control", "case", {}), ("Healthy_Control", "Bipolar", {}), ("hc", "AD", {}), ("0", "1", {}),
        (False, True, {}), (1, 2, {}), ("MCI", "AD", {"patient": "AD"}), ("AD", "MCI", {"patient": "MCI"}),
        (1, 0, {"patient": 0}),
    ],
)  # fmt: skip
def test_patients_get_the_subgroups_whatever_the_alphabet_says(features, control, patient, named):
    y = np.where(features.is_patient, patient, control)
    method = METHODS["kmeans"]().fit(features.inputs, y, **named)
    np.testing.assert_array_equal(method.labels_ >= 0, features.is_patient)
    assert list(method.classes_) == sorted([control, patient])
    assert method.patient_ == patient
    learned = DeepUCSL(**QUICK).fit(features.inputs, y, **named)
    assert np.mean(learned.predict(features.inputs) == y) > 0.8
    ill = learned.predict_proba(features.inputs)[:, list(learned.classes_).index(patient)]
    assert ill[features.is_patient].mean() > 0.7 > ill[~features.is_patient].mean()


@pytest.mark.parametrize(
    ("control", "patient", "named", "words"),
    [
        (
            "MCI",
            "AD",
            {},
            r"Received: 'AD' and 'MCI'\. Say which value means patient, for example fit\(X, y, patient='AD'\)",
        ),
        ("HC", "control", {}, "of which one is known to mean control"),
        (
            "CN",
            "AD",
            {"patient": "Alzheimer"},
            "Expected patient='Alzheimer' among the values of y. Received: 'AD' and",
        ),
    ],
)
def test_words_that_could_mean_either_are_refused(features, control, patient, named, words):
    with pytest.raises(ValueError, match=words):
        DeepUCSL(**QUICK).fit(features.inputs, np.where(features.is_patient, patient, control), **named)


@pytest.mark.parametrize(("value", "who"), [(0, "controls"), (False, "controls"), ("CN", "controls"), (1, "patients")])
def test_a_single_value_means_what_it_says(features, value, who):
    with pytest.raises(ValueError, match=f"one class, all {who}"):
        DeepUCSL(**QUICK).fit(features.inputs, [value] * len(features))


@pytest.mark.parametrize("y", [None, [0, 1, 2] * 40, [1] * 120])
def test_a_diagnosis_that_is_none_is_refused(features, y):
    with pytest.raises(ValueError, match=r"requires y|Only binary classification|one class"):
        DeepUCSL(**QUICK).fit(features.inputs, y)
