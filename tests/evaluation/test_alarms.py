"""What a run warns of, each on a made prediction that has just this fault."""

import numpy as np
import pytest

from phenogroups.evaluation.verdict import alarms
from phenogroups.methods.prediction import Prediction

DIAGNOSIS = np.repeat([1, 0], [100, 100])


def made(share: float = 0.5, sure: float = 1.0, disagreeing: float = 0.0) -> Prediction:
    """Of 100 patients and 100 controls: the share in the second subgroup, who is sure, and who is read differently."""
    second = np.tile(np.arange(100) < round(100 * share), 2)
    confidence = np.where(np.tile(np.arange(100) < round(100 * sure), 2), 0.95, 0.6)
    of_second = np.where(second, confidence, 1 - confidence)
    subgroup = np.stack([1 - of_second, of_second], axis=1)
    other = np.tile(np.arange(100) < round(100 * disagreeing), 2)
    by_centroid = np.where(other[:, None], subgroup[:, ::-1], subgroup)
    return Prediction(subgroup, None, np.zeros((200, 2)), by_centroid=by_centroid)


def test_a_sound_run_is_not_warned_of():
    assert alarms(DIAGNOSIS, made(), 0.95) == []
    assert alarms(DIAGNOSIS, made(share=0.06, sure=0.85, disagreeing=0.08), 0.8) == []


@pytest.mark.parametrize(
    ("prediction", "class_bacc", "said"),
    [
        (made(share=0.03), 0.95, "Subgroup B holds 3% of the held-out patients"),
        (made(share=0.0), 0.95, "Subgroup B holds 0% of the held-out patients"),
        (made(sure=0.7), 0.95, "Only 70% of 100 held-out patients belong"),
        (made(disagreeing=0.2), 0.95, "differ for 20% of the held-out patients"),
        (made(), 0.55, "hardly told from controls (balanced accuracy 0.55"),
    ],
)
def test_each_fault_is_warned_of(prediction, class_bacc, said):
    (warning,) = alarms(DIAGNOSIS, prediction, class_bacc)
    assert said in warning


def test_few_held_out_subjects_need_a_better_diagnosis():
    few = np.r_[0:8, 100:108]
    assert alarms(DIAGNOSIS[few], made()[few], 0.7) != []
    assert alarms(DIAGNOSIS, made(), 0.7) == []
    fewer = np.r_[0:1, 100:101]
    assert alarms(DIAGNOSIS[fewer], made()[fewer], 1.0)[-1] == (
        "Whether patients differ from controls cannot be told: 1 patient and 1 control were held out."
    )


def test_controls_and_methods_without_diagnosis_do_not_count():
    found = made()
    found.subgroup[100:] = 0.5
    assert alarms(DIAGNOSIS, found, None) == []
    assert alarms(np.zeros(200), found, None) == []


def test_proportions_of_distances_are_not_asked_to_be_sure():
    unsure = made(sure=0.1)
    without_gate = Prediction(unsure.subgroup, None, unsure.embedding)
    assert alarms(DIAGNOSIS, without_gate, None) == []
    assert alarms(DIAGNOSIS, unsure, None) != []
