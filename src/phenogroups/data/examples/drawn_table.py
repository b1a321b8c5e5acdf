"""A simulated table of features: known subgroups, or none, under larger variation that all subjects share.

All subjects vary with age, sex and an unrecorded factor. Patients differ from controls by a continuous severity, and
each subgroup by a direction of its own.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, Cohort, CohortError
from phenogroups.data.examples.drawn import shared_out

SEVERITY = (4.0, 1.0)  # mean and deviation of the distance of patients from controls, in deviations of the noise
MOST_SUBGROUPS = 5
NOT_OF_SUBGROUPS = 5  # directions of severity, site, age, sex and the unrecorded factor


def drawn_table(
    subjects: int = 600,
    features: int = 20,
    subgroups: int = 2,
    *,
    sizes: Sequence[float] | None = None,
    separation: float = 4.0,
    shared: float = 6.0,
    patients: float = 0.5,
    site_effect: float = 0.0,
    seed: int = 0,
) -> Cohort:
    """Draw a table of features with known subgroups, or with none; nothing is downloaded.

    Parameters
    ----------
    subjects
        Number of subjects.
    features
        Number of features.
    subgroups
        Number of subgroups among the patients. With 0, patients vary as widely as two subgroups would, but
        continuously, so that there are no subgroups and no truth; with 1, they do not vary.
    sizes
        Share of each subgroup among the patients; None: equal.
    separation
        Distance between two subgroups, in standard deviations of the noise.
    shared
        Standard deviation of the effect of age on all subjects, in standard deviations of the noise.
    patients
        Share of patients among the subjects.
    site_effect
        Difference between two scanners, in standard deviations of the noise. With 0, half of the patients and half of
        the controls are from site B. Above 0, all controls are from site A: an artefact that no contrast with controls
        can remove.
    seed
        Seed of all random numbers.

    Returns
    -------
    Cohort
        Features of shape (subjects, features), truth, and the covariates age, sex and site.

    Examples
    --------
    >>> from phenogroups import drawn_table
    >>> cohort = drawn_table(40, 10)
    >>> cohort.inputs.shape, sorted(set(cohort.truth.tolist()))
    ((40, 10), [-1, 0, 1])
    """
    sizes = [1 / max(subgroups, 1)] * max(subgroups, 1) if sizes is None else list(sizes)
    _check(
        subjects, features, subgroups, sizes, patients, separation=separation, shared=shared, site_effect=site_effect
    )
    rng = np.random.default_rng(seed)
    n_patients = round(patients * subjects)
    ill = rng.permutation(np.arange(subjects) < n_patients)
    truth = np.full(subjects, UNKNOWN)
    truth[ill] = rng.permutation(np.repeat(np.arange(len(sizes)), shared_out(n_patients, sizes)))

    age, is_female = rng.uniform(20, 80, subjects), rng.random(subjects) < 0.5
    at_b = (rng.random(subjects) < 0.5) & (ill | (site_effect == 0))
    severity = rng.normal(*SEVERITY, subjects)
    own = _simplex(max(subgroups, 1), separation)[truth]  # (subjects, directions of subgroups)
    if subgroups == 0:
        own = rng.normal(0, separation / 2, (subjects, 1))  # the deviation of two equal subgroups
    known = np.column_stack(
        [
            ill[:, None] * own,
            ill * severity,
            at_b * site_effect,
            shared * (age - 50) / np.sqrt(300),  # of deviation 1: uniform over 60 years
            shared / 4 * is_female,
            0.75 * shared * rng.normal(size=subjects),
        ]
    )
    x = rng.normal(size=(subjects, features))
    x[:, : known.shape[1]] += known
    mixing, _ = np.linalg.qr(rng.normal(size=(features, features)))  # every direction is spread over all features
    covariates = pd.DataFrame(
        {
            "age": age,
            "sex": pd.Categorical(np.where(is_female, "F", "M"), categories=["F", "M"]),
            "site": pd.Categorical(np.where(at_b, "B", "A"), categories=["A", "B"]),
        }
    )
    return Cohort(
        (x @ mixing).astype(np.float32),
        np.where(ill, PATIENT, CONTROL),
        covariates=covariates,
        truth=truth if subgroups else None,
        name=f"drawn-table-{subgroups}",
    )


def _simplex(count: int, apart: float) -> np.ndarray:
    """(count, count - 1): points at equal distances from each other, with their mean at the origin."""
    corners = np.eye(count) - 1 / count
    axes = np.linalg.svd(corners)[2][: count - 1]
    return corners @ axes.T * apart / np.sqrt(2)


def _check(
    subjects: int, features: int, subgroups: int, sizes: Sequence[float], patients: float, **amounts: float
) -> None:
    if not 0 <= subgroups <= MOST_SUBGROUPS:
        raise CohortError(f"Expected 0 to {MOST_SUBGROUPS} subgroups. Received: {subgroups}.")
    if len(sizes) != max(subgroups, 1) or min(sizes) < 0 or abs(sum(sizes) - 1) > 1e-6:
        raise CohortError(
            f"Expected as sizes the shares of {subgroups} subgroups, adding up to 1. Received: {tuple(sizes)}."
        )
    least = NOT_OF_SUBGROUPS + max(subgroups - 1, 1)
    if features < least:
        raise CohortError(f"Expected at least {least} features for {subgroups} subgroups. Received: {features}.")
    if subjects < 1 or not 0 <= patients <= 1:
        raise CohortError(f"Expected subjects, and patients as their share. Received: {subjects=}, {patients=}.")
    for name, amount in amounts.items():
        if amount < 0:
            raise CohortError(f"Expected {name} of at least 0. Received: {amount}.")
