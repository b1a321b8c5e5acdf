"""The page is whole, self-contained and escaped; it is made again from the folder alone."""

import base64
import io
import json
import re
import shutil
import sys
from dataclasses import fields
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from phenogroups.cli import main
from phenogroups.data.cohort import Cohort
from phenogroups.evaluation.scores import SCORE_NAMES
from phenogroups.evaluation.typical import exemplars
from phenogroups.methods import Prediction
from phenogroups.report.material import Material
from phenogroups.report.page import run_figures, write_page
from phenogroups.report.page_data import INK, _bar_picture, axis_cards
from phenogroups.report.pictures import sheet_of
from phenogroups.report.run_folder import Run, read_subgroups
from phenogroups.training.run import RunError

NASTY = "<script>alert(1)</script>"  # as a subject is called in conftest.py


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of style and script."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text, self.inside = "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("style", "script"):
            self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def html_of(run) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def test_questions_are_answered_in_order(image_run):
    page = Page(html_of(image_run))
    order = [
        "plausible", "They hold & follow the <b>pen</b>.", "Runs agree.", "The pen differs.", "Adjust for the pen.",
        "Read this first", "Subgroup B may be a <b>scanner</b>.", "Who.", "Apart.", "Sure.",
        "What was asked", "Asked & answered.", "2026-11-17, 20:15", f"phenogroups discover '{NASTY}'", "K-means",
        "How many subgroups", "Two subgroups are the most stable.", "The same are found again.",
        "What they look like", "Most typical", "Borderline", "Who is in them", "What they are associated with",
        "0.0123", "101.5", "How well patients are told", "Appendix: how it was made", "stability",
        "Recipe", "settings.n_subgroups",
        "versions.python",
    ]  # fmt: skip
    places, start = [], 0
    for words in order:
        start = page.text.index(words, start)
        places.append(start)
    assert places == sorted(places)


def test_sections_without_material_are_left_out(make_run, tmp_path):
    folder, _ = make_run(tmp_path / "run", truth=False, film=False)
    text = Page(html_of(folder)).text
    for words in ("Read this first", "across epochs", "stability", "by subgroup found", "What to do next", "by chance"):
        assert words not in text
    assert "No association was tested" in text
    assert "other numbers were not tried" in text


def test_a_folder_of_before_verdict_and_maps_test_still_has_a_page(make_run, tmp_path, monkeypatch):
    folder, made = make_run(tmp_path / "run", count=40, film=False, page=False)
    older = [f for f in fields(Material) if f.name not in ("verdict", "stability", "map_test")]
    monkeypatch.setattr("phenogroups.report.material.fields", lambda _: older)
    made.write(folder)
    monkeypatch.undo()
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({k: v for k, v in recipe.items() if k not in ("date", "command")}))
    scores = json.loads((folder / "scores.json").read_text())
    del scores["kmeans"]["intervals"]
    (folder / "scores.json").write_text(json.dumps(scores))
    write_page(folder)
    assert (Material.read(folder).verdict, Material.read(folder).map_test) == (None, None)
    text = Page(html_of(folder)).text
    assert "Command" not in text
    assert "Most typical" in text


def test_every_score_has_its_interval(image_run):
    run = Run.read(image_run)
    shown = [name for name in SCORE_NAMES if getattr(run.scores["kmeans"], name) is not None]
    assert set(shown) == set(run.intervals["kmeans"])
    text = Page(html_of(image_run)).text
    for name in shown:
        low, high = run.intervals["kmeans"][name]
        assert f"{getattr(run.scores['kmeans'], name):.3f} ({low:.3f} to {high:.3f})" in text


def test_what_one_run_cannot_know_is_not_computed(image_run):
    page = html_of(image_run)
    assert Page(page).text.count("not computed") == 2  # of each subgroup
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert "undecided" not in data["columns"]
    assert "confidence" in data["columns"]


def test_patients_are_counted_by_what_is_known_of_them(image_run):
    counts = Run.read(image_run).material.confusion
    text = " ".join(Page(html_of(image_run)).text.split())
    for (row, column), n in np.ndenumerate(counts):
        assert f"{n} ({n / counts[:, column].sum():.0%})" in text, (row, column)


