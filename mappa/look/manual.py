"""The pages of the documentation as one text: what `mappa docs` shows, and what the site has for language models.

Standard library only: the scripts that build the site and the distributions run this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

MANUAL = Path(__file__).with_name("manual.md")
"""The pages as one file, which a built distribution has; a checkout has their folder."""
FOLDER = Path(__file__).parents[2] / "docs"
_PAGE = re.compile(r"^<!-- page: (\S+) -->\n", re.MULTILINE)


def join_pages(folder: Path) -> str:
    """Join all pages under `folder`, each after a line that names it."""
    pages = sorted(path for path in folder.rglob("*.md") if path.is_file())
    return "".join(
        f"<!-- page: {path.relative_to(folder).as_posix()} -->\n{path.read_text('utf-8')}\n" for path in pages
    )


def split_pages(text: str) -> dict[str, str]:
    """The pages of a joined text by name."""
    _, *rest = _PAGE.split(text)
    return dict(zip(rest[::2], (page.strip() + "\n" for page in rest[1::2]), strict=True))


def read_pages() -> dict[str, str]:
    """The pages by name, such as `how-to/observe.md`."""
    return split_pages(MANUAL.read_text("utf-8") if MANUAL.is_file() else join_pages(FOLDER))


def title_of(page: str) -> str:
    """The first heading of a page."""
    return next((line[2:] for line in page.splitlines() if line.startswith("# ")), "")


def index_pages(pages: Mapping[str, str]) -> str:
    """The index of the pages in the form of llms.txt: a title, a summary, and a line per page."""
    summary = "Train teams of LLM agents on a coach's verdict of every action, and see who is to blame where one fails."
    lines = (f"- [{title_of(page)}]({name.removesuffix('.md')}.html)" for name, page in pages.items())
    return "\n".join(
        ("# Mappa", "", f"> {summary}", "", "All pages as one file: [llms-full.txt](llms-full.txt)", "", *lines, "")
    )


def find_pages(pages: Mapping[str, str], topic: str) -> list[str]:
    """Names of the pages on a topic: the page of that name; or else those whose name or title has all its words; or
    else those whose text has them."""
    exact = [name for name in pages if topic in (name, name.removesuffix(".md"), Path(name).stem)]
    words = topic.casefold().split()
    titled = [name for name, page in pages.items() if _has(f"{name} {title_of(page)}", words)]
    return exact or titled or [name for name, page in pages.items() if _has(page, words)]


def _has(text: str, words: list[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)
