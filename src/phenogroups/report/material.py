"""What page and figures are made of: bounded in size, kept beside the run, so that both can be made without the cohort.

Every number has a reader: rows are those of subgroups.csv, arrays are as small as what is shown of them.
"""

import importlib
import importlib.util
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from safetensors.numpy import load, save
from sklearn.decomposition import PCA

from phenogroups.clustering.matching import match_labels
from phenogroups.data.batches import NUMBERS_AT_ONCE
from phenogroups.data.cohort import UNKNOWN, Cohort
from phenogroups.data.untrusted import check_types, parse_json, read_limited
from phenogroups.methods.base import Method, means_of
from phenogroups.methods.prediction import Prediction
from phenogroups.report.saliency import REFERENCES, saliency, some_patients
from phenogroups.training.run import MATERIAL, RunError, member, write_whole

SHOWN = 3000  # subjects in the interactive picture
AVERAGED = 2000  # patients whose mean image is taken, at most
NEIGHBOURS = 3000  # training subjects that UMAP learns from
THUMBNAIL, PICTURE = 48, 160  # pixels of the longer side: under the pointer, on a card
EXEMPLARS, BORDERLINE, MAPPED = 6, 3, 3  # on a card; saliency is shown for the first exemplars
COVARIATES, FEATURES = 12, 12  # shown at most
MOST_MATERIAL, MOST_SUBGROUPS = 2**28, 200  # bytes and subgroups that a page is made of
# of each array: kinds of numbers; sizes, where equal letters are equal and what follows an ellipsis is free
ARRAYS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "shown": ("iu", ("n",)), "truth": ("iu", ("n",)), "points": ("f", ("n", 3)), "share": ("f", (3,)),
    "confusion": ("iu", ("k", "t")), "umap": ("f", ("n", 2)), "thumbnails": ("u", ("n", ...)),
    "gallery": ("iu", ("g",)), "gallery_subgroup": ("iu", ("g",)), "gallery_borderline": ("b", ("g",)),
    "pictures": ("u", ("g", ...)), "mapped": ("iu", ("m",)), "maps": ("f", ("m", ...)), "mean_maps": ("f", ("k", ...)),
    "difference": ("f", ("k", ...)), "bars": ("f", ("n", "f")), "gallery_bars": ("f", ("g", "f")),
    "mean_bars": ("f", ("k", "f")), "film": ("f", ("frames", "filmed", 2)), "film_epochs": ("iu", ("frames",)),
    "film_ratio": ("f", ("frames",)), "film_subgroup": ("iu", ("filmed",)),
}  # fmt: skip
MAY_BE_NAN = ("film_ratio",)  # where there are no controls


@dataclass(frozen=True)
class Evidence:
    """What was computed of the subgroups elsewhere; the page shows what there is."""

    warnings: tuple[str, ...] = ()  # sentences that a reader must see first
    confounds: pd.DataFrame | None = None  # one row per covariate and kind of subject: effect, p, p_corrected
    profiles: pd.DataFrame | None = None  # shown as it is
    criteria: pd.DataFrame | None = None  # one row per number of subgroups
    choice: str | None = None  # what the criteria say, in a sentence


