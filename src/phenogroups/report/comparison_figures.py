"""Figures of a comparison: scores by method, and the embeddings of the same subjects beside each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from phenogroups.report.figures import COLORS, COLUMN, GRAY, STYLE, Panel, scatter, shorten, square

# what a method learns from: words of the legend and colour
LEARNS = {
    "patients only": ("learns from patients only", COLORS[4]),
    "patients and controls": ("learns from patients and controls", COLORS[5]),
    "upper bound": ("upper bound: learns from the truth", GRAY),
}


@rc_context(STYLE)
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
    ax.set_yticks(range(len(names)), [shorten(name) for name in names])
    ax.tick_params(axis="y", length=0)
    figure.legend(handles=handles, loc="outside lower center", ncols=1, fontsize=7, labelspacing=0.2)
    figure.set_label(
        f"Bars of {label} by method: " + ", ".join(f"{name} {known[name].mean():.3f}" for name in names) + "."
    )
    return figure


@rc_context(STYLE)
def methods_figure(
    points: Mapping[str, np.ndarray],  # method -> (n, 2): where it puts the same subjects
    panel: Panel,
    is_patient: np.ndarray,
    number: tuple[str, np.ndarray] | None = None,  # a covariate that a second picture of each method is coloured by
) -> Figure:
    """Methods beside each other: one column each, coloured by what is known and, below, by a covariate."""
    n_rows, per_row = (2 if number else 1), min(len(points), 3)
    n_rows *= -(-len(points) // per_row)
    side = COLUMN / per_row
    figure = Figure(figsize=(COLUMN, (side + 0.15) * n_rows + 0.35), layout="constrained")
    grid = figure.subplots(n_rows, per_row, squeeze=False)
    for ax in grid.flat:
        ax.set_axis_off()
    handles: list[Any] = []
    title, labels, names, styles = panel
    for i, (method, where) in enumerate(points.items()):
        row, column = divmod(i, per_row)
        top = grid[row * (2 if number else 1), column]
        handles = scatter(top, where, labels, is_patient, names, styles, area=2, legend=False)
        top.set_title(shorten(method, 24), fontsize=7)
        below = []
        if number:
            below = [grid[2 * row + 1, column]]
            order = np.argsort(is_patient, kind="stable")  # patients over controls
            ramp = below[0].scatter(
                *where[order].T, c=number[1][order], cmap="cividis", s=2, linewidths=0, marker="o", alpha=0.9
            )
        for ax in (top, *below):
            ax.set_axis_on()
            ax.spines[:].set_visible(True)
            square(ax, where)
    if number:
        figure.colorbar(ramp, ax=grid[1::2].ravel().tolist(), location="bottom", label=number[0], aspect=40, ticks=[])
    look = {"fontsize": 6, "markerscale": 2, "columnspacing": 0.8, "handletextpad": 0.1}
    figure.legend(handles=handles, loc="outside upper center", ncols=3, **look)
    figure.set_label(
        f"The same {len(is_patient)} subjects in the embeddings of {', '.join(points)}, coloured by {title.lower()}"
        + (f" and by {number[0]}." if number else ".")
    )
    return figure
