"""The drawn cohort holds what it promises: forms in patients, nuisances in everybody, two pens the loudest."""

import time

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.drawn import FORMS, SOFTNESS, _ink, drawn_digits
from phenogroups.evaluation.confounds import associations, warnings
from phenogroups.evaluation.scores import score
from phenogroups.methods import build_method


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    return drawn_digits(3600)


def agreement(yes: np.ndarray, cluster: np.ndarray) -> float:
    """Balanced accuracy of two clusters against yes or no, whichever cluster is called yes."""
    score = balanced_accuracy_score(yes, cluster)
    return max(score, 1 - score)


def test_images_are_ink_on_a_page(cohort: Cohort) -> None:
    assert cohort.inputs.shape == (3600, 1, 32, 32)
    assert cohort.inputs.dtype == np.float32
    assert cohort.inputs.min() == 0
    assert cohort.inputs.max() == 1
    assert cohort.inputs.max(axis=(1, 2, 3)).min() > 0.5
    margin = np.ones((32, 32), bool)
    margin[1:-1, 1:-1] = False
    assert cohort.inputs[:, 0, margin].sum() < 0.001 * cohort.inputs.sum()
    assert cohort.name == "drawn-7"
    assert cohort.subject[0] == "s0000"


@pytest.mark.parametrize("size", [16, 48])
def test_another_size_is_the_same_page(size: int) -> None:
    small, large = drawn_digits(40, size=size), drawn_digits(40, size=2 * size)
    halved = large.inputs.reshape(40, 1, size, 2, size, 2).mean(axis=(3, 5))
    assert np.corrcoef(small.inputs.ravel(), halved.ravel())[0, 1] > 0.97


def test_a_seed_decides_every_bit() -> None:
    one, again, other = drawn_digits(300, seed=1), drawn_digits(300, seed=1), drawn_digits(300, seed=2)
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert one.covariates.equals(again.covariates)
    assert (one.truth == again.truth).all()


@pytest.mark.parametrize("digit", FORMS)
def test_any_digit_can_be_the_disease_in_all_its_forms(digit: int) -> None:
    forms = FORMS[digit]
    cohort = drawn_digits(180, digit=digit, sizes=[1 / len(forms)] * len(forms))
    assert cohort.truth_names == tuple(form.name for form in forms)
    assert len(forms) >= 2
    assert set(cohort.truth[cohort.is_patient]) == set(range(len(forms)))
    assert set(cohort.truth[~cohort.is_patient]) == {-1}
    controls = cohort.covariates["digit"][~cohort.is_patient].value_counts()
    assert set(controls.index) == set(range(10)) - {digit}
    assert set(controls) == {10}
    assert (cohort.covariates["digit"][cohort.is_patient] == digit).all()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((0.5, 0.5), [250, 250]),
        ((0.2, 0.8), [100, 400]),
        ((0.05, 0.95), [25, 475]),
        ((1.0,), [500]),
        ((1 / 3, 1 / 3, 1 / 3), [167, 167, 166]),
        ((0.4, 0.3, 0.15, 0.1, 0.05), [200, 150, 75, 50, 25]),
    ],
)
def test_sizes_are_kept_exactly(sizes: tuple[float, ...], expected: list[int]) -> None:
    cohort = drawn_digits(1000, sizes=sizes)
    assert np.bincount(cohort.truth[cohort.is_patient]).tolist() == expected
    assert cohort.truth_names[:2] == ("without crossbar", "with crossbar")[: len(sizes)]


def test_share_of_patients_is_kept_and_rows_are_shuffled() -> None:
    cohort = drawn_digits(1000, patients=0.3)
    assert cohort.diagnosis.sum() == 300
    assert 40 < cohort.diagnosis[:200].sum() < 80


def test_nuisances_are_alike_in_patients_controls_and_subgroups(cohort: Cohort) -> None:
    found = cohort.covariates
    table = found.assign(site=found["site"] == "B", sex=found["sex"] == "F", pen=found["pen"] == "broad")
    nuisances = table.drop(columns="digit").astype(float)
    for ones in (cohort.is_patient, cohort.truth == 1):
        others = ~ones if ones is cohort.is_patient else cohort.truth == 0
        gap = (nuisances[ones].mean() - nuisances[others].mean()).abs() / nuisances.std()
        assert (gap < 0.15).all(), gap


