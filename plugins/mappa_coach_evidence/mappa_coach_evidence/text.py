"""Values and words in the text of actions: what an answer is made of, and what two texts have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable

CODE_FENCE = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-\u2212]?\$?\d(?:[\d,]*\d)?(?:\.\d+)?")
_WORD = re.compile(r"[^\W_]{4,}")


def without_code(text: str) -> str:
    """The text without its fenced blocks."""
    return CODE_FENCE.sub(" ", text)


def numbers(text: str) -> frozenset[float]:
    """All numbers of a text, thousands separators and currency signs removed."""
    return frozenset(map(to_number, _NUMBER.findall(text)))


def to_number(text: str) -> float:
    return float(text.replace(",", "").replace("$", "").replace("\u2212", "-"))


def holds_number(value: float, others: Iterable[float]) -> bool:
    """Whether `value`, at the decimals with which it is written, is among `others`."""
    decimals = len(repr(value).partition(".")[2]) if not value.is_integer() else 0
    return any(value == other or (decimals > 0 and round(other, decimals) == value) for other in others)


def content_words(text: str) -> frozenset[str]:
    """Words of at least four letters or digits, in lower case."""
    return frozenset(word.lower() for word in _WORD.findall(text))


def squeeze(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def last_line(text: str, limit: int = 160) -> str:
    """The last line that is not blank, cut to `limit` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:limit] if lines else ""
