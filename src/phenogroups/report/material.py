"""All data of page and figures, in one file of bounded size: both can be made again without the cohort.

Rows are those of subgroups.csv; arrays are no larger than what is shown of them.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import numpy as np
import pandas as pd
from safetensors.numpy import load, save

from phenogroups.clustering.matching import match_labels
from phenogroups.data.cohort import UNKNOWN, Cohort
from phenogroups.data.untrusted import check_types, parse_json, read_limited
from phenogroups.data.writing import write_whole
from phenogroups.evaluation import typical
from phenogroups.evaluation.confounds import Followed
from phenogroups.evaluation.projection import film_frames, principal_axes, some_rows, umap_axes
from phenogroups.evaluation.saliency import REFERENCES, beats_random_maps, map_score, saliency, smoothed, some_patients
from phenogroups.evaluation.verdict import Verdict
from phenogroups.methods.base import Method, means_of
from phenogroups.methods.prediction import Prediction
from phenogroups.report.pictures import draw_inputs, fit_into, grey_levels, montage
from phenogroups.training.run import MATERIAL, RunError, member

SHOWN = 3000  # subjects in the interactive picture
THUMBNAIL = 48  # pixels of the longer side, under the pointer
PICTURE, LEAST_PICTURE = 320, 160  # the same on a card: most and least
PICTURES = 36  # that are kept at their full size; of more, each is smaller, so that the page stays about 1 MB
MAPPED = 3  # exemplars of each subgroup whose saliency is shown
COVARIATES, FEATURES = 12, 12  # shown at most
STRIPS, AT_AN_END = 3, 4  # properties of images whose ends are shown, at most, and patients at either end
MOST_MATERIAL, MOST_SUBGROUPS = 2**28, 200  # bytes and subgroups that a page is made of
STABILITY = ["what", "agreement", "by_chance", "n", "meaning"]  # columns
MAY_BE_NAN = ("film_ratio",)  # where there are no controls


@dataclass(frozen=True)
class Evidence:
    """Results of evaluation for the page, as far as they exist."""

    warnings: tuple[str, ...] = ()  # sentences that a reader must see first
    confounds: pd.DataFrame | None = None  # one row per covariate and kind of subject: effect, p, p_corrected
    profiles: pd.DataFrame | None = None  # shown as it is
    criteria: pd.DataFrame | None = None  # one row per number of subgroups
    choice: str | None = None  # what the criteria say, in a sentence
    verdict: dict[str, Any] | None = None  # evaluation.verdict.Verdict as a dict; None in folders of earlier versions
    stability: pd.DataFrame | None = None  # what, agreement, by_chance, n, meaning
    followed: tuple[Followed, ...] = ()  # properties of images among it are shown by examples


@dataclass(frozen=True)
class Material:
    """What the page needs and the other files of the run folder do not hold; None where it does not exist.

    Arrays name their kinds of numbers, as NumPy does, and their sizes, where equal letters are equal sizes: n subjects
    shown, k subgroups, t truths, g pictures, m maps, f features. An ellipsis is up to three free sizes.
    """

    title: str
    sentences: dict[str, list[str]]  # the findings in plain words, by question
    n_subgroups: int
    truth_names: list[str]
    truth_styles: list[int]  # each truth looks like the subgroup matched to it
    features: list[str]  # names of the features shown
    warnings: list[str]
    choice: str | None
    verdict: dict[str, Any] | None  # answer, headline, why, next_step
    stability: pd.DataFrame | None
    confounds: pd.DataFrame | None
    profiles: pd.DataFrame | None
    criteria: pd.DataFrame | None
    covariates: pd.DataFrame  # of the subjects shown
    shown: Annotated[np.ndarray, "iu", ("n",)]  # rows of subgroups.csv, held-out subjects
    truth: Annotated[np.ndarray, "iu", ("n",)]  # known subgroup or -1
    points: Annotated[np.ndarray, "f", ("n", 3)]  # principal axes, fitted on training subjects
    share: Annotated[np.ndarray, "f", (3,)]  # their share of variance
    confusion: Annotated[np.ndarray | None, "iu", ("k", "t")]  # held-out patients
    umap: Annotated[np.ndarray | None, "f", ("n", 2)]
    thumbnails: Annotated[np.ndarray | None, "u", ("n", ...)]  # 0..255
    gallery: Annotated[np.ndarray, "iu", ("g",)]  # rows of subgroups.csv
    gallery_subgroup: Annotated[np.ndarray, "iu", ("g",)]
    gallery_borderline: Annotated[np.ndarray, "b", ("g",)]  # else an exemplar
    pictures: Annotated[np.ndarray | None, "u", ("g", ...)]  # 0..255
    mapped: Annotated[np.ndarray, "iu", ("m",)]  # positions in the gallery
    maps: Annotated[np.ndarray, "f", ("m", ...)]  # what speaks for the subgroup, at most 1
    mean_maps: Annotated[np.ndarray, "f", ("k", ...)]  # their mean
    map_test: Annotated[np.ndarray | None, "f", ("k",)]  # mean of `map_score`; maps that fail it are zero
    difference: Annotated[np.ndarray | None, "f", ("k", ...)]  # mean image less that of the other patients
    bars: Annotated[np.ndarray | None, "f", ("n", "f")]  # deviations from controls, in theirs
    gallery_bars: Annotated[np.ndarray | None, "f", ("g", "f")]
    mean_bars: Annotated[np.ndarray | None, "f", ("k", "f")]  # of training patients
    strips: list[dict[str, str]] | None  # properties of images that subgroups follow: warning, property
    strip_of: Annotated[np.ndarray | None, "iu", ("e",)]  # of each example its strip; from the least value to the most
    strip_rows: Annotated[np.ndarray | None, "iu", ("e",)]  # rows of subgroups.csv
    strip_values: Annotated[np.ndarray | None, "f", ("e",)]
    strip_pictures: Annotated[np.ndarray | None, "u", ("e", ...)]  # 0..255
    film: Annotated[np.ndarray | None, "f", ("frames", "filmed", 2)]
    film_epochs: Annotated[np.ndarray | None, "iu", ("frames",)]
    film_ratio: Annotated[np.ndarray | None, "f", ("frames",)]  # see evaluation.diagnostics
    film_subgroup: Annotated[np.ndarray | None, "iu", ("filmed",)]  # -1 for controls

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
        except Exception as error:  # the file may come from elsewhere and make NumPy or pandas raise anything
            raise RunError(f"Expected {path} as it was written. Received: {error}.") from error

    def check(self) -> None:
        """Raise where the sizes of arrays do not fit together, or where positions lie outside."""
        if not 1 <= self.n_subgroups <= MOST_SUBGROUPS:
            raise ValueError(f"{self.n_subgroups} subgroups, of at most {MOST_SUBGROUPS}")
        known = {"k": self.n_subgroups, "f": len(self.features), "t": len(self.truth_names)}
        for name, (kinds, sizes) in ARRAYS.items():
            values = getattr(self, name)
            if values is None:
                continue
            finite = values.dtype.kind != "f" or name in MAY_BE_NAN or np.isfinite(values).all()
            if values.dtype.kind not in kinds or not finite:
                raise ValueError(f"{name} of type {values.dtype}, or not finite")
            fixed = [size for size in sizes if size is not ...]
            if not len(fixed) <= values.ndim <= len(fixed) + 3 * (... in sizes):
                raise ValueError(f"{name} of shape {values.shape}")
            for size, found in zip(fixed, values.shape, strict=False):
                if found != (known.setdefault(size, found) if isinstance(size, str) else size):
                    raise ValueError(f"{name} of shape {values.shape}, which does not fit the others")
        for name, low, high in (
            ("gallery_subgroup", 0, known["k"]), ("mapped", 0, known["g"]), ("truth", UNKNOWN, known["t"]),
            ("film_subgroup", UNKNOWN, known["k"]), ("strip_of", 0, len(self.strips or ())),
        ):  # fmt: skip
            require_within(name, getattr(self, name), low, high)
        if len(self.truth_styles) != known["t"] or not {"asked", "who", "sure", "apart"} <= {*self.sentences}:
            raise ValueError("sentences or styles are missing")
        if self.verdict is not None:
            check_types(Verdict(**{**self.verdict, "why": tuple(self.verdict["why"])}))
        if self.stability is not None and list(self.stability.columns) != STABILITY:
            raise ValueError(f"stability with the columns {', '.join(map(str, self.stability.columns))}")


ARRAYS = {  # name: kinds and sizes
    name: hint.__metadata__
    for name, hint in get_type_hints(Material, include_extras=True).items()
    if get_origin(hint) is Annotated
}


def require_within(name: str, positions: np.ndarray | None, low: int, high: int) -> None:
    if positions is not None and len(positions) and not (low <= positions.min() and positions.max() < high):
        raise ValueError(f"{name} from {positions.min()} to {positions.max()}, of {low} to {high - 1}")


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
    """Collect the data of the page: held-out subjects, on axes and with means of the training subjects."""
    evidence = evidence or Evidence()
    k = new.subgroup.shape[1]
    found = np.where(test.is_patient, new.subgroup.argmax(axis=1), UNKNOWN)
    before = np.where(train.is_patient, seen.subgroup.argmax(axis=1), UNKNOWN)
    means = means_of(seen.embedding, before, k)
    shown = some_rows(len(test), SHOWN)
    points, share = principal_axes(seen.embedding, new.embedding[shown], 3)
    chosen = [typical.exemplars(new, found, means, i) for i in range(k)]
    gallery = np.concatenate([rows for rows, _ in chosen]).astype(int)
    of_subgroup = np.repeat(np.arange(k), [len(rows) for rows, _ in chosen])
    borderline = np.concatenate([is_borderline for _, is_borderline in chosen]).astype(bool)
    mapped = np.concatenate(
        [np.flatnonzero((of_subgroup == i) & ~borderline)[:MAPPED] for i in range(k)], dtype=np.int64
    )
    references = np.asarray(train.inputs[some_patients(train, REFERENCES)], dtype=np.float32)
    maps = [smoothed(saliency(method, test, int(gallery[i]), int(of_subgroup[i]), references)) for i in mapped]
    is_table = train.inputs.ndim == 2
    if is_table:
        scale = typical.control_scale(train)
        means_z = np.stack([typical.mean_deviations(train, before == i, scale) for i in range(k)])
        features = typical.most_different(means_z, FEATURES)
        names = list(feature_names or [f"feature {j}" for j in range(train.inputs.shape[1])])
        drawn: dict[str, Any] = {
            "bars": typical.deviations(test, shown, scale)[:, features],
            "gallery_bars": typical.deviations(test, gallery, scale)[:, features],
            "mean_bars": means_z[:, features], "features": [str(names[j]) for j in features],
        }  # fmt: skip
        flat = [one[features] for one in maps]
    else:
        levels = grey_levels(test, shown)
        side = int(np.clip(PICTURE * (PICTURES / max(len(gallery), 1)) ** 0.5, LEAST_PICTURE, PICTURE))
        maps, map_test = _tested(maps, method, test, gallery[mapped], of_subgroup[mapped], references.mean(axis=0), k)
        difference = typical.mean_differences(train, before, k)
        drawn = {
            "thumbnails": draw_inputs(test, shown, THUMBNAIL, levels),
            "pictures": draw_inputs(test, gallery, side, levels),
            "difference": np.stack([fit_into(montage(one[None]), side) for one in difference]).astype(np.float16),
            "map_test": map_test, "features": [], **_strips((train, test), evidence.followed, levels),
        }  # fmt: skip
        flat = [fit_into(montage(one[None]), side) for one in maps]
    flat = [one / max(np.max(one, initial=0), 1e-12) for one in flat]  # each map on its own scale
    maps, mean_maps = typical.mean_maps(flat, of_subgroup[mapped], k)
    truth = np.full(len(test), UNKNOWN) if test.truth is None else test.truth
    known = test.is_patient & (truth != UNKNOWN)
    values: dict[str, Any] = dict.fromkeys(f.name for f in fields(Material)) | {
        "title": title, "sentences": sentences, "n_subgroups": k,
        "truth_names": list(test.truth_names) if known.any() else [],
        "truth_styles": _styles_of_truth(found[known], truth[known], k, len(test.truth_names)) if known.any() else [],
        "warnings": list(evidence.warnings), "choice": evidence.choice, "confounds": evidence.confounds,
        "verdict": evidence.verdict, "stability": evidence.stability,
        "profiles": evidence.profiles, "criteria": evidence.criteria,
        "covariates": shown_covariates(test, shown),
        "shown": len(train) + shown, "truth": truth[shown].astype(np.int32), "points": points.astype(np.float32),
        "share": share.astype(np.float32), "umap": umap_axes(seen.embedding, new.embedding[shown]),
        "gallery": len(train) + gallery, "gallery_subgroup": of_subgroup, "gallery_borderline": borderline,
        "mapped": mapped, "maps": maps, "mean_maps": mean_maps,
    }  # fmt: skip
    if known.any():
        cells = found[known] * len(test.truth_names) + truth[known]
        counts = np.bincount(cells, minlength=k * len(test.truth_names))
        values["confusion"] = counts.reshape(k, -1)
    return Material(**{**values, **drawn, **film_frames(method, train, before, k)})


def _strips(
    cohorts: tuple[Cohort, Cohort], followed: Sequence[Followed], levels: tuple[float, float]
) -> dict[str, Any]:
    """The patients with the lowest and the highest values of the properties of images that subgroups follow most."""
    # the clearest property of each warning comes before the second of any
    named = [(i, one.words, name) for one in followed for i, name in enumerate(one.properties)]
    asked = sorted(named, key=lambda each: each[0])[:STRIPS]
    if not asked:
        return {}
    ill = np.concatenate([cohort.is_patient for cohort in cohorts])
    properties = pd.concat([cohort.image_properties for cohort in cohorts], ignore_index=True)
    strips, rows, values = [], [], []
    for _, warning, name in asked:
        amount = properties[name].to_numpy(np.float64)
        known = np.flatnonzero(ill & ~np.isnan(amount))
        order, end = known[np.argsort(amount[known], kind="stable")], min(AT_AN_END, len(known) // 2)
        rows.append(np.concatenate([order[:end], order[len(order) - end :]]))
        values.append(amount[rows[-1]])
        strips.append({"warning": warning, "property": name})
    every = np.concatenate(rows)
    drawn = []
    for row in every:
        cohort, at = (cohorts[0], row) if row < len(cohorts[0]) else (cohorts[1], row - len(cohorts[0]))
        drawn.append(draw_inputs(cohort, np.array([at]), LEAST_PICTURE, levels, one_slice=True)[0])
    return {
        "strips": strips, "strip_of": np.repeat(np.arange(len(rows)), [len(some) for some in rows]),
        "strip_rows": every, "strip_values": np.concatenate(values), "strip_pictures": np.stack(drawn),
    }  # fmt: skip


def _tested(
    maps: list[np.ndarray], method: Method, test: Cohort, rows: np.ndarray, of_subgroup: np.ndarray,
    instead: np.ndarray, k: int,
) -> tuple[list[np.ndarray], np.ndarray]:  # fmt: skip
    """Maps, set to zero in subgroups whose maps are no better than random ones; and the mean score of each subgroup."""
    each = zip(rows, of_subgroup, maps, strict=True)
    shares = np.array([map_score(method, test, int(r), int(i), one, instead) for r, i, one in each])
    of_each = [shares[of_subgroup == i] for i in range(k)]
    passes = np.array([beats_random_maps(some) for some in of_each])
    shown = [one * passes[i] for one, i in zip(maps, of_subgroup, strict=True)]
    return shown, np.array([some.mean() if len(some) else 0.0 for some in of_each])


def _styles_of_truth(found: np.ndarray, truth: np.ndarray, k: int, n_truths: int) -> list[int]:
    """The style of each truth is that of the subgroup matched to it; unmatched truths take the next free styles."""
    mapping = match_labels(found, truth, k)
    free = iter(range(k, k + n_truths))
    owner = {int(name): i for i, name in enumerate(mapping)}
    return [owner[i] if i in owner else next(free) for i in range(n_truths)]


def shown_covariates(cohort: Cohort, rows: np.ndarray) -> pd.DataFrame:
    """The first covariates of some subjects: numbers as float, everything else as text."""

    def plain(values: pd.Series) -> Any:
        if pd.api.types.is_numeric_dtype(values):
            return values.to_numpy(dtype=float)
        return [None if pd.isna(value) else str(value) for value in values]

    covariates = cohort.covariates.iloc[rows, :COVARIATES]
    return pd.DataFrame({str(name): plain(values) for name, values in covariates.items()}, index=range(len(rows)))
