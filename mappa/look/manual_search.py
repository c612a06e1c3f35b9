"""Finds pages of the documentation: by name, or ranked by SQLite's full-text search (BM25) for words in any order."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import PurePosixPath

from mappa.look.manual import iter_links, title_of
from mappa_core import ConfigError

MAX_PAGES = 10
"""Pages that a search finds at most."""
_WEIGHTS = (2, 2, 2, 2, 1)
"""What a word counts in the name, the title, links to the page, headings, and text."""
_COMMON_WORDS = frozenset({
    "a", "an", "and", "any", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "have", "how", "i",
    "if", "in", "into", "is", "it", "its", "many", "me", "much", "my", "of", "on", "or", "our", "should", "so",
    "that", "the", "their", "there", "this", "to", "was", "we", "what", "when", "where", "which", "who", "whom",
    "whose", "why", "will", "with", "would", "you", "your",
})  # fmt: skip
"""Words of questions, which pages of facts have so seldom that they would count for much."""
_HEADING = re.compile(r"^#{2,} (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def find_pages(pages: Mapping[str, str], topic: str) -> list[str]:
    """Names of the pages on a topic, best first: all pages of that name, or else at most `MAX_PAGES` that have some of
    its words. Raises ConfigError where SQLite cannot search."""
    exact = [name for name in pages if topic in (name, name.removesuffix(".md"), PurePosixPath(name).stem)]
    return exact or _rank_pages(pages, topic)


def _rank_pages(pages: Mapping[str, str], topic: str) -> list[str]:
    words = re.findall(r"\w+", topic.casefold())
    asked = [word for word in words if word not in _COMMON_WORDS] or words
    if not asked:
        return []
    with closing(sqlite3.connect(":memory:")) as database:
        _fill(database, pages)
        found = database.execute(
            f"SELECT page FROM pages WHERE pages MATCH ? ORDER BY bm25(pages, 0, {', '.join(map(str, _WEIGHTS))})"
            " LIMIT ?",
            (" OR ".join(f'"{word}"' for word in asked), MAX_PAGES),
        )
        return [name for (name,) in found]


def _fill(database: sqlite3.Connection, pages: Mapping[str, str]) -> None:
    links: dict[str, list[str]] = {name: [] for name in pages}
    for target, words in iter_links(pages):
        links.get(target, []).append(words)
    try:
        database.execute(
            "CREATE VIRTUAL TABLE pages USING fts5(page UNINDEXED, name, title, links, headings, text, "
            "tokenize = 'porter unicode61')"
        )
    except sqlite3.OperationalError as error:
        raise ConfigError(
            f"the SQLite of this Python cannot search text ({error}): mappa docs lists all pages, mappa docs PAGE "
            "shows one"
        ) from error
    rows = (
        (name, name.removesuffix(".md"), title_of(page), "\n".join(dict.fromkeys(links[name])),
         "\n".join(_HEADING.findall(page)), _COMMENT.sub("", page))
        for name, page in pages.items()
    )  # fmt: skip
    database.executemany("INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?)", rows)
