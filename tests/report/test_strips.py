"""Properties of images that subgroups follow are shown by the patients at both ends, where the warning stands."""

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest

from phenogroups.data.cohort import Cohort
from phenogroups.data.properties import pixel_properties
from phenogroups.evaluation.confounds import Followed
from phenogroups.methods import PlainKMeans
from phenogroups.report.material import STRIPS, Material, _strips
from phenogroups.report.page import write_page
from phenogroups.workflows.discover import discover

STRIP = re.compile(
    r'<div class="gallery strip.*?aria-label="Patients by (.*?) of their images">(.*?)<p class="note">', re.S
)
ALT = re.compile(r'<img src="data:[^"]*" alt="Patient (\S+) of subgroup (\S+), \D+ ([^"]*)">')


def exposed(shape=(1, 24, 24), count=160):
    """Half of everybody, patients or not, is overexposed: K-means on pixels finds just that."""
    rng = np.random.default_rng(0)
    ill, bright = np.arange(count) % 2, np.arange(count) // 2 % 2
    images = rng.normal(0.4, 0.03, (count, *shape)) + 0.3 * bright.reshape(-1, *[1] * len(shape))
    images[ill == 1, :, :4] += 0.1
    return Cohort(images.astype(np.float32), ill)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strips") / "run"
    return discover(exposed(), PlainKMeans(), folder), exposed()


def test_the_ends_of_a_planted_property_stand_below_its_warning(run):
    found, cohort = run
    html = (found.folder / "report.html").read_text(encoding="utf-8")
    (warning,) = found.verdict.why
    said, strip = html.index(warning.split(":")[0]), STRIP.search(html)
    assert html.index("What to do next") > strip.start() > said
    name, content = strip.groups()
    assert name == "brightness"
    assert content.index("Lowest brightness") < content.index("Highest brightness")
    shown = pd.DataFrame(ALT.findall(unescape(content))[:8], columns=["subject", "subgroup", "value"]).set_index(
        "subject"
    )
    brightness = pixel_properties(cohort.inputs)["image_brightness"].set_axis(cohort.subject)[cohort.is_patient]
    assert list(shown.index) == [*brightness.nsmallest(4).index, *brightness.nlargest(4).index[::-1]]
    assert shown["value"].tolist() == [f"{value:.3g}" for value in brightness[shown.index]]
    letters = found.subgroups.set_index("subject")["subgroup"]
    assert shown["subgroup"].tolist() == letters[shown.index].tolist()
    assert shown["subgroup"][:4].nunique() == shown["subgroup"][4:].nunique() == 1


def test_strips_are_made_again_from_the_folder_and_are_few(run):
    found, _ = run
    before = (found.folder / "report.html").read_bytes()
    assert len(Material.read(found.folder).strips) <= STRIPS
    assert write_page(found.folder).read_bytes() == before


def test_a_warning_beside_the_verdict_has_its_strip_too(make_run, evidence, tmp_path):
    follows = Followed("contrast", "image", False, "They follow contrast.", ("image_contrast",))
    warned = replace(evidence, warnings=("They follow contrast.",), followed=(follows,))
    html = (make_run(tmp_path / "run", evidence=warned, film=False)[0] / "report.html").read_text(encoding="utf-8")
    (name, content), *others = STRIP.findall(html)
    assert (name, others) == ("contrast", [])
    assert html.index("They follow contrast.") < html.index("Lowest contrast") < html.index("What was asked")
    assert len(ALT.findall(unescape(content))) == 8


def test_the_clearest_property_of_each_warning_comes_first():
    cohort = exposed(count=40)
    names = ("image_brightness", "image_contrast", "image_noise")
    warnings = [Followed("a", "image", True, "A.", names), Followed("b", "image", False, "B.", ("image_sharpness",))]
    train, test = cohort[:20], cohort[20:]
    found = _strips((train, test), warnings, (0.0, 1.0))
    assert found["strips"] == [
        {"warning": "A.", "property": "image_brightness"}, {"warning": "B.", "property": "image_sharpness"},
        {"warning": "A.", "property": "image_contrast"},
    ]  # fmt: skip
    values = cohort.image_properties["image_sharpness"].to_numpy()[found["strip_rows"][found["strip_of"] == 1]]
    np.testing.assert_array_equal(found["strip_values"][found["strip_of"] == 1], values)
    assert (np.diff(values) >= 0).all()
    assert cohort.is_patient[found["strip_rows"]].all()
    brightest = cohort.inputs[found["strip_rows"][7], 0]
    np.testing.assert_allclose(found["strip_pictures"][7], 255 * brightest.clip(0, 1), atol=1)
    assert _strips((train, test), [Followed("age", "covariate", True, "C.")], (0.0, 1.0)) == {}


def test_of_a_volume_the_middle_slice_is_shown():
    cohort = exposed((1, 9, 24, 20), count=40)
    found = _strips((cohort[:20], cohort[20:]), [Followed("a", "image", True, "A.", ("image_brightness",))], (0.0, 1.0))
    assert found["strip_pictures"].shape == (8, 24, 20)
    first = cohort.inputs[found["strip_rows"][0], 0, 4]
    np.testing.assert_allclose(found["strip_pictures"][0], 255 * first.clip(0, 1), atol=1)
