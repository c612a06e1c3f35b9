"""What is done to the pages while mkdocs builds the site: links out of `docs/` become paths, and a page that would
fetch anything from elsewhere is refused."""

from __future__ import annotations

import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

_MANUAL = Path(__file__).parents[2] / "mappa/look/manual.py"
_LINK = re.compile(r"\[([^\]]*)\]\((\.\.?/[^)#\s]*)\)")
_FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio)\b[^>]*\b(?:src|srcset|href)=[\"']?(?:https?:)?//[^>]*>"
)


def on_post_build(config: Any, **others: Any) -> None:
    """Called when the site is whole: adds its index and all its pages as one file, for language models."""
    manual = runpy.run_path(str(_MANUAL))
    text = manual["join_pages"](manual["locate_pages"](Path(config["docs_dir"]).parent))
    site = Path(config["site_dir"])
    (site / "llms-full.txt").write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text(manual["index_pages"](manual["split_pages"](text)), encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Called for every page before it is rendered: what the site does not hold is named by its path."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        text = link[1].strip("`")
        return f"`{path}`" if text in (path, posixpath.basename(path)) else f"{link[1]} (`{path}`)"

    return _LINK.sub(replaced, markdown)


def on_post_page(output: str, page: Any, **others: Any) -> str:
    """Called for every page when it is whole. Raises ValueError where a reader's browser would ask somebody else."""
    if fetched := _FETCHED.search(output):
        raise ValueError(
            f"{page.file.src_uri}: the page would fetch {fetched[0]}: the site must work without a network"
        )
    return output
