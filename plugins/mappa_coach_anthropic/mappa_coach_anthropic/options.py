"""Options of the transport `anthropic`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from mappa_batch import BatchOptions
from mappa_core import ConfigError
from mappa_core.transport import check_base_url

MIN_THINKING_BUDGET = 1024


@dataclass
class Options:
    model: str = "???"
    """The model as Anthropic names it."""
    api_key_env: str = "ANTHROPIC_API_KEY"
    """The environment variable that holds the key."""
    base_url: str = "https://api.anthropic.com"
    """Where the API stands, without its `/v1`."""
    thinking: str | None = None
    """adaptive | disabled; null: as the model does, or as `thinking_budget` says"""
    thinking_budget: int | None = None
    """Tokens to think with, from 1024 up to less than `max_tokens`, for models that take such a number."""
    effort: str | None = None
    """low | medium | high | xhigh | max, as far as the model has them; null: the model's own."""
    prompt_cache: str = "5m"
    """5m | 1h | none: how long the provider keeps the system's message at hand for calls that begin alike. To keep it
    costs 1.25 or 2 times its tokens, to use it a tenth."""
    batch_api: BatchOptions | None = None
    """{}: calls are gathered in batches, at about half the price, with replies after minutes to a day | null: not."""

    def check(self) -> None:
        """Raise ConfigError where a value is not allowed."""
        check_base_url("anthropic", self.base_url)
        if urlsplit(self.base_url).path.rstrip("/").endswith("/v1"):
            raise ConfigError(
                f"anthropic: base_url: leave out the /v1 at its end, which every call adds: {self.base_url!r}"
            )
        if self.thinking not in (None, "adaptive", "disabled"):
            raise ConfigError(f"anthropic: thinking: must be adaptive or disabled, not {self.thinking!r}")
        if self.thinking_budget is not None and self.thinking is not None:
            raise ConfigError("anthropic: thinking_budget: turns thinking on by itself: leave thinking out")
        if self.thinking_budget is not None and self.thinking_budget < MIN_THINKING_BUDGET:
            raise ConfigError(
                f"anthropic: thinking_budget: must be at least {MIN_THINKING_BUDGET}, not {self.thinking_budget}"
            )
        if self.prompt_cache not in ("5m", "1h", "none"):
            raise ConfigError(f"anthropic: prompt_cache: must be one of 5m, 1h, none, not {self.prompt_cache!r}")
