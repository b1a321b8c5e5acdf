"""Every criterion for the number of subgroups over that number, in one picture."""

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from phenogroups.report.figures import COLORS, GRAY, STYLE, WIDTH

PANELS = {  # column: title, column of chance
    "gain": ("Gain of the last step (nats)", "gain_by_chance"),
    "gap": ("Gap between subgroups", None),
    "stability": ("Stability (ARI)", "stability_by_chance"),
    "silhouette": ("Silhouette: high", None),
    "davies_bouldin": ("Davies-Bouldin: low", None),
    "bic": ("BIC per patient: low", None),
    "x_means": ("X-means makes of them", "subgroups"),
    "dec_ratio": ("DEC's loss, train / held out", None),
    "diagnosis_bacc": ("Diagnosis by experts (B-ACC)", None),
}


@rc_context(STYLE)
def number_figure(criteria: pd.DataFrame, chosen: int) -> Figure:
    """One panel per criterion; the number that was chosen is marked, and chance is gray where it was computed."""
    figure = Figure(figsize=(WIDTH, 6.0), layout="constrained")
    for ax, (column, (title, chance)) in zip(figure.subplots(3, 3).flat, PANELS.items(), strict=True):
        k = criteria["subgroups"]
        if chance is not None:
            ax.plot(k, criteria[chance], color=GRAY, linestyle="--", marker=".")
        ax.plot(k, criteria[column], color=COLORS[0], marker=".")
        here = criteria[k == chosen]
        ax.plot(here["subgroups"], here[column], color=COLORS[1], marker="o", markersize=8, linestyle="none")
        ax.set_title(title)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.supxlabel("number of subgroups (orange: chosen; gray: without groups, or unchanged)")
    what = f"{chosen} is chosen" if chosen > 1 else "none is chosen"
    figure.set_label(f"Nine criteria for {int(k.min())} to {int(k.max())} subgroups; {what}.")
    return figure