def is_broad(cohort: Cohort) -> np.ndarray:
    return (cohort.covariates["pen"] == "broad").to_numpy()


@pytest.mark.parametrize("n", [20, 97, 3600])
def test_half_of_every_digit_in_every_form_is_written_with_either_pen(n: int) -> None:
    cohort = drawn_digits(n, sizes=(0.3, 0.7))
    pens = pd.crosstab([cohort.covariates["digit"], cohort.truth], cohort.covariates["pen"])
    assert ((pens["broad"] - pens["thin"]).abs() <= 1).all()
    assert list(cohort.covariates["pen"].cat.categories) == ["thin", "broad"]


def test_the_pen_is_independent_of_the_other_nuisances(cohort: Cohort) -> None:
    broad = is_broad(cohort)
    for name in ("slant", "size", "age"):
        assert abs(np.corrcoef(cohort.covariates[name], broad)[0, 1]) < 0.06
    for name, word in (("site", "B"), ("sex", "F")):
        assert agreement((cohort.covariates[name] == word).to_numpy(), broad) < 0.54


def test_the_pens_are_two_groups_of_widths_in_patients_and_controls(cohort: Cohort) -> None:
    """By what is on the page: ink by outline, which is half the width of a stroke whatever its length."""
    broad, page = is_broad(cohort), cohort.inputs[:, 0]
    slopes = np.gradient(page, axis=(1, 2))
    width = page.sum(axis=(1, 2)) / np.hypot(*slopes).sum(axis=(1, 2))
    for digit in range(10):
        mine = (cohort.covariates["digit"] == digit).to_numpy()
        thin, thick = width[mine & ~broad], width[mine & broad]
        assert thin.max() < thick.min()
        assert thick.mean() - thin.mean() > 4 * max(thin.std(), thick.std())
    boldness = cohort.covariates["boldness"].to_numpy()
    assert boldness[broad].min() - boldness[~broad].max() > 0.6
    assert np.ptp(boldness[broad]) > 0.4  # within a pen it still varies
    assert np.ptp(boldness[~broad]) > 0.3


@pytest.mark.parametrize("digit", [7, 1])
@pytest.mark.parametrize("method", ["kmeans", "gaussian_mixture"])
def test_clustering_pixels_finds_the_pen_and_not_the_subgroups(method: str, digit: int) -> None:
    cohort = drawn_digits(2000, digit=digit, patients=1.0)
    found = build_method(method, {}).fit(cohort).predict_cohort(cohort)
    assert score(cohort, found).subgroup_bacc <= 0.6
    assert agreement(is_broad(cohort), found.subgroup.argmax(1)) > 0.95


@pytest.mark.parametrize("sizes", [(0.2, 0.8), (0.9, 0.1)])
def test_k_means_finds_the_pen_in_uneven_subgroups_too(sizes: tuple[float, float]) -> None:
    cohort = drawn_digits(2000, sizes=sizes, patients=1.0)
    found = build_method("kmeans", {}).fit(cohort).predict_cohort(cohort)
    assert score(cohort, found).subgroup_bacc <= 0.6
    assert agreement(is_broad(cohort), found.subgroup.argmax(1)) > 0.9


@pytest.mark.parametrize("method", ["kmeans", "gaussian_mixture"])
@pytest.mark.parametrize("seed", [1, 2])
def test_nor_on_held_out_digits_of_other_seeds(method: str, seed: int) -> None:
    train, test = drawn_digits(3000, seed=seed).split(0.2, seed)
    found = build_method(method, {"seed": seed}).fit(train).predict_cohort(test)
    assert score(test, found).subgroup_bacc <= 0.6


def test_the_report_on_confounds_sees_that_subgroups_follow_the_pen() -> None:
    cohort = drawn_digits(600, size=16)
    found = build_method("kmeans", {}).fit(cohort).predict_cohort(cohort)
    said = warnings(associations(found.subgroup, cohort.diagnosis, cohort.covariates[["pen", "age", "site"]]))
    assert len(said) == 1
    assert "follow pen" in said[0]


