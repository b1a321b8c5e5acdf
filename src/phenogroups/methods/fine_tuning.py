"""Which training subjects are set aside to judge fine-tuning, and the loss by which it is judged."""

import numpy as np

APART = 10  # one subject in ten is set aside


def some_apart(diagnosis: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, and rows set aside: a tenth of each class, at least one."""
    rng = np.random.default_rng(seed)
    classes = [rng.permutation(np.flatnonzero(diagnosis == kind)) for kind in np.unique(diagnosis)]
    if min(map(len, classes)) < 2:
        raise ValueError(
            f"Expected at least two subjects of either class to fine-tune: one learns, one judges. Received: "
            f"{', '.join(str(len(rows)) for rows in classes)}. Bring more, or leave fine_tune out."
        )
    apart = np.sort(np.concatenate([rows[: max(len(rows) // APART, 1)] for rows in classes]))
    return np.setdiff1d(np.arange(len(diagnosis)), apart), apart


def balanced_log_losses(p: np.ndarray, diagnosis: np.ndarray) -> np.ndarray:
    """(n,): log-losses weighted so that their mean is the mean over both classes; p is the probability of a patient."""
    right = np.clip(np.where(diagnosis == 1, p, 1 - p).astype(np.float64), 1e-7, 1)
    shares = np.bincount(diagnosis, minlength=2) / len(diagnosis)
    return -np.log(right) / shares[diagnosis] / np.count_nonzero(shares)
