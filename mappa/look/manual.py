"""The pages of the documentation as one text: what `mappa docs` shows, and what the site has for language models.

Standard library only: the scripts that build the site and the distribution run this file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MANUAL = Path(__file__).with_name("manual.md")
"""The pages as one file, which a built distribution has; a checkout has their folders."""
CHECKOUT = Path(__file__).parents[2]
PLUGINS = "plugins/"
"""Where the pages of the project's plugins are: `plugins/mappa-coach-evidence.md` is the README of that package."""
START = "index.md"
_PAGE = re.compile(r"^<!-- page: (\S+) -->\n", re.MULTILINE)
_COMMENT = re.compile(r"^ *<!--.*?-->\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")


def locate_pages(checkout: Path) -> dict[str, Path]:
    """The files of the pages in a checkout, by name of the page: those under `docs/`, and the READMEs of plugins.
    Raises ValueError where there are none."""
    docs = checkout / "docs"
    files = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md")) if path.is_file()}
    if not files:
        raise ValueError(f"{docs} has no pages: build mappa in a checkout of its repository, or from its sdist")
    readmes = sorted(checkout.glob("plugins/*/README.md"))
    return files | {f"{PLUGINS}{readme.parent.name.replace('_', '-')}.md": readme for readme in readmes}


def join_pages(files: Mapping[str, Path]) -> str:
    """Join the pages, each after a line that names it, without their comments, which are not for readers."""
    texts = ((name, _COMMENT.sub("", path.read_text("utf-8"))) for name, path in files.items())
    return "".join(f"<!-- page: {name} -->\n{text}\n" for name, text in texts)


def split_pages(text: str) -> dict[str, str]:
    """The pages of a joined text by name."""
    _, *rest = _PAGE.split(text)
    return dict(zip(rest[::2], (page.strip() + "\n" for page in rest[1::2]), strict=True))


def read_pages() -> dict[str, str]:
    """The pages by name, such as `how-to/observe.md`."""
    return split_pages(MANUAL.read_text("utf-8") if MANUAL.is_file() else join_pages(locate_pages(CHECKOUT)))


def title_of(page: str) -> str:
    """The first heading of a page."""
    return next((line[2:] for line in page.splitlines() if line.startswith("# ")), "")


def index_pages(pages: Mapping[str, str]) -> str:
    """The index of the site's pages in the form of llms.txt: a title, a summary, and a line per page."""
    summary = "Train teams of LLM agents on a coach's verdict of every action, and see who is to blame where one fails."
    of_site = ((name, page) for name, page in pages.items() if not name.startswith(PLUGINS))
    lines = (f"- [{title_of(page)}]({name.removesuffix('.md')}.html)" for name, page in of_site)
    return "\n".join(
        ("# Mappa", "", f"> {summary}", "", "All pages as one file: [llms-full.txt](llms-full.txt)", "", *lines, "")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """A link to the page `target` with its `words`. `purpose` is what the start page says that the page is for: the
    first cell of the link's row, if it has one there."""

    target: str
    words: str
    purpose: str | None


def iter_links(pages: Mapping[str, str]) -> Iterator[PageLink]:
    """The links from page to page."""
    for name, page in pages.items():
        for line in page.splitlines():
            purpose = line.split("|")[1].strip() if name == START and line.startswith("|") else None
            for words, target in _LINK.findall(line):
                yield PageLink(target=_page_at(name, target), words=words, purpose=purpose)


def _page_at(name: str, target: str) -> str:
    """The name of the page that `target` is, as the file of page `name` sees it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(_path_of(name)), target))
    readme = re.fullmatch(r"plugins/([^/]+)/README\.md", path)
    return f"{PLUGINS}{readme[1].replace('_', '-')}.md" if readme else path.removeprefix("docs/")


def _path_of(name: str) -> str:
    """The path of a page's file in a checkout."""
    if not name.startswith(PLUGINS):
        return f"docs/{name}"
    return f"{name.removesuffix('.md').replace('-', '_')}/README.md"
