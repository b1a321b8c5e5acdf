"""Scores of a prediction (paper, "Implementations and evaluation criteria")."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, silhouette_samples

from phenogroups.clustering.matching import match_labels
from phenogroups.data.cohort import UNKNOWN, Cohort

if TYPE_CHECKING:
    from phenogroups.methods.prediction import Prediction

Reading = Literal["gate", "centroid"]  # where subgroups are read from: subgroup or by_centroid of a Prediction

DRAWS = 500  # of held-out subjects with replacement, for an interval
INTERVAL = (2.5, 97.5)  # its ends, in percent of the draws
DEFINED = 0.9  # share of the draws in which a score must be defined to have an interval
MOST_IN_SILHOUETTE = 2000  # patients: its cost grows with their square

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
    whole = _Scored.of(cohort, prediction, mapping, reading)
    return whole.scores(np.arange(len(cohort)))


def intervals(cohort: Cohort, prediction: "Prediction", seed: int = 0) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each score that has one, by bootstrap of whole groups of subjects.

    Subgroups stay matched to the truth as in all subjects, and each patient keeps its silhouette.
    """
    whole = _Scored.of(cohort, prediction)
    draws = [asdict(whole.scores(rows)) for rows in _draws(cohort.group, np.random.default_rng(seed))]
    found = {}
    for name in SCORE_NAMES:
        values = [draw[name] for draw in draws if draw[name] is not None]
        if len(values) >= DEFINED * DRAWS:
            low, high = np.percentile(values, INTERVAL)
            found[name] = (float(low), float(high))
    return found


def _draws(group: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows of bootstrap samples of the groups."""
    _, code, sizes = np.unique(group, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(code, kind="stable"), np.cumsum(sizes)[:-1])
    for _ in range(DRAWS):
        yield np.concatenate([members[i] for i in rng.integers(0, len(members), len(members))])


@dataclass(frozen=True)
class _Scored:
    """What scores are computed from, one entry per subject."""

    is_patient: np.ndarray
    called_patient: np.ndarray | None
    truth: np.ndarray
    subgroup: np.ndarray
    mapping: np.ndarray | None  # (subgroups,): None where fewer than two truths are known
    silhouettes: np.ndarray  # NaN of controls, and where it is undefined

    @classmethod
    def of(
        cls, cohort: Cohort, prediction: "Prediction", mapping: np.ndarray | None = None, reading: Reading = "gate"
    ) -> "_Scored":
        if reading not in ("gate", "centroid"):
            raise ValueError(f"Expected reading 'gate' or 'centroid'. Received: {reading!r}.")
        probability = prediction.subgroup if reading == "gate" else prediction.by_centroid
        if probability is None:
            raise ValueError(
                "Expected a prediction with subgroups read from centroids. Received: by_centroid=None. "
                "This method has one reading only: use reading='gate'."
            )
        if len(probability) != len(cohort):
            raise ValueError(
                f"Expected a prediction for each of {len(cohort)} subjects. Received: {len(probability)}. "
                "Predict the cohort that is scored."
            )
        subgroup = probability.argmax(axis=1)
        truth = np.full(len(cohort), UNKNOWN) if cohort.truth is None else cohort.truth
        known = truth != UNKNOWN  # a control is never known
        # against a single known subgroup every answer would be right
        several = len(np.unique(truth[known])) > 1
        return cls(
            cohort.is_patient,
            # one half is no evidence of illness, as in scikit-learn
            None if prediction.diagnosis is None else np.asarray(prediction.diagnosis) > 0.5,
            truth,
            subgroup,
            _checked(mapping, probability.shape[1], subgroup[known], truth[known]) if several else None,
            _silhouettes(prediction.embedding, subgroup, cohort.is_patient),
        )

    def scores(self, rows: np.ndarray) -> Scores:
        """Of some of the subjects."""
        is_patient, truth, subgroup = self.is_patient[rows], self.truth[rows], self.subgroup[rows]
        called_patient = None if self.called_patient is None else self.called_patient[rows]
        known, silhouettes = truth != UNKNOWN, self.silhouettes[rows]
        defined = silhouettes[~np.isnan(silhouettes)]
        found = {
            "class_bacc": _class_bacc(is_patient, called_patient),
            "silhouette": float(defined.mean()) if len(defined) else None,
        }
        if self.mapping is not None and known.any():
            right = known & (self.mapping[subgroup] == truth)
            k = len(self.mapping)
            ari, ami = _agreement(tuple(np.bincount(truth[known] * k + subgroup[known])), k)
            found |= {
                "subgroup_bacc": _mean_recall(truth[known], right[known]),
                "overall_bacc": _overall_bacc(is_patient, known, right, called_patient),
                "ari": ari,
                "ami": ami,
            }
        return Scores(**found)


def _checked(mapping: np.ndarray | None, n_subgroups: int, subgroup: np.ndarray, truth: np.ndarray) -> np.ndarray:
    if mapping is None:
        return match_labels(subgroup, truth, n_subgroups)
    if np.shape(mapping) != (n_subgroups,):
        raise ValueError(
            f"Expected a mapping with one truth for each of {n_subgroups} subgroups. "
            f"Received: shape {np.shape(mapping)}. Learn it by match_labels on the same model."
        )
    return np.asarray(mapping)


@lru_cache(DRAWS)
def _agreement(counts: tuple[int, ...], n_subgroups: int) -> tuple[float, float]:
    """Adjusted Rand index and mutual information of patients counted by truth and subgroup.

    Remembered, as they take most of the time of an interval and many draws have the same counts.
    """
    truth, subgroup = np.divmod(np.repeat(np.arange(len(counts)), counts), n_subgroups)
    return float(adjusted_rand_score(truth, subgroup)), float(adjusted_mutual_info_score(truth, subgroup))


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


def _silhouettes(embedding: np.ndarray, subgroup: np.ndarray, is_patient: np.ndarray, seed: int = 0) -> np.ndarray:
    """(n,): of each patient, of some where there are many; NaN of all others, and where subgroups are too few."""
    found, rows = np.full(len(subgroup), np.nan), np.flatnonzero(is_patient)
    if len(rows) > MOST_IN_SILHOUETTE:
        rows = rows[np.random.default_rng(seed).choice(len(rows), MOST_IN_SILHOUETTE, replace=False)]
    if 2 <= len(np.unique(subgroup[rows])) < len(rows):
        found[rows] = silhouette_samples(embedding[rows].astype(np.float64), subgroup[rows])
    return found