@dataclass(frozen=True)
class Material:
    """Everything that is not in the other files of the run folder; None where it does not exist."""

    title: str
    sentences: dict[str, list[str]]  # the findings in plain words, by question
    n_subgroups: int
    truth_names: list[str]
    truth_styles: list[int]  # each truth looks like the subgroup matched to it
    features: list[str]  # names of the features shown
    warnings: list[str]
    choice: str | None
    confounds: pd.DataFrame | None
    profiles: pd.DataFrame | None
    criteria: pd.DataFrame | None
    covariates: pd.DataFrame  # of the subjects shown
    shown: np.ndarray  # (shown,): rows of subgroups.csv, held-out subjects
    truth: np.ndarray  # (shown,): known subgroup or -1
    points: np.ndarray  # (shown, 3): principal axes, fitted on training subjects
    share: np.ndarray  # (3,): their share of variance
    confusion: np.ndarray | None  # (subgroups, truths): held-out patients
    umap: np.ndarray | None  # (shown, 2)
    thumbnails: np.ndarray | None  # (shown, height, width[, 3]), 0..255
    gallery: np.ndarray  # (pictures,): rows of subgroups.csv
    gallery_subgroup: np.ndarray  # (pictures,)
    gallery_borderline: np.ndarray  # (pictures,): else an exemplar
    pictures: np.ndarray | None  # (pictures, height, width[, 3]), 0..255
    mapped: np.ndarray  # (maps,): positions in the gallery
    maps: np.ndarray  # (maps, height, width) or (maps, features): what speaks for the subgroup, at most 1
    mean_maps: np.ndarray  # (subgroups, ...): their mean
    difference: np.ndarray | None  # (subgroups, height, width): mean image less that of the other patients
    bars: np.ndarray | None  # (shown, features): deviations from controls, in theirs
    gallery_bars: np.ndarray | None  # (pictures, features)
    mean_bars: np.ndarray | None  # (subgroups, features): of training patients
    film: np.ndarray | None  # (frames, filmed, 2)
    film_epochs: np.ndarray | None  # (frames,)
    film_ratio: np.ndarray | None  # (frames,): distance to the farthest subgroup over that to the nearest
    film_subgroup: np.ndarray | None  # (filmed,): -1 for controls

    def write(self, folder: Path) -> None:
        arrays, words = {}, {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                arrays[f.name] = np.ascontiguousarray(value)
            elif isinstance(value, pd.DataFrame):
                words[f.name] = {"table": json.loads(value.to_json(orient="split", index=False, double_precision=9))}
            else:
                words[f.name] = value
        text = json.dumps(words, allow_nan=False)
        write_whole(folder / MATERIAL, save(arrays, metadata={"words": text}))

    @classmethod
    def read(cls, folder: Path) -> "Material":
        path = member(folder, MATERIAL)
        if not path.is_file():
            raise RunError(
                f"Expected {MATERIAL}, which the page is made of. Received: {folder}, which has none. "
                "Runs of earlier versions keep the page they have."
            )
        try:
            content = read_limited(path, MOST_MATERIAL)
            arrays = load(content)
            (header,) = struct.unpack("<Q", content[:8])
            words = parse_json(parse_json(content[8 : 8 + header])["__metadata__"]["words"])
            tables = {
                name: pd.DataFrame(value["table"]["data"], columns=value["table"]["columns"])
                for name, value in words.items() if isinstance(value, dict) and "table" in value
            }  # fmt: skip
            absent = dict.fromkeys(f.name for f in fields(cls))
            material = cls(**{**absent, **words, **tables, **arrays})
            check_types(material)
            material.check()
            return material
        except Exception as error:  # it is a stranger's, and so is what NumPy and pandas make of it
            raise RunError(f"Expected {path} as it was written. Received: {error}.") from error

    def check(self) -> None:
        """Raise where an array has not the size that the others give it, or points at what is not there."""
        if not 1 <= self.n_subgroups <= MOST_SUBGROUPS:
            raise ValueError(f"{self.n_subgroups} subgroups, of at most {MOST_SUBGROUPS}")
        known = {"k": self.n_subgroups, "f": len(self.features), "t": len(self.truth_names)}
        for name, (kinds, sizes) in ARRAYS.items():
            array = getattr(self, name)
            if array is None:
                continue
            if array.dtype.kind not in kinds or (
                array.dtype.kind == "f" and name not in MAY_BE_NAN and not _finite(array)
            ):
                raise ValueError(f"{name} of type {array.dtype}, or not finite")
            fixed = [size for size in sizes if size is not ...]
            if array.ndim < len(fixed) or array.ndim > len(fixed) + 3 * (... in sizes):
                raise ValueError(f"{name} of shape {array.shape}")
            for size, found in zip(fixed, array.shape, strict=False):
                if found != (known.setdefault(size, found) if isinstance(size, str) else size):
                    raise ValueError(f"{name} of shape {array.shape}, which does not fit the others")
        for name, low, high in (
            ("gallery_subgroup", 0, known["k"]), ("mapped", 0, known["g"]), ("truth", UNKNOWN, known["t"]),
            ("film_subgroup", UNKNOWN, known["k"]),
        ):  # fmt: skip
            require_within(name, getattr(self, name), low, high)
        if len(self.truth_styles) != known["t"] or not {"asked", "who", "sure", "apart"} <= {*self.sentences}:
            raise ValueError("sentences or styles are missing")


def require_within(name: str, positions: np.ndarray | None, low: int, high: int) -> None:
    if positions is not None and len(positions) and not (low <= positions.min() and positions.max() < high):
        raise ValueError(f"{name} from {positions.min()} to {positions.max()}, of {low} to {high - 1}")


def _finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())


