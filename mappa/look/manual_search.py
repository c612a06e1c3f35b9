"""Finds pages of the documentation: by name, or ranked by SQLite's full-text search (BM25) for words in any order."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from pathlib import PurePosixPath

from mappa.look.manual import iter_links, title_of
from mappa_core import ConfigError

MAX_PAGES = 10
"""Pages that a search finds at most."""
_WEIGHTS = {"name": 1, "title": 2, "purpose": 8, "links": 2, "headings": 1, "text": 1}
"""What a word counts in the parts of a page: the start page says in few words what a page is for, and links to it what
it is about."""
_COMMON_WORDS = frozenset({
    "a", "an", "and", "any", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "have", "how", "i",
    "if", "in", "into", "is", "it", "its", "many", "me", "much", "my", "of", "on", "or", "our", "should", "so",
    "that", "the", "their", "there", "this", "to", "was", "we", "what", "when", "where", "which", "who", "whom",
    "whose", "why", "will", "with", "would", "you", "your",
})  # fmt: skip
"""Words of questions, which pages of facts have so seldom that they would count for much."""
_HEADING = re.compile(r"^#{2,} (.+)$", re.MULTILINE)


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
    weights = ", ".join(map(str, _WEIGHTS.values()))
    with closing(sqlite3.connect(":memory:")) as database:
        _fill(database, pages)
        found = database.execute(
            f"SELECT page FROM pages WHERE pages MATCH ? ORDER BY bm25(pages, 0, {weights}) LIMIT ?",
            (" OR ".join(f'"{word}"' for word in asked), MAX_PAGES),
        )
        return [name for (name,) in found]


def _fill(database: sqlite3.Connection, pages: Mapping[str, str]) -> None:
    try:
        database.execute(
            f"CREATE VIRTUAL TABLE pages USING fts5(page UNINDEXED, {', '.join(_WEIGHTS)}, "
            "tokenize = 'porter unicode61')"
        )
    except sqlite3.OperationalError as error:
        raise ConfigError(
            f"the SQLite of this Python cannot search text ({error}): mappa docs lists all pages, mappa docs PAGE "
            "shows one"
        ) from error
    # Each once: what many pages say in the same words is said of a page once.
    purposes: dict[str, dict[str, None]] = defaultdict(dict)
    links: dict[str, dict[str, None]] = defaultdict(dict)
    for link in iter_links(pages):
        if link.purpose is None:
            links[link.target][link.words] = None
        else:
            purposes[link.target][link.purpose] = None
    for name, page in pages.items():
        parts = {
            "name": name.removesuffix(".md"),
            "title": title_of(page),
            "purpose": "\n".join(purposes[name]),
            "links": "\n".join(links[name]),
            "headings": "\n".join(_HEADING.findall(page)),
            "text": page,
        }
        database.execute("INSERT INTO pages VALUES (?, ?, ?, ?, ?, ?, ?)", (name, *map(parts.__getitem__, _WEIGHTS)))
