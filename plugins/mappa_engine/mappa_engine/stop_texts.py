"""Texts at which sampling ends (`Sampling.stop`), found in the tokens of an action."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]

_SLACK_TOKENS = 8
"""Tokens decoded before those that may hold a text: the first ones of a part may decode otherwise than in the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    """Where sampling ended: the first `tokens` tokens hold `stop_text`, and the `text` before it."""

    tokens: int
    text: str
    stop_text: str


def has_stop(decode: Decode, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """Whether the last of `tokens` completes a text of `stop`, if none of the earlier ones did."""
    if not stop:
        return False
    # A token stands for one byte or more, so that so many at the end hold any of the texts: no step decodes the whole.
    last = tokens[-(max(len(text.encode()) for text in stop) + _SLACK_TOKENS) :]
    return any(text in decode(last) for text in stop) and any(text in decode(tokens) for text in stop)


def find_stop(decode: Decode, tokens: Sequence[int], stop: Sequence[str]) -> StopMatch | None:
    """Find the first token that completes a text of `stop`; None if none does. Of several that it completes, the one
    that begins first counts."""

    def holds_one(count: int) -> bool:
        text = decode(tokens[:count])
        return any(wanted in text for wanted in stop)

    if not stop or not holds_one(len(tokens)):
        return None
    count = bisect_left(range(len(tokens)), True, key=holds_one)
    text = decode(tokens[:count])
    at, found = min((text.index(wanted), wanted) for wanted in stop if wanted in text)
    return StopMatch(tokens=count, text=text[:at], stop_text=found)
