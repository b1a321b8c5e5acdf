"""Pictures of a prediction: data in, figure out. No pyplot, so nothing global is left behind."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.decomposition import PCA

from phenogroups.clustering.matching import match_labels
from phenogroups.data.cohort import UNKNOWN, Cohort, subgroup_letter

if TYPE_CHECKING:
    from phenogroups.methods.base import Prediction

# Okabe and Ito's palette, told apart by colour-blind readers (its yellow darkened, to be seen on white);
# with seven markers, 56 subgroups look different
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#B8A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GRAY = "#B5B5B5"

# history.csv: the panel of a column by how its name starts; every other column is a loss, named by its method
PANELS = {
    "bound": "Bound",
    "distance_ratio": "Distance ratio",
    "gate_entropy": "Gate entropy on controls",
    "specificity": "Specificity of the subgroups",
    "size_": "Share of patients by subgroup",
}
SHARES = ("Gate entropy on controls", "Share of patients by subgroup")  # from nothing to all
NOT_SHOWN = ("seconds", "learning_rate", "step")

WIDTH = 7.0  # inches: the column of the page
COLUMN = 3.5  # inches: one of two columns of a paper
# by kind of method: words of the legend and colour
LEARNS = {
    "patients only": ("learns from patients only", COLORS[4]),
    "patients and controls": ("learns from patients and controls", COLORS[5]),
    "upper bound": ("upper bound: learns from the truth", GRAY),
}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "legend.frameon": False,
    "text.parse_math": False,  # a "$" in a name is a dollar
}


@rc_context(STYLE)
def embedding_figure(prediction: "Prediction", cohort: Cohort, train_prediction: "Prediction | None" = None) -> Figure:
    """Two principal axes (fitted on train where given): patients by subgroup and, where known, by truth."""
    fitted_on = prediction if train_prediction is None else train_prediction
    points, share = _principal_plane(np.asarray(fitted_on.embedding), np.asarray(prediction.embedding))
    n_subgroups = prediction.subgroup.shape[1]
    subgroup = np.where(cohort.is_patient, prediction.subgroup.argmax(axis=1), UNKNOWN)
    names = [subgroup_name(k) for k in range(n_subgroups)]
    panels = [("Subgroups found", subgroup, names, list(range(n_subgroups)))]
    if cohort.truth is not None and (cohort.truth != UNKNOWN).any():
        patients = cohort.is_patient
        mapping = match_labels(subgroup[patients], cohort.truth[patients], n_subgroups)
        names = list(cohort.truth_names)
        panels.append(("Truth", cohort.truth, names, _styles_of_truth(mapping, len(names))))
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    half = 0.53 * max(np.ptp(points, axis=0).max(), 1e-6)
    side = WIDTH / 2.2
    legend_lines = -(-(2 + max(len(names) for _, _, names, _ in panels)) // 2)
    size = (WIDTH if len(panels) > 1 else 1.3 * side, side + 0.7 + 0.18 * legend_lines)
    figure = Figure(figsize=size, layout="compressed")  # as constrained, for panels of fixed aspect
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (title, labels, names, styles) in zip(axes, panels, strict=True):
        _scatter(ax, points, labels, cohort.is_patient, names, styles)
        ax.set_title(title)
        ax.set_xlabel(f"first axis ({share[0]:.0%} of variance)")
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_aspect("equal")  # a distance means the same along both axes
        ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    axes[0].set_ylabel(f"second axis ({share[1]:.0%} of variance)")
    sizes = ", ".join(f"{subgroup_name(k)} {np.sum(subgroup == k)}" for k in range(n_subgroups))
    figure.set_label(
        f"Scatter plot of {len(cohort)} subjects on two principal axes of the embedding: "
        f"controls {np.sum(~cohort.is_patient)}; patients: {sizes}."
    )
    return figure


@rc_context(STYLE)
def exemplars_figure(
    cohort: Cohort,
    prediction: "Prediction",
    per_subgroup: int = 8,
    feature_names: Sequence[str] | None = None,  # for tables of features
) -> Figure:
    """What each subgroup looks like: its surest patients, or the features on which subgroups differ most."""
    subgroup = np.where(cohort.is_patient, prediction.subgroup.argmax(axis=1), UNKNOWN)
    if cohort.inputs.ndim == 2:
        return _feature_bars(cohort, subgroup, prediction.subgroup.shape[1], feature_names)
    rows = [_surest(prediction, subgroup, k)[:per_subgroup] for k in range(prediction.subgroup.shape[1])]
    pictures = [_pictures(np.asarray(cohort.inputs[chosen])) for chosen in rows]
    low = min((p.min() for p in pictures if p.size), default=0.0)
    high = max((p.max() for p in pictures if p.size), default=1.0)
    height, width = cohort.inputs.shape[-2:]
    side = WIDTH / (per_subgroup + 1.3)
    figure = Figure(figsize=(WIDTH, (side * height / width + 0.2) * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), per_subgroup + 1, squeeze=False, width_ratios=[1.3] + [1] * per_subgroup)
    for k, (axes, chosen) in enumerate(zip(grid, rows, strict=True)):
        for ax in axes:
            ax.set_axis_off()
        label = f"{subgroup_name(k)}\nn = {np.sum(subgroup == k)}"
        axes[0].axvline(0, 0.2, 0.8, color=_color(k), linewidth=4)
        axes[0].set_xlim(0, 1)
        axes[0].text(0.12, 0.5, label, va="center", transform=axes[0].transAxes)
        for ax, picture, probability in zip(axes[1:], pictures[k], prediction.subgroup[chosen, k], strict=False):
            # one scale for all, so that bright means bright in every picture
            scaled = (picture - low) / (high - low if high > low else 1)
            ax.imshow(scaled, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set_title(f"p = {probability:.2f}", fontsize=8, pad=2)
    figure.set_label(f"Up to {per_subgroup} patients of highest probability for each of {len(rows)} subgroups.")
    return figure


@rc_context(STYLE)
def history_figure(history: pd.DataFrame) -> Figure:
    """How training went: one small panel for each kind of column in history.csv."""
    curves = history.select_dtypes("number").dropna(axis=1, how="all")
    groups: dict[str, list[str]] = {}
    for column in curves.columns.drop("epoch", errors="ignore"):
        title = _panel_of(column)
        if title is not None:
            groups.setdefault(title, []).append(column)
    if "epoch" not in curves or not groups:
        raise ValueError(
            "Expected a history with a column epoch and at least one number per epoch. "
            f"Received columns: {', '.join(map(str, history.columns)) or 'none'}. Leave this figure out."
        )
    titles = [title for title in ("Losses", *PANELS.values()) if title in groups]
    n_columns = min(len(titles), 2)
    n_rows = -(-len(titles) // n_columns)
    figure = Figure(figsize=(WIDTH, 2.7 * n_rows), layout="constrained")
    axes = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for ax, title in zip(axes, titles, strict=False):
        for i, column in enumerate(groups[title]):
            known = curves[["epoch", column]].dropna()
            style = {"color": COLORS[i % len(COLORS)], "marker": "." if len(known) < 30 else None}
            label = column.replace("size_", "Subgroup ").replace("_", " ")
            ax.plot(known["epoch"], known[column], label=label, **style)
        if title in SHARES:
            ax.set_ylim(0, 1.05)  # a wobble of one percent must look like one
        ax.set_title(title)
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(groups[title]) > 1:
            _legend_below(ax, lines_above=4)
    for ax in axes[len(titles) :]:
        ax.set_axis_off()
    figure.set_label(f"Curves over {len(history)} epochs: {', '.join(titles)}.")
    return figure


@rc_context({**STYLE, "font.size": 7})
def comparison_figure(
    values: Mapping[str, Sequence[float]],  # method -> one score per seed; who has none is left out
    kinds: Mapping[str, str],  # method -> what it learns from, a key of LEARNS
    *,
    chance: float,  # score of whoever guesses
    label: str,
) -> Figure:
    """One bar per method, the best on top: the mean over seeds, its deviation, and every seed as a dot."""
    known = {name: np.asarray(scores, dtype=float) for name, scores in values.items() if len(scores)}
    if not known:
        raise ValueError("Expected scores of at least one method. Received: none. Leave this figure out.")
    names = sorted(known, key=lambda name: -known[name].mean())
    present = [kind for kind in LEARNS if any(kinds[name] == kind for name in names)]
    figure = Figure(figsize=(COLUMN, 0.17 * len(names) + 0.55 + 0.14 * (len(present) + 1)), layout="constrained")
    ax = figure.subplots()
    handles = []
    for kind in present:
        words, color = LEARNS[kind]
        rows = [i for i, name in enumerate(names) if kinds[name] == kind]
        means = [known[names[i]].mean() for i in rows]
        handles.append(ax.barh(rows, means, height=0.7, color=color, label=words))
    for i, name in enumerate(names):
        scores, mean = known[name], known[name].mean()
        spread = scores.std(ddof=1) if len(scores) > 1 else 0.0
        # dots of equal height would hide each other
        places = i + np.linspace(-0.22, 0.22, len(scores)) if len(scores) > 1 else [i]
        dots = {"marker": "o", "markersize": 2.2, "markeredgecolor": "#FFFFFF", "markeredgewidth": 0.3}
        ax.plot(scores, places, color="#333333", linestyle="none", zorder=4, clip_on=False, **dots)
        if len(scores) > 1:
            ax.errorbar(mean, i, xerr=spread, color="#000000", linewidth=0.8, capsize=1.5, capthick=0.8, zorder=3)
        text = f"{mean:.3f}" + (f" ± {spread:.3f}" if len(scores) > 1 else "")
        ax.annotate(
            text, (1, i), (5, 0), ("axes fraction", "data"), "offset points", va="center", annotation_clip=False
        )
    handles.append(ax.axvline(chance, color="#333333", linestyle="--", linewidth=0.8, label=f"chance ({chance:.2f})"))
    ax.set(xlim=(0, 1.0), ylim=(len(names) - 0.5, -0.5), xlabel=label)
    ax.set_yticks(range(len(names)), [_shorten(name) for name in names])
    ax.tick_params(axis="y", length=0)
    figure.legend(handles=handles, loc="outside lower center", ncols=1, fontsize=7, labelspacing=0.2)
    figure.set_label(
        f"Bars of {label} by method: " + ", ".join(f"{name} {known[name].mean():.3f}" for name in names) + "."
    )
    return figure


@rc_context({"svg.hashsalt": "phenogroups"})
def as_file(figure: Figure, kind: Literal["png", "svg"]) -> bytes:
    """Without date and version in it, so that equal figures are equal bytes."""
    content = BytesIO()
    figure.savefig(content, format=kind, dpi=300, metadata={"png": {"Software": None}, "svg": {"Date": None}}[kind])
    return content.getvalue()


def subgroup_name(k: int) -> str:
    """The letter as in subgroups.csv, so that page and table speak of the same people."""
    return f"Subgroup {subgroup_letter(k)}"


def _panel_of(column: str) -> str | None:
    if column in NOT_SHOWN:
        return None
    return next((title for start, title in PANELS.items() if column.startswith(start)), "Losses")


def _color(k: int) -> str:
    return COLORS[k % len(COLORS)]


def _principal_plane(fitted_on: np.ndarray, embedding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (n, 2) and the share of variance of both axes; zeros for axes that do not exist."""
    pca = PCA(min(2, *fitted_on.shape), random_state=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # constant embeddings have no variance to share
        pca.fit(fitted_on.astype(np.float64))
    points = pca.transform(embedding.astype(np.float64))
    missing = 2 - points.shape[1]
    share = np.nan_to_num(pca.explained_variance_ratio_)
    return np.pad(points, [(0, 0), (0, missing)]), np.pad(share, (0, missing))


def _styles_of_truth(mapping: np.ndarray, n_truths: int) -> list[int]:
    """Each truth looks like the subgroup matched to it; the unmatched take the styles that follow."""
    free = iter(range(len(mapping), len(mapping) + n_truths))
    owner = {int(truth): k for k, truth in enumerate(mapping)}
    return [owner[truth] if truth in owner else next(free) for truth in range(n_truths)]


def _scatter(
    ax: Axes,
    points: np.ndarray,
    labels: np.ndarray,
    is_patient: np.ndarray,
    names: Sequence[str],
    styles: Sequence[int],
) -> None:
    area = float(np.clip(6000 / len(points), 3, 22))
    kinds = [("Controls", ~is_patient, {"c": GRAY, "marker": "o", "alpha": 0.6})]
    unknown = is_patient & (labels == UNKNOWN)
    kinds.append(("Unknown", unknown, {"facecolors": "none", "edgecolors": "#666666", "marker": "o"}))
    for k, name in enumerate(names):
        look = {"c": _color(styles[k]), "marker": MARKERS[styles[k] % len(MARKERS)], "alpha": 0.8}
        kinds.append((name, labels == k, look))
    kinds = [kind for kind in kinds if kind[1].any()]
    handles = []
    for name, rows, look in kinds:
        # controls lie under all, and a large subgroup under a small one, which it would hide
        depth = 2 - rows.mean() if rows[is_patient].any() else 0
        label = f"{_shorten(name, 20)} (n = {rows.sum()})"
        handles.append(ax.scatter(*points[rows].T, s=area, linewidths=0.4, label=label, zorder=depth, **look))
    _legend_below(ax, lines_above=2, handles=handles)


def _legend_below(ax: Axes, lines_above: float, handles: list | None = None) -> None:
    """Under the axis and its labels, where it can hide nobody."""
    handles = ax.get_legend_handles_labels()[0] if handles is None else handles
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": lines_above}
    ax.legend(handles=handles, ncols=2, fontsize=8, handletextpad=0.5, columnspacing=1.2, **place)


def _surest(prediction: "Prediction", subgroup: np.ndarray, k: int) -> np.ndarray:
    """Patients of subgroup k, the surest first; equally sure ones by distance to their centroid."""
    members = np.flatnonzero(subgroup == k)
    embedding = np.asarray(prediction.embedding)[members]
    distance = np.linalg.norm(embedding - embedding.mean(axis=0, keepdims=True), axis=1) if len(members) else members
    # a thousandth is no difference in sureness: saturated gates would otherwise be ranked by rounding
    return members[np.lexsort((distance, -np.round(prediction.subgroup[members, k], 3)))]


def _pictures(inputs: np.ndarray) -> np.ndarray:
    """(n, H, W) or (n, H, W, 3) to show: three channels are colours, else the first; volumes by their mid slice."""
    if inputs.ndim == 5:
        inputs = inputs[:, :, inputs.shape[2] // 2]
    return np.moveaxis(inputs, 1, -1) if inputs.shape[1] == 3 else inputs[:, 0]


def _feature_bars(
    cohort: Cohort, subgroup: np.ndarray, n_subgroups: int, feature_names: Sequence[str] | None, most: int = 10
) -> Figure:
    names = [f"feature {j}" for j in range(cohort.inputs.shape[1])] if feature_names is None else list(feature_names)
    if len(names) != cohort.inputs.shape[1]:
        raise ValueError(f"Expected {cohort.inputs.shape[1]} feature names. Received: {len(names)}.")
    inputs = np.asarray(cohort.inputs, dtype=np.float64)
    # where nobody is a control, patients are compared with all patients
    reference = inputs if cohort.is_patient.all() else inputs[~cohort.is_patient]
    # what no control varies in (a lesion that none has) is measured by how all subjects vary
    scale = np.where(np.ptp(reference, axis=0) > 0, reference.std(axis=0), inputs.std(axis=0))
    scale[np.ptp(inputs, axis=0) == 0] = np.inf  # a constant makes no difference
    z = (inputs - reference.mean(axis=0)) / scale
    means = {k: z[subgroup == k].mean(axis=0) for k in range(n_subgroups) if (subgroup == k).any()}
    if not means:
        raise ValueError("Expected patients to describe. Received: controls only. Leave this figure out.")
    stacked = np.stack(list(means.values()))
    spread = np.ptp(stacked, axis=0) if len(stacked) > 1 else np.abs(stacked[0])
    shown = np.argsort(-spread, kind="stable")[:most]
    n_columns = min(len(means), 3)
    n_rows = -(-len(means) // n_columns)
    figure = Figure(figsize=(WIDTH, (0.7 + 0.22 * len(shown)) * n_rows + 0.3), layout="constrained")
    axes = list(figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).flat)
    for ax, (k, mean) in zip(axes, means.items(), strict=False):
        ax.barh(range(len(shown)), mean[shown], color=_color(k))
        ax.axvline(0, color="#666666", linewidth=0.8)
        ax.set_yticks(range(len(shown)), [_shorten(names[j]) for j in shown])
        ax.tick_params(labelbottom=True)
        ax.set_title(f"{subgroup_name(k)} (n = {np.sum(subgroup == k)})")
    axes[0].invert_yaxis()
    for ax in axes[len(means) :]:
        ax.set_axis_off()
    whom = "all patients" if cohort.is_patient.all() else "controls"
    figure.supxlabel(f"mean difference from {whom}, in their standard deviations", fontsize=9)
    figure.set_label(f"Bars of the {len(shown)} features on which subgroups differ most, as differences from {whom}.")
    return figure


def _shorten(name: str, most: int = 28) -> str:
    """Both ends stay: names of features often differ only in their last word."""
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 1]}…{name[-half:]}"
