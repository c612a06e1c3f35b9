"""Tables of HTML, which notebooks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mappa_core.redaction import clean


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """Build a table of HTML; of no rows nothing. The first `text` columns are for text, the others for figures. Texts
    may be a stranger's: they are escaped, keys in them masked."""
    if not (body := "".join(f"<tr>{_cells('td', row, text)}</tr>" for row in rows)):
        return ""
    head = f"<thead><tr>{_cells('th', columns, text)}</tr></thead>" if columns else ""
    return f'<table><caption style="text-align: left">{html_text(caption)}</caption>{head}<tbody>{body}</tbody></table>'


def html_text(text: str) -> str:
    """Escape a text, and mask keys in it."""
    return escape(clean(text))


def _cells(tag: str, texts: Sequence[str], left: int) -> str:
    return "".join(
        f'<{tag} style="text-align: {"left" if place < left else "right"}">{html_text(text)}</{tag}>'
        for place, text in enumerate(texts)
    )
