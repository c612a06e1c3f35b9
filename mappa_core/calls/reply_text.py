"""Reads the text of replies: reasoning text, which self-hosted servers may leave in, and JSON."""

from __future__ import annotations

import re
from typing import Any

from mappa_core.safe_json import parse_untrusted_json

_TAG = "(?:think|thinking|thought|reasoning)"
# Possessive `*+`: a reply of white space alone would otherwise be searched once for every space of it.
_REASONING = re.compile(rf"\s*+(?:<{_TAG}>)?((?:(?!<{_TAG}>).)*?)</{_TAG}>\s*", re.DOTALL)
_UNCLOSED_REASONING = re.compile(rf"\s*+<{_TAG}>(.*)", re.DOTALL)


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Return (the reasoning text at the start of `text` or None, the text after it). The opening tag can be missing, if
    it was in the prompt; the closing tag too, if the tokens ran out: then nothing follows."""
    reasoning = _REASONING.match(text) or _UNCLOSED_REASONING.match(text)
    if reasoning is None:
        return None, text
    return reasoning[1].strip("\n"), text[reasoning.end() :]


_FENCE = re.compile(r"(`{3,})(?:json)?[ \t\r]*\n(.*)\n\1", re.DOTALL | re.IGNORECASE)


def parse_json(text: str) -> Any:
    """Parse a reply that is JSON, alone or in one Markdown code fence, else what follows its reasoning text: in this
    order, as valid replies may quote a reasoning tag. Raises ValueError, without a quotation, if it is no JSON."""
    try:
        return _decode(text)
    except ValueError:
        reasoning, rest = split_reasoning(text)
        if reasoning is None:
            raise
    return _decode(rest)


def _decode(text: str) -> Any:
    fenced = _FENCE.fullmatch(text.strip())
    text = fenced[2] if fenced else text
    if not text.strip():
        raise ValueError("it is empty")
    return parse_untrusted_json(text)
