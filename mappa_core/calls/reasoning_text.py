"""Splits reasoning text off replies. Hosted providers omit it; self-hosted servers may leave it in."""

from __future__ import annotations

import re

_TAG = "(?:think|thinking|thought|reasoning)"
# Possessive `*+`: a reply of white space alone would otherwise be searched once for every space of it.
_REASONING = re.compile(rf"\s*+(?:<{_TAG}>)?((?:(?!<{_TAG}>).)*?)</{_TAG}>\s*", re.DOTALL)
_UNCLOSED_REASONING = re.compile(rf"\s*+<{_TAG}>(.*)", re.DOTALL)


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Return (the reasoning text at the start of `text` or None, the text after it).

    Reasoning stands between tags. The opening tag can be missing, if it was in the prompt; the closing tag too, if the
    tokens ran out: then nothing follows. Text that does not start with reasoning is returned unchanged.
    """
    reasoning = _REASONING.match(text) or _UNCLOSED_REASONING.match(text)
    return (None, text) if reasoning is None else (reasoning[1].strip("\n"), text[reasoning.end() :])
