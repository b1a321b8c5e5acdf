"""What mkdocs does to pages before it renders them."""

import base64
import contextlib
import io
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMANDS = ("demo", "discover", "predict", "report", "open", "check", "compare", "methods")
HELP = "<!-- help of every command -->"
NOTEBOOK, ANSI = ".ipynb", re.compile(r"\x1b\[[0-9;]*m")
WIDTH = 76  # letters of a line of output that fit on a page; tables are narrower


def on_files(files: Any, config: Any) -> Any:
    """Every notebook gets a page of its text, its code and what that printed and drew when it was last run."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.endswith(NOTEBOOK)]:
        name = file.src_uri.removesuffix(NOTEBOOK)
        page, pictures = notebook_page(Path(file.abs_src_path))
        files.append(File.generated(config, f"{name}.md", content=page))
        for i, picture in enumerate(pictures):
            files.append(File.generated(config, f"{name}-{i}.png", content=picture))
    return files


def notebook_page(path: Path) -> tuple[str, list[bytes]]:
    """The notebook as Markdown, and the pictures that it shows as NAME-0.png, NAME-1.png, ..."""
    parts: list[str] = []
    pictures: list[bytes] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                parts.append(f"![What the code above draws]({path.stem}-{len(pictures)}.png)")
                pictures.append(base64.b64decode("".join(data["image/png"])))
            else:
                text = ANSI.sub("", "".join(data["text/plain"])).strip("\n")
                wrapped = [textwrap.fill(line, WIDTH) if len(line) > WIDTH else line for line in text.split("\n")]
                parts.append("\n".join(["```text", *wrapped, "```"]))
    title, *rest = parts
    about = f"*This page is a notebook: [download it]({path.name}) and run it, or read on.*"
    return "\n\n".join([title, about, *rest]), pictures


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the help of the command line; links to files beside the pages become their paths.

    Links to notebooks become links to their pages.
    """
    markdown = re.sub(r"(tutorials/\w+)\.ipynb", r"\1.md", markdown)
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
