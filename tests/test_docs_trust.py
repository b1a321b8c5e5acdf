"""What docs/guides/is_it_real.md shows runs, and it names every column and number that a run writes."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np

from phenogroups.clustering import significance
from phenogroups.data.examples.drawn_table import drawn_table
from phenogroups.evaluation import confounds, number, profiles
from phenogroups.evaluation.diagnostics import Diagnostics
from phenogroups.methods import Prediction
from phenogroups.workflows import choose as choosing

TEXT = (Path(__file__).parents[1] / "docs" / "guides" / "is_it_real.md").read_text()


def test_the_code_warns_of_the_scanner_and_the_text_names_what_it_finds(capsys):
    cohort = drawn_table(120, subgroups=1, site_effect=6)
    site = (cohort.covariates["site"] == "B").to_numpy().astype(int)
    known = {"cohort": cohort, "prediction": Prediction(np.eye(2)[site], None, cohort.inputs)}
    section = TEXT.split("## Are they only age, sex or scanner?")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(code, known)
    assert "They may be site and not disease." in capsys.readouterr().out
    unnamed = {"covariate", "among"}
    named = [*(set(known["table"].columns) - unnamed), *(field.name for field in fields(Diagnostics))]
    assert [name for name in named if f"`{name}`" not in TEXT] == []


def test_the_text_has_the_thresholds_of_the_code():
    assert f"corrected p of at most {confounds.ALARM} *and* an effect of at least {confounds.NEGLIGIBLE}" in TEXT
    assert f"at least {confounds.PERMUTATIONS:,} permutations" in TEXT
    assert f"{confounds.RESAMPLES:,} bootstraps" in TEXT
    assert f"fewer than {confounds.LEAST_KNOWN} known" in TEXT
    assert f"Codes of fewer than {confounds.LEAST_SHARED} subjects" in TEXT
    assert f"{profiles.PERMUTATIONS:,} permutations where an expected count is below {profiles.SMALL}" in TEXT


def test_the_text_has_the_rule_of_the_code():
    for text in (
        f"at least {number.GAP} of the patients", f"at least {number.APART:g} deviations apart",
        f"at least {number.APART_OF_MORE:g} with more than two subgroups",
        f"`p_gap` of at most {number.SURE_OF_SEVERAL}",
        f"(of at most {number.SURE_OF_ONE} ", f"at most {number.SURE_OF_MORE} for a number beyond one that passes",
        f"`p_shuffled` of at most {number.SURE_OF_PAIR} ",
        f"never below {significance.SMALLEST_P}", f"{choosing.MOST_SUBJECTS:,} subjects",
        f"{choosing.ENCODERS} encoders",
    ):  # fmt: skip
        assert text in TEXT, text
    cohort = drawn_table(80, 8, seed=0)
    columns = number.choose([cohort.inputs], cohort.diagnosis, cohort.covariates, most=2).criteria.columns
    assert [name for name in columns if f"`{name}`" not in TEXT and name not in ("subgroups", "passes")] == []


def test_a_strong_effect_among_sixty_patients_is_warned_of_as_often_as_the_text_says(monkeypatch):
    monkeypatch.setattr(confounds, "PERMUTATIONS", 1199)
    monkeypatch.setattr(confounds, "RESAMPLES", 10)
    warned = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        cohort = drawn_table(120, 8, subgroups=1, seed=seed)
        letter = (cohort.covariates["site"] == "B").to_numpy()
        letter = np.where(rng.random(120) < 0.75, letter, ~letter).astype(int)  # V is 2 x 0.75 - 1
        table = confounds.associations(np.eye(2)[letter], cohort.diagnosis, cohort.covariates)
        warned += any("Subgroups follow site" in said for said in confounds.warnings(table))
    assert 0.65 < warned / 60 < 0.95
