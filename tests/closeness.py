"""What two predictions of the same subjects have in common wherever they are made (docs/guides/interrupted_runs.md)."""

import numpy as np

from phenogroups.methods import Prediction

RELATIVE = 1e-5  # the promise
ABSOLUTE = 1e-6  # for numbers near zero: as a share of the largest of their kind


def assert_same_prediction(found: Prediction, expected: Prediction) -> None:
    """Numbers to 1e-5 relative, and the same subgroup of whoever's probabilities do not tie within that."""
    for name, value in vars(expected).items():
        if value is None:
            assert getattr(found, name) is None, name
            continue
        scale = np.abs(value).max(initial=0)
        np.testing.assert_allclose(
            getattr(found, name), value, rtol=RELATIVE, atol=ABSOLUTE * scale, err_msg=name, strict=True
        )
    second, first = np.sort(expected.subgroup, axis=1)[:, -2:].T
    clear = first - second > 2 * RELATIVE * first
    np.testing.assert_array_equal(found.subgroup.argmax(axis=1)[clear], expected.subgroup.argmax(axis=1)[clear])
