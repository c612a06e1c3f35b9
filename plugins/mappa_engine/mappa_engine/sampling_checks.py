"""Checks of sampling requests, shared by all samplers."""

from __future__ import annotations

from mappa_core import ConfigError
from mappa_core.engine import PromptTooLong, Sampling
from mappa_engine.arrays import Int32


def check_request(prompt: Int32, sampling: Sampling, *, model_name: str, window: int) -> None:
    """Raise PromptTooLong if prompt and max_tokens exceed the model's window, ConfigError if the sampling settings are
    invalid, or leave no room for any prompt."""
    if sampling.temperature < 0.0 or not 0.0 < sampling.top_p <= 1.0 or sampling.top_k < 0 or sampling.max_tokens < 1:
        raise ConfigError(
            f"sampling needs temperature >= 0, 0 < top_p <= 1, top_k >= 0 and max_tokens >= 1, not {sampling}"
        )
    if sampling.max_tokens >= window:
        # As PromptTooLong it would be the fault of the agents whose texts the prompt quotes.
        raise ConfigError(
            f"max_tokens={sampling.max_tokens} leaves no room for a prompt in the window of {model_name}, {window} "
            "tokens: lower agents.NAME.max_tokens or sampling.max_tokens"
        )
    if not len(prompt):
        raise ValueError("a prompt has at least one token")
    if len(prompt) + sampling.max_tokens > window:
        raise PromptTooLong(
            f"a prompt of {len(prompt)} tokens and max_tokens={sampling.max_tokens} do not fit the window of "
            f"{model_name}, {window} tokens"
        )
