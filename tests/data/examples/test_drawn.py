"""The drawn cohort holds what it promises: forms in patients, nuisances in everybody, boldness the loudest."""

import time

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import balanced_accuracy_score

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.drawn import FORMS, SOFTNESS, _ink, drawn_digits, drawn_marks


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
    table = cohort.covariates.assign(site=cohort.covariates["site"] == "B", sex=cohort.covariates["sex"] == "F")
    nuisances = table.drop(columns="digit").astype(float)
    for ones in (cohort.is_patient, cohort.truth == 1):
        others = ~ones if ones is cohort.is_patient else cohort.truth == 0
        gap = (nuisances[ones].mean() - nuisances[others].mean()).abs() / nuisances.std()
        assert (gap < 0.15).all(), gap


@pytest.mark.parametrize("digit", [7, 1])
@pytest.mark.parametrize("sizes", [(0.5, 0.5), (0.2, 0.8)])
def test_k_means_on_pixels_finds_boldness_and_not_the_subgroups(digit: int, sizes: tuple[float, float]) -> None:
    cohort = drawn_digits(2000, digit=digit, sizes=sizes, patients=1.0)
    cluster = KMeans(2, n_init=1, random_state=0).fit_predict(cohort.inputs.reshape(len(cohort), -1))
    boldness = cohort.covariates["boldness"]
    assert agreement(cohort.truth == 1, cluster) < 0.6
    assert agreement(boldness > boldness.median(), cluster) > 0.85


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


def test_marks_are_what_the_form_adds():
    cohort, marks = drawn_digits(200, seed=3), drawn_marks(200, seed=3)
    with_bar = cohort.truth == 1
    assert not marks[~with_bar].any()
    assert (marks[with_bar].sum(axis=(1, 2)) > 5).all()
    assert (cohort.inputs[:, 0][marks] > 0.2).all()  # there is ink
    middle = np.nonzero(marks[with_bar].mean(axis=(0, 2)) > 0.02)[0]
    assert 11 < middle.mean() < 21  # about the middle of 32 rows
    pale = drawn_marks(200, seed=3, site_effect=0.3)
    assert pale.sum() == pytest.approx(marks.sum(), rel=0.2)
