"""Options of the transport `openai`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mappa_batch import BatchOptions
from mappa_core import ConfigError
from mappa_core.transport import check_base_url

CHOICES = {
    "api": ("chat", "responses"),
    "json_mode": ("schema", "object", "none"),
    "token_field": ("max_completion_tokens", "max_tokens"),
}


@dataclass
class Options:
    model: str = "???"
    """The model as the server names it."""
    base_url: str = "https://api.openai.com/v1"
    """Where the API begins, with its `/v1`: of a server of your own, for example http://localhost:8000/v1."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """The environment variable that holds the key; null for a server that asks for none."""
    api: str = "chat"
    """chat: `/chat/completions`, which every server has | responses: `/responses`, OpenAI's newer one, which counts
    tokens"""
    json_mode: str = "schema"
    """schema: replies are held to a JSON schema | object: to be JSON | none: to nothing"""
    token_field: str = "max_completion_tokens"
    """max_completion_tokens | max_tokens: how `chat` calls the longest reply; Ollama reads only max_tokens."""
    reasoning_effort: str | None = None
    """none | minimal | low | medium | high | xhigh | max, as far as the model has them; null: the model's own."""
    send_seed: bool = True
    """Whether `chat` passes a seed on; off for servers that refuse it. `responses` has none."""
    send_cache_key: bool = True
    """Whether calls that begin alike say so (`prompt_cache_key`); off for servers that refuse unknown fields."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of every request, as the server documents them; they win over those above."""
    batch_api: BatchOptions | None = None
    """{}: calls are gathered in batches, at about half the price, with replies after minutes to a day | null: not."""

    def check(self) -> None:
        """Raise ConfigError where a value is not allowed."""
        check_base_url("openai", self.base_url, path="/v1")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"openai: {name}: must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
