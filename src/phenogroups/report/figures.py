"""Figures of a run, as wide as one column of a paper: data in, figure out. Without pyplot, which keeps global state."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from phenogroups.data.cohort import UNKNOWN, subgroup_letter

# A colour has one meaning: these are subgroups (and truths, as the subgroup matched to them), gray is controls, black
# all patients, yellow what speaks for a subgroup; curves and signed amounts are told apart without colour.
# Okabe and Ito's palette, told apart by colour-blind readers (its yellow darkened, to be seen on white);
# with seven markers, 56 subgroups look different
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#B8A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GRAY = "#B5B5B5"
PATIENTS = 14  # the style of all patients together: black dots
HIGHLIGHT = (255, 221, 0)
LINES = ("-", "--", ":", "-.")  # curves that belong to no subgroup

# history.csv: the panel of a column by how its name starts; every other column is a loss, named by its method
PANELS = {
    "bound": "Bound",
    "distance_ratio": "Distance ratio",
    "gate_entropy": "Gate entropy on controls",
    "specificity": "Specificity of the subgroups",
    "moved": "Moved by the E-step",
    "size_": "Share of patients by subgroup",
}
SHARES = ("Gate entropy on controls", "Share of patients by subgroup")  # from nothing to all
NOT_SHOWN = ("seconds", "learning_rate", "step")

COLUMN = 3.35  # inches, or 8.5 cm: one of two columns of a paper
STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "legend.frameon": False,
    "text.parse_math": False,  # a "$" in a name is a dollar
}

Panel = tuple[str, np.ndarray, Sequence[str], Sequence[int]]  # title, label of each subject, names and styles of labels


@rc_context(STYLE)
def embedding_figure(points: np.ndarray, share: np.ndarray, panels: Sequence[Panel], is_patient: np.ndarray) -> Figure:
    """Subjects on two principal axes, once for each way to colour the patients."""
    legend_lines = max(2 + len(names) for _, _, names, _ in panels)
    side = COLUMN / 2
    figure = Figure(figsize=(side * min(len(panels), 2), side + 0.35 + 0.13 * legend_lines), layout="compressed")
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (title, labels, names, styles) in zip(axes, panels, strict=True):
        scatter(ax, points, labels, is_patient, names, styles)
        square(ax, points)
        ax.set_title(title)
        ax.set_xlabel(f"first axis ({share[0]:.0%})")
    axes[0].set_ylabel(f"second axis ({share[1]:.0%})")
    title, labels, names, _ = panels[0]
    sizes = ", ".join(f"{name} {np.sum(labels == i)}" for i, name in enumerate(names))
    figure.set_label(
        f"Scatter plot of {len(points)} subjects on two principal axes of the embedding: "
        f"controls {np.sum(~is_patient)}; patients: {sizes}."
    )
    return figure


@rc_context(STYLE)
def exemplars_figure(
    pictures: np.ndarray,  # (n, h, w[, 3]): 0..255
    subgroup: np.ndarray,  # (n,)
    probability: np.ndarray,  # (n,): of that subgroup
    sizes: Sequence[int],  # patients of each subgroup
) -> Figure:
    """One row of pictures for each subgroup."""
    per_row = max(np.bincount(subgroup, minlength=len(sizes)).max(initial=0), 1)
    height, width = pictures.shape[1:3]
    side = (COLUMN - 0.6) / per_row
    figure = Figure(figsize=(COLUMN, (side * height / width + 0.2) * len(sizes)), layout="constrained")
    ratios = [0.6 / side] + [1] * per_row
    grid = figure.subplots(len(sizes), per_row + 1, squeeze=False, width_ratios=ratios)
    for k, axes in enumerate(grid):
        for ax in axes:
            ax.set_axis_off()
        axes[0].axvline(0, 0.15, 0.85, color=_color(k), linewidth=3)
        axes[0].set_xlim(0, 1)
        axes[0].text(0.15, 0.5, f"{subgroup_letter(k)}\nn = {sizes[k]}", va="center", transform=axes[0].transAxes)
        rows = np.flatnonzero(subgroup == k)
        if len(rows):  # once in a row: there is room for the numbers only
            axes[1].annotate("p =", (0, 1), (-2, 2), "axes fraction", "offset points", ha="right", fontsize=6)
        for ax, row in zip(axes[1:], rows, strict=False):
            ax.imshow(pictures[row], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            ax.set_title(f"{probability[row]:.2f}", fontsize=6, pad=2)
    figure.set_label(f"Up to {per_row} patients nearest to the centroid of each of {len(sizes)} subgroups.")
    return figure


@rc_context(STYLE)
def drivers_figure(mean_maps: np.ndarray, difference: np.ndarray) -> Figure:
    """For each subgroup: where the method looks, and how its mean image differs from that of the other patients."""
    n = len(mean_maps)
    height, width = difference.shape[1:3]
    side = (COLUMN - 0.7) / 2
    tall = min(side * height / width, side) + 0.1
    figure = Figure(figsize=(COLUMN, tall * n + 0.45), layout="compressed")
    grid = figure.subplots(n, 2, squeeze=False)
    marked = LinearSegmentedColormap.from_list("marked", np.array([(51, 51, 51), HIGHLIGHT]) / 255)
    limit = float(np.abs(difference.astype(np.float32)).max(initial=0)) or 1.0
    for k, (left, right) in enumerate(grid):
        shown = left.imshow(mean_maps[k].astype(np.float32), cmap=marked, vmin=0, vmax=1, interpolation="nearest")
        differs = right.imshow(
            difference[k].astype(np.float32), cmap="gray", vmin=-limit, vmax=limit, interpolation="nearest"
        )
        if not mean_maps[k].any():
            left.text(0.5, 0.5, "left out: it marks\nno more than chance", transform=left.transAxes, ha="center",
                      va="center", color="#FFFFFF", fontsize=6)  # fmt: skip
        for ax in (left, right):
            ax.set(xticks=[], yticks=[])
        left.set_ylabel(subgroup_name(k))
    grid[0][0].set_title("What speaks\nfor the subgroup")
    grid[0][1].set_title("Mean image less\nthat of other patients")
    bar = figure.colorbar(shown, ax=grid[:, 0].tolist(), location="bottom", shrink=0.8, aspect=30, ticks=[])
    bar.set_label("nothing to most of a picture")
    bar = figure.colorbar(differs, ax=grid[:, 1].tolist(), location="bottom", shrink=0.8, aspect=30)
    bar.set_label("darker to brighter")
    figure.set_label(
        f"For each of {n} subgroups, a map of what speaks for it, averaged over exemplars, and its mean image less "
        "that of the other patients."
    )
    return figure


@rc_context(STYLE)
def bars_figure(means: np.ndarray, features: Sequence[str], sizes: Sequence[int], whom: str) -> Figure:
    """Signed bars of the features on which subgroups differ most."""
    shown = [k for k in range(len(means)) if sizes[k]] or [0]
    figure, axes = _grid(len(shown), 0.35 + 0.14 * len(features), 0.3, shared=True)
    for ax, k in zip(axes, shown, strict=True):
        ax.barh(range(len(features)), means[k], color=_color(k))
        ax.axvline(0, color="#666666", linewidth=0.8)
        ax.set_yticks(range(len(features)), [shorten(name, 20) for name in features])
        ax.tick_params(labelbottom=True)
        ax.set_title(f"{subgroup_name(k)} (n = {sizes[k]})")
    axes[0].invert_yaxis()
    figure.supxlabel(f"mean difference from {whom}, in their standard deviations", fontsize=7)
    figure.set_label(
        f"Bars of the {len(features)} features on which subgroups differ most, as differences from {whom}."
    )
    return figure


@rc_context(STYLE)
def film_figure(film: np.ndarray, epochs: np.ndarray, ratio: np.ndarray, subgroup: np.ndarray) -> Figure:
    """Four frames of the film and, where there are controls, the distance ratio over epochs."""
    chosen = np.unique(np.linspace(0, len(epochs) - 1, 4).astype(int))
    known = np.isfinite(ratio)
    figure = Figure(figsize=(COLUMN, COLUMN / len(chosen) + (1.5 if known.any() else 0.5)), layout="constrained")
    heights = [COLUMN / len(chosen), 0.9] if known.any() else [1]
    parts = np.atleast_1d(np.asarray(figure.subfigures(len(heights), 1, height_ratios=heights), dtype=object))
    axes = parts[0].subplots(1, len(chosen), sharex=True, sharey=True, squeeze=False)[0]
    everywhere = film[chosen].reshape(-1, 2).astype(np.float32)
    k = int(subgroup.max(initial=0)) + 1
    names = [subgroup_letter(i) for i in range(k)]
    handles: list[Any] = []
    for ax, frame in zip(axes, chosen, strict=True):
        handles = scatter(
            ax, film[frame].astype(np.float32), subgroup, subgroup != UNKNOWN, names, range(k), area=1.5, legend=False
        )
        square(ax, everywhere)
        ax.set_title(f"epoch {epochs[frame]}", fontsize=7)
    look = {"fontsize": 6, "markerscale": 2, "columnspacing": 1, "handletextpad": 0.2}
    parts[0].legend(handles=handles, loc="outside lower center", ncols=4, **look)
    if known.any():
        ax = parts[1].subplots()
        ax.plot(epochs[known], ratio[known], color="#000000", marker="." if known.sum() < 30 else None)
        ax.axhline(1, color="#666666", linestyle="--", linewidth=0.8)
        ax.set(xlabel="epoch", ylabel="distance ratio", ylim=(min(0.9, float(np.nanmin(ratio))), None))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    words = f" The distance ratio goes from {ratio[known][0]:.2f} to {ratio[known][-1]:.2f}." if known.any() else ""
    figure.set_label(f"The embedding after {len(chosen)} of {int(epochs[-1])} epochs.{words}")
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
    figure, axes = _grid(len(titles), 1.45)
    for ax, title in zip(axes, titles, strict=True):
        for i, column in enumerate(groups[title]):
            known = curves[["epoch", column]].dropna()
            is_size = column.startswith("size_")
            look = {"color": _color(i)} if is_size else {"color": "#000000", "linestyle": LINES[i % len(LINES)]}
            style = {**look, "marker": "." if len(known) < 30 else None}
            label = column.replace("size_", "Subgroup ").replace("_", " ")
            ax.plot(known["epoch"], known[column], label=label, **style)
        if title in SHARES:
            ax.set_ylim(0, 1.05)  # a wobble of one percent must look like one
        ax.set_title(title, fontsize=7)
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(groups[title]) > 1:
            _legend_below(ax, lines_above=4)
    figure.set_label(f"Curves over {len(history)} epochs: {', '.join(titles)}.")
    return figure


@rc_context(STYLE)
def confusion_figure(counts: np.ndarray, truth_names: Sequence[str]) -> Figure:
    """Patients by subgroup found and by truth, shaded by the share of each truth."""
    n_found, n_truths = counts.shape
    figure = Figure(figsize=(COLUMN, 0.3 * n_found + 0.9), layout="constrained")
    ax = figure.subplots()
    share = counts / np.maximum(counts.sum(axis=0), 1)
    ax.imshow(share, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        ink = "#FFFFFF" if share[row, column] > 0.6 else "#000000"
        ax.text(column, row, f"{count} ({share[row, column]:.0%})", ha="center", va="center", color=ink)
    ax.set_yticks(range(n_found), [subgroup_name(k) for k in range(n_found)])
    ax.set_xticks(range(n_truths), [shorten(name, 18) for name in truth_names])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("truth (share of each)")
    cells = [
        f"of {name}, {', '.join(f'{subgroup_letter(k)} {counts[k, i]}' for k in range(n_found))}"
        for i, name in enumerate(truth_names)
    ]
    figure.set_label(f"Held-out patients by truth and subgroup: {'; '.join(cells)}.")
    return figure


@rc_context(STYLE)
def diagnosis_figure(probability: np.ndarray | pd.Series, is_patient: np.ndarray) -> Figure:
    """How sure the method is of being a patient, for patients and for controls."""
    probability = np.asarray(probability)
    figure = Figure(figsize=(COLUMN, 1.6), layout="constrained")
    ax = figure.subplots()
    bins = np.linspace(0, 1, 21).tolist()
    looks: Any = (
        ("Controls", ~is_patient, {"color": GRAY}),
        ("Patients", is_patient, {"color": "#000000", "fill": False}),
    )
    for name, rows, look in looks:
        if rows.any():
            weights = np.full(rows.sum(), 1 / rows.sum())
            ax.hist(probability[rows], bins, weights=weights, label=f"{name} (n = {rows.sum()})", **look)
    ax.axvline(0.5, color="#666666", linestyle="--", linewidth=0.8)
    ax.set(xlabel="probability of being a patient", ylabel="share", xlim=(0, 1))
    ax.legend(loc="upper center", fontsize=6)
    figure.set_label(
        f"Histogram of the probability of being a patient: of {is_patient.sum()} patients "
        f"{np.sum(probability[is_patient] > 0.5)} are above one half, of {np.sum(~is_patient)} controls "
        f"{np.sum(probability[~is_patient] > 0.5)}."
    )
    return figure


@rc_context(STYLE)
def confidence_figure(confidence: np.ndarray, subgroup: np.ndarray, n_subgroups: int) -> Figure:
    """How probable each patient's own subgroup is."""
    figure = Figure(figsize=(COLUMN, 1.4), layout="constrained")
    ax = figure.subplots()
    kinds = [k for k in range(n_subgroups) if (subgroup == k).any()]
    values = [confidence[subgroup == k] for k in kinds]
    bins = np.linspace(np.floor(10 / n_subgroups) / 10, 1, 26).tolist()  # nobody's surest is below an equal share
    labels = [f"{subgroup_name(k)} (n = {len(of_k)})" for k, of_k in zip(kinds, values, strict=True)]
    ax.hist(values, bins, stacked=True, color=[_color(k) for k in kinds], label=labels)
    ax.set(xlabel="probability of the patient's own subgroup", ylabel="patients")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="best", fontsize=6)
    figure.set_label(
        f"Histogram of the probability of the own subgroup of {sum(map(len, values))} held-out patients; "
        f"the median is {np.median(confidence[subgroup != UNKNOWN]):.2f}."
    )
    return figure


