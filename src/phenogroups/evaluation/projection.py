"""Projections of embeddings: principal axes, UMAP, and the frames of a film."""

import importlib
import importlib.util
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

from phenogroups.clustering.kmeans import distance_ratio
from phenogroups.data.cohort import Cohort
from phenogroups.methods.base import Method

FITTED = 10_000  # subjects that principal axes are fitted on, at most
EMBEDDED = 1000  # subjects of a comparison whose place is kept, of the first seed
NEIGHBOURS = 3000  # training subjects that UMAP learns from, at most


def principal_axes(fitted_on: np.ndarray, embedding: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (n, count) and the share of variance of the axes; zeros for axes that do not exist."""
    fitted_on = fitted_on[some_rows(len(fitted_on), FITTED)]
    pca = PCA(min(count, *fitted_on.shape), random_state=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # constant embeddings have no variance to share
        pca.fit(fitted_on.astype(np.float64))
    points = pca.transform(embedding.astype(np.float64))
    missing = count - points.shape[1]
    share = np.nan_to_num(pca.explained_variance_ratio_)
    return np.pad(points, [(0, 0), (0, missing)]), np.pad(share, (0, missing))


def some_rows(count: int, most: int) -> np.ndarray:
    """All positions below `count`, or a fixed random sample of `most` of them."""
    return np.arange(count) if count <= most else np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def umap_axes(fitted_on: np.ndarray, embedding: np.ndarray) -> np.ndarray | None:
    """None unless umap-learn is installed; UMAP preserves neighbours rather than distances."""
    some = fitted_on[some_rows(len(fitted_on), NEIGHBOURS)]
    if importlib.util.find_spec("umap") is None or len(some) < 20:
        return None
    umap: Any = importlib.import_module("umap")
    return umap.UMAP(n_components=2, random_state=0, n_jobs=1).fit(some).transform(embedding).astype(np.float32)


def film_frames(method: Method, train: Cohort, subgroup: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Frames on the two principal axes of the last one, each centred and scaled: embeddings grow during training."""
    film = getattr(method, "film_", None)
    if film is None or len(film.epochs) < 2:
        return {}
    place = {name: row for row, name in enumerate(train.subject)}
    trained_on = method.trained_on(train)  # pyright: ignore[reportAttributeAccessIssue], a method with a film
    label = subgroup[[place[name] for name in trained_on.subject[film.rows]]]
    frames, ratios = [], []
    for frame in film.embedding:
        flat, _ = principal_axes(film.embedding[-1], frame, 2)
        flat = flat - flat.mean(axis=0)
        frames.append(flat / max(np.sqrt(np.square(flat).sum(axis=1).mean()), 1e-12))
        ratios.append(distance_ratio(torch.as_tensor(frame), torch.as_tensor(label), k))
    return {
        "film": np.stack(frames).astype(np.float16), "film_epochs": film.epochs.astype(np.int64),
        "film_ratio": np.array(ratios, dtype=np.float32), "film_subgroup": label.astype(np.int64),
    }  # fmt: skip