def gather(
    method: Method,
    train: Cohort,
    test: Cohort,
    seen: Prediction,
    new: Prediction,
    *,
    title: str,
    sentences: dict[str, list[str]],
    feature_names: Sequence[str] | None = None,
    evidence: Evidence | None = None,
) -> Material:
    """All that is shown of a run: subjects that were held out, axes and means of those it was trained on."""
    evidence = evidence or Evidence()
    k = new.subgroup.shape[1]
    found = np.where(test.is_patient, new.subgroup.argmax(axis=1), UNKNOWN)
    before = np.where(train.is_patient, seen.subgroup.argmax(axis=1), UNKNOWN)
    means = means_of(seen.embedding, before, k)
    shown = some_rows(len(test), SHOWN)
    points, share = principal_axes(seen.embedding, new.embedding[shown], 3)
    chosen = [_chosen(new, found, means, i) for i in range(k)]
    gallery = np.concatenate([rows for rows, _ in chosen]).astype(int)
    of_subgroup = np.repeat(np.arange(k), [len(rows) for rows, _ in chosen])
    borderline = np.concatenate([is_borderline for _, is_borderline in chosen]).astype(bool)
    mapped = np.concatenate(
        [np.flatnonzero((of_subgroup == i) & ~borderline)[:MAPPED] for i in range(k)], dtype=np.int64
    )
    references = np.asarray(train.inputs[some_patients(train, REFERENCES)], dtype=np.float32)
    maps = [saliency(method, test, int(gallery[i]), int(of_subgroup[i]), references) for i in mapped]
    is_table = train.inputs.ndim == 2
    if is_table:
        scale = _deviations(train)
        means_z = np.stack([_mean_bars(train, before == i, scale) for i in range(k)])
        features = _most_different(means_z)
        names = list(feature_names or [f"feature {j}" for j in range(train.inputs.shape[1])])
        drawn: dict[str, Any] = {
            "bars": _bars(test, shown, scale)[:, features], "gallery_bars": _bars(test, gallery, scale)[:, features],
            "mean_bars": means_z[:, features], "features": [str(names[j]) for j in features],
        }  # fmt: skip
        flat = [one[features] for one in maps]
    else:
        levels = _levels(test, shown)
        difference = _differences(train, before, k)
        drawn = {
            "thumbnails": _draw(test, shown, THUMBNAIL, levels), "pictures": _draw(test, gallery, PICTURE, levels),
            "difference": np.stack([fit_into(montage(one[None]), PICTURE) for one in difference]).astype(np.float16),
            "features": [],
        }  # fmt: skip
        flat = [fit_into(montage(one[None]), PICTURE) for one in maps]
    flat = [one / max(np.max(one, initial=0), 1e-12) for one in flat]  # of each subject its own scale
    truth = np.full(len(test), UNKNOWN) if test.truth is None else test.truth
    known = test.is_patient & (truth != UNKNOWN)
    values: dict[str, Any] = dict.fromkeys(f.name for f in fields(Material)) | {
        "title": title, "sentences": sentences, "n_subgroups": k,
        "truth_names": list(test.truth_names) if known.any() else [],
        "truth_styles": _styles_of_truth(found[known], truth[known], k, len(test.truth_names)) if known.any() else [],
        "warnings": list(evidence.warnings), "choice": evidence.choice, "confounds": evidence.confounds,
        "profiles": evidence.profiles, "criteria": evidence.criteria,
        "covariates": _plain(test.covariates.iloc[shown, :COVARIATES]),
        "shown": len(train) + shown, "truth": truth[shown].astype(np.int32), "points": points.astype(np.float32),
        "share": share.astype(np.float32), "umap": _umap(seen.embedding, new.embedding[shown]),
        "gallery": len(train) + gallery, "gallery_subgroup": of_subgroup, "gallery_borderline": borderline,
        "mapped": mapped, "maps": _stack(flat, of_subgroup[mapped], k)[0],
        "mean_maps": _stack(flat, of_subgroup[mapped], k)[1],
    }  # fmt: skip
    if known.any():
        cells = found[known] * len(test.truth_names) + truth[known]
        counts = np.bincount(cells, minlength=k * len(test.truth_names))
        values["confusion"] = counts.reshape(k, -1)
    return Material(**{**values, **drawn, **_film(method, train, before, k)})


