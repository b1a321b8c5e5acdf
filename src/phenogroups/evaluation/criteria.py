"""The paper's criteria for the number of subgroups (Sec. 3), each for one partition of the same patients."""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, davies_bouldin_score, silhouette_score
from sklearn.model_selection import train_test_split
from torch import Tensor

from phenogroups.clustering.mixture import tied_mixture

MOST_IN_SILHOUETTE = 2000  # patients: it compares each with each
HELD_OUT = 0.25


def separation(z: np.ndarray, labels: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Silhouette (Rousseeuw 1987; more is better) and Davies-Bouldin (1979; less is better)."""
    if len(np.unique(labels)) < 2:
        return {"silhouette": np.nan, "davies_bouldin": np.nan}
    size = min(len(z), MOST_IN_SILHOUETTE)
    return {
        "silhouette": float(silhouette_score(z, labels, sample_size=size, random_state=seed)),
        "davies_bouldin": float(davies_bouldin_score(z, labels)),
    }


def bic(z: Tensor, q: Tensor) -> float:
    """Of the tied mixture that `q` (n, K) starts (Schwarz 1978), per patient: less is better."""
    n, dims = z.shape
    k = q.shape[1]
    parameters = k - 1 + k * dims + dims * (dims + 1) / 2
    return float(-2 * tied_mixture(z, k, start=q).log_likelihood + parameters * np.log(n) / n)


def x_means(z: np.ndarray, k: int, seed: int = 0) -> int:
    """The number of clusters after one round of X-means (Pelleg & Moore 2000) from `k`; it stops at an equal number."""
    labels = KMeans(k, n_init=3, random_state=seed).fit_predict(z) if k > 1 else np.zeros(len(z), int)
    parts = [z[labels == i] for i in range(k)]
    return sum(2 if _splits(part, seed) else 1 for part in parts)


def _splits(part: np.ndarray, seed: int) -> bool:
    """Whether two round clusters of one common variance have the better BIC than one."""
    n, dims = part.shape
    if n < 2 * (dims + 2):
        return False
    halves = KMeans(2, n_init=3, random_state=seed).fit(part)
    sizes = np.bincount(halves.labels_, minlength=2)
    one = -n * dims / 2 * np.log(((part - part.mean(axis=0)) ** 2).sum() / (dims * (n - 1)))
    two = -n * dims / 2 * np.log(halves.inertia_ / (dims * (n - 2))) + (sizes * np.log(sizes / n)).sum()
    more = dims + 1  # a second centroid and a share
    return bool(two - one > more / 2 * np.log(n))


def dec_ratio(z: np.ndarray, k: int, seed: int = 0) -> float:
    """DEC's loss on training patients over that on others (Xie et al. 2016): a sharp fall says that K is too large."""
    train, other = train_test_split(z, test_size=HELD_OUT, random_state=seed)
    centroids = KMeans(k, n_init=5, random_state=seed).fit(train).cluster_centers_
    return dec_loss(train, centroids) / max(dec_loss(other, centroids), 1e-12)


def dec_loss(z: np.ndarray, centroids: np.ndarray) -> float:
    """KL(P || Q) per subject: Q by a Student t of one degree of freedom, P its square shared out by cluster sizes."""
    q = 1 / (1 + ((z[:, None] - centroids) ** 2).sum(axis=2))
    q /= q.sum(axis=1, keepdims=True)
    p = q**2 / q.sum(axis=0)
    p /= p.sum(axis=1, keepdims=True)
    return float((p * np.log(p / q)).sum(axis=1).mean())


def experts_accuracy(x: np.ndarray, is_patient: np.ndarray, q: np.ndarray, seed: int = 0) -> float:
    """Held-out balanced accuracy of diagnosis by a mixture of linear experts (paper, Eq. 1) under beliefs `q`.

    `q` (patients, K) is of the patients; a control belongs to all subgroups alike.
    """
    k = q.shape[1]
    belief = np.full((len(x), k), 1 / k)
    belief[is_patient] = q
    train, test = train_test_split(np.arange(len(x)), test_size=HELD_OUT, random_state=seed, stratify=is_patient)
    ill = train[is_patient[train]]
    labels = belief[ill].argmax(axis=1)
    gate = np.ones((len(test), k)) / k
    if 1 < k == len(np.unique(labels)):
        gate = LogisticRegression(max_iter=500).fit(x[ill], labels).predict_proba(x[test])
    p = np.zeros(len(test))
    for i in range(k):
        expert = LogisticRegression(max_iter=500, class_weight="balanced")
        weight = np.maximum(belief[train, i], 1e-6)
        p += gate[:, i] * expert.fit(x[train], is_patient[train], sample_weight=weight).predict_proba(x[test])[:, 1]
    return float(balanced_accuracy_score(is_patient[test], p > 0.5))


def principal(x: np.ndarray, components: int) -> np.ndarray:
    """(n, components): the leading principal components, each of variance one."""
    return PCA(min(components, *x.shape), whiten=True, svd_solver="full").fit_transform(x)
