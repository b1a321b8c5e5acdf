"""The page in a real browser (Debian's chromium, headless): opened from disk, used by pointer and keyboard, printed."""

import shutil
from dataclasses import replace

import pandas as pd
import pytest

from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.evaluation.confounds import Followed
from phenogroups.workflows.compare import compare

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[test]'")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")

# what a reader sees, and no part of which may lie on another
OVERLAP = """() => {
  const seen = [...document.querySelectorAll(
    "h1, h2, h3, h4, p, img, canvas, select, button, input, label.tick, .value, .bars th, figcaption, #legend li, " +
    "#subject, td, thead th"
  )].filter((e) => e.getClientRects().length && e.checkVisibility());
  const boxes = seen.map((e) => e.getBoundingClientRect());
  const found = [];
  for (let i = 0; i < seen.length; i++) for (let j = i + 1; j < seen.length; j++) {
    if (seen[i].contains(seen[j]) || seen[j].contains(seen[i])) continue;
    const a = boxes[i], b = boxes[j];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) found.push(`${seen[i].outerHTML.slice(0, 80)} on ${seen[j].outerHTML.slice(0, 80)}`);
  }
  return found;
}"""

# the contrast of every text with what lies behind it, by the formula of WCAG 2
CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const e of document.querySelectorAll("main *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || ["SCRIPT", "STYLE", "OPTION"].includes(e.tagName)) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${e.tagName} ${ratio.toFixed(2)} ${e.textContent.slice(0, 40)}`);
  }
  return poor;
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        # a container's root has no other sandbox than the container
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a run's page and expects no network, no error and no word in the console."""
    contexts, wrong = [], []

    def open_page(run, width=1024, name="report.html"):
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="no-preference")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
        url = (run / name).as_uri()
        page.on("request", lambda r: None if r.url == url or r.url.startswith("data:") else wrong.append(r.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def legend(page) -> list[str]:
    return page.locator("#legend li").all_inner_texts()


def point_at_somebody(page, run):
    """Move over the first subject's place in two dimensions."""
    canvas = page.locator("#embedding")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = page.evaluate("JSON.parse(document.getElementById('data').textContent).points[0]")[:2]
    scale = min(box["width"], box["height"]) / 2 / 1060
    page.mouse.move(box["x"] + box["width"] / 2 + x * scale, box["y"] + box["height"] / 2 - y * scale)


@pytest.mark.parametrize("kind", ["image_run", "table_run"])
def test_hovering_shows_image_and_row(visit, request, kind):
    run = request.getfixturevalue(kind)
    page = visit(run)
    assert "Point at a subject" in page.locator("#subject").inner_text()
    point_at_somebody(page, run)
    picture = page.locator("#subject canvas")
    picture.wait_for()
    assert page.locator("#subject tr").first.inner_text().split("\t")[0] == "subject"
    who = page.locator("#subject td").first.inner_text()
    assert who in picture.get_attribute("aria-label")
    painted = "c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return new Set(d).size }"
    page.wait_for_timeout(100)
    assert picture.evaluate(painted) > 3  # a picture, not an empty sheet


def test_colours_change_the_legend(visit, image_run):
    page = visit(image_run)
    seen = {}
    for way in page.locator("#colour option").all_inner_texts():
        page.select_option("#colour", label=way)
        seen[way] = legend(page)
    assert list(seen) == ["subgroup", "diagnosis", "truth", "age", "sex", "<b>"]
    assert seen["diagnosis"] == ["Controls (20)", "Patients (20)"]
    assert [words.split(" (")[0] for words in seen["subgroup"]] == ["Controls", "Subgroup A", "Subgroup B"]
    assert any(words.startswith("</script>") for words in seen["truth"])
    assert {words.split(" (")[0] for words in seen["sex"]} == {"Unknown", "F", "M"}
    assert len(seen["age"]) == 1  # a ramp


def test_controls_can_be_hidden(visit, image_run):
    page = visit(image_run)
    ink = """() => { const c = document.getElementById("embedding"), copy = new OffscreenCanvas(c.width, c.height);
      const pen = copy.getContext("2d", { willReadFrequently: true }); pen.drawImage(c, 0, 0);
      const d = pen.getImageData(0, 0, c.width, c.height).data;
      let gray = 0;
      for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 60 && d[i] === d[i + 1] && d[i] === d[i + 2]) gray++;
      return gray; }"""
    before = page.evaluate(ink)
    page.uncheck("#controls")
    assert before > 100
    assert page.evaluate(ink) == 0
    assert page.locator("#embedding").get_attribute("data-shown") == "20"
    assert not any("Controls" in words for words in legend(page))


def test_three_dimensions_turn(visit, image_run):
    page = visit(image_run)
    page.select_option("#view", label="3-D, principal axes")
    shot = "document.getElementById('embedding').toDataURL()"
    before = page.evaluate(shot)
    canvas = page.locator("#embedding")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 90)
    page.mouse.up()
    dragged = page.evaluate(shot)
    canvas.focus()
    page.keyboard.press("Shift+ArrowLeft")
    assert len({before, dragged, page.evaluate(shot)}) == 3


def test_the_film_plays(visit, image_run):
    page = visit(image_run)
    shot = "document.getElementById('film').toDataURL()"
    first = page.evaluate(shot)
    assert page.locator("#epoch").inner_text().startswith("epoch 1, distance ratio")
    page.click("#play")
    assert page.locator("#play").inner_text() == "Pause"
    sync_api.expect(page.locator("#epoch")).to_contain_text("epoch 5", timeout=30_000)
    sync_api.expect(page.locator("#play")).to_have_text("Play", timeout=30_000)
    assert page.evaluate(shot) != first
    page.locator("#frame").focus()
    page.keyboard.press("Home")
    assert page.locator("#epoch").inner_text().startswith("epoch 1,")


def test_everything_is_reached_by_keyboard(visit, image_run):
    page = visit(image_run)
    reached = set()
    for _ in range(45):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"colour", "view", "controls", "embedding", "play", "frame"} <= reached
    page.locator("#embedding").focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#subject td").first.inner_text()
    after = []
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
        after.append(page.locator("#subject td").first.inner_text())
    assert first
    assert len({first, *after}) > 2  # one goes from subject to subject


