"""Saliency: which parts of a patient, compared with other patients, raise the log-odds of a subgroup."""

from itertools import product
from math import factorial

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from phenogroups.data.batches import as_tensor
from phenogroups.data.cohort import Cohort
from phenogroups.data.embeddings import keeping_embeddings
from phenogroups.methods import DeepMethod, Method

REFERENCES = 40  # other patients that a patient is compared with
GRID = {2: 16, 3: 6}  # places of the occluding patch along a side, by dimensions of the image
PATCH = 2.5  # side of the patch, in steps from one place to the next
AT_ONCE = 64  # changed inputs that are predicted together, at most
NUMBERS_AT_ONCE = 2**19  # in them: gradients keep every layer's output, of photographs 70 MB each
BLUR = 1 / 24  # deviation of the Gaussian that smooths a map, as a share of the longest side
HIDDEN = 0.1  # share of an image, the brightest in its map, that is hidden to test the map
ELSEWHERE = 19  # places where as much is hidden for comparison
LUCKY = 0.05  # share of random maps that may pass the test
CERTAIN = 1e-7  # probabilities nearer to 0 or 1 cannot be distinguished in float32


def saliency(method: Method, cohort: Cohort, row: int, subgroup: int, references: np.ndarray) -> np.ndarray:
    """How much each pixel or feature of a subject raises the log-odds of the subgroup above that of `references`.

    The shape of one input without channels; negative values are set to zero. Networks are explained by gradients, all
    other methods by occlusion.
    """
    own = np.asarray(cohort.inputs[row : row + 1])[0]
    found = expected_gradients(method, own, references, subgroup) if isinstance(method, DeepMethod) else None
    if found is None:
        with keeping_embeddings(None):  # embeddings of changed images are not used again
            found = occlusion(method, cohort, row, subgroup, references.mean(axis=0))
    return np.maximum(found, 0)


def smoothed(found: np.ndarray) -> np.ndarray:
    """The map of an image or volume, smoothed; features have no neighbours and stay as they are."""
    return found if found.ndim == 1 else gaussian_filter(found, BLUR * max(found.shape))


def map_score(method: Method, cohort: Cohort, row: int, subgroup: int, found: np.ndarray, instead: np.ndarray) -> float:
    """The share of other places where hiding as much as the map marks lowers the odds less: 1 is good, 0.5 is chance.

    The input where the map is in its highest tenth is replaced by `instead`; then the same shape at other places.
    """
    own, rng = np.asarray(cohort.inputs[row : row + 1])[0], np.random.default_rng(row)
    bright = found > np.quantile(found, 1 - HIDDEN)
    # far enough away that the shapes hardly overlap
    shifts = [[rng.integers(side // 4, side - side // 4 + 1) for side in found.shape] for _ in range(ELSEWHERE)]
    hidden = [np.roll(bright, shift, axis=tuple(range(found.ndim))) for shift in [[0] * found.ndim, *shifts]]
    with keeping_embeddings(None):
        odds = [_log_odds(method, cohort, row, np.where(at, instead, own)[None], subgroup)[0] for at in hidden]
    return float(np.mean(np.array(odds[1:]) > odds[0]))


def beats_random_maps(shares: np.ndarray) -> bool:
    """Whether maps with such scores (`map_score`) are rare among random maps.

    Scores of n random maps are uniform on [0, 1], and for d <= 1 their sum exceeds n - d with probability d^n / n!.
    """
    n, short = len(shares), float(np.sum(1 - np.asarray(shares)))
    return n > 0 and short <= 1 and short**n / factorial(n) <= LUCKY


def some_patients(cohort: Cohort, most: int, seed: int = 0) -> np.ndarray:
    """Rows of at most `most` patients, the same at every call."""
    patients = np.flatnonzero(cohort.is_patient)
    return np.sort(np.random.default_rng(seed).choice(patients, min(most, len(patients)), replace=False))


def expected_gradients(method: DeepMethod, own: np.ndarray, references: np.ndarray, subgroup: int) -> np.ndarray | None:
    """Expected gradients (Erion et al. 2021) from other patients to this one; channels are summed.

    None where the subgroups of the method have no gradient.
    """
    encoder, subgroup = method.whole_encoder.eval(), method.by_size_[subgroup]
    device = next(encoder.parameters()).device
    total = np.zeros(own.shape)
    # every reference with its own point between reference and subject, evenly spread over all references
    along = np.random.default_rng(0).permutation((np.arange(len(references)) + 0.5) / len(references))
    size = max(1, min(NUMBERS_AT_ONCE // own.size, AT_ONCE))
    for first in range(0, len(references), size):
        some = slice(first, first + size)
        start = as_tensor(references[some], device)
        way = as_tensor(own[None], device) - start
        share = torch.as_tensor(along[some], dtype=start.dtype, device=device).reshape(-1, *[1] * own.ndim)
        x = (start + share * way).requires_grad_()
        p = method.read(method.network_, encoder(x).float(), method.beliefs_)["subgroup"][:, subgroup]
        if not p.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(torch.logit(p, CERTAIN).sum(), x)
        total += (gradient * way).sum(0).numpy(force=True)
    return (total if own.ndim == 1 else total.sum(axis=0)) / len(references)


def occlusion(method: Method, cohort: Cohort, row: int, subgroup: int, instead: np.ndarray) -> np.ndarray:
    """How much the log-odds of the subgroup fall when a patch (or a feature) of this subject is replaced by `instead`.

    MONAI's occlusion needs a network, and blanks a patch instead of showing what others have there.
    """
    own = np.asarray(cohort.inputs[row : row + 1])[0]
    patches = [(slice(j, j + 1),) for j in range(len(own))] if own.ndim == 1 else _patches(own.shape[1:])
    fall, covered = (np.zeros(own.shape[-len(patches[0]) :]) for _ in range(2))
    before = _log_odds(method, cohort, row, own[None], subgroup)[0]
    for first in range(0, len(patches), AT_ONCE):
        some = patches[first : first + AT_ONCE]
        changed = np.repeat(own[None], len(some), axis=0)
        for copy, patch in zip(changed, some, strict=True):
            copy[..., *patch] = instead[..., *patch]
        after = _log_odds(method, cohort, row, changed, subgroup)
        for patch, value in zip(some, before - after, strict=True):
            fall[patch] += value
            covered[patch] += 1
    return fall / np.maximum(covered, 1)


def _log_odds(method: Method, cohort: Cohort, row: int, inputs: np.ndarray, subgroup: int) -> np.ndarray:
    known = {name: getattr(cohort, name).iloc[[row] * len(inputs)] for name in ("covariates", "files")}
    changed = Cohort(inputs, np.zeros(len(inputs)), **known)
    p = method.predict_cohort(changed).subgroup[:, subgroup].astype(np.float64)
    p = np.clip(p, CERTAIN, 1 - CERTAIN)
    return np.log(p) - np.log1p(-p)


def _patches(sides: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Overlapping boxes of one size on an even grid, cut at the border."""
    axes = []
    for side in sides:
        step = max(side / GRID[len(sides)], 1)
        half = PATCH * step / 2
        centres = np.arange(step / 2, side, step)
        axes.append([slice(max(round(c - half), 0), max(round(c + half), 1)) for c in centres])
    return list(product(*axes))
