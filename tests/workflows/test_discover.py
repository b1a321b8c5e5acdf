"""The run folder: complete, harmless, and good for the same prediction anywhere."""

import html
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from closeness import ABSOLUTE, RELATIVE, assert_same_prediction
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.data.opening import open_table, read_cohort
from phenogroups.data.tables import TableSpec
from phenogroups.methods import DeepUCSL, PlainKMeans, Prediction, load
from phenogroups.training.run import RunError, check_writable, new_run_folder, write_model
from phenogroups.workflows.discover import discover
from phenogroups.workflows.predict import predict_table
from phenogroups.workflows.weigh import copies

FILES = ["history.csv", "model.safetensors", "recipe.json", "report.html", "report.safetensors"]
FILES += ["scores.json", "stability.csv", "subgroups.csv", "verdict.json"]
QUICK = {"epochs": 2, "steps": 3, "restarts": 1}

PREDICT = """
import sys, numpy as np, phenogroups
from phenogroups.data.inputs import read_inputs
from phenogroups.data.opening import open_table
from phenogroups.data.tables import spec_from_json
from phenogroups.workflows.predict import predict_table
from phenogroups.training.run import read_recipe

for home in sys.argv[1:]:
    run, table, folder = f"{home}/run", f"{home}/subjects.csv", f"{home}/elsewhere"
    inputs = read_inputs(open_table(table, spec_from_json(read_recipe(run)["table"])))
    method = phenogroups.load(run)
    together = method.predict_cohort(inputs)
    alone = [method.predict_cohort(inputs[row : row + 1]) for row in (0, 50, 63, 64, 119)]
    np.savez(f"{folder}/together.npz", **vars(together))
    np.savez(f"{folder}/alone.npz", **{key: np.concatenate([vars(p)[key] for p in alone]) for key in vars(together)})
    predict_table(run, table, f"{folder}/predicted.csv")
"""


def make(home, cohort):
    """A run made from a table: folder of everything, the cohort, what was found."""
    rows = {"id": [f"sub-{i:03d}" for i in range(120)], "diagnosis": cohort.diagnosis}
    if cohort.inputs.ndim > 2:
        (home / "scans").mkdir()
        rows["scan"] = [f"scans/{i}.png" for i in range(120)]
        for path, picture in zip(rows["scan"], cohort.inputs[:, 0], strict=True):
            Image.fromarray((255 * picture).astype(np.uint8)).save(home / path)
        spec = TableSpec(image="scan", subject="id")
    else:
        rows |= {f"x{j}": cohort.inputs[:, j] for j in range(6)}
        spec = TableSpec(subject="id")
    pd.DataFrame(rows).to_csv(home / "subjects.csv", index=False)
    table = open_table(home / "subjects.csv", spec)
    spec, cohort = table.spec, read_cohort(table)
    return home, cohort, discover(cohort, DeepUCSL(**QUICK), home / "run", table=asdict(spec))


@pytest.fixture(scope="module")
def both(tmp_path_factory, images, features):
    return {name: make(tmp_path_factory.mktemp(name), of) for name, of in (("images", images), ("features", features))}


@pytest.fixture(scope="module", params=["images", "features"])
def made(request, both):
    return both[request.param]


@pytest.fixture(scope="module")
def elsewhere(both):
    """One new process has predicted with both runs, into a folder beside each."""
    homes = [home for home, *_ in both.values()]
    for home in homes:
        (home / "elsewhere").mkdir()
    subprocess.run([sys.executable, "-c", PREDICT, *map(str, homes)], check=True, env=os.environ)


@pytest.fixture(scope="module")
def run(tmp_path_factory, features):
    folder = tmp_path_factory.mktemp("runs") / "run"
    discover(features, DeepUCSL(**QUICK), folder)
    return folder


