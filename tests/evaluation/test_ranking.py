"""The numbers of the paper's table, against scipy and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from cells import BOTH, BOUND, ONLY, cells_of
from phenogroups.evaluation.ranking import summarise, welch


def verdict(kinds=None, **scores):
    """Who is bold, who has a star."""
    summary = summarise(cells_of(**scores), kinds or dict.fromkeys(scores, BOTH)).set_index("method")
    bold, star = (set(summary.index[summary[f"subgroup_bacc_{word}"]]) for word in ("best", "star"))
    return bold, star


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_welch_is_scipys(a, b):
    a, b = np.array(a), np.array(b)
    if min(np.ptp(a), np.ptp(b)) < 1e-6:  # scipy warns of lost precision there
        return
    np.testing.assert_allclose(welch(a, b), ttest_ind(a, b, equal_var=False).pvalue, rtol=1e-6, atol=1e-12)


def test_welch_without_spread():
    assert welch(np.array([0.5, 0.5]), np.array([0.5, 0.5, 0.5])) == 1
    assert welch(np.array([0.1, 0.1, 0.1]), np.array([0.5, 0.5, 0.5])) == 0
    assert welch(np.array([0.5]), np.array([0.5, 0.6])) is None


def test_means_and_deviations_by_hand():
    summary = summarise(cells_of(a=[0.9, 0.8, 0.7], b=[0.5, 0.6]), {"a": BOTH, "b": ONLY}).set_index("method")
    assert list(summary.index) == ["b", "a"]  # who is trained on patients only stands above
    assert summary["subgroup_bacc_mean"].to_dict() == pytest.approx({"a": 0.8, "b": 0.55})
    assert summary["subgroup_bacc_deviation"].to_dict() == pytest.approx({"a": 0.1, "b": 0.0707107})
    p = ttest_ind([0.9, 0.8, 0.7], [0.5, 0.6], equal_var=False).pvalue
    assert summary.loc["b", "subgroup_bacc_p"] == pytest.approx(p)
    assert np.isnan(summary.loc["a", "subgroup_bacc_p"])
    assert summary["class_bacc_mean"].isna().all()
    assert summary["seeds"].to_dict() == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    ("scores", "bold", "star"),
    [
        ({"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52], "c": [0.7, 0.71, 0.72]}, {"a"}, {"a"}),
        ({"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52], "c": [0.7, 0.91, 0.99]}, {"a"}, set()),  # not than c
        ({"a": [0.9], "b": [0.5]}, {"a"}, set()),  # one seed
        ({"a": [0.9, 0.9], "b": [0.5]}, {"a"}, set()),  # one seed of another
        ({"a": [0.9, 0.91, 0.92], "b": [None, None, 0.5]}, {"a"}, set()),  # one seed that did not fail
        ({"a": [0.9, 0.91, 0.92], "b": [None, None], "c": [0.5, 0.5]}, {"a"}, {"a"}),  # b has no numbers
        ({"a": [1.0, 1.0], "b": [0.5, 0.5]}, {"a"}, {"a"}),  # no spread
        ({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [0.5, 0.5]}, {"a", "b"}, set()),
        ({"a": [0.9001, 0.9001], "b": [0.9002, 0.9002], "c": [0.5, 0.5]}, {"a", "b"}, {"b"}),  # printed alike
        ({"a": [0.9, 0.8]}, set(), set()),  # nobody to be better than
    ],
)  # fmt: skip
def test_star(scores, bold, star):
    assert verdict(**scores) == (bold, star)


def test_an_upper_bound_is_not_ranked():
    scores = {"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52], "bound": [0.99, 0.99, 0.99]}
    assert verdict({"a": BOTH, "b": ONLY, "bound": BOUND}, **scores) == ({"a"}, {"a"})
