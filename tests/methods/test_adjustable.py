"""Linear methods that adjust for covariates first, and the model files they leave."""

from dataclasses import asdict, replace

import nibabel
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.torch import load, save

from closeness import assert_same_prediction
from phenogroups.clustering.adjust import fit_adjustment
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.study import Study
from phenogroups.data.tables import TableSpec
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


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    """Pictures of two scanners: the files of one are wider and far brighter. Patients are bright above or below."""
    folder = tmp_path_factory.mktemp("scanned")
    rng = np.random.default_rng(0)
    wide, truth = rng.integers(0, 2, 120), rng.integers(0, 2, 120)
    for i in range(120):
        picture = rng.normal(60 + 120 * wide[i], 4, (16, 16))
        if i % 2:
            picture[8 * truth[i] :][:8] += 25
        side = 30 + rng.integers(0, 3) if wide[i] else 16 + rng.integers(0, 3)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).resize((int(side), 16)).save(folder / f"{i}.png")
    table = pd.DataFrame({"scan": [f"{i}.png" for i in range(120)], "dx": np.arange(120) % 2})
    table.to_csv(folder / "all.csv", index=False)
    return folder, truth, wide


def test_properties_of_files_are_adjusted_for_in_new_subjects_too(scanned, tmp_path):
    folder, truth, wide = scanned
    spec = TableSpec(image="scan", diagnosis="dx", reading=replace(TableSpec().reading, size=(16, 16)))
    cohort = Cohort.from_table(folder / "all.csv", image="scan", diagnosis="dx", reading=spec.reading)

    def part(method, of):
        labels, ill = method.fit(cohort).predict_subgroup(cohort), cohort.is_patient
        return max(np.mean(labels[ill] == of[ill]), np.mean(labels[ill] != of[ill]))

    assert part(quick("kmeans"), wide) == 1  # the scanner is all that K-means sees
    method = quick("kmeans", adjust=("image_width",))
    assert method.covariates == ("image_width",)
    assert part(method, truth) > 0.95
    discover(cohort, quick("kmeans", adjust=("image_width",)), tmp_path / "run", table=asdict(spec))
    rows = pd.read_csv(folder / "all.csv")[["scan"]]
    (folder / "broken.png").write_bytes(b"broken")
    pd.concat([rows[100:], pd.DataFrame({"scan": ["broken.png"]})]).to_csv(folder / "new.csv", index=False)
    found = predict_table(tmp_path / "run", folder / "new.csv", tmp_path / "out.csv")
    assert (found.subjects, found.broken) == (21, 1)
    written = pd.read_csv(tmp_path / "out.csv")
    kept = pd.read_csv(tmp_path / "run" / "subgroups.csv").set_index("subject").loc[rows["scan"][100:]]
    np.testing.assert_allclose(written["p_A"][:20], kept["p_A"], rtol=1e-5)
    same = (written["p_A"][:20] > 0.5).to_numpy()[(np.arange(100, 120) % 2) == 1] == truth[101:120:2]
    assert max(same.mean(), 1 - same.mean()) > 0.9


def test_a_new_file_whose_header_does_not_say_costs_its_row_only(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(40):
        volume = rng.random((6, 6, 6)).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(volume, np.diag([1 + i % 3, 1, 1, 1])), tmp_path / f"{i}.nii.gz")
    names = [f"{i}.nii.gz" for i in range(40)]
    pd.DataFrame({"scan": names, "dx": np.arange(40) % 4 // 2}).to_csv(tmp_path / "all.csv", index=False)
    spec = TableSpec(image="scan", diagnosis="dx")
    cohort = Cohort.from_table(tmp_path / "all.csv", **vars(spec))
    discover(cohort, quick("kmeans", adjust=("image_voxel_size",)), tmp_path / "run", table=asdict(spec))
    np.save(tmp_path / "silent.npy", rng.random((1, 6, 6, 6)).astype(np.float32))
    pd.DataFrame({"scan": ["0.nii.gz", "silent.npy", "1.nii.gz"]}).to_csv(tmp_path / "new.csv", index=False)
    found = predict_table(tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv")
    assert found.problems == {1: "has no image_voxel_size in its header, which the model adjusts for"}
    assert pd.read_csv(tmp_path / "out.csv")["p_A"].notna().tolist() == [True, False, True]
    with pytest.raises(CohortError, match=r"Expected the covariate 'image_voxel_size'"):
        discover(replace(cohort, files=pd.DataFrame()), quick("kmeans", adjust=("image_voxel_size",)), tmp_path / "no")


def test_a_table_of_features_has_such_names_as_columns(aged, tmp_path):
    table = pd.DataFrame(aged.inputs, columns=list("vwxyz")).assign(
        diagnosis=aged.diagnosis, image_brightness=aged.covariates["age"], image_width=aged.covariates["age"] % 7
    )
    table.to_csv(tmp_path / "all.csv", index=False)
    columns = {"features": tuple("vwxyz"), "covariates": ("image_brightness", "image_width")}
    cohort = Cohort.from_table(tmp_path / "all.csv", **columns)
    method = quick("kmeans", adjust=columns["covariates"])
    found = discover(cohort, method, tmp_path / "run", table={"diagnosis": "diagnosis", "reading": {}, **columns})
    assert found.method.covariates == columns["covariates"]
    predict_table(tmp_path / "run", tmp_path / "all.csv", tmp_path / "out.csv")
    expected = found.method.predict_cohort(cohort).subgroup[:, 0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["p_A"], expected, rtol=1e-5)
    table.drop(columns="image_brightness").to_csv(tmp_path / "dark.csv", index=False)
    with pytest.raises(CohortError, match="column 'image_brightness'"):
        predict_table(tmp_path / "run", tmp_path / "dark.csv", tmp_path / "out2.csv")
    with pytest.raises(CohortError, match="column 'image_width'"):
        Cohort.from_table(table.drop(columns="image_width"), **columns)