def test_maps_that_may_mark_nothing_are_left_out(make_run, tmp_path, monkeypatch):
    assert "What speaks for it" in Page(html_of(make_run(tmp_path / "good", film=False)[0])).text
    monkeypatch.setattr("phenogroups.report.material.map_score", lambda *_: 0.6)
    folder, made = make_run(tmp_path / "bad", film=False)
    text = Page(html_of(folder)).text
    assert "What speaks for it" not in text
    assert text.count("are left out") == 2
    assert "60% of the comparisons" in " ".join(text.split())
    assert not made.maps.any()


def test_names_are_shown_and_never_run(image_run, table_run):
    for run in (image_run, table_run):
        page = Page(html_of(run))
        scripts = page.all("script")
        assert len(scripts) == 2  # the data, which is not run, and ours
        assert scripts[0] == {"type": "application/json", "id": "data"}
        assert NASTY in page.text
        assert "b" not in {tag for tag, _ in page.tags}
        data = json.loads(re.search(r'id="data">(.*?)</script>', html_of(run), re.DOTALL)[1])
        assert data["rows"][0][0] == NASTY
        assert data["colours"][2]["styles"][3]["name"].startswith("</script>")


def test_page_needs_no_network(image_run):
    html = html_of(image_run)
    page = Page(html)
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    assert page.all("img")
    for image in page.all("img"):
        assert image["alt"]
        kind, content = image["src"].split(",", 1)
        assert kind == "data:image/png;base64"
        Image.open(io.BytesIO(base64.b64decode(content))).verify()
    assert not re.search(r"https?://|url\(", html)
    policy = next(
        meta["content"] for meta in page.all("meta") if "content" in meta and "default-src" in meta["content"]
    )
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_report_makes_the_same_bytes_from_the_folder_alone(image_run, tmp_path):
    copy = tmp_path / "mailed"
    shutil.copytree(image_run, copy)
    (copy / "report.html").unlink()
    assert main(["report", str(copy), "--figures", str(tmp_path / "figures")]) == 0
    assert (copy / "report.html").read_bytes() == (image_run / "report.html").read_bytes()
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names == {
        "embedding", "exemplars", "drivers", "confusion", "confidence", "criteria", "diagnosis", "film", "history",
    }  # fmt: skip
    for name in names:
        with Image.open(tmp_path / "figures" / f"{name}.png") as picture:
            assert picture.width <= 8.7 / 2.54 * 300, name  # a column of a paper at 300 dots an inch
        svg = (tmp_path / "figures" / f"{name}.svg").read_text()
        assert svg.startswith("<?xml")
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: (\d+(?:\.\d+)?)px", svg)]
        assert min(sizes, default=6) >= 6, name


def test_features_are_bars_in_deviations_of_controls(table_run):
    run = Run.read(table_run)
    assert "features" in run_figures(run)
    page = Page(html_of(table_run))
    assert "Mean of the training patients, in standard deviations from controls." in " ".join(page.text.split())
    assert run.material.features[0] == "volume 1"  # what the subgroups were made of
    a, b = run.material.mean_bars[:, 0]
    assert a * b < 0
    assert abs(a) == pytest.approx(4, abs=1)


@pytest.mark.parametrize(("shape", "wide"), [((1, 8, 8), 8), ((3, 8, 12), 12), ((2, 8, 8), 8), ((1, 5, 8, 6), 20)])
def test_pictures_of_every_kind(make_run, tmp_path, shape, wide):
    folder, _ = make_run(tmp_path / "run", shape, count=40, page=False)
    m = Material.read(folder)
    colours = (3,) if shape[0] == 3 else ()
    assert m.thumbnails.shape[1:] == (8, wide, *colours)  # of a volume: 6 + 6 + 8 columns, three slices
    assert m.maps.shape[1:] == m.difference.shape[1:] == m.pictures.shape[1:3]


def test_large_pictures_are_made_small(make_run, tmp_path):
    m = Material.read(make_run(tmp_path / "run", (1, 480, 400), count=24, film=False, page=False)[0])
    assert m.pictures.shape[1:] == (320, 267)
    assert m.thumbnails.shape[1:] == (48, 40)


