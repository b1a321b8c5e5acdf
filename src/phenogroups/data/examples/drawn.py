"""Simulated digits: a cohort with known subgroups and known nuisance variation, without a download.

One digit is the disease and the other nine are the controls. Pen, slant, size and position of the writing vary in all
subjects; only the patients have forms (a 7 with or without crossbar). The pen is broad or thin: the most visible two
groups of the cohort, among patients as among controls, so that clustering the patients alone finds the pen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

from phenogroups.data.cohort import CONTROL, PATIENT, UNKNOWN, Cohort, CohortError


@dataclass(frozen=True)
class Form:
    """One way to write a digit: smooth strokes through points x,y (y grows downwards, the writing spans -10..10).

    Strokes that share a point stay joined when points are moved at random; a stroke that ends where it began is closed.
    """

    name: str
    body: str
    mark: str = ""  # strokes that the form adds; they are scaled and rotated about their first point
    slide: tuple[float, float] = (0.0, 0.0)  # largest shift of that point in x and y


ZERO = "0,-10 -5.5,-6 -6.5,0 -5.5,6 0,10 5.5,6 6.5,0 5.5,-6 0,-10"
ONE = "0,-10 0,0 0,10"
SEVEN = "-6,-10 0,-10 6,-10 | 6,-10 2,-1 -2,10"
NINE = "5.5,-5 4,-9 -1,-10 -5.5,-7 -5,-2 0,-0.5 4.5,-2.5 5.5,-5"

# the first form of a digit is the plain one, which the controls write
FORMS: dict[int, tuple[Form, ...]] = {
    0: (
        Form("without slash", ZERO),
        Form("with slash", ZERO, mark="0,0 4.5,-6 | 0,0 -4.5,6"),
    ),
    1: (
        Form("without upper stroke", ONE),
        Form("with upper stroke", ONE, mark="0,-10 -2.5,-7 -6,-4.5"),
        Form("with base", ONE, mark="0,10 -5.5,10 | 0,10 5.5,10"),
    ),
    2: (
        Form("without loop", "-6,-5.5 -4,-9 0,-10 5,-8.5 5.5,-4 1,3 -6,10 | -6,10 0,10 7,10"),
        Form("with loop", "-6,-5.5 -4,-9 0,-10 5,-8.5 5.5,-4 1,4 -4,9.5 -7,7.5 -4.5,5.5 0,8 4,10 7.5,8"),
    ),
    3: (
        Form("with round top", "-5.5,-7.5 -2,-10 3,-9.5 5,-6 3,-2 -1,-0.5 | -1,-0.5 4,1 6,5 3,9 -2,10 -6.5,7"),
        Form("with flat top", "-5.5,-10 0,-10 5.5,-10 | 5.5,-10 3,-6 -1,-2 | -1,-2 4,-0.5 6,4 3,9 -2,10 -6.5,7"),
    ),
    4: (
        Form("with open top", "-4,-10 -5,-4 -6.5,3 | -6.5,3 0,3 8,3 | 4,-6 3.5,2 3,10"),
        Form("with closed top", "3.5,-10 -2,-4 -7,4 | -7,4 0,4 8,4 | 3.5,-10 3.5,0 3.5,10"),
    ),
    5: (
        Form("with straight neck", "6,-10 0,-10 -4,-10 | -4,-10 -5,-6 -5,-2 | -5,-2 0,-3 5,-0.5 5.5,5 2,9.5 -6,8.5"),
        Form("with round neck", "6,-9 1,-10 -4.5,-8 -5,-4 0,-1 5,2 5.5,6.5 1,10 -6,8"),
    ),
    6: (
        Form("with round back", "5,-9.5 -1,-8 -5.5,-2 -6,5 -1.5,10 4,8.5 5.5,4 2,0 -3,1 -5.5,4"),
        Form("with straight back", "1,-10 -2.5,-4 -5.5,3 | -5.5,3 -5,8 0,10 5,8 5.5,4 2,0.5 -2.5,0.5 -5.5,3"),
    ),
    7: (
        Form("without crossbar", SEVEN),
        Form("with crossbar", SEVEN, mark="1.2,1.2 -7.2,1.2 | 1.2,1.2 9.6,1.2", slide=(-0.2, 0.5)),
        Form("with tick", SEVEN, mark="-6,-10 -7,-7 -7.5,-3.5"),
        Form("with hook", SEVEN, mark="-2,10 -5,10.5 -7.5,8.5 -8,6"),
        Form("with loop", "-7,-8 -1,-8 4,-8 | 4,-8 1,0 -2,10", mark="4,-8 7.5,-12 10.5,-8.5 7.5,-6 4,-8"),
    ),
    8: (
        Form("with closed top", "0,-1 -4.5,-4 -4,-8.5 0,-10 4,-8.5 4.5,-4 0,-1 -5.5,4 -4.5,8 0,10 4.5,8 5.5,4 0,-1"),
        Form("with open top", "5,-10 1,-5 -3.5,1 -5.5,6 -2,10 3.5,9.5 5.5,5.5 2,0.5 -3,-4 -5,-9"),
    ),
    9: (
        Form("with straight tail", NINE + "| 5.5,-5 5,2 3.5,10"),
        Form("with curved tail", NINE + "| 5.5,-5 6,2 3.5,8.5 -1,10 -5.5,7.5"),
    ),
}  # fmt: skip

PENS = {"thin": 0.8, "broad": 2.35}  # half the width of the stroke, in units of the page
PRESSURE = 0.2  # the share by which a hand makes it wider or narrower at most: widths of the two pens never meet

PAGE = 32  # the side of the page in the units of the forms; another size is the same page in other pixels
STEP = 2.2  # units between two samples of a stroke
SOFTNESS = 1.2  # pixels over which ink fades
CHUNK = 64  # images drawn at once: small enough for the processor's cache


def drawn_digits(
    n: int = 6000,
    *,
    digit: int = 7,
    sizes: Sequence[float] = (0.5, 0.5),
    patients: float = 0.5,
    size: int = 32,
    seed: int = 0,
    site_effect: float = 0.0,
    site_follows_subgroup: float = 0.0,
    marks: bool = True,
) -> Cohort:
    """Draw a cohort of digits with known subgroups; nothing is downloaded.

    Patients write one digit in several forms, the truth. Controls write the other nine digits equally often. All
    subjects have a broad or a thin pen, which is more visible than the form.

    Parameters
    ----------
    n
        Number of subjects.
    digit
        The digit of the patients.
    sizes
        Share of each form among the patients.
    patients
        Share of patients among the subjects.
    size
        Pixels a side.
    seed
        Seed of all random numbers.
    site_effect
        From 0 to 1: how much paler and more unevenly lit the pages of site B are.
    site_follows_subgroup
        From 0 to 1: how often the subgroup decides the site, as a planted confound.
    marks
        Whether the digits have the marks of their forms; without, they are otherwise the same.

    Returns
    -------
    Cohort
        Images of shape (n, 1, size, size), truth, and the covariates of the drawing.

    Examples
    --------
    >>> from phenogroups import drawn_digits
    >>> drawn_digits(20, size=16).inputs.shape
    (20, 1, 16, 16)
    """
    _check(n, digit, sizes, patients, size, site_effect=site_effect, site_follows_subgroup=site_follows_subgroup)
    rng = np.random.default_rng(seed)
    n_patients = round(patients * n)
    others = [other for other in FORMS if other != digit]
    ill = np.arange(n) < n_patients
    drawn, form = np.full(n, digit), np.zeros(n, int)
    drawn[~ill] = np.repeat(others, shared_out(n - n_patients, [1 / len(others)] * len(others)))
    form[ill] = np.repeat(np.arange(len(sizes)), shared_out(n_patients, sizes))
    order = rng.permutation(n)
    ill, drawn, form = ill[order], drawn[order], form[order]

    # the site of a control follows a random subgroup, so that the site does not depend on the diagnosis
    followed = np.where(ill, form, rng.choice(len(sizes), size=n, p=np.divide(sizes, sum(sizes))))
    at_b = np.where(rng.random(n) < site_follows_subgroup, followed % 2 == 1, rng.random(n) < 0.5)
    pen = _half_of_each(10 * drawn + form, rng)
    width = np.array(list(PENS.values()))[pen]
    covariates = pd.DataFrame(
        {
            "pen": pd.Categorical.from_codes(pen, categories=list(PENS)),
            "boldness": width * (1 + PRESSURE * rng.uniform(-1, 1, n)),  # half the width of the stroke
            "slant": rng.normal(0.08, 0.09, n),  # shear: to the right is positive
            "size": rng.uniform(0.9, 1.08, n),
            "site": pd.Categorical(np.where(at_b, "B", "A"), categories=["A", "B"]),
            "digit": drawn,
            "age": rng.uniform(20, 80, n),
            "sex": pd.Categorical(np.where(rng.random(n) < 0.5, "F", "M"), categories=["F", "M"]),
        }
    )
    images = np.empty((n, size, size), np.float32)
    for d, f in np.unique(np.stack([drawn, form], axis=1), axis=0):
        rows = np.flatnonzero((drawn == d) & (form == f))
        hand = covariates.iloc[rows]
        segments, of_body = _write(FORMS[d][f], hand["slant"].to_numpy(), hand["size"].to_numpy(), rng)
        images[rows] = _ink(segments if marks else segments[:, :of_body], hand["boldness"].to_numpy(), size)
    light = np.linspace(0, 0.5, size, dtype=np.float32)
    uneven = light[:, None] + light  # from dark at the upper left to light at the lower right
    images[at_b] += np.float32(site_effect / 2) * (uneven - images[at_b])
    return Cohort(
        images[:, None],
        diagnosis=np.where(ill, PATIENT, CONTROL),
        covariates=covariates,
        truth=np.where(ill, form, UNKNOWN),
        truth_names=tuple(known.name for known in FORMS[digit][: len(sizes)]),
        name=f"drawn-{digit}",
    )


def _half_of_each(kind: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n,): 0 or 1, each for half of every kind, so that it is independent of the kind."""
    code = np.unique(kind, return_inverse=True)[1]
    order = np.lexsort((rng.random(len(kind)), code))  # kind after kind, each shuffled
    place = np.empty(len(kind), int)
    place[order] = np.arange(len(kind))
    first = np.cumsum(np.bincount(code)) - np.bincount(code)
    # in a kind of odd size, the last is 0 or 1 at random
    return (place - first[code] + rng.integers(2, size=len(first))[code]) % 2


