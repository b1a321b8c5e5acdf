"""Simulated brain volumes with known subgroups and known nuisance variation, without a download.

A brain is an ellipsoid with a rim of grey matter and two ventricles. Size (sex), ventricles and rim (age), contrast,
illumination and noise (site) and the position of the head vary in all subjects; only patients have lesions: dark ones
around the ventricles, or bright ones in the cortex, mild to severe.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.spatial.transform import Rotation

from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, Cohort, CohortError
from phenogroups.data.examples.drawn import shared_out

TRUTH_NAMES = ("around the ventricles", "in the cortex")
SITES = ("A", "B", "C")
CONTRAST, NOISE = (0.93, 1.0, 1.08), (0.02, 0.03, 0.05)  # of each site: exponent of the intensities, deviation
LIGHT = ((0.05, 0, 0), (0, 0, 0), (0, 0.05, -0.05))  # of each site: how much brighter towards right, front, top
AXES = (0.68, 0.82, 0.66)  # half axes of a brain of size 1, as shares of half the side: left-right, front-back, height
WHITE, GREY, FLUID = 0.85, 0.55, 0.2  # intensities, before the site's contrast
VENTRICLE = (0.1, 0.34, 0.15)  # half axes of either ventricle at middle age; in the brain's units, like all below
APART = 0.17  # of the ventricles from the midline
CORTEX = 0.82  # where the rim begins at middle age; 1 is the surface
LESIONS = ((10, 16), (8, 12))  # of a patient of either pattern: from, to
RADIUS = ((0.14, 0.22), (0.2, 0.3))  # of a lesion
LESIONED = (0.3, 1.0)  # intensity of the severest lesion
EDGE = 0.07  # over which one tissue becomes another
CHUNK = 32  # volumes drawn at once


def drawn_brains(
    n: int = 600,
    *,
    sizes: Sequence[float] = (0.5, 0.5),
    patients: float = 0.5,
    size: int = 32,
    seed: int = 0,
    severity: tuple[float, float] = (0.7, 1.0),
    site_effect: float = 1.0,
) -> Cohort:
    """Draw a cohort of brain volumes with known subgroups; nothing is downloaded.

    Patients have lesions around the ventricles or in the cortex, the truth; controls have none. The site is independent
    of both.

    Parameters
    ----------
    n
        Number of subjects.
    sizes
        Share of each pattern of lesions among the patients.
    patients
        Share of patients among the subjects.
    size
        Voxels a side.
    seed
        Seed of all random numbers.
    severity
        Smallest and largest severity; with a wider range, mild and severe patients are the easier split.
    site_effect
        From 0 to 1: how much the sites differ.

    Returns
    -------
    Cohort
        Volumes of shape (n, 1, size, size, size), truth and covariates.

    Examples
    --------
    >>> from phenogroups import drawn_brains
    >>> drawn_brains(4, size=16).inputs.shape
    (4, 1, 16, 16, 16)
    """
    mild, severe = severity
    _check(n, sizes, size, patients=patients, site_effect=site_effect, mild=mild, severe=severe)
    rng = np.random.default_rng(seed)
    n_patients = round(patients * n)
    ill, pattern = np.arange(n) < n_patients, np.zeros(n, int)
    pattern[ill] = np.repeat(np.arange(len(sizes)), shared_out(n_patients, sizes))
    order = rng.permutation(n)
    ill, pattern = ill[order], pattern[order]
    site, female, age = rng.integers(len(SITES), size=n), rng.random(n) < 0.5, rng.uniform(20, 80, n)
    of_patients = np.where(ill, rng.uniform(mild, severe, n), 0.0)
    volumes = np.empty((n, 1, size, size, size), np.float32)
    for first in range(0, n, CHUNK):
        rows = slice(first, first + CHUNK)
        volumes[rows, 0] = _draw(
            age[rows], female[rows], of_patients[rows], pattern[rows], site[rows], site_effect, size, rng
        )
    return Cohort(
        volumes,
        diagnosis=np.where(ill, PATIENT, CONTROL),
        covariates=pd.DataFrame(
            {
                "age": age,
                "sex": pd.Categorical(np.where(female, "F", "M"), categories=["F", "M"]),
                "site": pd.Categorical(np.array(SITES)[site], categories=SITES),
            }
        ),
        truth=np.where(ill, pattern, UNKNOWN),
        truth_names=TRUTH_NAMES[: len(sizes)],
        name="drawn-brains",
    )


def _draw(
    age: np.ndarray, female: np.ndarray, severity: np.ndarray, pattern: np.ndarray, site: np.ndarray,
    site_effect: float, size: int, rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """(subjects, size, size, size), not below 0."""
    n = len(age)
    decades = (age - 50) / 10
    scale = np.where(female, 0.96, 1.02)[:, None] * rng.normal(1, 0.03, (n, 3))
    angles = rng.normal(0, 0.06, (n, 3)) * [1, -1, 1]
    lie = Rotation.from_euler("XYZ", angles).as_matrix() / (scale * AXES)[:, :, None]
    moved = rng.normal(0, 0.03, (n, 3))
    half = np.array(VENTRICLE) * (np.exp(0.1 * decades) * rng.lognormal(0, 0.12, n))[:, None]
    rim = CORTEX + 0.012 * decades + rng.normal(0, 0.015, n)
    centre, radius = _lesions(pattern, severity > 0, half, rim, rng)
    contrast = 1 + site_effect * (np.array(CONTRAST)[site] - 1) + rng.normal(0, 0.03, n)
    slope = site_effect * np.array(LIGHT)[site] + rng.normal(0, 0.03, (n, 3))
    noise = NOISE[1] + site_effect * (np.array(NOISE)[site] - NOISE[1])
    lie, moved, half, rim, centre, radius, severity, contrast, slope, noise = (
        values.astype(np.float32)
        for values in (lie, moved, half, rim, centre, radius, severity, contrast, slope, noise)
    )

    axis = ((2 * np.arange(size) + 1) / size - 1).astype(np.float32)
    page = np.stack(np.meshgrid(axis, axis, axis, indexing="ij")).reshape(3, -1)
    # where each voxel lies in the brain's own units, in which its surface is at 1: (subjects, 3, voxels)
    place = lie @ (page - moved[:, :, None])
    depth = np.linalg.norm(place, axis=1)
    tissue = WHITE + (GREY - WHITE) * _above(depth, rim[:, None])
    # |p - c|^2 = |p|^2 - 2 c.p + |c|^2, of all lesions by one product
    away2 = np.square(depth)[:, None] - 2 * centre @ place + np.square(centre).sum(2)[:, :, None]
    lesioned = _above(-np.sqrt(np.maximum(away2, 0)), -radius[:, :, None]).max(axis=1)
    tissue += (np.array(LESIONED, np.float32)[pattern][:, None] - tissue) * severity[:, None] * lesioned
    place[:, 0] = np.abs(place[:, 0]) - APART  # both ventricles at once
    thin = half.min(axis=1)[:, None]
    tissue += (FLUID - tissue) * _above(-thin * np.linalg.norm(place / half[:, :, None], axis=1), -thin)
    tissue *= _above(-depth, -1)
    scan = tissue ** contrast[:, None] * (1 + slope @ page)
    scan += noise[:, None] * rng.standard_normal(scan.shape, dtype=np.float32)
    return np.maximum(scan, 0).reshape(n, size, size, size)


def _lesions(
    pattern: np.ndarray, ill: np.ndarray, half: np.ndarray, rim: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Centres (subjects, lesions, 3) and radii (subjects, lesions), which are negative where there is none."""
    fewest, most = np.array(LESIONS)[pattern].T
    shape = (len(pattern), np.max(LESIONS))
    # not rng.integers, which may draw several times: a seed must draw the same brains whatever their lesions
    count = np.where(ill, fewest + np.floor((most - fewest + 1) * rng.random(shape[0])), 0)
    towards = rng.standard_normal((*shape, 3))
    towards /= np.linalg.norm(towards, axis=2, keepdims=True)
    least, largest = np.array(RADIUS)[pattern].T[:, :, None]
    radius = rng.uniform(least, largest, shape)
    ventricle = np.array([APART, 0, 0]) * rng.choice([-1, 1], (*shape, 1))
    inner = ventricle + towards * (half[:, None] + (radius * rng.uniform(0.3, 0.9, shape))[:, :, None])
    outer = towards * (rim[:, None] + rng.uniform(-0.03, 0.1, shape))[:, :, None]
    centre = np.where(pattern[:, None, None] == 0, inner, outer)
    return centre, np.where(np.arange(shape[1]) < count[:, None], radius, -1)


def _above(values: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
    """From 0 to 1 as values rise past the limit."""
    return np.clip((values - limit) * np.float32(1 / EDGE) + np.float32(0.5), 0, 1)


def _check(n: int, sizes: Sequence[float], size: int, **shares: float) -> None:
    if len(sizes) not in (1, 2) or min(sizes) < 0 or abs(sum(sizes) - 1) > 1e-6:
        raise CohortError(
            f"Expected as sizes the shares of 1 or 2 patterns ({', '.join(TRUTH_NAMES)}), adding up to 1. "
            f"Received: {tuple(sizes)}. Say for example sizes=(0.3, 0.7)."
        )
    if n < 1 or size < 16:
        raise CohortError(f"Expected n of at least 1 volume and size of at least 16 voxels. Received: {n=}, {size=}.")
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise CohortError(f"Expected {name} between 0 and 1. Received: {share}.")
