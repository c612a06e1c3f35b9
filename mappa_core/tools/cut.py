"""Cut text in the middle: output shown to agents and coaches keeps both ends, a traceback keeps its last lines."""

from __future__ import annotations

SMALLEST_LIMIT = 64
"""Characters below which a cut text would be little more than the note that says so."""


def ends(limit: int) -> tuple[int, int]:
    """Share `limit` between head and tail: one third, two thirds, as errors are named in the last lines."""
    head = limit // 3
    return head, limit - head


def cut_note(count: int, unit: str = "characters") -> str:
    """The line that stands where `count` units were cut out."""
    return f"\n[... {count} {unit} cut ...]\n"


def cut_middle(text: str, limit: int) -> str:
    """`text` in at most `limit` characters: itself where it fits, else both its ends around a line that says how many
    characters were cut.

    Raises:
        ValueError: `limit` is below SMALLEST_LIMIT.
    """
    if limit < SMALLEST_LIMIT:
        raise ValueError(f"a text is cut to {SMALLEST_LIMIT} characters or more, not {limit}")
    if len(text) <= limit:
        return text
    room = limit - len(cut_note(len(text)))
    head, tail = ends(room)
    return text[:head] + cut_note(len(text) - room) + text[len(text) - tail :]