def change(run, tmp_path, **entries):
    """A copy of a run with other entries in its recipe."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in run.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    recipe = json.loads((copy / "recipe.json").read_text())
    (copy / "recipe.json").write_text(json.dumps(recipe | entries))
    return copy


def test_the_folder_holds_everything(made):
    home, cohort, found = made
    of_images = ["confounds.csv"] if cohort.inputs.ndim > 2 else []
    assert sorted(path.name for path in (home / "run").iterdir()) == sorted(FILES + of_images)
    recipe = json.loads((home / "run" / "recipe.json").read_text())
    assert recipe["method"] == "deep_ucsl"
    assert recipe["settings"]["epochs"] == 2
    assert recipe["cohort"] == {"name": "subjects", "subjects": 120, "fingerprint": cohort.fingerprint}
    assert recipe["input_shape"] == list(cohort.input_shape)
    assert {"python", "torch", "phenogroups"} <= recipe["versions"].keys()
    history = pd.read_csv(home / "run" / "history.csv")
    assert list(history["epoch"]) == [1, 2]
    assert {"classification", "clustering", "bound", "distance_ratio", "size_A"} <= set(history.columns)
    numbers = json.loads((home / "run" / "scores.json").read_text())["deep_ucsl"]
    spread = numbers.pop("intervals")
    assert numbers == asdict(found.scores["deep_ucsl"]) | asdict(found.diagnostics["deep_ucsl"])
    assert spread.keys() == {name for name, value in asdict(found.scores["deep_ucsl"]).items() if value is not None}
    assert all(low <= numbers[name] <= high for name, (low, high) in spread.items())
    assert 0 < numbers["gate_entropy_controls"] <= 1
    report = (home / "run" / "report.html").read_text()
    assert all(sentence.split(":")[0] in report for sentence in found.sentences)
    if cohort.inputs.ndim == 2:
        assert "Mean differences from controls" in report


def test_subgroups_are_one_row_per_subject(made):
    home, cohort, found = made
    rows = pd.read_csv(home / "run" / "subgroups.csv", keep_default_na=False).set_index("subject")
    assert sorted(rows.index) == sorted(cohort.subject)
    assert dict(rows["part"].value_counts()) == {"train": 96, "held-out": 24}
    rows = rows.loc[cohort.subject]
    patient = (rows["diagnosis"] == "patient").to_numpy()
    np.testing.assert_array_equal(patient, cohort.is_patient)
    assert (rows["subgroup"][~patient] == "").all()
    expected = np.array(["A", "B"])[found.method.predict_subgroup(cohort[patient])]
    np.testing.assert_array_equal(rows["subgroup"][patient], expected)
    assert list(rows.columns) == [
        "part", "diagnosis", "subgroup", "p_A", "p_B", "confidence", "undecided", "p_patient", "distance_A",
        "distance_B",
    ]  # fmt: skip
    np.testing.assert_array_equal(rows["confidence"], rows[["p_A", "p_B"]].max(axis=1))
    assert not rows["undecided"].any()
    z = found.method.transform(cohort)
    trained = patient & (rows["part"] == "train").to_numpy()
    for letter in "AB":
        mean = z[trained & (rows["subgroup"] == letter).to_numpy()].mean(axis=0)
        distance = np.sqrt(np.square(z - mean).sum(axis=1))  # by hand
        np.testing.assert_allclose(rows[f"distance_{letter}"], distance, rtol=1e-4)


def test_a_model_of_an_earlier_version_predicts_without_distances(made, tmp_path):
    home, cohort, found = made
    copy = change(home / "run", tmp_path)
    tensors = load_file(copy / "model.safetensors")
    del tensors["subgroup_means"], tensors["subgroup_order"]
    recipe = json.loads((copy / "recipe.json").read_text())
    write_model(copy, {key: recipe[key] for key in ("method", "settings", "input_shape", "table")}, tensors)
    predict_table(copy, home / "subjects.csv", tmp_path / "out.csv")
    columns = [
        "subject",
        "subgroup",
        "p_A",
        "p_B",
        "confidence",
        "undecided",
        "p_patient",
        "strangeness",
        "remark",
        "problem",
    ]
    assert list(pd.read_csv(tmp_path / "out.csv").columns) == columns
    as_learned = load(copy).predict_subgroup_proba(cohort)  # its letters were those of the network
    np.testing.assert_array_equal(as_learned[:, found.method.by_size_], found.method.predict_subgroup_proba(cohort))


def test_a_new_process_predicts_the_same_also_one_by_one(made, elsewhere):
    home, cohort, found = made
    expected = found.method.predict_cohort(cohort)
    for name, rows in (("together", slice(None)), ("alone", [0, 50, 63, 64, 119])):
        loaded = np.load(home / "elsewhere" / f"{name}.npz")
        assert_same_prediction(Prediction(**{key: loaded[key] for key in vars(expected)}), expected[rows])
    written = pd.read_csv(home / "run" / "subgroups.csv").set_index("subject")
    predicted = pd.read_csv(home / "elsewhere" / "predicted.csv").set_index("subject")
    columns = ["p_A", "p_B", "confidence", "undecided", "p_patient", "distance_A", "distance_B"]
    pd.testing.assert_frame_equal(
        predicted[columns], written.loc[predicted.index, columns], rtol=RELATIVE, atol=ABSOLUTE
    )
    np.testing.assert_allclose(predicted["p_A"], expected.subgroup[:, 0], rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.parametrize(
    ("encoder", "shape"), [("mlp", (7,)), ("light", (1, 12, 12)), ("light", (3, 9, 9)), ("paper", (1, 8, 8))]
)
def test_a_subject_is_predicted_the_same_in_any_company(encoder, shape):
    inputs = np.random.default_rng(0).normal(size=(300, *shape)).astype(np.float32)
    method = DeepUCSL(encoder=encoder, epochs=1, steps=1, batch_size=32, clusterer="kmeans")
    method.fit(Cohort(inputs[:60], np.arange(60) % 2))
    everyone = method.predict_cohort(inputs)
    for n in (1, 3, 257):
        assert_same_prediction(method.predict_cohort(inputs[-n:]), everyone[-n:])


def test_the_model_is_tensors_and_nothing_else(run):
    content = (run / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    assert all(set(entry) == {"dtype", "shape", "data_offsets"} for entry in header.values())
    assert len(content) == 8 + length + max(entry["data_offsets"][1] for entry in header.values())
    with safe_open(run / "model.safetensors", "pt") as model:
        assert not [name for name in model.keys() if name == "beliefs.q"]  # noqa: SIM118, of training subjects
    assert oct((run / "model.safetensors").stat().st_mode & 0o777) == oct((run / "recipe.json").stat().st_mode & 0o777)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"format": 99}, "in format 1"),
        ({"method": "magic"}, "a method among kmeans"),
        ({"method": None}, "to name its method"),
        ({"settings": {"epoch": 3}}, "settings of deep_ucsl among"),
        ({"settings": {"epochs": "many"}}, "Expected epochs as int"),
        ({"settings": {"n_subgroups": 3}}, "size mismatch"),
        ({"settings": {"augmentation": {"wobble": 1}}}, "an augmentation's settings. Received: wobble"),
        ({"input_shape": [7]}, "size mismatch"),
        ({"input_shape": [1, 32, 32]}, "to fit together"),
        ({"input_shape": ["six"]}, "input_shape as 1, 3 or 4 whole numbers"),
        ({"model_sha256": "0"}, "another or a damaged file"),
    ],
)
def test_a_mangled_recipe_is_refused(run, tmp_path, entries, words):
    with pytest.raises(RunError, match=words):
        load(change(run, tmp_path, **entries))


@pytest.mark.parametrize(
    "mangle", [lambda b: b[:-8], lambda b: b"", lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda _: None]
)
def test_a_mangled_model_is_refused(run, tmp_path, mangle):
    copy = change(run, tmp_path)
    content = mangle((copy / "model.safetensors").read_bytes())
    (copy / "model.safetensors").unlink()
    if content is not None:
        (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(RunError, match=r"model\.safetensors"):
        load(copy)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"Expected a run folder with recipe\.json"):
        load(tmp_path)
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(RunError, match="to be JSON"):
        load(tmp_path)


def test_a_run_made_from_arrays_says_how_to_predict(run, tmp_path):
    with pytest.raises(RunError, match=r"made from arrays.*phenogroups\.load\('.*run'\)\.predict_subgroup\(X\)"):
        predict_table(run, tmp_path / "new.csv", tmp_path / "out.csv")


def test_images_of_another_shape_are_refused_by_name(made, tmp_path):
    home, cohort, found = made
    if cohort.inputs.ndim == 2:
        pytest.skip("features have no shape")
    Image.fromarray(np.zeros((20, 16, 3), dtype=np.uint8)).save(tmp_path / "new.png")
    table = pd.DataFrame({"id": ["old", "new"], "scan": ["old.png", "new.png"]})
    shutil.copy(home / "scans" / "0.png", tmp_path / "old.png")
    table.to_csv(tmp_path / "new.csv", index=False)
    why = "has shape (3, 20, 16), channels first; those of training have (1, 16, 16)"
    found = predict_table(home / "run", tmp_path / "new.csv", tmp_path / "out.csv")
    assert found.problems == {1: why}
    assert list(pd.read_csv(tmp_path / "out.csv")["problem"].fillna("")) == ["", why]
    (tmp_path / "out.csv").unlink()
    table[1:].to_csv(tmp_path / "new.csv", index=False)  # nobody is left
    with pytest.raises(CohortError, match=r"Received: 1 who cannot:\n  row 1 \(new\): new.png has shape"):
        predict_table(home / "run", tmp_path / "new.csv", tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "new.png", "old.png"]


def test_the_table_is_never_overwritten(made, tmp_path):
    home, *_ = made
    with pytest.raises(RunError, match="another file"):
        predict_table(home / "run", home / "subjects.csv", home / "run" / ".." / "subjects.csv")


def test_methods_without_epochs_or_diagnosis_make_runs_too(features, tmp_path):
    found = discover(features, PlainKMeans(), tmp_path / "run", beside={"again": PlainKMeans(seed=1)})
    assert sorted(path.name for path in found.folder.iterdir()) == [name for name in FILES if name != "history.csv"]
    assert list(found.scores) == ["kmeans", "again"]
    again = load(found.folder).predict_cohort(features)
    np.testing.assert_array_equal(again.subgroup, found.method.predict_cohort(features).subgroup)


def test_the_summary_says_what_controls_were_for(features, tmp_path):
    aged = replace(features, covariates=pd.DataFrame({"age": np.arange(120.0)}))
    for adjust, words in (((), "48 patients, without controls"), (("age",), "adjusted for age as seen in 48 controls")):
        found = discover(aged, PlainKMeans(adjust=adjust), tmp_path / "run", overwrite=True)
        asked = next(sentence for sentence in found.sentences if "subgroups were looked for" in sentence)
        assert words in asked
        assert ("without controls" in asked) == (not adjust)


def test_an_earlier_run_is_replaced_if_asked_for_and_other_things_are_not(features, tmp_path):
    discover(features, PlainKMeans(), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    refused = PlainKMeans(n_subgroups=3)
    with pytest.raises(RunError, match=r"holds a finished run .* replace it \(--overwrite; in Python overwrite=True\)"):
        discover(features, refused, tmp_path / "run")
    assert not hasattr(refused, "labels_")  # said before training
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    discover(features, PlainKMeans(n_subgroups=3), tmp_path / "run", overwrite=True)
    assert load(tmp_path / "run").n_subgroups == 3
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    method = PlainKMeans()
    for folder, words in ((tmp_path / "run", "notes.txt"), (tmp_path, "file, run"), (tmp_path / "file", "file")):
        with pytest.raises(RunError, match=f"other things \\({words}\\)"):
            discover(features, method, folder)
    with pytest.raises(RunError, match="not writable"):
        discover(features, method, tmp_path / "file" / "run")
    assert not hasattr(method, "centroids_")  # said before training


def test_nothing_is_left_of_a_run_that_failed(tmp_path):
    check_writable(tmp_path / "a" / "run")
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), new_run_folder(tmp_path / "run"):
        raise KeyboardInterrupt
    with pytest.raises(RunError, match="disk full"), new_run_folder(tmp_path / "run"):
        raise OSError("disk full")
    assert not list(tmp_path.iterdir())


def test_too_few_to_hold_out_is_said_before_training(features, tmp_path):
    some = features[np.r_[np.flatnonzero(features.is_patient)[:1], np.flatnonzero(~features.is_patient)]]
    with pytest.raises(CohortError, match="at least as many patients as subgroups"):
        discover(some, DeepUCSL(), tmp_path / "run")
    twins = Cohort(features.inputs, features.diagnosis, group=np.where(features.is_patient, "one", features.subject))
    with pytest.raises(CohortError, match="60 patients in 1 groups"):
        discover(twins, DeepUCSL(), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_letters():
    from phenogroups.data.cohort import subgroup_letter

    assert [subgroup_letter(k) for k in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == [
        "A", "B", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip


def test_a_scanner_is_warned_of_first_and_everywhere(tmp_path):
    cohort = drawn_table(subgroups=1, shared=0, site_effect=8)
    found = discover(cohort, PlainKMeans(), tmp_path / "run")
    assert found.verdict is not None
    assert found.verdict.answer == "artefact likely"
    assert found.sentences[0] == found.verdict.sentence()
    (warning,) = found.verdict.why
    assert warning.startswith("Subgroups follow site (Cramer's V ")
    assert "Controls cannot tell the two apart (all have the value A)." in warning
    assert warning in html.unescape((tmp_path / "run" / "report.html").read_text())
    assert warning not in found.sentences[1:]  # said once
    assert json.loads((tmp_path / "run" / "verdict.json").read_text())["answer"] == "artefact likely"
    assert not any("not seen to follow" in sentence for sentence in found.sentences)
    table = pd.read_csv(tmp_path / "run" / "confounds.csv")
    assert table["n"].sum() == 3 * len(cohort)  # all subjects, held out or not
    assert list(table["covariate"]) == list(np.repeat(["age", "sex", "site"], 2))
    profile = pd.read_csv(tmp_path / "run" / "profiles.csv", keep_default_na=False)
    sizes = found.subgroups["subgroup"].value_counts()
    assert [int(profile.loc[0, part]) for part in ("A", "B", "controls")] == [sizes["A"], sizes["B"], sizes[""]]
    assert r"\bottomrule" in (tmp_path / "run" / "profiles.tex").read_text()
    again = discover(cohort, PlainKMeans(), tmp_path / "run", overwrite=True)  # replaces it, and finds the same
    pd.testing.assert_frame_equal(again.confounds, found.confounds)


def test_a_sound_cohort_is_not_warned_of(tmp_path):
    cohort = drawn_table(shared=0)
    cohort = replace(cohort, covariates=cohort.covariates.assign(name=cohort.subject))
    found = discover(cohort, PlainKMeans(), tmp_path / "run")
    assert found.scores["kmeans"].subgroup_bacc > 0.9
    assert found.verdict is not None
    assert found.verdict.answer == "convincing"
    assert found.sentences[1].startswith("2 subgroups were looked for")  # no warning before it
    assert "Subgroups were not seen to follow age, sex, site." in found.sentences
    assert "not tested: name (they are names" in found.sentences[-2]
    assert found.sentences[-1] == "What was not recorded may still explain the subgroups."


def test_without_covariates_the_run_says_what_was_not_looked_at(tmp_path, features):
    found = discover(features, PlainKMeans(), tmp_path / "run")
    assert found.confounds is None
    assert "no covariates were given" in found.sentences[-2]
    assert not {"confounds.csv", "profiles.csv", "profiles.tex"} & {path.name for path in (tmp_path / "run").iterdir()}


def test_the_training_cohort_is_predicted_once(tmp_path, features, monkeypatch):
    sizes, predict = [], PlainKMeans.predict_cohort
    method = PlainKMeans()

    def counted(self, who):
        if self is method:  # and not a copy that looks for the same subgroups again
            sizes.append(len(who))
        return predict(self, who)

    monkeypatch.setattr(PlainKMeans, "predict_cohort", counted)
    train, test = features.split(0.2, 0)
    discover(features, method, tmp_path / "run")
    assert sizes.count(len(train)) == 1
    assert sizes.count(len(test)) == 1


def test_how_pictures_were_taken_is_told_though_nobody_brought_a_covariate(tmp_path):
    """Half of everybody is overexposed, and K-means on pixels finds just that."""
    rng = np.random.default_rng(0)
    ill, bright = np.arange(160) % 2, np.arange(160) // 2 % 2
    images = rng.normal(0.4, 0.03, (160, 1, 24, 24)) + 0.3 * bright[:, None, None, None]
    images[ill == 1, :, :4] += 0.1
    found = discover(Cohort(images.astype(np.float32), ill), PlainKMeans(), tmp_path / "run")
    assert found.verdict is not None
    assert found.verdict.answer == "artefact likely"
    assert "the brightness of the images" in found.verdict.headline
    table = pd.read_csv(tmp_path / "run" / "confounds.csv")
    assert set(table["source"]) == {"image"}
    assert found.profiles is None
    adjusted = PlainKMeans(adjust=("image_brightness",))
    assert adjusted.covariates == ()  # a table of new subjects needs no column of it
    again = discover(Cohort(images.astype(np.float32), ill), adjusted, tmp_path / "adjusted")
    assert not any("brighter" in sentence or "darker" in sentence for sentence in again.sentences)
    new = load(tmp_path / "adjusted").predict_cohort(Cohort(images[:3].astype(np.float32), ill[:3]))
    np.testing.assert_allclose(
        new.subgroup, adjusted.predict_cohort(Cohort(images.astype(np.float32), ill)).subgroup[:3]
    )


def test_persons_whose_images_are_parted_are_warned_of(tmp_path):
    cohort = drawn_table(200, 10, separation=8, shared=0)
    by_subgroup = [np.flatnonzero(cohort.truth == k) for k in (0, 1)]
    person = cohort.subject.copy()
    for one, other in zip(*by_subgroup, strict=False):
        person[other] = person[one]
    found = discover(replace(cohort, group=person), PlainKMeans(), tmp_path / "run")
    assert found.verdict is not None
    assert found.verdict.answer == "artefact likely"
    assert "images of the same person" in found.sentences[0]
    rows = pd.read_csv(tmp_path / "run/subgroups.csv")
    assert dict(zip(rows["subject"], rows["group"], strict=True)) == dict(zip(cohort.subject, person, strict=True))


def test_held_out_copies_of_training_images_are_warned_of():
    images = np.random.default_rng(0).random((6, 1, 8, 8)).astype(np.float32)
    cohort = Cohort(images[[0, 1, 2, 3, 0, 1]], [0, 1, 0, 1, 0, 1])
    assert copies(cohort[:4], cohort[4:])[0].startswith("2 held-out images are copies of training images")
    assert copies(cohort[:4], cohort[4:5])[0].startswith("1 held-out image is a copy of training images")
    assert copies(cohort[:2], cohort[2:4]) == []
    answers = Cohort(np.zeros((6, 3), np.float32), [0, 1, 0, 1, 0, 1])  # two people may give the same answers
    assert copies(answers[:4], answers[4:]) == []