def subjects_shown(cohort: Cohort, rows: np.ndarray) -> dict[str, Any]:
    """What a picture of some subjects needs to know of them."""
    truth = np.full(len(cohort), UNKNOWN) if cohort.truth is None else cohort.truth
    is_known = bool((truth[rows] != UNKNOWN).any())
    is_table = cohort.inputs.ndim == 2
    return {
        "is_patient": cohort.is_patient[rows], "truth": truth[rows],
        "names": list(cohort.truth_names) if is_known else [],
        "covariates": _plain(cohort.covariates.iloc[rows, :COVARIATES]),
        "thumbnails": None if is_table else _draw(cohort, rows, THUMBNAIL, _levels(cohort, rows)),
    }  # fmt: skip


def principal_axes(fitted_on: np.ndarray, embedding: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (n, count) and the share of variance of the axes; zeros for axes that do not exist."""
    fitted_on = fitted_on[some_rows(len(fitted_on), 10_000)]
    pca = PCA(min(count, *fitted_on.shape), random_state=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # constant embeddings have no variance to share
        pca.fit(fitted_on.astype(np.float64))
    points = pca.transform(embedding.astype(np.float64))
    missing = count - points.shape[1]
    share = np.nan_to_num(pca.explained_variance_ratio_)
    return np.pad(points, [(0, 0), (0, missing)]), np.pad(share, (0, missing))


def montage(image: np.ndarray, fill: float = 0.0) -> np.ndarray:
    """(C, H, W) as it is; of a volume (C, D, H, W), three orthogonal slices through its middle, side by side."""
    if image.ndim == 3:
        return image
    d, h, w = (side // 2 for side in image.shape[1:])
    slices = [image[:, d], image[:, :, h], image[:, :, :, w]]
    tallest = max(one.shape[1] for one in slices)
    padded = [np.pad(one, [(0, 0), (0, tallest - one.shape[1]), (0, 0)], constant_values=fill) for one in slices]
    return np.concatenate(padded, axis=2)


def fit_into(image: np.ndarray, side: int) -> np.ndarray:
    """(1, H, W) as (h, w), made smaller where its longer side is more than `side`."""
    picture = Image.fromarray(image[0].astype(np.float32))
    return np.asarray(picture.resize(_size(image, side), Image.Resampling.BOX))


def _size(image: np.ndarray, side: int) -> tuple[int, int]:
    """Width and height; a montage of three slices may be three times as wide."""
    height, width = image.shape[-2:]
    shrink = min(1.0, side / max(height, width / 3 if width > 2 * height else width))
    return max(round(width * shrink), 1), max(round(height * shrink), 1)


def _draw(cohort: Cohort, rows: np.ndarray, side: int, levels: tuple[float, float]) -> np.ndarray:
    """(rows, h, w[, 3]): 0..255, one scale for all, so that bright means bright in every picture."""
    low, high = levels
    drawn = []
    for block in _blocks(cohort, rows):
        for image in block:
            flat = montage(image, low)
            flat = flat if len(flat) == 3 else flat[:1]  # three channels are colours, of others the first is shown
            grey = np.clip((flat.astype(np.float32) - low) / max(high - low, 1e-12), 0, 1) * 255
            picture = Image.fromarray(
                np.moveaxis(np.rint(grey).astype(np.uint8), 0, -1).squeeze(-1 if len(flat) == 1 else ())
            )
            drawn.append(np.asarray(picture.resize(_size(flat, side), Image.Resampling.BOX)))
    return np.stack(drawn) if drawn else np.zeros((0, 1, 1), np.uint8)


def _levels(cohort: Cohort, rows: np.ndarray, most: int = 100) -> tuple[float, float]:
    """What is shown as black and as white: a few stray voxels must not darken all pictures."""
    some = [np.percentile(block, (0.5, 99.5)) for block in _blocks(cohort, rows[some_rows(len(rows), most)])]
    return float(min(low for low, _ in some)), float(max(high for _, high in some))


def _blocks(cohort: Cohort, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Inputs of these rows, never more in memory than a prediction needs."""
    size = max(NUMBERS_AT_ONCE // int(np.prod(cohort.input_shape)), 1)
    for first in range(0, len(rows), size):
        yield np.asarray(cohort.inputs[rows[first : first + size]])


def some_rows(count: int, most: int) -> np.ndarray:
    """Positions, drawn once and for all where there are too many."""
    return np.arange(count) if count <= most else np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _chosen(new: Prediction, found: np.ndarray, means: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Patients on the card of subgroup k: those nearest to its centroid, then those it nearly lost."""
    members = np.flatnonzero(found == k)
    distance = np.linalg.norm(new.embedding[members] - means[k], axis=1)
    nearest = members[np.argsort(distance, kind="stable")]
    exemplars = nearest[: min(EXEMPLARS, max(len(nearest) - BORDERLINE, 1))]
    rest = np.setdiff1d(members, exemplars)
    unsure = rest[np.argsort(new.subgroup[rest, k], kind="stable")][:BORDERLINE]
    rows = np.concatenate([exemplars, unsure])
    return rows, np.arange(len(rows)) >= len(exemplars)


def _stack(maps: list[np.ndarray], of_subgroup: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All maps, and their mean in each subgroup."""
    if not maps:
        return np.zeros((0, 1, 1), np.float16), np.zeros((k, 1, 1), np.float16)
    every = np.stack(maps).astype(np.float32)
    nothing = np.zeros_like(every[0])
    means = [every[of_subgroup == i].mean(axis=0) if (of_subgroup == i).any() else nothing for i in range(k)]
    return every.astype(np.float16), np.stack(means).astype(np.float16)


def _differences(train: Cohort, subgroup: np.ndarray, k: int) -> np.ndarray:
    """(k, ...) without channels: the mean image of a subgroup's patients less that of all other patients."""
    rows = some_patients(train, AVERAGED)
    sums, counts = np.zeros((k, *train.input_shape[1:])), np.bincount(subgroup[rows], minlength=k)
    first = 0
    for block in _blocks(train, rows):
        flat = block.mean(axis=1, dtype=np.float64)
        for i in range(k):
            sums[i] += flat[subgroup[rows[first : first + len(block)]] == i].sum(axis=0)
        first += len(block)
    others, so_many = sums.sum(axis=0), counts.sum()
    own = [sums[i] / max(counts[i], 1) for i in range(k)]
    rest = [(others - sums[i]) / max(so_many - counts[i], 1) for i in range(k)]
    return np.stack([a - b if 0 < n < so_many else 0 * a for a, b, n in zip(own, rest, counts, strict=True)])


def _deviations(train: Cohort) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each feature among the controls; where nobody is one, among all patients."""
    inputs = np.asarray(train.inputs, dtype=np.float64)
    reference = inputs if train.is_patient.all() else inputs[~train.is_patient]
    # what no control varies in (a lesion that none has) is measured by how all subjects vary
    scale = np.where(np.ptp(reference, axis=0) > 0, reference.std(axis=0), inputs.std(axis=0))
    scale[np.ptp(inputs, axis=0) == 0] = np.inf  # a constant makes no difference
    return reference.mean(axis=0), scale


def _bars(cohort: Cohort, rows: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return ((np.asarray(cohort.inputs[rows], dtype=np.float64) - scale[0]) / scale[1]).astype(np.float32)


def _mean_bars(train: Cohort, members: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    rows = np.flatnonzero(members)
    return _bars(train, rows, scale).mean(axis=0) if len(rows) else np.zeros(train.inputs.shape[1], np.float32)


def _most_different(means: np.ndarray) -> np.ndarray:
    """Features on which the subgroups differ most, the first most of all."""
    spread = np.ptp(means, axis=0) if len(means) > 1 else np.abs(means[0])
    return np.argsort(-spread, kind="stable")[:FEATURES]


def _styles_of_truth(found: np.ndarray, truth: np.ndarray, k: int, n_truths: int) -> list[int]:
    """Each truth looks like the subgroup matched to it; the unmatched take the styles that follow."""
    mapping = match_labels(found, truth, k)
    free = iter(range(k, k + n_truths))
    owner = {int(name): i for i, name in enumerate(mapping)}
    return [owner[i] if i in owner else next(free) for i in range(n_truths)]


def _plain(covariates: pd.DataFrame) -> pd.DataFrame:
    """Numbers as numbers, all else as words."""
    columns = {}
    for name, values in covariates.items():
        if pd.api.types.is_numeric_dtype(values):
            columns[str(name)] = values.to_numpy(dtype=float)
        else:
            columns[str(name)] = [None if pd.isna(value) else str(value) for value in values]
    return pd.DataFrame(columns, index=range(len(covariates)))


def _umap(fitted_on: np.ndarray, embedding: np.ndarray) -> np.ndarray | None:
    """Where umap-learn is installed; it says less of distances than principal axes, and more of neighbours."""
    some = fitted_on[some_rows(len(fitted_on), NEIGHBOURS)]
    if importlib.util.find_spec("umap") is None or len(some) < 20:
        return None
    umap: Any = importlib.import_module("umap")
    return umap.UMAP(n_components=2, random_state=0, n_jobs=1).fit(some).transform(embedding).astype(np.float32)


def _film(method: Method, train: Cohort, subgroup: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Frames on the two principal axes of the last one; each is centred and scaled, for embeddings grow in training."""
    film = getattr(method, "film_", None)
    if film is None or len(film.epochs) < 2:
        return {}
    place = {name: row for row, name in enumerate(train.subject)}
    trained_on = method.trained_on(train)  # pyright: ignore[reportAttributeAccessIssue], who has a film has trained
    label = subgroup[[place[name] for name in trained_on.subject[film.rows]]]
    frames, ratios = [], []
    for frame in film.embedding:
        flat, _ = principal_axes(film.embedding[-1], frame, 2)
        flat = flat - flat.mean(axis=0)
        frames.append(flat / max(np.sqrt(np.square(flat).sum(axis=1).mean()), 1e-12))
        ratios.append(distance_ratio(frame, label, k))
    return {
        "film": np.stack(frames).astype(np.float16), "film_epochs": film.epochs.astype(np.int64),
        "film_ratio": np.array(ratios, dtype=np.float32), "film_subgroup": label.astype(np.int64),
    }  # fmt: skip


def distance_ratio(embedding: np.ndarray, subgroup: np.ndarray, k: int) -> float:
    """Of the controls' centroid to the farthest subgroup's, over that to the nearest: 1 is equidistant (paper, E)."""
    controls = embedding[subgroup == UNKNOWN]
    if not len(controls):
        return float("nan")
    away = np.linalg.norm(means_of(embedding, subgroup, k) - controls.mean(axis=0), axis=1)
    away = away[np.isfinite(away)]
    return float(away.max() / max(away.min(), 1e-12)) if len(away) > 1 else float("nan")
