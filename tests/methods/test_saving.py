"""`save` and `load`: a fitted method comes back as it was, from files that hold no code."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError

from closeness import assert_same_prediction
from phenogroups import DeepUCSL, load
from phenogroups.cli import main
from phenogroups.methods import UCSL, Consensus, PlainGaussianMixture, PlainKMeans, SimCLR
from phenogroups.training.run import RunError

QUICK = {"epochs": 2, "steps": 2, "batch_size": 32}
METHODS = {
    "deep_ucsl": DeepUCSL(**QUICK, restarts=2, n_subgroups=3),
    "consensus": Consensus(DeepUCSL(**QUICK, restarts=1), runs=2),
    "consensus of kmeans": Consensus(PlainKMeans(n_starts=2), runs=3),
    "simclr": SimCLR(**QUICK),
    "gaussian_mixture": PlainGaussianMixture(),
    "ucsl": UCSL(n_consensus=2),
}


@pytest.mark.parametrize("kind", ["features", "images"])
@pytest.mark.parametrize("name", METHODS)
def test_what_is_loaded_predicts_as_what_was_saved(name, kind, request, tmp_path):
    cohort = request.getfixturevalue(kind)
    method = METHODS[name].fit(cohort)
    method.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.safetensors", "recipe.json"]
    assert len(load_file(tmp_path / "model" / "model.safetensors"))  # tensors, and nothing else can be in such a file
    again = load(tmp_path / "model")
    assert type(again) is type(method)
    assert again.get_params(deep=False).keys() == method.get_params(deep=False).keys()
    assert_same_prediction(again.predict_cohort(cohort), method.predict_cohort(cohort))


@pytest.mark.parametrize(
    ("control", "patient", "named"),
    [("CN", "AD", {}), ("AD", "MCI", {"patient": "MCI"}), (False, True, {}), (2, 1, {"patient": 1}), (1.0, 2.0, {})],
)
def test_values_of_y_and_names_of_features_come_back(features, tmp_path, control, patient, named):
    X = pd.DataFrame(features.inputs, columns=list("abcdef"))
    y = np.where(features.is_patient, patient, control)
    method = DeepUCSL(**QUICK, restarts=1).fit(X, y, **named)
    method.save(tmp_path / "model")
    again = load(tmp_path / "model")
    with warnings.catch_warnings(action="error"):  # scikit-learn's, of names that it does not know
        np.testing.assert_array_equal(again.predict(X), method.predict(X))
    assert again.predict(X).dtype.kind == method.predict(X).dtype.kind
    assert again.patient_ == patient
    np.testing.assert_array_equal(again.predict_proba(X), method.predict_proba(X))
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict_subgroup(X[[*"bacdef"]])


def test_a_saved_model_can_be_saved_again_and_is_not_replaced_without_a_word(features, tmp_path):
    PlainKMeans().fit(features).save(tmp_path / "model")
    again = load(tmp_path / "model")
    with pytest.raises(RunError, match=r"holds a finished run or a saved model.*in Python overwrite=True"):
        again.save(tmp_path / "model")
    with pytest.raises(RunError, match="holds other things"):
        again.save(tmp_path, overwrite=True)
    before = (tmp_path / "model" / "recipe.json").read_text()
    again.save(tmp_path / "model", overwrite=True)
    assert (tmp_path / "model" / "recipe.json").read_text() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_what_was_not_fitted_is_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        DeepUCSL().save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_an_estimator_among_the_settings_is_not_needed_to_predict(features, tmp_path):
    method = DeepUCSL(**QUICK, restarts=1, clusterer=KMeans(2, n_init=1)).fit(features)
    method.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_subgroup(features), method.predict_subgroup(features))
    with pytest.raises(ValueError, match=r"or a scikit-learn estimator\. Received: 'KMeans"):
        again.fit(features)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"classes": ["a", "b", "c"]}, "Expected one or two values of y"),
        ({"classes": "AD"}, "Expected one or two values of y"),
        ({"classes": [["AD"], ["CN"]]}, "Expected recipe and model"),
        ({"classes": ["CN", "AD"]}, "Expected one or two values of y"),  # predictions are by their order
        ({"patient": "MCI"}, "Expected one or two values of y"),
        ({"patient": None}, "Expected one or two values of y"),
        ({"feature_names": ["a", "b"]}, "Expected names of the features"),
        ({"feature_names": 6}, "Expected recipe and model"),
        ({"feature_names": [1, 2, 3, 4, 5, 6]}, "Expected names of the features"),
        ({"method": "os.system"}, "Expected a method among"),
        ({"model_sha256": "0"}, "Received another or a damaged file"),
    ],
)
def test_a_recipe_that_somebody_changed_is_refused(features, tmp_path, entries, words):
    X = pd.DataFrame(features.inputs, columns=list("abcdef"))
    PlainKMeans().fit(X, np.where(features.is_patient, "AD", "CN")).save(tmp_path / "model")
    path = tmp_path / "model" / "recipe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    with pytest.raises(RunError, match=words):
        load(tmp_path / "model")


def test_commands_say_what_a_saved_model_lacks(features, tmp_path, capsys):
    PlainKMeans().fit(features).save(tmp_path / "model")
    (tmp_path / "new.csv").write_text("a\n1\n")
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "new.csv")]) == 2
    assert "Expected a run made from a table. Received" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "model")]) == 2
    assert "scores.json is no file" in capsys.readouterr().err