def _write(form: Form, slant: np.ndarray, scale: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """The form as each hand writes it: (hands, segments, start and end, x and y), from the centre of the page.

    Segments of the body come first; their number is returned too.
    """
    hands = len(slant)
    each = (hands, 1, 1)
    body, mark = _parse(form.body), _parse(form.mark)
    joints = {point for stroke in body for point in stroke}
    points = sorted(joints | {point for stroke in mark for point in stroke})
    written = np.tile(np.array(points), each)  # (hands, points, x and y)
    if mark:
        anchor = np.array(mark[0][0])
        own = [i for i, point in enumerate(points) if point not in joints]
        grown = _turn(written[:, own] - anchor, rng.uniform(-0.1, 0.1, hands)) * rng.uniform(0.93, 1.07, each)
        written[:, own] = anchor + grown + rng.uniform(-1, 1, each) * np.array(form.slide)
    written += rng.normal(0, 0.35, written.shape)  # tremor

    curves = [_spline([points.index(point) for point in stroke], np.array(points)) for stroke in body + mark]
    # all starts, then all ends
    path = np.concatenate([curve[:-1] for curve in curves] + [curve[1:] for curve in curves]) @ written
    x, y = path[..., :1], path[..., 1:]
    bow_x, bow_y = rng.normal(0, 0.6, (2, *each))
    x = rng.normal(1, 0.06, each) * x + bow_x * (0.5 - y**2 / 100) - slant.reshape(each) * y
    y = y + bow_y * (0.25 - x**2 / 50)
    place = rng.normal(0, 0.6, (hands, 1, 2))
    xy = _turn(np.concatenate([x, y], axis=-1), rng.normal(0, 0.04, hands)) * scale.reshape(each) + place
    return np.stack(np.split(xy, 2, axis=1), axis=2), sum(len(curve) - 1 for curve in curves[: len(body)])


def _parse(strokes: str) -> list[list[tuple[float, ...]]]:
    return [[tuple(map(float, p.split(","))) for p in stroke.split()] for stroke in strokes.split("|") if stroke]


def _turn(xy: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Rotate (hands, points, 2) by one angle per hand."""
    cos, sin = np.cos(angle), np.sin(angle)
    return xy @ np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], -2)


def _spline(stroke: list[int], points: np.ndarray) -> np.ndarray:
    """Weights (steps + 1, points) that give evenly spaced positions on a smooth curve through the stroke."""
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(points[stroke], axis=0), axis=1))])
    closed = stroke[0] == stroke[-1]
    curve = CubicSpline(along, np.eye(len(points))[stroke], bc_type="periodic" if closed else "natural")
    return curve(np.linspace(0, along[-1], 1 + round(along[-1] / STEP)))


def _ink(segments: np.ndarray, boldness: np.ndarray, size: int) -> np.ndarray:
    """Draw (hands, segments, 2, 2) with pens of these half-widths: (hands, size, size) in [0, 1]."""
    zoom = np.float32(size / PAGE)
    segments, half_width = zoom * segments.astype(np.float32), zoom * boldness.astype(np.float32)
    pixel = np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)
    images = np.empty((len(segments), size, size), np.float32)
    for first in range(0, len(segments), CHUNK):
        rows = slice(first, first + CHUNK)
        start, step = segments[rows, :, 0], segments[rows, :, 1] - segments[rows, :, 0]
        length2 = np.maximum(np.square(step).sum(-1), np.float32(1e-6))[..., None]
        away = pixel - start[..., None]  # (hands, segments, x and y, size)
        along, away2 = away * (step / length2)[..., None], np.square(away)
        nearest = images[rows]
        nearest[:] = np.inf
        for s in range(segments.shape[1]):
            # |p - a - t d|^2 = |p - a|^2 + |d|^2 t (t - 2 q), where q = (p - a).d / |d|^2 and t is q kept in [0, 1]
            q = along[:, s, 0, None, :] + along[:, s, 1, :, None]
            t = np.clip(q, 0, 1)
            distance2 = (t - 2 * q) * t * length2[:, s, :, None] + away2[:, s, 0, None, :] + away2[:, s, 1, :, None]
            np.minimum(nearest, distance2, out=nearest)
        distance = np.sqrt(np.maximum(nearest, 0))
        nearest[:] = np.clip((half_width[rows, None, None] - distance) / np.float32(SOFTNESS) + np.float32(0.5), 0, 1)
    return images


def shared_out(n: int, shares: Sequence[float]) -> np.ndarray:
    """Divide n into parts by the largest-remainder method."""
    exact = n * np.asarray(shares)
    counts = np.floor(exact + 1e-9).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1
    return counts


def _check(n: int, digit: int, sizes: Sequence[float], patients: float, size: int, **shares: float) -> None:
    if digit not in FORMS:
        raise CohortError(f"Expected a digit from 0 to 9 as the disease. Received: {digit!r}.")
    forms = FORMS[digit]
    if not 1 <= len(sizes) <= len(forms) or min(sizes) < 0 or abs(sum(sizes) - 1) > 1e-6:
        raise CohortError(
            f"Expected as sizes the shares of 1 to {len(forms)} forms of the digit {digit}, adding up to 1 "
            f"({', '.join(form.name for form in forms)}). Received: {tuple(sizes)}. "
            f"Say for example sizes={(1.0,)} or {(0.2, 0.8)}."
        )
    if n < 1 or size < 8:
        raise CohortError(f"Expected n of at least 1 image and size of at least 8 pixels. Received: {n=}, {size=}.")
    for name, share in {"patients": patients, **shares}.items():
        if not 0 <= share <= 1:
            raise CohortError(f"Expected {name} between 0 and 1. Received: {share}.")