def test_many_pictures_are_smaller_so_that_the_page_stays_small(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr("phenogroups.report.material.PICTURES", 1)
    m = Material.read(make_run(tmp_path / "run", (1, 480, 400), count=48, film=False, page=False)[0])
    assert m.pictures.shape[1:] == (160, 133)


def test_material_comes_back_as_it_was(make_run, evidence, tmp_path):
    folder, made = make_run(tmp_path / "run", evidence=evidence, page=False)
    again = Material.read(folder)
    for name, value in vars(made).items():
        back = getattr(again, name)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(back, value, err_msg=name)
        elif hasattr(value, "columns"):
            assert list(back.columns) == list(value.columns)
            assert len(back) == len(value)
        else:
            assert back == value, name


def test_a_folder_without_or_with_damaged_material_is_refused(make_run, tmp_path):
    folder, _ = make_run(tmp_path / "run", count=24, page=False)
    content = (folder / "report.safetensors").read_bytes()
    (folder / "report.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="as it was written"):
        write_page(folder)
    (folder / "report.safetensors").unlink()
    with pytest.raises(RunError, match="Runs of earlier versions keep the page they have"):
        write_page(folder)
    assert main(["report", str(tmp_path)]) == 2


def test_whoever_is_called_na_is_called_so(tmp_path):
    (tmp_path / "s.csv").write_text(
        "subject,part,diagnosis,subgroup,p_A\nNA,train,patient,NA,\nnull,train,control,,0.5\n"
    )
    rows = read_subgroups(tmp_path / "s.csv")
    assert rows["subject"].tolist() == ["NA", "null"]
    assert rows["subgroup"].tolist() == ["NA", ""]
    assert np.isnan(rows["p_A"][0])


def test_the_sheet_holds_every_picture_at_its_place():
    pictures = np.zeros((37, 8, 16, 3), np.uint8)
    pictures += (np.arange(37) * 6).astype(np.uint8)[:, None, None, None]
    sheet = sheet_of(pictures)
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["url"].split(",")[1]))).convert("L"))
    for i in range(37):
        row, column = divmod(i, sheet["columns"])
        part = image[row * 8 : row * 8 + 8, column * 16 : column * 16 + 16]
        assert abs(float(part.mean()) - i * 6) < 5


