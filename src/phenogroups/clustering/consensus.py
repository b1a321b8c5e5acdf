"""The consensus of several labelings of the same subjects: which subjects share a subgroup, whatever its number.

Subjects with the same labels in every run are interchangeable, so only the distinct rows of labels are compared, each
counting as often as it occurs: exact, and small however many subjects there are.
"""

import numpy as np
from scipy.linalg import eigh
from sklearn.cluster import KMeans

LEFT_OUT = -1  # the label of a subject that a run did not see
MOST_ROWS = 2000  # distinct rows of labels that are compared; rarer ones follow the subgroup they resemble most
DIGITS = 9  # to which two rows of an embedding are the same


def co_assignment(labels: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    """(n, m): the share of runs that put two subjects together, of those that saw both; 0 where none did.

    `labels` is (n, runs), `others` (m, runs) or the same subjects. Two subjects left out of a run do not agree in it.
    """
    labels, others = _checked(labels), _checked(labels if others is None else others)
    together, both = np.zeros((2, len(labels), len(others)))
    for run, other in zip(labels.T, others.T, strict=True):
        k = max(run.max(), other.max()) + 1
        together += _one_hot(run, k) @ _one_hot(other, k).T
        both += np.outer(run != LEFT_OUT, other != LEFT_OUT)
    return together / np.maximum(both, 1)


def consensus_labels(labels: np.ndarray, n_subgroups: int, *, seed: int = 0) -> np.ndarray:
    """(n,): spectral clustering (Shi & Malik 2000) of the co-assignment of `labels` (n, runs).

    Fewer subgroups come back where the runs together tell fewer apart.
    """
    labels = _checked(labels)
    rows, member, counts = np.unique(labels, axis=0, return_inverse=True, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:MOST_ROWS]
    found = np.empty(len(rows), dtype=np.int64)
    found[common] = _spectral(co_assignment(rows[common]), counts[common], n_subgroups, seed)
    rare = np.setdiff1d(np.arange(len(rows)), common)
    if len(rare):
        found[rare] = resemblance(rows[rare], rows[common], found[common], n_subgroups, counts[common]).argmax(axis=1)
    return found[member.ravel()]


def resemblance(
    labels: np.ndarray, members: np.ndarray, consensus: np.ndarray, n_subgroups: int, counts: np.ndarray | None = None
) -> np.ndarray:
    """(n, K), rows sum to one: mean co-assignment of subjects with the members of each consensus subgroup.

    The `members` (m, runs) have `consensus` labels (m,); `counts` says how many subjects each of them stands for.
    """
    labels, members = _checked(labels), _checked(members)
    rows, place = np.unique(labels, axis=0, return_inverse=True)
    of, at = np.unique(members, axis=0, return_inverse=True)
    belonging = np.zeros((len(of), n_subgroups))
    np.add.at(belonging, (at.ravel(), consensus), 1 if counts is None else counts)
    share = belonging / np.maximum(belonging.sum(axis=0), 1)
    blocks = np.array_split(rows, -(-len(rows) // MOST_ROWS))  # memory for so many at a time
    mean = np.concatenate([co_assignment(some, of) @ share for some in blocks])
    total = mean.sum(axis=1, keepdims=True)
    shares = np.divide(mean, total, out=np.full_like(mean, 1 / n_subgroups), where=total > 0)
    return shares[place.ravel()]


def _spectral(affinity: np.ndarray, counts: np.ndarray, n_subgroups: int, seed: int) -> np.ndarray:
    """Normalised cuts of items that occur `counts` times each."""
    degree = np.maximum(affinity @ counts, 1)  # below 1 only where no run saw the subject
    scale = np.sqrt(counts / degree)
    first = max(len(affinity) - n_subgroups, 0)
    _, vectors = eigh(scale[:, None] * affinity * scale, subset_by_index=(first, len(affinity) - 1))
    embedding = vectors * np.sqrt((counts @ degree) / (counts * degree))[:, None]  # random walk: the first is constant
    embedding = np.round(embedding, DIGITS)
    distinct = min(n_subgroups, len(np.unique(embedding, axis=0)))
    found = KMeans(distinct, n_init=20, random_state=seed).fit(embedding, sample_weight=counts)
    return found.labels_.astype(np.int64)


def _one_hot(run: np.ndarray, k: int) -> np.ndarray:
    return (run[:, None] == np.arange(k)).astype(np.float64)


def _checked(labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 2 or labels.dtype.kind not in "iu" or labels.size == 0 or labels.min() < LEFT_OUT:
        raise ValueError(
            f"Expected labels (subjects, runs) of 0 and above, or {LEFT_OUT} where a run left a subject out. "
            f"Received: {labels.dtype} of shape {labels.shape}"
            + (f" with {labels.min()}." if labels.size and labels.dtype.kind in "iu" else ".")
        )
    return labels