@rc_context(STYLE)
def criteria_figure(criteria: pd.DataFrame) -> Figure:
    """Each criterion over the number of subgroups, the first column."""
    numbers = criteria.select_dtypes("number").dropna(axis=1, how="all")
    x, columns = numbers.iloc[:, 0], list(numbers.columns[1:])
    if not columns:
        raise ValueError("Expected at least one criterion per number of subgroups. Received: none. Leave it out.")
    figure, axes = _grid(len(columns), 1.3)
    for ax, column in zip(axes, columns, strict=True):
        ax.plot(x, numbers[column], color="#000000", marker="o", markersize=3)
        ax.set_title(str(column).replace("_", " "), fontsize=7)
        ax.set_xlabel("subgroups")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.set_label(f"Curves over the number of subgroups: {', '.join(map(str, columns))}.")
    return figure


@rc_context({"svg.hashsalt": "phenogroups"})
def as_file(figure: Figure, kind: Literal["png", "svg"]) -> bytes:
    """The file without date and version, so that equal figures are equal bytes."""
    content = BytesIO()
    # tight: what stands at the edge is not cut
    about: Any = {"png": {"Software": None}, "svg": {"Date": None}}[kind]
    figure.savefig(content, format=kind, dpi=300, bbox_inches="tight", pad_inches=0.03, metadata=about)
    return content.getvalue()


