"""Example cohorts by name, each with the subjects to train on and to score."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from phenogroups.data.cohort import Cohort, CohortError
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.data.examples.drawn_brains import drawn_brains
from phenogroups.data.examples.mnist import mnist, parse_labels
from phenogroups.data.examples.pneumonia import has_embeddings, pneumonia_embeddings
from phenogroups.data.study import Study

Given = str | Path | None
HELD_OUT = 0.2  # share, where an example has no test cohort


def example(name: str, *, data: Given = None, labels: Given = None, subjects: int | None = None) -> Study:
    """`data`: the folder of public files; `labels`: a JSON file of known subgroups; `subjects`: at most this many."""
    if name not in EXAMPLES:
        raise CohortError(f"Expected an example cohort among {', '.join(EXAMPLES)}. Received: {name!r}.")
    if subjects is not None and subjects < 1:
        raise CohortError(f"Expected at least 1 subject. Received: {subjects}.")
    return EXAMPLES[name](data, labels, subjects)


def _drawn(draw: Callable[..., Cohort], data: Given, labels: Given, subjects: int | None) -> Study:
    if data is not None or labels is not None:
        raise CohortError("Expected no files for the drawn cohort, which is drawn with its truth. Received: a path.")
    return Study(draw() if subjects is None else draw(subjects), held_out=HELD_OUT)


def _mnist(digit: int, data: Given, labels: Given, subjects: int | None) -> Study:
    """Subgroups are scored on the split that has labels, the diagnosis on the test images."""
    labelled = None if labels is None else parse_labels(labels)[0]
    train, test = (
        _some(mnist(digit, data=data, split=split, labels=labels if labelled == split else None), subjects)
        for split in ("train", "test")
    )
    return Study(train, train if labelled == "train" else test, test)


def _pneumonia(data: Given, labels: Given, subjects: int | None) -> Study:
    """The table of embeddings, scored on its test split if that has known kinds, otherwise on held-out patients."""
    if has_embeddings(data, "test"):
        test = _some(pneumonia_embeddings(data, split="test", labels=labels), subjects)
        if test.truth is not None and (test.truth >= 0).any():
            return Study(_some(pneumonia_embeddings(data), subjects), test)
    return Study(_some(pneumonia_embeddings(data, labels=labels), subjects), held_out=HELD_OUT)


def _some(cohort: Cohort, subjects: int | None) -> Cohort:
    """Evenly spaced rows, so that all kinds are included."""
    if subjects is None or subjects >= len(cohort):
        return cohort
    return cohort[np.linspace(0, len(cohort) - 1, subjects).astype(int)]


EXAMPLES: dict[str, Callable[[Given, Given, int | None], Study]] = {
    "drawn": partial(_drawn, drawn_digits),
    "drawn_brains": partial(_drawn, drawn_brains),
    **{f"mnist{digit}": partial(_mnist, digit) for digit in range(10)},
    "pneumonia": _pneumonia,
}