def test_a_picture_is_enlarged_by_pointer_and_by_keyboard(visit, image_run):
    page = visit(image_run)
    dialog, buttons = page.locator("dialog"), page.locator(".gallery").first.locator(".enlarge")
    assert not dialog.is_visible()
    small = buttons.nth(1).locator("img")
    before = small.bounding_box()["width"]
    buttons.nth(1).click()
    assert dialog.locator("img").bounding_box()["width"] > 2 * before
    assert dialog.locator("img").get_attribute("src") == small.get_attribute("src")
    assert f"(2 of {buttons.count()})" in dialog.locator("p").inner_text()
    page.keyboard.press("ArrowRight")
    assert f"(3 of {buttons.count()})" in dialog.locator("p").inner_text()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    page.keyboard.press("ArrowLeft")  # the picture that was shown last has the focus
    page.keyboard.press("Enter")
    assert f"(2 of {buttons.count()})" in dialog.locator("p").inner_text()
    dialog.locator("img").click()
    assert not dialog.is_visible()


GALLERIES = """() => [...document.querySelectorAll(".gallery")].map((gallery) => {
  const boxes = [...gallery.querySelectorAll("img")].map((image) => image.getBoundingClientRect());
  const rows = {};
  for (const box of boxes) rows[Math.round(box.top)] = (rows[Math.round(box.top)] || 0) + 1;
  return { count: boxes.length, rows: Object.values(rows), least: Math.min(...boxes.map((box) => box.width)) };
})"""


@pytest.fixture(scope="module")
def many_pictures(make_run, tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("many") / "run", (1, 20, 20), count=240, film=False)[0]


@pytest.mark.parametrize(("width", "columns"), [(400, 2), (1000, 3), (1280, 6), (1920, 6)])
def test_rows_of_pictures_are_full_and_large(visit, many_pictures, width, columns):
    galleries = visit(many_pictures, width).evaluate(GALLERIES)
    assert {12, 6} <= {gallery["count"] for gallery in galleries}
    for gallery in galleries:
        assert gallery["least"] >= 160
        if gallery["count"] % columns == 0:
            assert set(gallery["rows"]) == {columns}


@pytest.fixture(scope="module")
def of_contrast(make_run, evidence, tmp_path_factory):
    follows = Followed("contrast", "image", False, "They follow contrast.", ("image_contrast",))
    seen = replace(evidence, warnings=("They follow contrast.",), followed=(follows,))
    return make_run(tmp_path_factory.mktemp("contrast") / "run", (1, 20, 20), film=False, evidence=seen)[0]


