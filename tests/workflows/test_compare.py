"""Several methods x several seeds: the numbers, what is run again and what is not, and what a user is told."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

import phenogroups
from phenogroups import cli
from phenogroups.cli.compare import print_comparison
from phenogroups.cli.stopping import Terminated
from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.study import Study
from phenogroups.evaluation.scores import score
from phenogroups.methods import METHODS, Classifier, PlainKMeans
from phenogroups.recipes import Recipe
from phenogroups.report.tables import OUTPUTS
from phenogroups.training.run import RunError
from phenogroups.workflows.compare import build_methods, compare, kind_of, plan

MODULE, CELLS = (sys.modules[f"phenogroups.workflows.{name}"] for name in ("compare", "run_cells"))
COMMAND = [sys.executable, "-m", "phenogroups.cli", "compare"]
QUICK = {"epochs": 1, "steps": 2}


def quick(cohort, methods, folder, **options):
    settings = QUICK if "classifier" in methods else {}
    return compare(cohort, methods, folder, **{"settings": settings, "seeds": 2, "isolated": False, **options})


@pytest.fixture
def ran(monkeypatch):
    """Which cells were run."""
    cells = []
    run_cell = CELLS.run_cell

    def counted(study, job, progress):
        cells.append((job["method"], job["seed"]))
        return run_cell(study, job, progress)

    monkeypatch.setattr(CELLS, "run_cell", counted)
    return cells


def test_numbers_are_those_of_fitting_by_hand(features, tmp_path):
    found = quick(features, ["classifier", "kmeans"], tmp_path / "c", seeds=3)
    by_hand = {"classifier": [], "kmeans": []}
    for seed in range(3):
        train, test = features.split(0.2, seed)
        for name, method in (("classifier", Classifier(**QUICK, seed=seed)), ("kmeans", PlainKMeans(seed=seed))):
            by_hand[name].append(score(test, method.fit(train).predict_cohort(test)))
    rows, summary = found.cells.set_index(["method", "seed"]), found.summary.set_index("method")
    for name, scores in by_hand.items():
        for column in ("subgroup_bacc", "ari", "ami", "silhouette"):
            values = [getattr(one, column) for one in scores]
            assert [rows.loc[(name, seed), column] for seed in range(3)] == values
        values = [one.subgroup_bacc for one in scores]
        assert summary.loc[name, "subgroup_bacc_mean"] == pytest.approx(np.mean(values))
        assert summary.loc[name, "subgroup_bacc_deviation"] == pytest.approx(np.std(values, ddof=1))
    pairs = [[one.subgroup_bacc for one in by_hand[name]] for name in ("kmeans", "classifier")]
    if np.ptp(pairs[0]) or np.ptp(pairs[1]):
        assert summary["subgroup_bacc_p"].max() == pytest.approx(ttest_ind(*pairs, equal_var=False).pvalue)
    assert rows.loc["kmeans", "class_bacc"].isna().all()
    assert rows.loc["classifier", "class_bacc"].to_list() == [one.class_bacc for one in by_hand["classifier"]]


@pytest.mark.pictures
def test_what_is_written(features, tmp_path):
    found = quick(features, ["classifier", "kmeans"], tmp_path / "c")
    assert sorted(path.name for path in found.folder.iterdir()) == sorted([*OUTPUTS, "cells"])
    assert len(pd.read_csv(found.folder / "compare.csv")) == 4
    assert list(pd.read_csv(found.folder / "summary.csv")["method"]) == ["kmeans", "classifier"]
    whole = json.loads((found.folder / "compare.json").read_text())
    assert (whole["seeds"], whole["subgroups"], whole["study"]["held_out"]) == (2, 2, 0.2)
    assert whole["methods"][1]["settings"]["epochs"] == 1
    assert r"kmeans & $\times$ & \textbf{1.000" in (found.folder / "table.tex").read_text()
    assert (found.folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (found.folder / "compare.svg").read_bytes().startswith(b"<?xml")
    before = {name: (found.folder / name).read_bytes() for name in OUTPUTS}
    quick(features, ["classifier", "kmeans"], tmp_path / "c")
    assert {name: (found.folder / name).read_bytes() for name in OUTPUTS} == before
    assert "×" in str(found)
    assert "0." in str(found)


def test_page_and_latex_say_which_deviation_is_shown(features, tmp_path):
    found = quick(features, ["kmeans", "simclr"], tmp_path / "c")
    assert "divided by n - 1" in (tmp_path / "c" / "compare.html").read_text()
    assert "divided by $n-1$); the paper's tables divide by $n$" in (tmp_path / "c" / "table.tex").read_text()
    scores = found.cells.loc[found.cells["method"] == "simclr", "subgroup_bacc"]
    shown = found.summary.set_index("method").loc["simclr", "subgroup_bacc_deviation"]
    assert shown == pytest.approx(np.std(scores, ddof=1))


def test_python_can_call_it(features, tmp_path):
    assert phenogroups.compare is compare
    assert phenogroups.compare(features, "kmeans", tmp_path / "c", seeds=1, isolated=False).ran == 1


def test_finished_cells_are_not_run_again(features, tmp_path, ran):
    notes = []
    quick(features, ["kmeans", "classifier"], tmp_path / "c")
    assert ran == [("kmeans", 0), ("classifier", 0), ("kmeans", 1), ("classifier", 1)]
    again = quick(features, ["kmeans", "classifier"], tmp_path / "c", seeds=3, note=notes.append)
    assert ran[4:] == [("kmeans", 2), ("classifier", 2)]
    assert again.ran == 2
    assert notes == ["4 of 6 cells were finished before and are not run again."]
    less = quick(features, ["kmeans"], tmp_path / "c", seeds=2, note=notes.append)
    assert (less.ran, len(less.cells), len(ran)) == (0, 2, 6)
    assert "4 cells in" in notes[1]


@pytest.mark.parametrize("changed", ["settings", "inputs", "truth", "group", "held_out", "subgroups", "version"])
def test_whatever_changes_the_numbers_makes_other_cells(features, tmp_path, ran, monkeypatch, changed):
    first = quick(features, ["kmeans"], tmp_path / "c")
    cohort, options, notes = features, {}, []
    if changed == "settings":
        options = {"settings": {"n_starts": 2}}
    elif changed == "inputs":
        cohort = replace(features, inputs=features.inputs + 1)
    elif changed == "truth":
        cohort = replace(features, truth=1 - np.asarray(features.truth))
    elif changed == "group":
        cohort = replace(features, group=np.array([f"pair{i // 2}" for i in range(len(features))]))
    elif changed == "held_out":
        options = {"held_out": 0.3}
    elif changed == "subgroups":
        options = {"n_subgroups": 3}
    else:
        monkeypatch.setattr(MODULE, "versions", lambda: {"phenogroups": "99"})
    other = quick(cohort, ["kmeans"], tmp_path / "c", note=notes.append, **options)
    assert len(ran) == 4
    assert "2 cells in" in notes[0]
    assert set(other.cells["cell"]).isdisjoint(first.cells["cell"])
    assert len(pd.read_csv(tmp_path / "c" / "compare.csv")) == 2
    monkeypatch.undo()
    assert quick(features, ["kmeans"], tmp_path / "c").ran == 0  # the first are still there


def test_a_failing_method_does_not_stop_the_others(features, tmp_path, ran):
    methods, steps = ["morpho_simclr", "classifier"], []  # strokes of features can be made neither thin nor bold
    found = quick(features, methods, tmp_path / "c", progress=steps.append)
    assert len(found.failures) == 2
    assert "morpho_simclr, seed 0, failed: ValueError: Expected only noise and cutout" in found.failures[0]
    assert "failed" in str(found)
    assert found.summary.set_index("method")["seeds"].to_dict() == {"morpho_simclr": 0, "classifier": 2}
    written = pd.read_csv(tmp_path / "c" / "compare.csv")
    assert (written["status"] == ["failed", "finished"] * 2).all()
    assert "noise and cutout" in written["error"][0]
    assert r"morpho\_simclr & failed" in (tmp_path / "c" / "table.tex").read_text()
    assert [step.doing for step in steps if step.method == "morpho_simclr"] == ["begins", "failed"] * 2
    quick(features, methods, tmp_path / "c")
    assert ran[4:] == [("morpho_simclr", 0), ("morpho_simclr", 1)]  # tried again
    stored = json.loads((tmp_path / "c" / "cells" / written["cell"][0]).read_text())
    assert "Traceback" in stored["trace"]


@pytest.mark.parametrize("damage", [lambda t: t[: len(t) // 2], lambda t: "", lambda t: "[]", lambda t: t.replace(
    '"subgroup_bacc": 1', '"subgroup_bacc": 0')])  # fmt: skip
def test_a_damaged_cell_is_run_again(features, tmp_path, ran, damage):
    found = quick(features, ["kmeans"], tmp_path / "c")
    path = tmp_path / "c" / "cells" / found.cells["cell"][1]
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    notes = []
    again = quick(features, ["kmeans"], tmp_path / "c", note=notes.append)
    assert ran[2:] == [("kmeans", 1)]
    assert path.name in notes[0]
    assert "damaged" in notes[0]
    pd.testing.assert_frame_equal(again.cells.drop(columns="seconds"), found.cells.drop(columns="seconds"))


def test_an_interrupted_comparison_goes_on(features, tmp_path, ran):
    def interrupt(step):
        if (step.method, step.seed, step.doing) == ("classifier", 0, "trains"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(features, ["kmeans", "classifier"], tmp_path / "c", progress=interrupt)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["cells"]  # no table of half the cells
    assert len(list((tmp_path / "c" / "cells").glob("*.json"))) == 1
    quick(features, ["kmeans", "classifier"], tmp_path / "c")
    assert ran == [("kmeans", 0), ("classifier", 0), ("classifier", 0), ("kmeans", 1), ("classifier", 1)]


HOLD = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX, 1, int(sys.argv[2]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_cell_of_another_process_is_waited_for_and_taken_over_when_that_dies(features, tmp_path, ran):
    methods = build_methods(["kmeans", "classifier"], QUICK, 2)
    first, *_ = plan(Study(features, held_out=0.2), methods, 2)
    (tmp_path / "c" / "cells").mkdir(parents=True)
    place = 1 + int(first.digest[:12], 16)
    command = [sys.executable, "-c", HOLD, str(tmp_path / "c" / "cells" / "lock"), str(place)]
    steps = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"

            def tell(step):
                steps.append(step.doing)
                if steps.count("waits") == 2:
                    other.kill()

            quick(features, ["kmeans", "classifier"], tmp_path / "c", progress=tell)
        finally:
            other.kill()
    assert ran == [("classifier", 0), ("kmeans", 1), ("classifier", 1), ("kmeans", 0)]
    assert steps.count("waits") >= 2


@pytest.fixture
def features_csv(features, tmp_path):
    rows = pd.DataFrame(features.inputs, columns=[f"x{j}" for j in range(6)])
    rows = rows.assign(diagnosis=features.diagnosis, kind=features.truth, id=features.subject)
    rows.to_csv(tmp_path / "subjects.csv", index=False)
    return tmp_path / "subjects.csv"


def test_two_processes_share_the_work(features_csv, tmp_path, ran):
    """This one holds its first cell until the other has finished one; the other then has to wait for this one."""
    cohort = Cohort.from_table(features_csv, truth="kind", subject="id")
    options = ["--truth", "kind", "--subject", "id", "--seeds", "3", "--no-isolated", "--out", str(tmp_path / "c")]
    command = [*COMMAND, str(features_csv), "--methods", "kmeans", "classifier", "--set", "epochs=1", "steps=2"]
    other = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:

        def hold(step):
            while step.doing == "begins" and not (others := list((tmp_path / "c" / "cells").glob("*.json"))):
                assert other.poll() is None, other.communicate()
                time.sleep(0.05)
            assert step.doing != "begins" or others

        ours = quick(cohort, ["kmeans", "classifier"], tmp_path / "c", seeds=3, progress=hold)
        said, complaints = other.communicate(timeout=60)
    finally:
        other.kill()
        other.wait()
    assert other.returncode == 0, complaints
    theirs = int(said.partition(" of 6 cells were run now")[0].rpartition("(")[2])
    assert 1 <= len(ran) < 6
    assert ours.ran == len(ran)
    assert theirs + ours.ran == 6
    assert len(pd.read_csv(tmp_path / "c" / "compare.csv")) == 6


def test_each_cell_in_its_own_process(features, tmp_path):
    steps, methods = [], ["morpho_simclr", "classifier"]
    found = quick(features, methods, tmp_path / "c", seeds=1, isolated=True, progress=steps.append)
    assert "ValueError: Expected only noise and cutout" in found.failures[0]
    alone = quick(features, ["classifier"], tmp_path / "d", seeds=1)
    columns = ["class_bacc", "subgroup_bacc", "overall_bacc", "ari"]
    np.testing.assert_array_equal(found.cells[columns].to_numpy(float)[1], alone.cells[columns].to_numpy(float)[0])
    memory = found.summary.set_index("method")["peak_memory_mb_mean"]
    assert 50 < memory["classifier"] < 5000
    assert "Peak" in str(found)
    assert "Peak" not in str(alone)  # a process that does other things too cannot tell
    trains = [step for step in steps if step.doing == "trains"]
    assert trains
    assert "cell 2 of 2  classifier  seed 0  epoch 1/1" in str(trains[0])


def test_epochs_are_counted_as_the_setting_counts_them(features, tmp_path):
    steps, settings = [], {"epochs": 4, "steps": 2, "warmup": 2, "restarts": 2, "clusterer": "kmeans", "stop_below": 0}
    compare(features, ["deep_ucsl"], tmp_path / "c", seeds=1, settings=settings, isolated=False, progress=steps.append)
    assert str(steps[0]) == "cell 1 of 1  deep_ucsl  seed 0  epoch 1/4"
    trains = [step for step in steps if step.doing == "trains"]
    assert trains[0].words == "start 1 of 2, epoch 1/4"
    assert trains[-1].words == "epoch 4/4"
    assert trains[-1].share == 1
    assert [step.share for step in trains] == sorted(step.share for step in trains)


def test_time_left_is_told_from_finished_seeds(features, tmp_path):
    steps = []
    quick(features, ["kmeans"], tmp_path / "c", progress=steps.append)
    begins = [step for step in steps if step.doing == "begins"]
    assert begins[0].left is None
    assert begins[1].left == pytest.approx(0, abs=5)
    assert [(step.cell, step.cells) for step in begins] == [(1, 2), (2, 2)]


def test_splits_train_on_most_and_score_the_rest_or_the_test_cohort(features, tmp_path):
    test = replace(features, inputs=features.inputs + 0.1, name="elsewhere")
    found = quick(features, ["kmeans"], tmp_path / "c", seeds=None, splits=2)
    subjects = [stored(found, i)["subjects"] for i in range(2)]
    assert subjects == [{"trained": 108, "scored": 12}] * 2
    found = quick(features, ["kmeans"], tmp_path / "c", seeds=None, splits=2, test=test)
    assert [stored(found, i)["subjects"] for i in range(2)] == [{"trained": 108, "scored": 120}] * 2
    train, _ = features.split(0.1, 1)
    assert found.cells["ari"][1] == score(test, PlainKMeans(seed=1).fit(train).predict_cohort(test)).ari
    found = quick(features, ["kmeans"], tmp_path / "c", test=test)  # by seeds, everybody is trained on
    assert stored(found, 0)["subjects"] == {"trained": 120, "scored": 120}
    whole = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert whole["study"]["test"]["name"] == "elsewhere"
    assert "over 2 seeds" in (tmp_path / "c" / "table.tex").read_text()


def test_a_recipe_says_how_many_are_held_out(features, tmp_path):
    found = quick(features, ["kmeans"], tmp_path / "c", recipe=Recipe(held_out=0.1))
    assert stored(found, 0)["subjects"] == {"trained": 108, "scored": 12}
    found = quick(features, ["kmeans"], tmp_path / "d", recipe=Recipe(held_out=0.1), held_out=0.25)  # the option wins
    assert stored(found, 0)["subjects"] == {"trained": 90, "scored": 30}


def test_splits_differ_where_the_cohort_says_who_is_held_out(features, tmp_path):
    """The paper's psychiatry table: five divisions 90/10 of the training part, one external test set."""
    cohort = replace(features, is_test=np.arange(len(features)) // 2 % 4 == 0)
    found = quick(cohort, ["kmeans"], tmp_path / "c", seeds=None, splits=5)
    assert [stored(found, i)["subjects"] for i in range(5)] == [{"trained": 82, "scored": 30}] * 5
    study = Study(cohort, held_out=0.1).with_fixed_test()
    parts = [study.parts(run) for run in range(5)]
    assert len({tuple(sorted(train.subject)) for train, _, _ in parts}) == 5
    for train, scored, _ in parts:
        assert set(scored.subject) == set(cohort.subject[cohort.is_test])
        assert not set(train.subject) & set(scored.subject)
    found = quick(cohort, ["kmeans"], tmp_path / "d", seeds=2)  # by seeds, all others are trained on
    assert stored(found, 1)["subjects"] == {"trained": 90, "scored": 30}


def stored(found, row):
    return json.loads((found.folder / "cells" / found.cells["cell"][row]).read_text())


def test_diagnosis_can_be_scored_elsewhere(features, tmp_path):
    half, other = features[:60], features[60:]
    found = quick(Study(half, half, other), ["classifier"], tmp_path / "c", seeds=1)
    model = Classifier(**QUICK).fit(half)
    assert found.cells["class_bacc"][0] == score(other, model.predict_cohort(other)).class_bacc
    assert found.cells["subgroup_bacc"][0] == score(half, model.predict_cohort(half)).subgroup_bacc


def test_splits_keep_groups_together_and_are_the_same_for_all(features):
    pairs = replace(features, group=np.array([f"pair{i // 2}" for i in range(len(features))]))
    study = Study(pairs, held_out=0.2)
    parts = [study.parts(seed) for seed in range(3)]
    for train, held_out, _ in parts:
        assert not set(train.group) & set(held_out.group)
    assert len({tuple(held_out.subject) for _, held_out, _ in parts}) == 3
    assert tuple(study.parts(0)[1].subject) == tuple(parts[0][1].subject)


def test_without_truth_only_the_diagnosis_is_compared(features, tmp_path):
    notes = []
    found = quick(replace(features, truth=None), ["classifier", "kmeans"], tmp_path / "c", note=notes.append)
    assert "only the diagnosis is compared" in notes[0]
    assert "Subgroup" not in str(found)
    assert (tmp_path / "c" / "compare.png").is_file()
    blind = quick(replace(features, truth=None), ["kmeans"], tmp_path / "d")
    assert "B-ACC" not in str(blind)
    assert not (tmp_path / "d" / "compare.png").exists()


def test_as_many_subgroups_as_are_known(features, tmp_path):
    three = replace(features, truth=np.arange(120) % 3, truth_names=())
    assert stored(quick(three, ["kmeans"], tmp_path / "c", seeds=1), 0)["key"]["settings"]["n_subgroups"] == 3
    assert stored(quick(features, ["kmeans"], tmp_path / "d", seeds=1, n_subgroups=4), 0)["key"]["settings"][
        "n_subgroups"
    ] == 4  # fmt: skip


def test_settings_for_all_and_for_one():
    built = build_methods(["kmeans", "simclr", "supcon"], {"simclr.epochs": 3, "epochs": 2, "temperature": 0.5}, 2)
    assert (built["simclr"].epochs, built["supcon"].epochs) == (3, 2)  # pyright: ignore
    assert built["supcon"].temperature == 0.5  # pyright: ignore
    assert set(build_methods(["all"], {}, 2)) == set(METHODS)
    assert list(build_methods(["kmeans", "kmeans"], {}, 2)) == ["kmeans"]


def test_kinds():
    bound = type("Bound", (PlainKMeans,), {"reads_truth": True})()
    assert [kind_of(method) for method in (PlainKMeans(), Classifier(), bound)] == [
        "patients only", "patients and controls", "upper bound",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"methods": ["magic", "kmeans"]}, ValueError, "methods among kmeans.*or all. Received: magic"),
        ({"methods": []}, ValueError, "Received: none"),
        ({"settings": {"epoch": 3}}, ValueError, "of the methods kmeans: adjust, n_starts, n_subgroups, seed.*'epoch'"),
        ({"settings": {"simclr.epochs": 3}}, ValueError, "Received: 'simclr.epochs'"),
        ({"settings": {"kmeans.epochs": 3}}, ValueError, "settings of kmeans among"),
        ({"settings": {"n_starts": "many"}}, ValueError, "Expected n_starts as int"),
        ({"settings": {"seed": 3}}, ValueError, "options of their own"),
        ({"seeds": 0}, ValueError, "at least 1 seed or split"),
        ({"seeds": 2, "splits": 2}, ValueError, "seeds or splits. Received both"),
        ({"held_out": 1.0}, ValueError, "a share between 0 and 1"),
        ({"n_subgroups": 1}, ValueError, "n_subgroups of at least 2"),
        ({"n_subgroups": 90}, CohortError, "48 patients for 90 subgroups"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_before_anything_is_trained(features, tmp_path, ran, options, error, words):
    with pytest.raises(error, match=words):
        quick(features, **{"methods": ["kmeans"], "folder": tmp_path / "c", "settings": {}, **options})
    assert not ran
    assert not (tmp_path / "c").exists()


def test_a_test_cohort_must_look_like_the_other(features, images, tmp_path):
    with pytest.raises(CohortError, match=r"test inputs of shape \(6,\).*\(1, 16, 16\)"):
        quick(features, ["kmeans"], tmp_path / "c", test=images)
    with pytest.raises(ValueError, match="Received both"):
        quick(Study(features, held_out=0.5), ["kmeans"], tmp_path / "c", test=features)


def test_other_folders_are_left_alone(features, tmp_path, ran):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match=r"other things \(thesis.tex\)"):
        quick(features, ["kmeans"], tmp_path / "c")
    with pytest.raises(RunError, match="which is a file"):
        quick(features, ["kmeans"], tmp_path / "c" / "thesis.tex")
    with pytest.raises(RunError, match="Expected to write into"):
        quick(features, ["kmeans"], tmp_path / "c" / "thesis.tex" / "d")
    assert not ran