def test_site_changes_the_pages_of_site_b_only() -> None:
    plain, lit = drawn_digits(400), drawn_digits(400, site_effect=0.5)
    at_b = (lit.covariates["site"] == "B").to_numpy()
    change = np.abs(lit.inputs - plain.inputs).mean(axis=(1, 2, 3))
    assert (change[at_b] > 0.05).all()
    assert (change[~at_b] == 0).all()
    assert lit.inputs.min() >= 0
    assert lit.inputs.max() <= 1


@pytest.mark.parametrize("follows", [0.0, 0.5, 1.0])
def test_site_follows_the_subgroup_as_often_as_asked_and_never_the_diagnosis(follows: float) -> None:
    cohort = drawn_digits(2400, sizes=(0.2, 0.8), site_follows_subgroup=follows, size=8)
    at_b = (cohort.covariates["site"] == "B").to_numpy()
    assert np.mean(at_b[cohort.truth == 1]) == pytest.approx(0.5 + follows / 2, abs=0.08)
    assert np.mean(at_b[cohort.truth == 0]) == pytest.approx(0.5 - follows / 2, abs=0.08)
    assert np.mean(at_b[cohort.is_patient]) == pytest.approx(np.mean(at_b[~cohort.is_patient]), abs=0.08)


def test_ten_thousand_images_are_drawn_in_seconds() -> None:
    begin = time.perf_counter()
    drawn_digits(10_000)
    assert time.perf_counter() - begin < 10


def test_ink_agrees_with_the_distance_of_every_pixel_to_every_segment() -> None:
    rng = np.random.default_rng(0)
    segments, boldness = rng.uniform(-8, 8, (3, 4, 2, 2)), np.array([0.6, 1.5, 2.5])
    segments[0, 0, 1] = segments[0, 0, 0]  # a dot
    for image, hand, half_width in zip(_ink(segments, boldness, 32), segments, boldness, strict=True):
        for row, column in np.ndindex(32, 32):
            pixel = np.array([column - 15.5, row - 15.5])
            gaps = []
            for start, end in hand:
                length2 = max(((end - start) ** 2).sum(), 1e-12)
                t = np.clip((pixel - start) @ (end - start) / length2, 0, 1)
                gaps.append(np.linalg.norm(pixel - start - t * (end - start)))
            expected = np.clip((half_width - min(gaps)) / SOFTNESS + 0.5, 0, 1)
            assert image[row, column] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"digit": 10}, "digit from 0 to 9"),
        ({"digit": 8, "sizes": (0.4, 0.3, 0.3)}, r"1 to 2 forms of the digit 8.*with open top"),
        ({"sizes": (0.5, 0.6)}, "adding up to 1"),
        ({"sizes": ()}, "1 to 5 forms of the digit 7"),
        ({"patients": 1.5}, "patients between 0 and 1"),
        ({"site_effect": -1}, "site_effect between 0 and 1"),
        ({"n": 0}, "at least 1 image"),
    ],
)
def test_what_cannot_be_drawn_is_named(wrong: dict, message: str) -> None:
    with pytest.raises(CohortError, match=message):
        drawn_digits(**{"n": 10, **wrong})


def marks_of(**asked) -> np.ndarray:
    whole, without = (np.asarray(drawn_digits(200, seed=3, marks=marks, **asked).inputs) for marks in (True, False))
    return (whole - without)[:, 0] > 0.2


def test_marks_are_what_the_form_adds():
    cohort, marks = drawn_digits(200, seed=3), marks_of()
    with_bar = cohort.truth == 1
    assert not marks[~with_bar].any()
    assert (marks[with_bar].sum(axis=(1, 2)) > 5).all()
    assert (cohort.inputs[:, 0][marks] > 0.2).all()  # there is ink
    middle = np.nonzero(marks[with_bar].mean(axis=(0, 2)) > 0.02)[0]
    assert 11 < middle.mean() < 21  # about the middle of 32 rows
    pale = marks_of(site_effect=0.3)
    assert pale.sum() == pytest.approx(marks.sum(), rel=0.2)
