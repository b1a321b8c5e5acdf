"""From a cohort to the number of its subgroups, as a user asks for it."""

import json

import numpy as np
import pandas as pd
import pytest

from phenogroups import cli
from phenogroups.cli.options import SearchOptions
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.methods import DeepUCSL
from phenogroups.workflows.choose import MOST_SUBJECTS, number_of_subgroups, sample_vectors


def table(cohort, path):
    features = pd.DataFrame(cohort.inputs, columns=[f"f{i}" for i in range(cohort.inputs.shape[1])])
    pd.concat([features.assign(diagnosis=cohort.diagnosis), cohort.covariates], axis=1).to_csv(path, index=False)
    return str(path)


ASKED = ["--covariates", "age", "sex", "site", "--subgroups", "2:3", "--set", "epochs=1", "steps=2", "restarts=1"]


def test_discover_finds_how_many_and_says_why(tmp_path, capsys):
    rows = table(drawn_table(500, 10, 2, separation=8, seed=0), tmp_path / "two.csv")
    assert cli.main(["discover", rows, "--out", str(tmp_path / "run"), *ASKED]) == 0
    said = capsys.readouterr().out
    assert "2 subgroups: a gap that controls do not show lies between any two" in said
    assert "was given, not looked for" not in said
    answer = json.loads((tmp_path / "run" / "choice.json").read_text())
    assert answer["subgroups"] == 2
    assert answer["p"] <= 0.01
    assert pd.read_csv(tmp_path / "run" / "criteria.csv")["subgroups"].tolist() == [2, 3]
    assert answer["reason"] in (tmp_path / "run" / "report.html").read_text()
    assert not (tmp_path / "run.choosing").exists()


def test_discover_says_no_subgroups_and_trains_nothing(tmp_path, capsys):
    rows = table(drawn_table(400, 10, 1, seed=0), tmp_path / "none.csv")
    assert cli.main(["discover", rows, "--out", str(tmp_path / "run"), *ASKED]) == 0
    assert "No subgroups: with 2, " in capsys.readouterr().out
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"choice.json", "criteria.csv", "log.txt", "recipe.json", "report.html", "verdict.json"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "No subgroups" in page
    assert "What varies most among the patients" in page
    assert cli.main(["predict", str(tmp_path / "run"), rows]) == 2
    assert "which found none and has no model" in capsys.readouterr().err
    # and the folder can be replaced by a run that is asked for subgroups all the same
    rest = [word if word != "2:3" else "2" for word in ASKED]
    assert cli.main(["discover", rows, "--out", str(tmp_path / "run"), "--overwrite", *rest]) == 0
    assert "was given, not looked for" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["1", "1:3", "6:2", "two", "2:", ":3", "2:3:4", "0"])
def test_a_wrong_number_is_refused_before_anything_is_read(words, tmp_path, capsys):
    if words == "2:":
        assert SearchOptions(cohort="drawn", subgroups=words).range_of_subgroups() == (2, 2)
        return
    assert cli.main(["discover", str(tmp_path / "absent.csv"), "--subgroups", words]) == 2
    assert "Expected --subgroups as a number from 2 on" in capsys.readouterr().err


def test_encoders_are_kept_and_used_again(tmp_path):
    cohort = drawn_digits(160, size=16, seed=0)
    method = DeepUCSL(steps=2, batch_size=32)
    first = number_of_subgroups(cohort, method, most=2, cache_dir=tmp_path / "kept")
    kept = sorted((tmp_path / "kept").iterdir())
    assert len(kept) == 3
    changed = np.load(kept[0])
    times = [path.stat().st_mtime_ns for path in kept]
    again = number_of_subgroups(cohort, method, most=2, cache_dir=tmp_path / "kept")
    assert times == [path.stat().st_mtime_ns for path in kept]
    pd.testing.assert_frame_equal(first.criteria, again.criteria)
    rows, vectors = sample_vectors(cohort, method, tmp_path / "kept")  # what the page of none shows
    assert len(rows) == len(vectors) == 160
    np.testing.assert_array_equal(vectors, sample_vectors(cohort, method, tmp_path / "kept")[1])
    np.save(kept[0], np.roll(changed, 1, axis=0))  # it is read, not only there
    assert not np.allclose(vectors, sample_vectors(cohort, method, tmp_path / "kept")[1])
    other = number_of_subgroups(cohort, method, most=2, cache_dir=tmp_path / "kept")
    assert other.criteria["gap"][0] != first.criteria["gap"][0]
    number_of_subgroups(cohort, DeepUCSL(steps=3, batch_size=32), most=2, cache_dir=tmp_path / "kept")
    assert len([*(tmp_path / "kept").iterdir()]) == 6


def test_truth_is_not_sample_vectors_and_large_cohorts_are_sampled():
    cohort = drawn_table(MOST_SUBJECTS + 500, 8, 2, separation=7, seed=0)
    blind = type(cohort)(cohort.inputs, cohort.diagnosis, covariates=cohort.covariates)
    one, two = (number_of_subgroups(c, DeepUCSL(), most=2) for c in (cohort, blind))
    assert one.subgroups == two.subgroups == 2
    pd.testing.assert_frame_equal(one.criteria, two.criteria)
