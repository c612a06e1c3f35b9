"""Truncate text in the middle: output shown to agents and coaches keeps both ends, and so the end of a traceback."""

from __future__ import annotations

SMALLEST_LIMIT = 64
"""Minimum limit in characters: a shorter text would be little more than the note about the cut."""


def split_limit(limit: int) -> tuple[int, int]:
    """Split `limit` between head and tail: one third and two thirds, as errors are in the last lines."""
    head = limit // 3
    return head, limit - head


def cut_note(count: int, unit: str = "characters") -> str:
    """The line that replaces `count` cut units."""
    return f"\n[... {count} {unit} cut ...]\n"


def cut_middle(text: str, limit: int) -> str:
    """Shorten `text` to at most `limit` characters: both its ends around a line that says how many were cut. Raises
    ValueError if `limit` is below SMALLEST_LIMIT."""
    if limit < SMALLEST_LIMIT:
        raise ValueError(f"a text is cut to {SMALLEST_LIMIT} characters or more, not {limit}")
    if len(text) <= limit:
        return text
    # The note at its longest: fewer characters are cut than the text has, so its number has no more digits.
    room = limit - len(cut_note(len(text)))
    head, tail = split_limit(room)
    return text[:head] + cut_note(len(text) - room) + text[len(text) - tail :]
