"""Prices of calls."""

from __future__ import annotations

from mappa_core.calls.options import Price
from mappa_core.records import Usage

_MILLION = 1_000_000


def cost(usage: Usage, price: Price | None) -> float | None:
    """Return the price of `usage` in US dollars; None if the price or a needed token count is unknown."""
    prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    if price is None or prompt is None or completion is None:
        return None
    if price.cached is None:
        return (prompt * price.input + completion * price.output) / _MILLION
    if cached is None:
        return None
    return ((prompt - cached) * price.input + cached * price.cached + completion * price.output) / _MILLION
