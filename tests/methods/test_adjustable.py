"""Linear methods that adjust for covariates first, and the model files they leave."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load, save

from closeness import assert_same_prediction
from phenogroups.clustering.adjust import fit_adjustment
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.study import Study
from phenogroups.methods import build_method, name_of, settings_of
from phenogroups.workflows.discover import discover
from phenogroups.workflows.predict import predict_table

QUICK = {"n_consensus": 3}
NAMES = ("ucsl", "hydra", "kmeans", "gaussian_mixture")


def quick(name: str, **settings):
    known = build_method(name, {}).get_params()
    return build_method(name, {key: value for key, value in {**QUICK, **settings}.items() if key in known})


@pytest.fixture(scope="module")
def aged() -> Cohort:
    """Two subgroups of patients, and an age that is far louder than they are."""
    rng = np.random.default_rng(0)
    ill, truth = np.arange(300) % 2, rng.integers(0, 2, 300)
    age, site = rng.normal(50, 10, 300), rng.choice(["a", "b"], 300)
    x = rng.normal(size=(300, 5))
    x[:, 0] += ill * np.where(truth, 4, -4)
    x[:, 1] += 3 * ill
    x += np.outer(age - 50, [1, -1, 1, 1, 0]) + np.outer(site == "b", [0, 9, 0, 0, -9])
    return Cohort(x.astype(np.float32), ill, covariates=pd.DataFrame({"age": age, "site": site}), truth=truth)


def bits(method, cohort) -> dict[str, np.ndarray]:
    return {key: value for key, value in vars(method.predict_cohort(cohort)).items() if value is not None}


@pytest.fixture(scope="module", params=NAMES)
def fitted(request, aged):
    return quick(request.param, adjust=("age", "site")).fit(aged)


def test_it_is_the_method_on_adjusted_inputs(fitted, aged):
    adjusted = replace(aged, inputs=fit_adjustment(aged, ("age", "site"))(aged))
    plain = quick(name_of(fitted)).fit(adjusted)
    for key, value in bits(plain, adjusted).items():
        np.testing.assert_array_equal(bits(fitted, aged)[key], value, err_msg=key)


def test_subgroups_appear_from_under_the_age(fitted, aged):
    right = (fitted.labels_ == aged.truth)[aged.is_patient].mean()
    assert max(right, 1 - right) > 0.85


def test_one_subject_alone(fitted, aged):
    together = fitted.predict_cohort(aged)
    for row in (0, 1, 299):
        assert_same_prediction(fitted.predict_cohort(aged[[row]]), together[[row]])


def test_saved_with_the_model(fitted, aged):
    model = save({key: value.contiguous() for key, value in fitted.state().items()})
    again = build_method(name_of(fitted), settings_of(fitted)).restore(aged.input_shape, load(model))
    for key, value in bits(fitted, aged).items():
        np.testing.assert_array_equal(bits(again, aged)[key], value, err_msg=key)
    assert again.covariates == ("age", "site")


def test_inputs_alone_are_refused(fitted, aged):
    with pytest.raises(CohortError, match=r"cohort with covariates.*age, site.*Received: inputs alone"):
        fitted.predict_subgroup(aged.inputs)
    with pytest.raises(CohortError, match=r"covariate 'age'.*Received: none"):
        fitted.predict_subgroup(Cohort(aged.inputs, aged.diagnosis))
    with pytest.raises(CohortError, match=r"covariate 'age'"):
        quick(name_of(fitted), adjust=("age",)).fit(aged.inputs, aged.diagnosis)


def test_without_it_arrays_are_enough(aged):
    method = quick("kmeans").fit(aged)
    assert "adjustment.slopes" not in method.tensors()
    assert method.predict_subgroup(aged.inputs).shape == (300,)


def test_scores_are_known_to_depend_on_covariates(aged):
    older = replace(aged, covariates=aged.covariates.assign(age=aged.covariates["age"] + 1))
    one, same, other = (Study(cohort, held_out=0.2).fingerprint for cohort in (aged, replace(aged), older))
    assert one == same != other


def test_a_word_is_not_a_list_of_words():
    with pytest.raises(ValueError, match="Expected adjust as"):
        build_method("ucsl", {"adjust": "age"})


def test_a_run_predicts_from_a_table_with_covariates(aged, tmp_path):
    table = pd.DataFrame(aged.inputs, columns=list("vwxyz")).assign(
        diagnosis=aged.diagnosis, age=aged.covariates["age"], site=aged.covariates["site"], hand="left"
    )
    table.to_csv(tmp_path / "all.csv", index=False)
    columns = {"features": tuple("vwxyz"), "covariates": ("age", "site", "hand")}
    cohort = Cohort.from_table(tmp_path / "all.csv", **columns)
    spec = {"diagnosis": "diagnosis", "reading": {}, **columns}
    discover(cohort, quick("kmeans", adjust=["age", "C(site)"]), tmp_path / "run", table=spec)
    one = table.iloc[[5]].drop(columns=["diagnosis", "hand"])  # what is not adjusted for need not be known
    one.to_csv(tmp_path / "one.csv", index=False)
    table.to_csv(tmp_path / "new.csv", index=False)
    predict_table(tmp_path / "run", tmp_path / "one.csv", tmp_path / "out1.csv")
    predict_table(tmp_path / "run", tmp_path / "new.csv", tmp_path / "out2.csv")
    alone, among = (pd.read_csv(tmp_path / f"out{i}.csv", dtype=str) for i in (1, 2))
    assert list(alone.iloc[0])[1:-1] == list(among.iloc[5])[1:-1]
    one.drop(columns="age").to_csv(tmp_path / "ageless.csv", index=False)
    with pytest.raises(CohortError, match="column 'age'"):
        predict_table(tmp_path / "run", tmp_path / "ageless.csv", tmp_path / "out3.csv")