@pytest.mark.parametrize(("width", "rows"), [(400, [4, 4]), (1280, [8])])
def test_the_ends_of_a_property_stand_side_by_side(visit, of_contrast, width, rows):
    page = visit(of_contrast, width)
    (strip,) = (one for one in page.evaluate(GALLERIES) if one["count"] == 8 and one["least"] < 160)
    assert strip["rows"] == rows
    assert page.evaluate(OVERLAP) == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator(".strip .enlarge").nth(4).click()
    assert "contrast" in page.locator("dialog p").inner_text()
    assert "(5 of 8)" in page.locator("dialog p").inner_text()


# every cell of a table lies in its frame, or can be scrolled to
CUT = """() => [...document.querySelectorAll("table")].filter((table) => table.checkVisibility()).filter((table) => {
  const frame = table.closest(".wide") || table.parentElement, own = frame.getBoundingClientRect();
  const scrolls = getComputedStyle(frame).overflowX === "auto";
  const cells = [...table.querySelectorAll("th, td")];
  const inside = cells.every((cell) => cell.scrollWidth <= cell.clientWidth + 1);
  return own.right > document.documentElement.clientWidth + 1 || !inside ||
    (!scrolls && table.getBoundingClientRect().right > own.right + 1);
}).map((table) => table.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def wide_tables(make_run, evidence, tmp_path_factory):
    wide = pd.DataFrame({f"a covariate of long name {i}": [f"{i / 7:.6f} ({i}; {i}.123456)"] * 3 for i in range(14)})
    return make_run(tmp_path_factory.mktemp("wide") / "run", film=False, evidence=replace(evidence, profiles=wide))[0]


@pytest.mark.parametrize("width", [400, 1280])
def test_tables_scroll_instead_of_being_cut(visit, wide_tables, width):
    page = visit(wide_tables, width)
    assert page.evaluate(CUT) == []
    frame = page.locator("[aria-label='Profiles of the subgroups']")
    assert frame.evaluate("frame => frame.scrollWidth > frame.clientWidth")
    frame.focus()
    page.keyboard.press("End")
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    assert frame.evaluate("frame => frame.scrollLeft") > 0


@pytest.mark.parametrize("width", [360, 1024, 1920])
@pytest.mark.parametrize("kind", ["images", "table"])
def test_the_page_of_none_in_a_browser(visit, none_run, kind, width):
    page = visit(none_run / kind, width)
    page.locator("#embedding").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#subject td").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAP) == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize("width", [360, 1024, 1920])
@pytest.mark.parametrize("kind", ["image_run", "table_run"])
def test_nothing_overlaps(visit, request, kind, width):
    page = visit(request.getfixturevalue(kind), width)
    page.locator("#embedding").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(50)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAP) == []


def test_contrast_and_words_for_pictures(visit, image_run):
    page = visit(image_run)
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("[...document.images].every((image) => image.alt.length > 5)")
    canvases = "[...document.querySelectorAll('canvas:not([aria-hidden])')]"
    assert page.evaluate(f"{canvases}.every((canvas) => canvas.getAttribute('aria-label'))")
    assert page.evaluate("[...document.querySelectorAll('h1')].length") == 1


def test_it_prints(visit, image_run):
    page = visit(image_run)
    page.emulate_media(media="print")
    assert not page.locator("#embedding").is_visible()
    assert page.locator("img[alt^='Scatter plot']").is_visible()
    assert page.locator("img[alt^='The embedding after']").is_visible()
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page") >= 3


def test_without_script_the_pictures_are_there(browser, image_run):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((image_run / "report.html").as_uri())
    assert page.locator("img[alt^='Scatter plot']").is_visible()
    assert not page.locator("#embedding").is_visible()
    context.close()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "c"
    compare(drawn_digits(120, size=8, seed=0), ["kmeans", "hydra"], folder, seeds=1, isolated=False)
    return folder


@pytest.mark.parametrize("width", [360, 1024, 1920])
def test_methods_beside_each_other(visit, compared, width):
    page = visit(compared, width, "compare.html")
    shots = [page.evaluate(f"document.getElementById('method-{k}').toDataURL()") for k in (0, 1)]
    page.locator("#method-0").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#subject canvas").get_attribute("aria-label").startswith("Image of")
    for k in (0, 1):  # marked in both
        assert page.evaluate(f"document.getElementById('method-{k}').toDataURL()") != shots[k]
    page.select_option("#colour", label="diagnosis")
    assert legend(page) == ["Controls (12)", "Patients (12)"]
    assert page.evaluate(OVERLAP) == []
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