def test_exemplars_are_nearest_and_borderline_are_the_least_sure(make_run, tmp_path):
    run = Run.read(make_run(tmp_path / "run", count=240, film=False, page=False)[0])
    m, rows = run.material, run.subjects
    for k, letter in enumerate("AB"):
        own = rows[(rows["part"] == "held-out") & (rows["subgroup"] == letter)]
        sure = own[f"p_{letter}"].round(2)
        typical = m.gallery[(m.gallery_subgroup == k) & ~m.gallery_borderline]
        borderline = m.gallery[(m.gallery_subgroup == k) & m.gallery_borderline]
        assert (len(typical), len(borderline)) == (12, 6)
        surer_half = own[sure >= sure.nlargest(len(own) // 2).min()]
        assert typical.tolist() == surer_half.sort_values(f"distance_{letter}").index[:12].tolist()
        assert borderline.tolist() == own.sort_values(f"p_{letter}").index[:6].tolist()
        assert sure[typical].min() > sure[borderline].max()


@pytest.mark.parametrize("members", [0, 1, 2, 7, 18, 19, 60])
def test_who_is_typical_is_surer_than_who_is_borderline(members):
    rng = np.random.default_rng(members)
    p = np.where(rng.random(members) < 0.5, 1.0, 0.5 + rng.random(members) / 2)  # many are quite sure
    new = Prediction(np.column_stack([p, 1 - p]), None, rng.normal(size=(members, 3)))
    rows, is_borderline = exemplars(new, np.zeros(members, int), np.zeros((2, 3)), 0)
    assert len(set(rows)) == len(rows) == min(members, len(rows))
    assert (~is_borderline).sum() >= min(members, 12) - 6 * (members > 1)
    shown = p[rows].round(2)
    assert shown[~is_borderline].min(initial=1) > shown[is_borderline].max(initial=-1)
    nobody, _ = exemplars(new, np.ones(members, int), np.zeros((2, 3)), 0)
    assert len(nobody) == 0


def test_an_empty_subgroup_has_a_card_that_says_so(make_run, tmp_path):
    folder, _ = make_run(tmp_path / "run", count=16, n_subgroups=4, film=False)
    sizes = Run.read(folder).sizes("held-out")
    assert 0 in sizes
    text = Page(html_of(folder)).text
    words = "No held-out patient fell into this subgroup: there are no pictures of its patients."
    assert text.count(words) == sizes.count(0)
    assert text.count("Most typical") == len(sizes) - sizes.count(0)  # and no heading above nothing


def test_upright_bars_have_sign_and_length():
    picture = _bar_picture(np.array([1.0, -0.5, 0.0]))
    bar = (picture == INK).all(axis=2)
    above, below = bar[:24], bar[25:]
    assert above[:, 1:6].sum(axis=0).tolist() == [24] * 5
    assert below[:, 7:12].sum(axis=0).tolist() == [12] * 5
    assert not below[:, :7].any()
    assert not above[:, 6:].any()
    assert not bar[:, 12:].any()


def test_umap_is_one_of_the_views_where_it_is_installed(make_run, tmp_path, monkeypatch):
    (tmp_path / "umap.py").write_text(
        "class UMAP:\n"
        "    def __init__(self, **settings): self.settings = settings\n"
        "    def fit(self, x): self.mean = x.mean(axis=0); return self\n"
        "    def transform(self, x): return (x - self.mean)[:, :2]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "umap", raising=False)
    folder, made = make_run(tmp_path / "run", (15,), film=False, page=False)
    assert made.umap.shape == (40, 2)
    assert Material.read(folder).umap.dtype == np.float32
    monkeypatch.delitem(sys.modules, "umap")


def test_the_page_of_none_shows_what_was_tested_and_how_patients_vary(none_run):
    for kind in ("images", "table"):
        page = Page(html_of(none_run / kind))
        order = [
            "no subgroups", "No subgroups: with 2, ", "What to try next", "--covariates", "What was asked",
            "phenogroups discover x", "What was tested", "as of normal distributions at least 4 deviations apart",
            "p at most 0.005", "p at most 0.001 for each pair", "2.1 deviations: fails", "p 0.5: fails",
            "p 0.4: fails", "5.0 deviations: passes", "p 0.5: fails", "p 0.3: fails",
            "Where the subjects lie", "What varies most among the patients", "Axis 1", "Axis 2", "Axis 3", "Appendix",
            "gap of smaller", "settings.n_subgroups",
        ]  # fmt: skip
        start = 0
        for words in order:
            start = page.text.index(words, start)
        assert NASTY in html_of(none_run / kind) or "\\u003cscript" in html_of(none_run / kind)
        data = json.loads(re.search(r'id="data">(.*?)</script>', html_of(none_run / kind), re.DOTALL)[1])
        assert len(data["points"]) == len(data["rows"]) == 80
    ends = [image["alt"] for image in Page(html_of(none_run / "images")).all("img") if "end of axis" in image["alt"]]
    assert len(ends) == len(set(ends)) == 3 * 2 * 6
    assert "Correlation of each feature" in Page(html_of(none_run / "table")).text


def test_patients_at_the_ends_are_those_farthest_out():
    cohort = Cohort(np.zeros((40, 1, 8, 8), np.float32), np.arange(40) % 2, [f"s{i}" for i in range(40)])
    vectors = np.random.default_rng(0).normal(size=(40, 3)) * [3, 2, 1]
    cards = axis_cards(cohort, vectors, None)
    patients = np.arange(1, 40, 2)
    for axis, card in enumerate(cards):
        order = patients[np.argsort(vectors[patients, axis])]
        assert [one["name"] for one in card["ends"]["one"]] == [f"s{i}" for i in order[:6]]
        assert [one["name"] for one in card["ends"]["the other"]] == [f"s{i}" for i in order[::-1][:6]]
    variance = vectors[patients].var(axis=0)
    assert [card["share"] for card in cards] == [f"{share:.0%}" for share in variance / variance.sum()]


def test_features_follow_an_axis_by_their_correlation():
    rng = np.random.default_rng(0)
    inputs, ill = rng.normal(size=(60, 15)).astype(np.float32), np.arange(60) % 2
    vectors = np.column_stack([inputs[:, 3] * 2, -inputs[:, 7]])
    first, second = axis_cards(Cohort(inputs, ill), vectors, [f"f{j}" for j in range(15)])
    assert (first["bars"][0]["name"], first["bars"][0]["value"]) == ("f3", "+1.00")
    assert (second["bars"][0]["name"], second["bars"][0]["value"]) == ("f7", "-1.00")
    expected = np.corrcoef(inputs[ill == 1, int(first["bars"][1]["name"][1:])], vectors[ill == 1, 0])[0, 1]
    assert float(first["bars"][1]["value"]) == pytest.approx(expected, abs=0.006)