# the command line


def run(*arguments):
    return cli.main(["compare", *map(str, arguments), "--no-isolated"])


def test_command(features_csv, tmp_path, capsys):
    options = ["--truth", "kind", "--subject", "id", "--seeds", 2, "--set", "epochs=1", "steps=2", "kmeans.n_starts=2"]
    out = ["--out", tmp_path / "c"]
    assert run(features_csv, "--methods", "kmeans", "classifier", *options, *out) == 0
    printed = capsys.readouterr()
    for words in ("Subgroup", "kmeans", "×", "Mean±deviation over seeds", "Written:", "4 of 4 cells were run now"):
        assert words in printed.out
    assert "cell 4 of 4  classifier  seed 1  epoch 1/1" in printed.err
    assert run(features_csv, "--methods", "kmeans", "classifier", *options, *out) == 0
    printed = capsys.readouterr()
    assert "4 of 4 cells were finished before" in printed.err
    assert "0 of 4 cells were run now" in printed.out


def test_a_narrow_terminal_loses_no_number(features, tmp_path, capsys):
    found = quick(features, ["classifier", "kmeans"], tmp_path / "c")
    name = "a_name_that_alone_is_as_wide_as_half_a_terminal"
    print_comparison(replace(found, summary=found.summary.replace("classifier", name)))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert line.count("±") == 4
    assert "…" not in line


