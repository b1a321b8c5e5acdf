"""What the report of a large cohort costs: seconds to make it, its size, and how soon a browser has opened it.

python benchmarks/report.py --subjects 10000. Drawn digits, trained for one epoch: the report does not depend
on how well. Opening is timed in Debian's chromium by playwright, from the file on disk until the embedding is drawn.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common import Options, Row, finish, fit, main, over_seeds

from phenogroups.cli import say
from phenogroups.data.examples.drawn import drawn_digits
from phenogroups.methods import name_of, settings_of
from phenogroups.workflows.discover import write_run


@dataclass(frozen=True, kw_only=True)
class Report(Options):
    """Size and speed of report.html."""

    seeds: int = 1
    """How many: 0, 1, 2, ..."""
    subjects: int = 10_000
    """Digits to draw."""
    set: tuple[str, ...] = ("epochs=1", "restarts=1", "warmup=0")
    """Settings of the method."""

    def run(self) -> None:
        def one_seed(seed: int) -> Row:
            cohort = drawn_digits(self.subjects, seed=seed)
            train, test = cohort.split(0.2, seed)
            method = self.build(seed)
            seconds = fit(method, train)
            seen, new = method.predict_cohort(train), method.predict_cohort(test)
            recipe = {
                "method": name_of(method), "settings": settings_of(method), "input_shape": list(cohort.input_shape),
                "table": {},
            }  # fmt: skip
            with tempfile.TemporaryDirectory() as home:
                began, cpu = time.perf_counter(), time.process_time()
                write_run(Path(home) / "run", method, (train, seen), (test, {name_of(method): new}), recipe)
                costs = {"report_seconds": time.perf_counter() - began, "report_cpu_seconds": time.process_time() - cpu}
                page = Path(home) / "run" / "report.html"
                return {
                    "page_mb": page.stat().st_size / 1e6, **costs, "open_seconds": opening(page), "seconds": seconds,
                }  # fmt: skip

        finish("report", self, over_seeds(self, one_seed), subjects=self.subjects)


def opening(page: Path) -> float | None:
    """Seconds until the page is loaded and its embedding drawn; None without a browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        say("chromium or playwright is missing: opening is not timed.")
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.goto("about:blank")
        began = time.perf_counter()
        tab.goto(page.as_uri())
        tab.locator("#legend li").first.wait_for()
        seconds = time.perf_counter() - began
        browser.close()
    return seconds


if __name__ == "__main__":
    main(Report)
