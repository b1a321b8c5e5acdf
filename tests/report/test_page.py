"""The page is whole, self-contained and escaped; figures survive every shape of data."""

import base64
import io
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure
from PIL import Image

from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.scores import Scores
from phenogroups.report.figures import embedding_figure, exemplars_figure, history_figure
from phenogroups.report.page import write_report


def make(shape=(1, 8, 8), *, count=40, n_subgroups=3, dimensions=5, truth=True, seed=0):
    rng = np.random.default_rng(seed)
    diagnosis = np.arange(count) % 2
    names = ("a$b", "_hidden", "Controls, or a name that is much too long for any legend")
    cohort = Cohort(
        inputs=rng.normal(size=(count, *shape)).astype(np.float32),
        diagnosis=diagnosis,
        truth=rng.integers(-1, 3, size=count) if truth else None,
        truth_names=names if truth else (),
    )
    prediction = SimpleNamespace(
        subgroup=rng.dirichlet(np.ones(n_subgroups), size=count),
        diagnosis=rng.uniform(size=count),
        embedding=rng.normal(size=(count, dimensions)),
        by_centroid=None,
    )
    return cohort, prediction


def history(epochs=12) -> pd.DataFrame:
    values = {name: np.linspace(1, 0, epochs) for name in ("classification", "clustering", "bound", "distance_ratio")}
    values["gate_entropy_controls"] = np.where(np.arange(epochs) < 2, np.nan, 0.6)
    return pd.DataFrame({"epoch": range(epochs), **values, "seconds": 1.0, "note": "x"})


def draw(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return Image.open(buffer)


def titles(figure: Figure) -> list[str]:
    return [ax.get_title() for ax in figure.axes if ax.get_title()]


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def write(path, **changes) -> Page:
    figure = Figure(figsize=(2, 1))
    figure.subplots()
    settings = {
        "title": "Subgroups <script>alert(1)</script>",
        "sentences": ["First & foremost.", "Second."],
        "scores": {"held out": Scores(class_bacc=0.9, subgroup_bacc=0.8765), "train": Scores(class_bacc=1.0)},
        "figures": {'A "caption" <b>': figure},
        "recipe": {"method": "deep_ucsl", "settings": {"n_subgroups": 2, "crop": [3, 4], "scaler": None}, "extra": {}},
    }
    write_report(path, **(settings | changes))
    return Page(path.read_text(encoding="utf-8"))


def test_page_says_everything_and_escapes_it(tmp_path):
    page = write(tmp_path / "report.html")
    assert not page.all("script")
    assert not page.all("b")
    assert "Subgroups <script>alert(1)</script>" in page.text
    order = ["First & foremost.", "Scores", "0.876", 'A "caption" <b>', "Recipe", "settings.n_subgroups", "3, 4"]
    places = [page.text.index(words) for words in order]
    assert places == sorted(places)
    assert "Overall B-ACC" not in page.text  # nobody has it
    assert "–" in page.text


def test_page_needs_no_network(tmp_path):
    page = write(tmp_path / "report.html")
    assert not page.all("link")
    (image,) = page.all("img")
    assert image["alt"] == 'A "caption" <b>'
    kind, content = image["src"].split(",", 1)
    assert kind == "data:image/png;base64"
    width, height = Image.open(io.BytesIO(base64.b64decode(content))).size
    assert width > height
    assert not re.search(r"https?://|url\(", (tmp_path / "report.html").read_text(encoding="utf-8"))


def test_alt_text_of_a_figure_is_its_label(tmp_path):
    cohort, prediction = make()
    page = write(tmp_path / "report.html", figures={"The embedding.": embedding_figure(prediction, cohort)})
    assert page.all("img")[0]["alt"].startswith("Scatter plot of 40 subjects")


def test_page_of_nothing_has_no_empty_sections(tmp_path):
    page = write(tmp_path / "report.html", sentences=[], scores={}, figures={}, recipe={})
    assert not page.all("table")
    assert not page.all("h2")


def test_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new folder" / "report.html"
    write(path, title="the old page")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, title="the new page")
    assert "the old page" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_same_report_is_the_same_bytes(tmp_path):
    cohort, prediction = make()
    pages = []
    for name in ("a.html", "b.html"):
        write(tmp_path / name, figures={"x": embedding_figure(prediction, cohort), "y": history_figure(history())})
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_embedding_figure(truth, dimensions):
    cohort, prediction = make(truth=truth, dimensions=dimensions)
    figure = embedding_figure(prediction, cohort)
    draw(figure)
    assert titles(figure) == (["Subgroups found", "Truth"] if truth else ["Subgroups found"])
    labels = legend(figure.axes[0])
    assert labels[0] == "Controls (n = 20)"
    assert sum(int(re.search(r"n = (\d+)", label)[1]) for label in labels) == 40


def test_embedding_axes_are_those_of_train():
    cohort, prediction = make(dimensions=2)
    train = SimpleNamespace(embedding=np.array([[0.0, 0.0], [0.0, 10.0], [0.0, 20.0], [1.0, 10.0]]))
    figure = embedding_figure(prediction, cohort, train)
    assert figure.axes[0].get_xlabel() == "first axis (100% of variance)"
    controls = figure.axes[0].collections[0].get_offsets()
    shown = np.abs(controls[:, 0])
    assert np.allclose(shown, np.abs(prediction.embedding[~cohort.is_patient, 1] - 10), atol=0.1)