def test_a_failure_has_an_exit_code(features_csv, tmp_path, capsys):
    options = ["--seeds", 1, "--set", "epochs=1", "steps=2", "--out", tmp_path / "c", "--features", "x0", "x1"]
    assert run(features_csv, "--methods", "morpho_simclr", *options) == 1
    assert "morpho_simclr, seed 0, failed: ValueError" in capsys.readouterr().out


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interruption_says_what_is_kept(features_csv, tmp_path, capsys, monkeypatch, stop, code):
    def interrupt(*_, **__):
        raise stop

    monkeypatch.setattr(CELLS, "run_cell", interrupt)
    assert run(features_csv, "--methods", "kmeans", "--out", tmp_path / "c") == code
    assert "finished cells are kept in" in capsys.readouterr().err


def test_an_example_cohort(tmp_path, capsys):
    options = ["--subjects", 60, "--seeds", 1, "--out", tmp_path / "c"]
    assert run("drawn", "--methods", "kmeans", *options) == 0
    assert "Subgroup" in capsys.readouterr().out


def test_a_test_table(features_csv, tmp_path, capsys):
    rows = pd.read_csv(features_csv)
    rows.assign(id=[f"new{i}" for i in range(120)], extra=1.0).to_csv(tmp_path / "test.csv", index=False)
    options = ["--methods", "kmeans", "--truth", "kind", "--subject", "id", "--seeds", 1, "--out", tmp_path / "c"]
    assert run(features_csv, *options, "--test", tmp_path / "test.csv") == 0
    assert run(features_csv, *options, "--test", features_csv) == 2
    assert "Received: s000, s001" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.csv"], "a table of subjects or an example cohort (drawn, drawn_brains, mnist0, "),
        (["drawn", "--truth", "kind"], "Expected --truth only with a table. Received: the example drawn"),
        (["drawn", "--data", "."], "Expected no files for the drawn cohort"),
        (["TABLE", "--labels", "x.json"], "with --labels, which are for examples"),
        (["TABLE", "--methods", "magic"], "methods among kmeans"),
        (["TABLE", "--set", "epochs"], "NAME=VALUE"),
        (["TABLE", "--truth", "sort"], "the column 'sort'"),
        (["TABLE", "--seeds", "2", "--splits", "2"], "Received both"),
    ],
)
def test_wrong_options_of_the_command(features_csv, tmp_path, capsys, ran, arguments, words):
    arguments = [str(features_csv) if word == "TABLE" else word for word in arguments]
    arguments += [] if "--methods" in arguments else ["--methods", "kmeans"]
    assert run(*arguments, "--out", tmp_path / "c") == 2
    message = capsys.readouterr().err
    assert words in " ".join(message.split())
    assert "Traceback" not in message
    assert not ran
    assert not (tmp_path / "c").exists()
