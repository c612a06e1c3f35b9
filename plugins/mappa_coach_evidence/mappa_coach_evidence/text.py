"""Values and words in the text of actions: what an answer is made of, and what two texts have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FENCE = "```"
_NUMBER = re.compile(r"(?<![\w.])[-\u2212]?\$?\d(?:[\d,]*\d)?(?:\.\d+)?")
_WORD = re.compile(r"[^\W_]{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """A fenced block: where it begins and ends in the text, fences included, and the code between them."""

    start: int
    end: int
    code: str


def code_blocks(text: str) -> Iterator[CodeBlock]:
    """Iterate over the fenced blocks that are closed, in time linear in the text: a regular expression takes the square
    of it where a model wrote thousands of fences."""
    end = 0
    while (start := text.find(FENCE, end)) >= 0:
        first = text.find("\n", start) + 1
        close = text.find(FENCE, first) if first else -1
        if close < 0:
            return
        end = close + len(FENCE)
        yield CodeBlock(start=start, end=end, code=text[first:close])


def without_code(text: str) -> str:
    """The text without its fenced blocks."""
    end, parts = 0, []
    for block in code_blocks(text):
        parts.append(text[end : block.start])
        end = block.end
    return " ".join([*parts, text[end:]])


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


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as they are."""
    return frozenset(text.split())


def squeeze(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def last_line(text: str, limit: int = 160) -> str:
    """The last line that is not blank, cut to `limit` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:limit] if lines else ""
