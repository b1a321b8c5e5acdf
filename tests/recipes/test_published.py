"""The settings of every method as published: the recipes of the paper's cohorts against docs/methods/published.md."""

import re
from pathlib import Path

import pytest

from phenogroups.data.augment import AUGMENTATIONS
from phenogroups.methods import METHODS, DeepMethod
from phenogroups.methods.reading import ReadByKMeans
from phenogroups.methods.registry import class_of
from phenogroups.recipes import recipe

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "published.md"
SIDES = {"mnist1": "32", "mnist7": "32"}  # of the examples, which are padded


def tables() -> dict[str, list[list[str]]]:
    """By cohort: the cells of each row."""
    parts = re.split(r"^## .*`--recipe (\w+)`.*$", PAGE.read_text(), flags=re.MULTILINE)
    rows = {
        name: re.findall(r"^\| (`.*) \|$", body, re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {name: [row.split(" | ") for row in of_cohort] for name, of_cohort in rows.items()}


def reading_of(method) -> str:
    if name_is(method, "byol"):
        return f"K-means ({method.reading})"
    if name_is(method, "vae_ucsl"):
        return "UCSL"
    if isinstance(method, ReadByKMeans) or getattr(method, "reading", "head") == "kmeans":
        return "K-means"
    return "head"


def name_is(method, name: str) -> bool:
    return type(method) is class_of(name)


def row_of(cohort: str, name: str) -> list[str]:
    chosen = recipe(cohort)
    method = chosen.build(name)
    sides = chosen.reading.get("size") or chosen.reading.get("frame")
    side = "64" if method.encoder == "vae64" else str(sides[0]) if sides else SIDES[cohort]
    augmentation = "none" if method.augmentation == "auto" else method.augmentation
    return [
        f"`{name}`", method.encoder, side, str(method.batch_size), f"{method.learning_rate:g}", method.schedule,
        str(method.epochs), getattr(method, "scaler", "-"), augmentation, reading_of(method),
    ]  # fmt: skip


CASES = [(cohort, row) for cohort, rows in tables().items() for row in rows]


@pytest.mark.parametrize(("cohort", "row"), CASES, ids=[f"{cohort}-{row[0]}" for cohort, row in CASES])
def test_a_recipe_is_what_the_page_says(cohort, row):
    assert row_of(cohort, row[0].strip("`")) == row


def test_every_method_that_is_trained_has_one():
    shown = {row[0].strip("`") for _, row in CASES}
    ablations = {"deep_ucsl_paper_soft", "deep_ucsl_paper_hard", "deep_ucsl_paper_without_sinkhorn"}
    trained = {name for name in METHODS if issubclass(class_of(name), DeepMethod)}
    assert shown == trained - ablations - {"deep_ucsl"}
    assert set(tables()) == {"mnist7", "pneumonia", "oct", "odir", "neuropsychiatry"}
    assert recipe("mnist1").methods == recipe("mnist7").methods


def test_all_are_trained_as_published():
    """No method keeps this project's schedule, smallest number of steps or recalibration."""
    for cohort, (name, *_) in CASES:
        method = recipe(cohort).build(name.strip("`"))
        assert (method.steps, method.recalibrate_batch_norm) == (1, False)
        assert method.augmentation in AUGMENTATIONS or method.augmentation == "auto"


def test_deep_ucsl_has_two():
    text, code = (recipe("mnist7").build(name) for name in ("deep_ucsl_paper", "deep_ucsl_paper_code"))
    changed = {key for key in vars(text) if vars(text)[key] != vars(code)[key]}
    assert changed == {"posterior", "scaler"}
    assert (text.posterior, code.posterior, code.scaler) == ("sinkhorn", "proportions", "robust")


def test_the_published_simclr_rises_for_ten_epochs_and_falls_to_a_hundredth():
    method = recipe("mnist7").build("simclr")
    rates = [method.learning_rate * method.learning_rate_factor(epoch) for epoch in range(75)]
    assert rates[0] == pytest.approx(5e-4)
    assert max(rates) == pytest.approx(rates[9]) == pytest.approx(5e-3)
    assert rates[74] == pytest.approx(5e-5, rel=0.1)