def test_truth_looks_like_the_subgroup_it_matches():
    cohort, prediction = make(n_subgroups=3)
    prediction.subgroup = np.eye(3)[(cohort.truth + 1) % 3]
    found, truth = embedding_figure(prediction, cohort).axes

    def color_of(ax, name):
        return next(c.get_facecolor() for c in ax.collections if c.get_label().startswith(name))

    assert np.array_equal(color_of(truth, "a$b"), color_of(found, "Subgroup B"))


def test_embedding_figure_of_extreme_cohorts():
    cohort, prediction = make(n_subgroups=12, count=30)
    draw(embedding_figure(prediction, cohort))
    prediction.embedding = np.zeros((30, 4))
    draw(embedding_figure(prediction, cohort))
    one = SimpleNamespace(subgroup=np.ones((1, 1)), diagnosis=None, embedding=np.ones((1, 3)), by_centroid=None)
    draw(embedding_figure(one, cohort[:1]))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 12), (2, 8, 8), (1, 5, 8, 8)])
def test_exemplars_are_pictures(shape):
    cohort, prediction = make(shape)
    figure = exemplars_figure(cohort, prediction, per_subgroup=4)
    draw(figure)
    shown = [ax for ax in figure.axes if ax.images]
    assert 0 < len(shown) <= 12
    assert shown[0].images[0].get_array().shape == ((8, 12, 3) if shape[0] == 3 else (8, 8))


def test_exemplars_are_the_surest_patients_then_the_nearest():
    cohort, prediction = make((1, 2, 2), count=12, n_subgroups=2)
    cohort.inputs[:] = np.arange(12)[:, None, None, None]  # a picture tells who it is
    prediction.subgroup = np.tile([1.0, 0.0], (12, 1))
    prediction.subgroup[7] = [0.9, 0.1]
    prediction.subgroup[4] = [0.0, 1.0]  # a control
    prediction.embedding = np.zeros((12, 2))
    prediction.embedding[[1, 3, 5, 9, 11], 0] = [9.0, -8.0, 0.1, 2.0, -3.0]
    figure = exemplars_figure(cohort, prediction, per_subgroup=6)
    shown = [float(ax.images[0].get_array()[0, 0]) for ax in figure.axes if ax.images]
    who = np.round(np.array(shown) * 10 + 1).astype(int)  # the scale runs from subject 1 to subject 11
    assert who.tolist() == [5, 9, 11, 3, 1, 7]


def test_exemplars_of_an_empty_subgroup_and_of_black_images():
    cohort, prediction = make(count=6, n_subgroups=2)
    prediction.subgroup = np.tile([1.0, 0.0], (6, 1))
    cohort.inputs[:] = 0
    figure = exemplars_figure(cohort, prediction)
    draw(figure)
    assert "Subgroup B\nn = 0" in [text.get_text() for ax in figure.axes for text in ax.texts]


def test_features_are_bars_in_standard_deviations_of_controls():
    rng = np.random.default_rng(0)
    cohort, prediction = make((15,), count=400, n_subgroups=2)
    cohort.inputs[:] = rng.normal(2, 3, size=(400, 15))
    cohort.inputs[:, 14] = 7  # constant: no difference, no division by zero
    subgroup = np.arange(400) // 2 % 2
    prediction.subgroup = np.eye(2)[subgroup]
    cohort.inputs[cohort.is_patient & (subgroup == 1), 3] += 6
    figure = exemplars_figure(cohort, prediction, feature_names=[f"volume {j}" for j in range(15)])
    draw(figure)
    first, second = figure.axes
    assert first.get_yticklabels()[0].get_text() == "volume 3"
    assert len(first.patches) == 10
    assert len(second.patches) == 10
    assert first.patches[0].get_width() == pytest.approx(0, abs=0.5)
    assert second.patches[0].get_width() == pytest.approx(2, abs=0.5)
    with pytest.raises(ValueError, match=r"Expected 15 feature names\. Received: 1"):
        exemplars_figure(cohort, prediction, feature_names=["age"])


def test_features_that_vary_in_no_control():
    cohort, prediction = make((2,), count=40, n_subgroups=2)
    prediction.subgroup = np.eye(2)[np.arange(40) // 2 % 2]
    cohort.inputs[:] = [0, 0.1]  # a lesion that no control has, and a constant
    cohort.inputs[3::4, 0] = 5
    first, second = exemplars_figure(cohort, prediction).axes
    assert [bar.get_width() for bar in first.patches] == [0, 0]
    assert second.patches[0].get_width() == pytest.approx(5 / np.std([5, 0, 0, 0]))
    assert second.patches[1].get_width() == 0


def test_features_without_controls_and_with_one_subgroup():
    cohort, prediction = make((4,), n_subgroups=5)
    patients = SimpleNamespace(subgroup=prediction.subgroup[cohort.is_patient], embedding=None)
    draw(exemplars_figure(cohort.patients, patients))
    patients.subgroup = np.ones((20, 1))
    draw(exemplars_figure(cohort.patients, patients))


def test_history_has_a_panel_for_each_kind_of_column():
    figure = history_figure(history())
    draw(figure)
    assert titles(figure) == ["Losses", "Bound", "Distance ratio", "Gate entropy on controls"]
    assert legend(figure.axes[0]) == ["classification", "clustering"]
    assert titles(history_figure(history()[["epoch", "classification"]])) == ["Losses"]
    other = history().assign(concentration=1.0, size_0=0.4, size_1=0.6)[["epoch", "concentration", "size_0", "size_1"]]
    assert titles(history_figure(other)) == ["Losses", "Share of patients by subgroup"]
    with pytest.raises(ValueError, match="Received columns: epoch, seconds"):
        history_figure(history()[["epoch", "seconds"]])


def test_figures_leave_no_global_state():
    before = dict(rcParams)
    history_figure(history())
    assert dict(rcParams) == before
