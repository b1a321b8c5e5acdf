"""Figures survive every shape of data, say what they show, and leave nothing behind."""

import io
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from phenogroups.evaluation.projection import principal_axes
from phenogroups.report import figures as draw
from phenogroups.report.pictures import montage

NAMES = ("a$b", "_hidden", "Controls, or a name that is much too long for any legend")


def history(epochs=12) -> pd.DataFrame:
    values = {name: np.linspace(1, 0, epochs) for name in ("classification", "clustering", "bound", "distance_ratio")}
    values["gate_entropy_controls"] = np.where(np.arange(epochs) < 2, np.nan, 0.6)
    return pd.DataFrame({"epoch": range(epochs), **values, "seconds": 1.0, "note": "x"})


def paint(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return Image.open(buffer)


def titles(figure: Figure) -> list[str]:
    return [ax.get_title() for ax in figure.axes if ax.get_title()]


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def embedding(count=40, n_subgroups=3, truth=True, seed=0) -> Figure:
    rng = np.random.default_rng(seed)
    ill = np.arange(count) % 2 == 1
    found = np.where(ill, rng.integers(0, n_subgroups, count), -1)
    panels = [("Subgroups found", found, [draw.subgroup_name(k) for k in range(n_subgroups)], range(n_subgroups))]
    if truth:
        panels.append(("Truth", np.where(ill, rng.integers(-1, 3, count), -1), NAMES, [2, 0, 1]))
    return draw.embedding_figure(rng.normal(size=(count, 2)), np.array([0.5, 0.25]), panels, ill)


@pytest.mark.parametrize("truth", [True, False])
def test_embedding_names_everybody_once(truth):
    figure = embedding(truth=truth)
    paint(figure)
    assert titles(figure) == (["Subgroups found", "Truth"] if truth else ["Subgroups found"])
    assert figure.axes[0].get_xlabel() == "first axis (50%)"
    labels = legend(figure.axes[0])
    assert labels[0] == "Controls (n = 20)"
    assert sum(int(re.search(r"n = (\d+)", label)[1]) for label in labels) == 40
    assert figure.get_label().startswith("Scatter plot of 40 subjects")


def test_embedding_of_extreme_cohorts():
    paint(embedding(count=30, n_subgroups=12))
    paint(embedding(count=2, n_subgroups=1, truth=False))


def test_axes_are_those_of_train():
    train = np.array([[0.0, 0.0], [0.0, 10.0], [0.0, 20.0], [1.0, 10.0]])
    shown = np.random.default_rng(0).normal(size=(9, 2))
    points, share = principal_axes(train, shown, 3)
    assert share[0] == pytest.approx(200 / 200.75)
    np.testing.assert_allclose(np.abs(points[:, 0]), np.abs(shown[:, 1] - 10), atol=1e-9)
    assert points.shape == (9, 3)
    assert not points[:, 2].any()
    points, share = principal_axes(np.zeros((5, 4)), np.zeros((2, 4)), 3)
    assert not points.any()
    assert not share.any()


@pytest.mark.parametrize("colours", [(), (3,)])
def test_exemplars_and_an_empty_subgroup(colours):
    pictures = np.zeros((5, 6, 9, *colours), np.uint8)
    figure = draw.exemplars_figure(pictures, np.array([0, 0, 0, 2, 2]), np.linspace(0.5, 1, 5), [3, 0, 2])
    paint(figure)
    assert len([ax for ax in figure.axes if ax.images]) == 5
    assert "B\nn = 0" in [text.get_text() for ax in figure.axes for text in ax.texts]


def test_drivers_of_a_volume_and_of_nothing():
    paint(draw.drivers_figure(np.random.default_rng(0).random((3, 8, 24)), np.zeros((3, 8, 24))))


def test_bars():
    means = np.array([[1.0, -2.0], [0.0, 3.0], [9.0, 9.0]])
    figure = draw.bars_figure(means, ["left", "right"], [4, 5, 0], "controls")
    paint(figure)
    assert titles(figure) == ["Subgroup A (n = 4)", "Subgroup B (n = 5)"]  # nobody is in C
    assert [bar.get_width() for bar in figure.axes[1].patches] == [0, 3]


@pytest.mark.parametrize("with_controls", [True, False])
def test_film(with_controls):
    rng = np.random.default_rng(0)
    label = rng.integers(-1 if with_controls else 0, 2, 30)
    ratio = np.linspace(3, 1, 9) if with_controls else np.full(9, np.nan)
    figure = draw.film_figure(rng.normal(size=(9, 30, 2)).astype(np.float16), np.arange(1, 10), ratio, label)
    paint(figure)
    words = "The distance ratio goes from 3.00 to 1.00." if with_controls else ""
    assert figure.get_label() == f"The embedding after 4 of 9 epochs. {words}".strip()


def test_a_volume_is_three_slices():
    volume = np.arange(2 * 3 * 4).reshape(1, 2, 3, 4)
    flat = montage(volume)
    assert flat.shape == (1, 3, 4 + 4 + 3)
    np.testing.assert_array_equal(flat[0, :, :4], volume[0, 1])
    np.testing.assert_array_equal(flat[0, :2, 4:8], volume[0, :, 1])
    np.testing.assert_array_equal(flat[0, :2, 8:], volume[0, :, :, 2])
    assert (flat[0, 2, 4:] == 0).all()
    assert (montage(volume, -7)[0, 2, 4:] == -7).all()


def test_confusion_counts_and_shares():
    figure = draw.confusion_figure(np.array([[3, 0, 1], [1, 0, 1]]), NAMES)
    paint(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "3 (75%)", "0 (0%)", "1 (50%)", "1 (25%)", "0 (0%)", "1 (50%)",
    ]  # fmt: skip
    assert "of a$b, A 3, B 1" in figure.get_label()


def test_diagnosis_and_confidence():
    ill = np.array([True, True, False, False, False])
    figure = draw.diagnosis_figure(np.array([0.9, 0.2, 0.5, 0.6, 0.1]), ill)
    paint(figure)
    assert "of 2 patients 1 are above one half, of 3 controls 1" in figure.get_label()
    paint(draw.diagnosis_figure(np.array([0.9]), np.array([True])))
    figure = draw.confidence_figure(np.array([0.4, 0.9, 0.8, 0.99, 0.5]), np.array([0, 0, 2, -1, -1]), 3)
    paint(figure)
    assert "of 3 held-out patients; the median is 0.80" in figure.get_label()


def test_criteria_have_a_panel_each():
    table = pd.DataFrame({"subgroups": [2, 3], "bic": [10.0, 12.0], "null_p": [None, 0.2], "why": "x", "no": None})
    figure = draw.criteria_figure(table)
    paint(figure)
    assert titles(figure) == ["bic", "null p"]
    with pytest.raises(ValueError, match="at least one criterion"):
        draw.criteria_figure(table[["subgroups"]])


def test_history_has_a_panel_for_each_kind_of_column():
    figure = draw.history_figure(history())
    paint(figure)
    assert titles(figure) == ["Losses", "Bound", "Distance ratio", "Gate entropy on controls"]
    assert legend(figure.axes[0]) == ["classification", "clustering"]
    assert titles(draw.history_figure(history()[["epoch", "classification"]])) == ["Losses"]
    other = history().assign(concentration=1.0, size_0=0.4, size_1=0.6)[["epoch", "concentration", "size_0", "size_1"]]
    assert titles(draw.history_figure(other)) == ["Losses", "Share of patients by subgroup"]
    with pytest.raises(ValueError, match="Received columns: epoch, seconds"):
        draw.history_figure(history()[["epoch", "seconds"]])


def test_overlay_is_yellow_where_the_map_is_high_and_the_picture_elsewhere():
    shown = draw.overlay(np.full((2, 2), 200, np.uint8), np.array([[0.0, 1.0], [0.5, 0.0]]))
    assert shown[0, 0].tolist() == [200, 200, 200]
    assert shown[0, 1].tolist() == np.rint(0.25 * 200 + 0.75 * np.array(draw.HIGHLIGHT)).tolist()
    assert shown[0, 1, 2] < shown[1, 0, 2] < 200


def test_a_colour_of_a_subgroup_is_used_for_nothing_else():
    """Curves of losses and criteria, counts and signed pictures are black and gray; sizes of subgroups are theirs."""
    subgroups = {to_rgb(color) for color in draw.COLORS} - {to_rgb("#000000")}
    losses = history()[["epoch", "bound"]].assign(classification=1.0, clustering=2.0)
    criteria = pd.DataFrame({"subgroups": [2, 3], "gap": [0.2, 0.1]})
    for figure in (draw.history_figure(losses), draw.criteria_figure(criteria)):
        assert not subgroups & {to_rgb(line.get_color()) for ax in figure.axes for line in ax.lines}
    drawn = draw.history_figure(losses[["epoch"]].assign(size_A=0.6, size_B=0.4)).axes[0].lines
    assert [to_rgb(line.get_color()) for line in drawn] == [to_rgb(color) for color in draw.COLORS[:2]]


def test_equal_figures_are_equal_bytes():
    for kind in ("png", "svg"):
        assert draw.as_file(embedding(), kind) == draw.as_file(embedding(), kind)


def test_figures_leave_no_global_state():
    before = dict(rcParams)
    draw.history_figure(history())
    assert dict(rcParams) == before