def subgroup_name(k: int) -> str:
    """The name with the letter that subgroups.csv uses."""
    return f"Subgroup {subgroup_letter(k)}"


def overlay(picture: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A grey picture (h, w) or (h, w, 3), marked in yellow as strongly as a map between 0 and 1 says."""
    grey = (picture if picture.ndim == 2 else picture.mean(axis=2))[..., None].repeat(3, axis=2).astype(np.float32)
    share = 0.75 * weight.astype(np.float32)[..., None]  # never all: what lies under it is seen
    return np.rint((1 - share) * grey + share * np.array(HIGHLIGHT)).astype(np.uint8)


def _panel_of(column: str) -> str | None:
    if column in NOT_SHOWN:
        return None
    return next((title for start, title in PANELS.items() if column.startswith(start)), "Losses")


def _color(k: int) -> str:
    return COLORS[k % len(COLORS)]


def _grid(count: int, height: float, more: float = 0.0, *, shared: bool = False) -> tuple[Figure, list[Axes]]:
    """Panels in two columns, each row `height` inches."""
    n_rows = -(-count // 2)
    figure = Figure(figsize=(COLUMN, height * n_rows + more), layout="constrained")
    axes = list(figure.subplots(n_rows, min(count, 2), squeeze=False, sharex=shared, sharey=shared).flat)
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes[:count]


def square(ax: Axes, points: np.ndarray) -> None:
    """A square in which a distance means the same along both axes."""
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    half = 0.53 * max(np.ptp(points, axis=0).max(), 1e-6)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))


def scatter(
    ax: Axes, points: np.ndarray, labels: np.ndarray, is_patient: np.ndarray, names: Sequence[str],
    styles: Sequence[int], *, area: float | None = None, legend: bool = True,
) -> list[Any]:  # fmt: skip
    """Draw, and return the handles for a legend."""
    area = float(np.clip(1500 / len(points), 1.2, 8)) if area is None else area
    kinds: list[tuple[str, np.ndarray, dict[str, Any]]] = [
        ("Controls", ~is_patient, {"c": GRAY, "marker": "o", "alpha": 0.6}),
        (
            "Unknown", is_patient & (labels == UNKNOWN),
            {"facecolors": "none", "edgecolors": "#666666", "marker": "o"},
        ),
    ]  # fmt: skip
    for k, name in enumerate(names):
        look = {"c": _color(styles[k]), "marker": MARKERS[styles[k] % len(MARKERS)], "alpha": 0.8}
        kinds.append((name, labels == k, look))
    handles = []
    for name, rows, look in kinds:
        if not rows.any():
            continue
        # controls lie under all, and a large subgroup under a small one, which it would hide
        depth = 2 - rows.mean() if rows[is_patient].any() else 0
        label = f"{shorten(name, 18)} (n = {rows.sum()})"
        handles.append(ax.scatter(*points[rows].T, s=area, linewidths=0.3, label=label, zorder=depth, **look))
    if legend:
        _legend_below(ax, lines_above=2, handles=handles, columns=1)
    return handles


def _legend_below(ax: Axes, lines_above: float, handles: list | None = None, columns: int = 2) -> None:
    """A legend below the axis and its labels, where it hides no point."""
    handles = ax.get_legend_handles_labels()[0] if handles is None else handles
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": lines_above}
    ax.legend(
        handles=handles, ncols=columns, fontsize=6, handletextpad=0.4, columnspacing=1, labelspacing=0.3,
        markerscale=1.5, **place,
    )  # fmt: skip


def shorten(name: str, most: int = 28) -> str:
    """Shortened in the middle: names of features often differ only in their last word."""
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 1]}…{name[-half:]}"
