import json
import re
import shlex
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from closeness import ABSOLUTE, RELATIVE
from phenogroups import cli
from phenogroups.data.cohort import Cohort
from phenogroups.data.opening import open_cohort
from phenogroups.data.tables import TableSpec
from phenogroups.methods import (
    METHODS,
    Consensus,
    DeepUCSL,
    Foundation,
    PlainKMeans,
    SupervisedSubgroups,
    build_method,
    load,
    settings_of,
)  # fmt: skip
from phenogroups.methods.consensus import AGREEING, align
from phenogroups.methods.kmeans import Means
from phenogroups.methods.prediction import Prediction
from phenogroups.training.run import RunError
from phenogroups.workflows.compare import compare
from phenogroups.workflows.discover import discover
from phenogroups.workflows.predict import predict_table

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "methods" / "index.md"


@dataclass(eq=False, repr=False)
class Shuffled(PlainKMeans):
    """K-means whose ids are permuted by the seed."""

    def e_step(self, vectors, diagnosis):
        order = np.random.default_rng(self.seed).permutation(self.n_subgroups)
        return Means(super().e_step(vectors, diagnosis).centroids[order])

    def _reorder(self, order):
        """Nor by their size."""


@dataclass(eq=False, repr=False)
class Threshold(PlainKMeans):
    """Splits at a place of the first feature that depends on the seed, with ids that do too."""

    def place(self):
        return (0.2 + self.seed % 5 / 10) * (1 if self.seed % 2 else -1)

    def e_step(self, vectors, diagnosis):
        centroids = torch.zeros(2, vectors.shape[1])
        centroids[:, 0] = self.place() + torch.tensor([-3.0, 3.0])
        return Means(centroids.flip(0) if self.seed % 3 else centroids)

    def read(self, vectors, beliefs):
        return {**super().read(vectors, beliefs), "embedding": vectors - self.place()}


@dataclass(eq=False, repr=False)
class Coin(PlainKMeans):
    """Splits by a random direction: there is nothing to agree on."""

    def e_step(self, vectors, diagnosis):
        direction = torch.as_tensor(np.random.default_rng(self.seed).normal(size=vectors.shape[1]))
        return Means(torch.stack([direction, -direction]).float())


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    for name, fake in (("shuffled", Shuffled), ("threshold", Threshold), ("coin", Coin)):
        monkeypatch.setitem(METHODS, name, fake)


