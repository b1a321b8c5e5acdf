"""How right a prediction is, where the truth is known (paper, "Implementations and evaluation criteria")."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, silhouette_score

from phenogroups.clustering.matching import match_labels
from phenogroups.data.cohort import UNKNOWN, Cohort

if TYPE_CHECKING:
    from phenogroups.methods.prediction import Prediction

Reading = Literal["gate", "centroid"]  # where subgroups are read from: subgroup or by_centroid of a Prediction

SCORE_NAMES = {
    "class_bacc": "Class B-ACC",
    "subgroup_bacc": "Subgroup B-ACC",
    "overall_bacc": "Overall B-ACC",
    "ari": "ARI",
    "ami": "AMI",
    "silhouette": "Silhouette",
}


@dataclass(frozen=True)
class Scores:
    """Scores of a prediction: higher is better, None is undefined (no diagnosis head, no truth, a single class).

    Parameters
    ----------
    class_bacc
        Balanced accuracy of patients against controls.
    subgroup_bacc
        Balanced accuracy of the subgroups among patients of known truth, with ids matched.
    overall_bacc
        Balanced accuracy over controls and all known subgroups.
    ari
        Adjusted Rand index of predicted and known subgroups.
    ami
        Adjusted mutual information of predicted and known subgroups.
    silhouette
        Silhouette of the predicted subgroups in the embedding; it needs no truth.
    """

    class_bacc: float | None = None
    subgroup_bacc: float | None = None
    overall_bacc: float | None = None
    ari: float | None = None
    ami: float | None = None
    silhouette: float | None = None


def score(
    cohort: Cohort,
    prediction: "Prediction",
    *,
    mapping: np.ndarray | None = None,
    reading: Reading = "gate",
) -> Scores:
    """Score a prediction by what is known of a cohort.

    Parameters
    ----------
    cohort
        The subjects, with their diagnosis and, where known, their truth.
    prediction
        What a method says of the same subjects.
    mapping
        Truth id of each predicted id; by default, ids are matched on the patients who are scored.
    reading
        Which subgroups are scored: those of the gate, or those of the nearest centroid.

    Returns
    -------
    Scores
        Balanced accuracies, adjusted Rand index, adjusted mutual information, silhouette.

    Examples
    --------
    >>> from phenogroups import METHODS, drawn_table, score
    >>> train, test = drawn_table(400, shared=1).split()
    >>> found = METHODS["kmeans"]().fit(train).predict_cohort(test)
    >>> score(test, found).subgroup_bacc > 0.9
    True
    """
    probability = subgroup_probability(prediction, reading)
    if len(probability) != len(cohort):
        raise ValueError(
            f"Expected a prediction for each of {len(cohort)} subjects. Received: {len(probability)}. "
            "Predict the cohort that is scored."
        )
    subgroup = probability.argmax(axis=1)
    # one half is no evidence of illness, as in scikit-learn
    called_patient = None if prediction.diagnosis is None else np.asarray(prediction.diagnosis) > 0.5
    truth = np.full(len(cohort), UNKNOWN) if cohort.truth is None else cohort.truth
    known = truth != UNKNOWN  # a control is never known
    found = {
        "class_bacc": _class_bacc(cohort.is_patient, called_patient),
        "silhouette": _silhouette(prediction.embedding[cohort.is_patient], subgroup[cohort.is_patient]),
    }
    if len(np.unique(truth[known])) > 1:  # against a single known subgroup every answer would be right
        mapping = _checked(mapping, probability.shape[1], subgroup[known], truth[known])
        right = known & (mapping[subgroup] == truth)
        found |= {
            "subgroup_bacc": _mean_recall(truth[known], right[known]),
            "overall_bacc": _overall_bacc(cohort.is_patient, known, right, called_patient),
            "ari": float(adjusted_rand_score(truth[known], subgroup[known])),
            "ami": float(adjusted_mutual_info_score(truth[known], subgroup[known])),
        }
    return Scores(**found)


def subgroup_probability(prediction: "Prediction", reading: Reading = "gate") -> np.ndarray:
    """(subjects, subgroups), as this reading of the prediction has them."""
    readings = {"gate": prediction.subgroup, "centroid": prediction.by_centroid}
    if reading not in readings:
        raise ValueError(f"Expected reading 'gate' or 'centroid'. Received: {reading!r}.")
    if readings[reading] is None:
        raise ValueError(
            "Expected a prediction with subgroups read from centroids. Received: by_centroid=None. "
            "This method has one reading only: use reading='gate'."
        )
    return np.asarray(readings[reading])


def _checked(mapping: np.ndarray | None, n_subgroups: int, subgroup: np.ndarray, truth: np.ndarray) -> np.ndarray:
    if mapping is None:
        return match_labels(subgroup, truth, n_subgroups)
    if np.shape(mapping) != (n_subgroups,):
        raise ValueError(
            f"Expected a mapping with one truth for each of {n_subgroups} subgroups. "
            f"Received: shape {np.shape(mapping)}. Learn it by match_labels on the same model."
        )
    return np.asarray(mapping)


def _mean_recall(classes: np.ndarray, right: np.ndarray) -> float:
    """Balanced accuracy, over the classes that exist."""
    return float(np.mean([right[classes == k].mean() for k in np.unique(classes)]))


def _class_bacc(is_patient: np.ndarray, called_patient: np.ndarray | None) -> float | None:
    if called_patient is None or is_patient.all() or not is_patient.any():
        return None
    return _mean_recall(is_patient, called_patient == is_patient)


def _overall_bacc(
    is_patient: np.ndarray, known: np.ndarray, right: np.ndarray, called_patient: np.ndarray | None
) -> float | None:
    """1/2 TP / (TP + FN) + 1/2 TN / (TN + FP), where a patient in the wrong subgroup is a false positive."""
    if called_patient is None or is_patient.all():
        return None
    tp = np.sum(known & called_patient & right)
    fn = np.sum(known & ~called_patient)
    tn = np.sum(~is_patient & ~called_patient)
    fp = np.sum(~is_patient & called_patient) + np.sum(known & called_patient & ~right)
    # max: when every patient is called patient in the wrong subgroup, TP + FN is 0 and none was found
    return float(tp / max(tp + fn, 1) + tn / (tn + fp)) / 2


def _silhouette(embedding: np.ndarray, subgroup: np.ndarray, most: int = 2000, seed: int = 0) -> float | None:
    if len(subgroup) > most:  # its cost grows with the square of the patients
        rows = np.random.default_rng(seed).choice(len(subgroup), most, replace=False)
        embedding, subgroup = embedding[rows], subgroup[rows]
    if not 2 <= len(np.unique(subgroup)) < len(subgroup):
        return None
    return float(silhouette_score(embedding.astype(np.float64), subgroup))
