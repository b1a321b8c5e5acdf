"""One bar per method, readable with two and with twenty-five."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from phenogroups.report.comparison import comparison_figure
from phenogroups.report.figures import as_file


def make(count, seeds):
    rng = np.random.default_rng(0)
    values = {f"deep_ucsl_without_sinkhorn_{i}": rng.uniform(0.4, 1, seeds) for i in range(count)}
    kinds = ["patients only", "patients and controls", "upper bound"]
    return values, {name: kinds[i % 3] for i, name in enumerate(values)}


@pytest.mark.parametrize(("count", "seeds"), [(1, 1), (2, 5), (25, 3), (25, 1)])
def test_no_text_lies_on_another(count, seeds):
    figure = comparison_figure(*make(count, seeds), chance=0.5, label="Subgroup B-ACC")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (ax,) = figure.axes
    (legend,) = figure.legends
    texts = [*ax.get_yticklabels(), *ax.get_xticklabels(), *ax.texts, ax.xaxis.label, *legend.get_texts()]
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts if text.get_text()]
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_the_best_is_on_top_and_who_has_no_score_is_left_out():
    values = {"a": [0.5, 0.6], "b": [0.9, 0.8], "c": []}
    figure = comparison_figure(values, dict.fromkeys("abc", "patients only"), chance=0.5, label="Class B-ACC")
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "a"]
    assert ax.yaxis_inverted()
    assert [text.get_text() for text in ax.texts] == ["0.850 ± 0.071", "0.550 ± 0.071"]
    assert figure.get_label() == "Bars of Class B-ACC by method: b 0.850, a 0.550."
    with pytest.raises(ValueError, match="at least one method"):
        comparison_figure({"c": []}, {"c": "patients only"}, chance=0.5, label="Class B-ACC")


def test_equal_figures_are_equal_files():
    for kind in ("png", "svg"):
        first, second = (
            as_file(comparison_figure(*make(3, 2), chance=0.5, label="ARI"), kind) for _ in range(2)
        )  # fmt: skip
        assert first == second
