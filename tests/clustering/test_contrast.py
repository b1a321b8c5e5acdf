import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from phenogroups.clustering.contrast import contrastive_mixture, gains, shared, specific_mixtures, specificity
from phenogroups.clustering.gap import pair_gaps
from phenogroups.clustering.mixture import tied_mixture
from phenogroups.clustering.space import fit_space


def two_splits(n=800, seed=0):
    """Axis 0 is loud and splits everybody (a scanner); axis 1 is quieter and splits the patients only (the disease)."""
    rng = np.random.default_rng(seed)
    scanner, kind = rng.integers(0, 2, 2 * n), rng.integers(0, 2, n)
    z = rng.normal(size=(2 * n, 4))
    z[:, 0] += 8 * scanner
    z[:n, 1] += 5 * kind
    return torch.as_tensor(z[:n]), torch.as_tensor(z[n:]), scanner[:n], kind


def labels(mixture, z):
    return mixture.log_posterior(z).argmax(1).numpy()


@pytest.mark.parametrize("seed", range(3))
def test_finds_what_splits_patients_only_where_the_likeliest_mixture_finds_the_scanner(seed):
    patients, controls, scanner, kind = two_splits(seed=seed)
    assert adjusted_rand_score(scanner, labels(tied_mixture(patients, 2), patients)) > 0.9
    assert adjusted_rand_score(kind, labels(contrastive_mixture(patients, controls, 2), patients)) > 0.9


def test_specificity_is_the_difference_of_gains_and_cancels_what_is_shared():
    patients, controls, scanner, kind = two_splits()
    by = {}
    for name, truth in (("scanner", scanner), ("kind", kind)):
        start = torch.nn.functional.one_hot(torch.as_tensor(truth), 2)
        found = tied_mixture(patients, 2, start=start)
        gaps = []
        for z in (patients, controls):
            member = torch.nn.functional.one_hot(found.log_posterior(z).argmax(1), 2).double()
            gaps.append(pair_gaps((z @ found.whitening @ found.means.T)[None], member[None]).item())
        by[name] = specificity([found], patients, controls)[0] - (gaps[0] - gaps[1])
    assert by["scanner"] == pytest.approx(0, abs=0.05)
    assert by["kind"] == pytest.approx(np.log(np.sqrt(1 + 2.5**2)) - np.log(2), abs=0.05)  # 5 deviations apart


@pytest.mark.parametrize(("kinds", "least"), [((1, 2, 6, 8), 0.55), ((0, 1, 5, 8), 0.75)])
def test_of_several_kinds_those_with_narrow_gaps_are_found_too(kinds, least):
    """Adjusted Rand index; by the narrowest gap alone it was 0.41 and 0.69."""
    x, digit = load_digits(return_X_y=True)
    is_patient = torch.as_tensor(np.isin(digit, kinds))
    x = torch.as_tensor(x)
    z = fit_space(x, is_patient, remove_severity=True, winsorise=2.5, components=20)(x)
    found = labels(contrastive_mixture(z[is_patient], z[~is_patient], 4), z[is_patient])
    assert adjusted_rand_score(digit[is_patient], found) > least


def test_gain_is_that_of_a_mixture_over_one_gaussian():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=2000), np.concatenate([rng.normal(size=1000), rng.normal(size=1000) + 6])
    even = torch.full((2000, 2), 0.5)
    assert gains(torch.as_tensor(one)[None, :, None], even[None])[0] == pytest.approx(0, abs=0.01)
    # apart by d deviations: log of the total deviation, less the log 2 of not knowing the side
    expected = np.log(np.sqrt(1 + 3**2)) - np.log(2)
    assert gains(torch.as_tensor(two)[None, :, None], even[None])[0] == pytest.approx(expected, abs=0.03)


def test_candidates_are_different_and_seeded():
    patients, controls, _, _ = two_splits()
    found = specific_mixtures(patients, controls, 2, seed=1)
    scores = specificity(found, patients, controls)
    assert scores == sorted(scores, reverse=True)
    assert len({round(mixture.log_likelihood, 3) for mixture in found}) == len(found)
    again = specific_mixtures(patients, controls, 2, seed=1)
    assert [m.log_likelihood for m in again] == [m.log_likelihood for m in found]


def test_a_gap_decides_against_a_louder_continuum():
    """A skewed continuum among patients, as visible as two groups that are apart."""
    rng = np.random.default_rng(1)
    patients, controls = rng.normal(size=(2, 1500, 4))
    kind = rng.random(1500) < 0.15
    patients[:, 1] = rng.gamma(0.5, size=1500)
    patients[:, 2] = 0.3 * patients[:, 2] + 2 * kind
    found = contrastive_mixture(torch.tensor(patients), torch.tensor(controls), 2)
    assert adjusted_rand_score(kind, labels(found, torch.tensor(patients))) > 0.9


def a_pen_that_shows_otherwise_in_controls(n=1200, seed=0):
    """Patients and controls differ by the pen, patients on one axis more; a tenth of the patients has another form."""
    rng = np.random.default_rng(seed)
    pen, form = rng.integers(0, 2, 2 * n), (rng.random(n) < 0.1).astype(int)
    z = rng.normal(size=(2 * n, 5))
    z[:, 0] += 7 * pen
    z[:n, 1] += 7 * pen[:n]  # on this axis controls are not split
    z[:n, 2] += 7 * form
    return torch.as_tensor(z[:n]), torch.as_tensor(z[n:]), pen[:n], form


def posterior(labels):
    return torch.nn.functional.one_hot(torch.as_tensor(labels), 2).double()


def test_what_controls_show_by_themselves_is_shared_also_where_the_axis_does_not_split_them():
    patients, controls, pen, form = a_pen_that_shows_otherwise_in_controls()
    by_pen, by_form = (tied_mixture(patients[:, 1:], 2, start=posterior(labels)) for labels in (pen, form))
    of_pen, of_form = specificity([by_pen, by_form], patients[:, 1:], controls[:, 1:])
    assert of_pen > of_form  # the axis without the controls' gap is what specificity alone would take
    of_pen, of_form = shared([posterior(pen), posterior(form)], [(patients, controls)]).tolist()
    assert of_pen > 0.5
    assert of_form < 0.1
    by_accident = [(patients, controls), (patients[:, 2:], controls[:, 2:])]  # the second encoder does not see the pen
    assert shared([posterior(pen)], by_accident).item() < 0.1


def test_few_controls_cannot_show_that_a_split_is_shared():
    patients, controls, pen, _ = a_pen_that_shows_otherwise_in_controls()
    assert shared([posterior(pen)], [(patients, controls[:19])]).tolist() == [0]
    assert shared([posterior(pen)], [(patients[:, 2:], controls[:40, 2:])]).item() < 0.3  # the pen is not on these axes
