"""What calls cost."""

from __future__ import annotations

from mappa_core.calls.options import Price
from mappa_core.records import Usage

_MILLION = 1_000_000


def cost(usage: Usage, price: Price | None) -> float | None:
    """US dollars for the tokens of `usage`; None where the price or a number of tokens that it needs is unknown."""
    prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    if price is None or prompt is None or completion is None:
        return None
    if price.cached is None:
        return (prompt * price.input + completion * price.output) / _MILLION
    if cached is None:
        return None
    return ((prompt - cached) * price.input + cached * price.cached + completion * price.output) / _MILLION
