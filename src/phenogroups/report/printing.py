"""A page as PDF, printed by a browser that is installed on the machine."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from phenogroups.data.writing import RunError, write_whole

BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
    "brave-browser",
)  # fmt: skip
QUIET = (
    "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic",
)  # fmt: skip
SECONDS = 120  # that printing may take


def find_chromium() -> str:
    """The program that prints; raises where there is none."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        raise RunError(
            f"Expected a browser that prints: {', '.join(BROWSERS[:3])} or another of their kind. Received: none on "
            "the PATH. Install one, or open the page in any browser (phenogroups open RUN) and print it to PDF there."
        )
    return found


def print_page(chromium: str, page: Path, pdf: Path) -> None:
    """Print a page to a PDF file."""
    # a superuser, as in a container, has no other sandbox than the container
    sandbox = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with tempfile.TemporaryDirectory() as home:
        made = Path(home) / "page.pdf"
        profile = f"--user-data-dir={Path(home) / 'profile'}"  # a running browser's own would be locked
        command = [chromium, *QUIET, *sandbox, profile, "--no-pdf-header-footer", f"--print-to-pdf={made}"]
        try:
            done = subprocess.run(
                [*command, page.resolve().as_uri()], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        if not made.is_file():
            raise RunError(f"Expected {chromium} to print {page}. Received: {said}. Print it in another browser.")
        write_whole(pdf, made.read_bytes())
