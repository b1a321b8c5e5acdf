"""What mkdocs does to pages before it renders them."""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMANDS = ("demo", "discover", "predict", "report", "check", "compare", "methods")
HELP = "<!-- help of every command -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the help of the command line; links to files beside the pages become their paths."""
    if HELP in markdown:
        markdown = markdown.replace(HELP, "\n".join(f"## {name}\n\n```text\n{_help(name)}\n```\n" for name in COMMANDS))
    here = (ROOT / "docs" / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        outside = target.exists() and not target.is_relative_to(ROOT / "docs")
        return f"{link[1]} (`{target.relative_to(ROOT)}`)" if outside else link[0]

    return re.sub(r"(?<!!)\[([^\]\[]+)\]\(((?:\.\./)+[^)#]+)\)", shown, markdown)


def _help(command: str) -> str:
    """What `phenogroups COMMAND --help` prints, in plain text of 100 columns."""
    os.environ |= {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}
    from phenogroups.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return printed.getvalue().strip()
