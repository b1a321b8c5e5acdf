import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phenogroups.clustering.adjust import fit_adjustment
from phenogroups.data.cohort import Cohort, CohortError


def draw(seed: int = 0, n: int = 300) -> Cohort:
    """Features 0 and 1 follow age and site, 2 the illness, 3 both; patients are older."""
    rng = np.random.default_rng(seed)
    ill = np.arange(n) % 2
    age = rng.normal(50, 10, n) + 8 * ill
    site = rng.choice(["Lyon", "Oslo", "Rome"], n)
    x = rng.normal(size=(n, 4))
    x[:, 0] = 3 * age + 100
    x[:, 1] += 5 * (site == "Oslo") - 2 * (site == "Rome")
    x[:, 2] += 4 * ill
    x[:, 3] += 0.5 * age + 4 * ill
    covariates = pd.DataFrame({"age": age, "site": site, "scanner": rng.integers(1, 4, n)})
    return Cohort(x, ill, covariates=covariates)


def by_least_squares(cohort: Cohort) -> np.ndarray:
    """As a text book has it: the residuals of the controls' regression, and the controls' mean added back."""
    age, site = cohort.covariates["age"].to_numpy(), cohort.covariates["site"].to_numpy()
    design = np.column_stack([np.ones(len(cohort)), age, site == "Lyon", site == "Oslo"])
    controls = ~cohort.is_patient
    slopes = np.linalg.lstsq(design[controls], cohort.inputs[controls], rcond=None)[0]
    return cohort.inputs - design @ slopes + cohort.inputs[controls].mean(0)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_least_squares_on_the_controls(seed):
    cohort = draw(seed)
    found = fit_adjustment(cohort, ("age", "site"))(cohort)
    np.testing.assert_allclose(found, by_least_squares(cohort), rtol=1e-5, atol=1e-4)


@given(seed=st.integers(0, 10**6), unit=st.floats(1e-3, 1e4))
@settings(max_examples=20, deadline=None)
def test_age_is_gone_from_controls_and_the_illness_stays(seed, unit):
    cohort = draw(seed)
    covariates = cohort.covariates.assign(age=cohort.covariates["age"] * unit)  # in days or decades
    cohort = Cohort(cohort.inputs, cohort.diagnosis, covariates=covariates)
    found = fit_adjustment(cohort, ("age", "site"))(cohort)
    controls, age = ~cohort.is_patient, cohort.covariates["age"]
    assert np.ptp(found[:, 0]) < 1e-2  # nothing but age was in it, of patients too
    for j in (1, 3):
        assert abs(np.corrcoef(found[controls, j], age[controls])[0, 1]) < 1e-3
        means = [found[controls & (cohort.covariates["site"] == site), j].mean() for site in ("Lyon", "Oslo", "Rome")]
        assert np.ptp(means) < 1e-3
    for j in (2, 3):
        effect = found[~controls, j].mean() - found[controls, j].mean()
        assert effect == pytest.approx(4, abs=0.8)
    np.testing.assert_allclose(found[controls].mean(0), cohort.inputs[controls].mean(0), rtol=1e-5, atol=1e-5)


def test_patients_teach_nothing():
    cohort = draw()
    other = np.where(cohort.is_patient[:, None], cohort.inputs * 7 + 1, cohort.inputs)
    a, b = (
        fit_adjustment(Cohort(x, cohort.diagnosis, covariates=cohort.covariates), ("age",))
        for x in (cohort.inputs, other)
    )
    assert all(torch.equal(mine, yours) for mine, yours in zip(vars(a).values(), vars(b).values(), strict=True))


def test_one_subject_gets_the_bits_it_gets_in_company():
    cohort = draw()
    adjust = fit_adjustment(cohort, ("age", "site"))
    together = adjust(cohort)
    for row in (0, 7, 299):
        np.testing.assert_array_equal(adjust(cohort[[row]]), together[[row]])


def test_images_keep_their_shape(images):
    rng = np.random.default_rng(0)
    cohort = Cohort(images.inputs, images.diagnosis, covariates=pd.DataFrame({"age": rng.normal(size=len(images))}))
    assert fit_adjustment(cohort, ("age",))(cohort).shape == images.inputs.shape


def test_numbers_may_be_codes():
    cohort = draw()
    as_amount, as_codes = (fit_adjustment(cohort, (name,)) for name in ("scanner", "C(scanner)"))
    assert (len(as_amount.center), len(as_codes.center)) == (1, 2)
    words = cohort.covariates.assign(scanner=cohort.covariates["scanner"].astype(str))
    same = fit_adjustment(Cohort(cohort.inputs, cohort.diagnosis, covariates=words), ("scanner",))
    assert torch.equal(same.slopes, as_codes.slopes)
    # an empty cell elsewhere has made 1.0 of 1
    floats = cohort.covariates.assign(scanner=cohort.covariates["scanner"].astype(float))
    np.testing.assert_array_equal(
        as_codes(Cohort(cohort.inputs, cohort.diagnosis, covariates=floats)), as_codes(cohort)
    )


def changed(cohort: Cohort, column: str, value, row: int = 4) -> Cohort:
    values = cohort.covariates[column].astype(object)
    values[row] = value
    return Cohort(cohort.inputs, cohort.diagnosis, covariates=cohort.covariates.assign(**{column: values}))


def test_who_cannot_be_adjusted_is_named():
    cohort = draw()
    adjust = fit_adjustment(cohort, ("age", "site"))
    with pytest.raises(
        CohortError, match=r"'site' among those of the controls \(Lyon, Oslo, Rome\).*Bonn in 1 row \(s004\)"
    ):
        adjust(changed(cohort, "site", "Bonn"))
    with pytest.raises(CohortError, match=r"number as covariate 'age'. Received: nan in 1 row \(s004\). Fill"):
        adjust(changed(cohort, "age", np.nan))
    with pytest.raises(CohortError, match=r"number as covariate 'age'. Received: old in 1 row"):
        adjust(changed(cohort, "age", "old"))
    with pytest.raises(CohortError, match=r"covariate 'age'.*Received: none. Bring it"):
        adjust(Cohort(cohort.inputs, cohort.diagnosis))
    with pytest.raises(CohortError, match=r"'site' of every subject. Received: None in 1 row \(s004\)"):
        fit_adjustment(changed(cohort, "site", None), ("site",))


def test_what_cannot_be_learned_is_refused():
    cohort = draw()
    with pytest.raises(CohortError, match="Expected controls, to learn what age does"):
        fit_adjustment(cohort.patients, ("age",))
    with pytest.raises(CohortError, match=r"covariate 'sex'.*Received: 'age', 'site', 'scanner'"):
        fit_adjustment(cohort, ("sex",))
    with pytest.raises(CohortError, match=r"more controls than the 3 numbers.*Received: 3 controls"):
        fit_adjustment(cohort[:6], ("age", "scanner"))
    one_site = cohort[cohort.is_patient | (cohort.covariates["site"] == "Oslo").to_numpy()]
    with pytest.raises(CohortError, match=r"controls that differ in 'site'.*Received: Oslo in all"):
        fit_adjustment(one_site, ("site",))
    twice = cohort.covariates.assign(months=12 * cohort.covariates["age"])
    with pytest.raises(CohortError, match="one follows from the others"):
        fit_adjustment(Cohort(cohort.inputs, cohort.diagnosis, covariates=twice), ("age", "months"))
