"""The settings of every method as published: the recipes of the paper's cohorts against docs/methods/published.md."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from phenogroups.data.augment import AUGMENTATIONS
from phenogroups.data.batches import effective_batch_size
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
        name: re.findall(r"^\| (`.*) \|$", body.partition("\n## ")[0], re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {name: [row.split(" | ") for row in of_cohort] for name, of_cohort in rows.items()}


def single_settings() -> list[tuple[str, str, str]]:
    """Cohort, METHOD.SETTING and its value."""
    part = PAGE.read_text().partition("## Settings of single methods")[2].partition("\n## ")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (`\w+\.\w+`.*) \|$", part, re.MULTILINE)]
    cohorts = ("mnist7", "pneumonia", "oct", "odir", "neuropsychiatry")
    return [(cohort, name.strip("`"), v) for name, *v5, _ in rows for cohort, v in zip(cohorts, v5, strict=True)]


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


@pytest.mark.parametrize(("cohort", "name", "value"), [row for row in single_settings() if row[2] != "–"])
def test_a_setting_of_one_method_is_what_the_page_says(cohort, name, value):
    method, setting = name.split(".")
    assert str(getattr(recipe(cohort).build(method), setting)) == value


def test_temperatures_are_the_same_in_all():
    for cohort, (name, *_) in CASES:
        method = recipe(cohort).build(name.strip("`"))
        assert getattr(method, "temperature", 0.1) == 0.1
        assert getattr(method, "epsilon", 0.05) == 0.05


def test_batches_are_as_large_as_published():
    """1,391 patients of ODIR are trained on in batches of 256, although these are few steps for an epoch."""
    for cohort, (name, *_) in CASES:
        method = recipe(cohort).build(name.strip("`"))
        assert effective_batch_size(1391, method.batch_size, method.steps) == method.batch_size


def test_the_vae_weighs_errors_of_pixels_as_published():
    """A plain sum of squares beside the divergence, whatever the deviation by which the inputs are divided."""
    x = np.random.default_rng(0).normal(0.5, 0.274, (64, 1, 64, 64)).astype(np.float32)  # that of X-rays
    method = recipe("pneumonia").build("vae", augmentation="none")
    network = method.build(x.shape[1:], x).eval()
    batch = type("Batch", (), {"views": (torch.from_numpy(x),)})
    torch.manual_seed(0)
    losses = method.losses(network, batch, None)
    torch.manual_seed(0)
    h = network.encoder(batch.views[0])
    mean, log_variance = network.heads["mean"](h), network.heads["log_variance"](h)
    copy = network.heads["decoder"](mean + (log_variance / 2).exp() * torch.randn_like(mean))
    plain = (copy - batch.views[0]).square().sum((1, 2, 3)).mean()
    assert losses["reconstruction"].item() == pytest.approx(plain.item(), rel=0.02)


def test_nothing_narrower_precedes_the_latents_of_brains():
    method = recipe("neuropsychiatry").build("vae_ucsl")
    network = method.build((1, 64, 64, 64))
    widths = [layer.out_channels for layer in network.encoder.modules() if isinstance(layer, torch.nn.Conv3d)]
    assert widths == [32, 64, 128, 256, 512]
    assert network.heads["mean"].in_features >= network.heads["mean"].out_features == 256


def test_views_of_deep_ucsls_code_are_neither_flipped_nor_noisy():
    text, code = (recipe("neuropsychiatry").build(name) for name in ("deep_ucsl_paper", "deep_ucsl_paper_code"))
    text, code = (AUGMENTATIONS[method.augmentation] for method in (text, code))
    assert (text.depth_flip, text.noise) == (0.5, 0.5)
    assert code == replace(text, depth_flip=0.0, noise=0.0)
    assert AUGMENTATIONS[recipe("odir").build("deep_ucsl_paper").augmentation].vertical_flip == 0


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