def blobs(k: int, n: int = 90) -> Cohort:
    rng = np.random.default_rng(0)
    truth = np.arange(n) % k
    inputs = rng.normal(size=(n, 4)) + 8 * np.eye(4)[truth]
    return Cohort(inputs.astype(np.float32), np.arange(n) // k % 2, truth=truth)


@pytest.fixture(scope="module")
def border() -> Cohort:
    """Patients at -3 and 3, and five between; controls all along."""
    rng = np.random.default_rng(0)
    place = np.r_[np.full(20, -3.0), np.full(20, 3.0), np.linspace(-0.1, 0.1, 5), np.linspace(-1, 1, 10)]
    inputs = np.c_[place, rng.normal(size=(55, 2)) / 10].astype(np.float32)
    return Cohort(inputs, np.r_[np.ones(45), np.zeros(10)])


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("subsample", [1.0, 0.6])
def test_planted_subgroups_are_found_although_every_run_numbers_them_anew(k, subsample):
    cohort = blobs(k)
    method = Consensus(Shuffled(), n_subgroups=k, runs=6, subsample=subsample).fit(cohort)
    assert len({tuple(order) for order in method.order_}) > 1
    found, ill = method.predict_cohort(cohort), cohort.is_patient
    assert adjusted_rand_score(cohort.truth[ill], method.labels_[ill]) == 1
    assert method.stability_ == 1
    assert (found.agreement == 1).all()
    assert not found.undecided.any()
    assert found.confidence[ill].min() > 0.6  # a mean of permuted ids would be near 1 / k
    assert method.caveats() == []
    np.testing.assert_allclose(found.subgroup.sum(1), 1, atol=1e-6)


def test_runs_that_are_the_same_but_for_their_ids_are_one_run():
    cohort = blobs(3)
    method = Consensus(Shuffled(n_starts=20), n_subgroups=3, runs=4).fit(cohort)
    alone = PlainKMeans(n_subgroups=3, n_starts=20).fit(cohort).predict_subgroup_proba(cohort)
    found = method.predict_subgroup_proba(cohort)
    assert any(np.allclose(found[:, order], alone, atol=1e-4) for order in map(list, permutations(range(3))))


def test_undecided_are_those_on_the_border(border):
    """Against the vote counted by hand."""
    method = Consensus(Threshold(), runs=15, seed=3).fit(border)
    places = np.array([method.run(i).place() for i in range(15)])
    above = (border.inputs[:, :1] > places).mean(axis=1)
    found = method.predict_cohort(border)
    high = found.subgroup[:, method.labels_[20]] > 0.5
    np.testing.assert_allclose(found.agreement, np.where(high, above, 1 - above))
    np.testing.assert_array_equal(found.undecided, np.maximum(above, 1 - above) < 2 / 3)
    assert found.undecided[40:45].all()
    assert not found.undecided[:40].any()
    assert method.labels_[0] != method.labels_[20]
    assert method.stability_ > 0.7
    labels = np.stack([run.predict_subgroup(border.patients) for run in method.runs_])
    pairs = [adjusted_rand_score(labels[i], labels[j]) for i in range(15) for j in range(i)]
    assert method.stability_ == pytest.approx(np.mean(pairs))


def test_two_thirds_of_the_runs_are_enough():
    subgroup = np.full((4, 2), 0.5)
    found = Prediction(subgroup, None, subgroup, agreement=np.array([1 / 3, 3 / 5, 2 / 3, 4 / 6]))
    assert found.undecided.tolist() == [True, True, False, False]
    assert found[1:3].undecided.tolist() == [True, False]
    assert not Prediction(subgroup, None, subgroup).undecided.any()  # of a single run


def test_runs_that_share_nothing_are_said_to():
    cohort = Cohort(np.random.default_rng(0).normal(size=(60, 12)).astype(np.float32), np.arange(60) % 2)
    method = Consensus(Coin()).fit(cohort)
    assert method.stability_ < 0.3
    assert f"of the 5 runs, the adjusted Rand index is {method.stability_:.2f} on average" in method.caveats()[0]
    assert method.predict_cohort(cohort.patients).undecided.sum() >= 5


def test_what_runs_say_of_themselves_is_counted(border, monkeypatch):
    monkeypatch.setattr(Threshold, "caveats", lambda self: ["Odd seed."] * (self.seed % 2))
    method = Consensus(Threshold(), runs=4).fit(border)
    assert method.caveats() == ["2 of 4 runs warn of themselves, as this one: Odd seed."]


def test_where_subgroups_agree_one_patient_in_seven_differs():
    one, other = np.arange(1400) % 2, np.arange(1400) % 2
    other[:200] = 1 - other[:200]
    assert adjusted_rand_score(one, other) == pytest.approx(AGREEING, abs=0.02)


@pytest.mark.parametrize(
    ("labels", "consensus", "expected"),
    [
        ([0, 0, 1, 1, 2], [2, 2, 0, 0, 1], [1, 2, 0]),
        ([0, 0, 1, 2, 2], [1, 1, 1, 0, 0], [2, 0, 1]),  # the consensus has two: the third keeps the place left over
        ([1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [1, 0, 2]),
    ],
)
def test_runs_are_aligned_by_overlap(labels, consensus, expected):
    assert align(np.array(labels), np.array(consensus), 3).tolist() == expected


def test_the_best_run_is_shown_and_seeds_are_their_own(border):
    method = Consensus(Threshold(), runs=4, seed=2).fit(border)
    assert method.best_ > 0
    agreed = method.labels_[border.is_patient]
    scores = [adjusted_rand_score(run.labels_[border.is_patient], agreed) for run in method.runs_]
    np.testing.assert_allclose(method.agreement_, scores)
    assert scores[method.best_] == max(scores) > min(scores)
    assert method.best_run_ is method.runs_[method.best_]
    np.testing.assert_array_equal(method.transform(border), method.best_run_.transform(border))
    seeds = [[Consensus(seed=seed, runs=runs).run(i).seed for i in range(3)] for seed in (0, 1, -1) for runs in (3, 5)]
    assert seeds[0] == seeds[1]  # more runs are the same runs and others
    assert len({seed for of_one in seeds for seed in of_one}) == 9


def test_diagnosis_is_the_mean_over_runs(features):
    method = Consensus(DeepUCSL(epochs=1, steps=2, batch_size=32, restarts=1), runs=2).fit(features)
    alone = [run.predict_cohort(features) for run in method.runs_]
    found = method.predict_cohort(features)
    np.testing.assert_allclose(found.diagnosis, np.mean([run.diagnosis for run in alone], axis=0), rtol=1e-6)
    aligned = [run.by_centroid[:, order] for run, order in zip(alone, method.order_, strict=True)]
    np.testing.assert_allclose(found.by_centroid, np.mean(aligned, axis=0)[:, method.by_size_], rtol=1e-6)
    assert not np.array_equal(alone[0].diagnosis, alone[1].diagnosis)


def test_subsamples_keep_groups_together_and_ignore_the_split_of_the_cohort(monkeypatch):
    cohort, seen = blobs(2), []
    pairs = np.array([f"person{i // 4}" for i in range(len(cohort))])
    cohort = Cohort(cohort.inputs, cohort.diagnosis, group=pairs, is_test=np.arange(len(cohort)) < 8)
    fit = Shuffled._fit
    monkeypatch.setattr(Shuffled, "_fit", lambda self, some, *rest: (seen.append(some), fit(self, some, *rest)))
    Consensus(Shuffled(), runs=3, subsample=0.5).fit(cohort)
    assert len({tuple(some.subject) for some in seen}) == 3
    for some in seen:
        assert len(some) == pytest.approx(len(cohort) / 2, abs=6)
        sizes = pd.Series(some.group).value_counts()
        assert (sizes == pd.Series(cohort.group).value_counts()[sizes.index]).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "magic"}, "Expected a method among kmeans.*'magic'"),
        ({"method": "kmeans", "settings": {"epochs": 3}}, "settings of kmeans among .*n_starts.*Received: epochs"),
        ({"settings": {"epochs": "many"}}, "Expected epochs as int. Received: 'many'"),
        ({"settings": [1]}, "Expected settings as"),
        ({"settings": {"seed": 3}}, "Expected n_subgroups and seed of the consensus.*Received: seed in settings"),
        ({"runs": 1}, "Expected runs of at least 2. Received: 1"),
        ({"subsample": 0.0}, "subsample above 0 and at most 1. Received: 0.0"),
        ({"subsample": 1.5}, "subsample above 0"),
        ({"method": "consensus"}, "in one run. Received: 'consensus', which is made of several runs"),
        (
            {"method": "supervised_upper_bound"},
            "Received: 'SupervisedSubgroups', which learns from the truth",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        build_method("consensus", settings)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Consensus("kmeans"), "Expected estimator as .*Method.*Received: 'kmeans'"),
        (Consensus(DeepUCSL(epochs="many")), "Expected epochs as int. Received: 'many'"),
        (Consensus(PlainKMeans(n_subgroups=3)), r"n_subgroups=3 of the estimator. Write Consensus\(PlainKMeans"),
        (Consensus(PlainKMeans(seed=3), seed=4), "seed=3 of the estimator"),
        (Consensus(runs=1), "Expected runs of at least 2. Received: 1"),
        (Consensus(subsample=1.5), "subsample above 0"),
        (Consensus(Consensus()), "in one run. Received: 'Consensus', which is made of several runs"),
        (Consensus(SupervisedSubgroups()), "'SupervisedSubgroups', which learns from the truth"),
    ],
)
def test_wrong_estimators_are_refused_before_training(border, method, words, monkeypatch):
    monkeypatch.setattr(Consensus, "_fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(ValueError, match=words):
        method.fit(border)


def test_the_estimator_is_left_alone_and_its_parameters_are_nested(border):
    estimator = PlainKMeans(n_starts=2)
    method = Consensus(estimator, runs=2, n_subgroups=3, seed=4).fit(border)
    assert not hasattr(estimator, "labels_")
    assert (estimator.n_subgroups, estimator.seed) == (2, 0)
    assert method.get_params()["estimator__n_starts"] == 2
    assert method.set_params(estimator__n_starts=5).run(0).n_starts == 5


def test_the_recipe_holds_the_settings_of_the_runs(border):
    method = Consensus(METHODS["morpho_pcl"](epochs=3))
    written = settings_of(method)
    assert (written["runs"], written["method"], written["subsample"]) == (5, "pcl", 1.0)
    assert written["settings"]["epochs"] == 3
    assert written["settings"]["augmentation"] == "digits_morpho"
    assert written["settings"]["temperature"] == METHODS["pcl"]().temperature
    assert not {"seed", "n_subgroups"} & written["settings"].keys()
    assert settings_of(build_method("consensus", written)) == written
    given = {"augmentation": {"noise": 0.5}, "class_weights": [1, 2]}
    own = settings_of(build_method("consensus", {"settings": given}))["settings"]
    assert own["augmentation"]["noise"] == 0.5
    assert own["class_weights"] == [1, 2]


def test_covariates_of_the_runs_are_asked_for(features):
    age = pd.DataFrame({"age": np.arange(120.0)})
    cohort = Cohort(features.inputs, features.diagnosis, covariates=age)
    method = build_method("consensus", {"method": "kmeans", "runs": 2, "settings": {"adjust": ["age"]}})
    assert method.covariates == ("age",)
    found = method.fit(cohort).predict_cohort(cohort)
    older = Cohort(features.inputs, features.diagnosis, covariates=age + 50)
    assert not np.array_equal(method.predict_cohort(older).subgroup, found.subgroup)
    with pytest.raises(ValueError, match="Expected a cohort with covariates"):
        method.predict_cohort(features.inputs)


@pytest.fixture
def table(border, tmp_path):
    rows = pd.DataFrame(border.inputs, columns=["a", "b", "c"]).assign(diagnosis=border.diagnosis)
    rows.to_csv(tmp_path / "subjects.csv", index=False)
    return tmp_path / "subjects.csv"


def test_a_run_folder_and_what_it_predicts_of_one_new_subject(table, tmp_path):
    spec = TableSpec(features=("a", "b", "c"))
    cohort = open_cohort(table, spec)
    method = Consensus(Threshold(), runs=9, seed=3)
    found = discover(cohort, method, tmp_path / "run", table=asdict(spec))
    again = load(tmp_path / "run")
    assert isinstance(again, Consensus)
    for name, value in vars(method.predict_cohort(cohort)).items():
        if value is not None:
            np.testing.assert_array_equal(getattr(again.predict_cohort(cohort), name), value, err_msg=name)
    assert (again.stability_, again.best_) == (method.stability_, method.best_)
    np.testing.assert_array_equal(again.agreement_, method.agreement_)

    rows = pd.read_csv(tmp_path / "run" / "subgroups.csv").set_index("subject").loc[cohort.subject]
    expected = method.predict_cohort(cohort)
    np.testing.assert_allclose(rows["confidence"], expected.subgroup.max(1), rtol=1e-6)
    np.testing.assert_array_equal(rows["undecided"], expected.undecided & cohort.is_patient)
    assert rows["undecided"].any()
    out = rows["part"].eq("held-out").to_numpy() & cohort.is_patient
    sentence = next(s for s in found.sentences if "agree with the consensus" in s)
    assert sentence.startswith("9 of 9 runs of threshold agree")
    assert f"Of {out.sum()} held-out patients, {(expected.agreement[out] == 1).sum()} are in the same" in sentence
    assert f"and {expected.undecided[out].sum()} are undecided" in sentence

    for place, undecided in ((-3.0, False), (0.0, True)):
        pd.DataFrame({"a": [place], "b": [0.0], "c": [0.0]}).to_csv(tmp_path / "new.csv", index=False)
        predict_table(tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv")
        (one,) = pd.read_csv(tmp_path / "out.csv").to_dict("records")
        assert one["undecided"] == undecided
        assert one["confidence"] == max(one["p_A"], one["p_B"])


@pytest.mark.parametrize("entries", [{"runs": 4}, {"runs": 2}, {"method": "hydra"}, {"n_subgroups": 3}])
def test_a_recipe_of_other_runs_is_refused(border, tmp_path, entries):
    discover(border, Consensus(PlainKMeans(), runs=3), tmp_path / "run")
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    recipe["settings"] |= entries
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(RunError, match="to fit together"):
        load(tmp_path / "run")


def test_the_command_line_runs_several_times(table, tmp_path, capsys):
    run = str(tmp_path / "run")
    command = ["discover", str(table), "--method", "threshold", "--runs", "9", "--seed", "3", "--out", run]
    assert cli.main([*command, "--set", "n_starts=2"]) == 0
    printed = capsys.readouterr()
    assert "9 of 9 runs of threshold agree with the consensus" in printed.out
    assert "run 9 of 9" in printed.err
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["method"] == "consensus"
    assert recipe["settings"] == {
        "n_subgroups": 2, "seed": 3, "method": "threshold", "runs": 9, "subsample": 1.0,
        "settings": {"adjust": [], "n_starts": 2},
    }  # fmt: skip
    assert cli.main(["predict", run, str(table), "--out", str(tmp_path / "new.csv")]) == 0
    count = pd.read_csv(tmp_path / "new.csv")["undecided"].sum()
    assert f"; {count} undecided)" in capsys.readouterr().out
    assert cli.main([*command[:4], "--runs", "0", "--out", run, "--overwrite"]) == 2
    assert "Expected runs of at least 2. Received: 0" in capsys.readouterr().err
    assert cli.main([*command, "--overwrite", "--set", "wings=2"]) == 2
    assert "Expected settings of threshold among" in capsys.readouterr().err


def test_one_run_is_the_plain_method(table, tmp_path):
    assert cli.main(["discover", str(table), "--method", "kmeans", "--runs", "1", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["method"] == "kmeans"
    rows = pd.read_csv(tmp_path / "run" / "subgroups.csv")
    assert not rows["undecided"].any()
    np.testing.assert_allclose(rows["confidence"], rows[["p_A", "p_B"]].max(axis=1))


def test_compared_with_a_single_run(tmp_path):
    settings = {"consensus.method": "kmeans", "consensus.runs": 3, "consensus.settings": {"n_starts": 2}}
    found = compare(blobs(2), ["kmeans", "consensus"], tmp_path / "c", seeds=2, settings=settings, isolated=False)
    assert not found.failures
    assert (found.cells.loc[found.cells["method"] == "consensus", "subgroup_bacc"] == 1).all()
    about = json.loads((tmp_path / "c" / "compare.json").read_text())["methods"]
    (of_consensus,) = (row["settings"] for row in about if row["method"] == "consensus")
    assert of_consensus["settings"] == {"adjust": [], "n_starts": 2}


def test_the_commands_of_the_pages(features, tmp_path, monkeypatch):
    """As printed, but quick."""
    monkeypatch.chdir(tmp_path)
    quick = ["epochs=1", "steps=2", "restarts=1"]
    some = features[:90]  # too few for subgroups to be looked for again in halves
    rows = pd.DataFrame(some.inputs, columns=list("abcdef")).assign(diagnosis=some.diagnosis)
    for name in ("subjects.csv", "new_subjects.csv"):
        rows.to_csv(name, index=False)
    section = (DOCS / "guides" / "is_it_real.md").read_text().split("## Do several runs agree?")[1].split("\n## ")[0]
    discovering, predicting = re.findall(r"^phenogroups (.*)$", section, flags=re.MULTILINE)
    assert cli.main([*shlex.split(discovering.replace("--runs 5", "--runs 2")), *quick]) == 0
    assert cli.main(shlex.split(predicting)) == 0
    written = pd.read_csv("phenogroups-run/subgroups.csv").set_index("part").sort_values("subject")
    predicted = pd.read_csv("new_subjects.subgroups.csv").sort_values("subject")
    assert len(written) == len(predicted) == 90
    for column in ("confidence", "p_A", "p_B", "p_patient"):
        np.testing.assert_allclose(written[column], predicted[column], rtol=RELATIVE, atol=ABSOLUTE)
    assert list(pd.read_csv("phenogroups-run/history.csv")["epoch"]) == [1]  # of the best run
    assert load("phenogroups-run").caveats() is not None

    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    known = {"train": features[:100], "test": features[100:]}
    exec(code.replace("epochs=6", "epochs=1, steps=2, restarts=1").replace("runs=5", "runs=2"), known)
    assert known["found"].undecided.shape == (20,)

    (comparing,) = re.findall(r"^phenogroups (compare .*consensus.*)$", PAGE.read_text(), re.MULTILINE)
    few = comparing.replace('{"epochs": 4}', '{"epochs": 1, "steps": 2, "restarts": 1}').replace("runs=5", "runs=2")
    assert few != comparing
    assert cli.main([*shlex.split(few), *quick, "--subjects", "60", "--seeds", "1", "--no-isolated"]) == 0
    assert list(pd.read_csv("phenogroups-compare/compare.csv")["status"]) == ["finished"] * 2


@parametrize_with_checks([Consensus(Foundation(), runs=2)])
def test_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
