"""Every rule of the verdict, case by case."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phenogroups.evaluation.confounds import Followed
from phenogroups.evaluation.number import Choice
from phenogroups.evaluation.persons import persons_agreement
from phenogroups.evaluation.stability import NAMES
from phenogroups.evaluation.verdict import judge, no_subgroups

FOUND = Choice(2, "2 subgroups: a gap lies between any two of them.", 0.002, 0.05, pd.DataFrame())
NONE = Choice(1, "No subgroups: with 2, no gap lies between some of them.", 0.7, 0.5, pd.DataFrame())
SCANNER = Followed("scanner", "covariate", True, "Subgroups follow scanner (V 0.93).")
SYMPTOM = Followed("symptom", "covariate", False, "Subgroups follow symptom (eta 0.31).")
PARTED = persons_agreement(np.arange(40) % 2, np.arange(40) // 2)
AGREEING = persons_agreement(np.arange(40) // 2 % 2, np.arange(40) // 2)


def table(starts=1.0, halves=0.95, chance=0.4, **others):
    rows = {
        "starts": (starts, 0.8),
        "halves": (halves, chance),
        **{name: (value, 0.0) for name, value in others.items()},
    }
    return pd.DataFrame(
        [
            {"what": what, "agreement": value, "by_chance": null, "n": 100, "meaning": NAMES[what.replace("_", " ")]}
            for what, (value, null) in rows.items()
        ]
    )


NOT_COMPUTED = table(np.nan, np.nan, np.nan)


@pytest.mark.parametrize(
    ("stability", "choice", "about", "answer", "words"),
    [
        (table(), FOUND, {"searched": True}, "convincing", "probability of at most 0.002"),
        (table(), FOUND, {"searched": False}, "convincing", "Look for the same subgroups in another cohort"),
        (table(halves=0.92, chance=0.9), FOUND, {}, "convincing", "(0.92 of 1)"),  # nearly the same, whatever the null
        (table(), FOUND, {"persons": AGREEING}, "convincing", "nothing that was recorded"),
        # the number was searched for, and there is none: whatever else holds
        (table(), NONE, {"searched": True, "followed": [SCANNER]}, "no subgroups", "no gap lies between"),
        # artefacts come before all that is left
        (table(), FOUND, {"followed": [SYMPTOM, SCANNER]}, "artefact likely", "follow scanner"),
        (table(halves=0.1), FOUND, {"followed": [SCANNER], "held": [0, 30]}, "artefact likely", "follow scanner"),
        (table(), FOUND, {"persons": PARTED}, "artefact likely", "images of the same person fall into different"),
        # then what is not stable
        (table(), FOUND, {"held": [30, 0]}, "not stable", "Of 30 patients who were held out, one subgroup has none"),
        (table(), FOUND, {"held": [1, 0]}, "not stable", "1 patient was held out, and 1 of 2 subgroups have none"),
        (table(halves=0.3), None, {}, "not stable", "half of the cohort is not enough to find these subgroups again"),
        (table(halves=0.3), None, {}, "not stable", "0.30, where 1 means the same subgroups; patients without "
         "subgroups would give 0.40."),
        (table(halves=0.3), replace(FOUND, p=0.02), {}, "not stable", "half of the cohort is not enough"),
        (table(halves=0.3), NONE, {"searched": False}, "not stable", "so many subgroups at all was not passed (p 0.7)"),
        (table(starts=0.3), FOUND, {"followed": [SYMPTOM]}, "not stable", "other random starts find other subgroups"),
        (table(**{"gate and centroids": 0.3}), FOUND, {}, "not stable", "two ways to assign a new patient to a "
         "subgroup disagree"),
        (NOT_COMPUTED, None, {}, "plausible", "not tested"),
        # then what is missing for convincing
        (table(), None, {}, "plausible", "given and not tested"),
        (table(), NONE, {"searched": False}, "plausible", "did not pass its test"),
        (table(), replace(FOUND, p=0.02), {}, "plausible", "would look like this with a probability of 0.02"),
        (table(halves=0.6, chance=0.5), FOUND, {}, "plausible", "(agreement 0.60 against 0.50)"),
        (table(halves=0.3, chance=0.1), FOUND, {}, "plausible", "(agreement 0.30 against 0.10)"),  # proven by gaps
        (NOT_COMPUTED, FOUND, {"searched": True}, "plausible", "was not computed"),
        (table(), FOUND, {"doubts": ["Only 60% are sure."]}, "plausible", "Only 60% are sure."),
        (table(), FOUND, {"followed": [SYMPTOM]}, "plausible", "Plausible, but the subgroups follow symptom."),
    ],
)  # fmt: skip
def test_the_first_rule_that_applies_decides(stability, choice, about, answer, words):
    found = judge(stability, choice, **{"searched": True, **about})
    assert found.answer == answer
    assert words in found.sentence()
    assert 1 <= len(found.why) <= 2
    assert found.sentence().startswith(found.headline)
    assert found.sentence().endswith(found.next_step)


def test_networks_that_disagree_are_not_stable():
    rows = pd.DataFrame(
        [{"what": "networks", "agreement": 0.2, "by_chance": np.nan, "n": 9, "meaning": "networks agree"}]
    )
    assert judge(rows, FOUND, searched=True).answer == "not stable"


def test_patients_who_are_hardly_told_from_controls_have_little_to_divide():
    said = no_subgroups(replace(NONE, criteria=pd.DataFrame({"diagnosis_bacc": [0.55, 0.7]})))
    assert said.why[1].startswith("Patients are hardly told from controls at all (balanced accuracy 0.55")
    assert len(no_subgroups(replace(NONE, criteria=pd.DataFrame({"diagnosis_bacc": [0.9]}))).why) == 1


def test_no_subgroups_is_said_with_its_reason():
    assert no_subgroups(NONE).answer == "no subgroups"
    assert NONE.reason in no_subgroups(NONE).sentence()
