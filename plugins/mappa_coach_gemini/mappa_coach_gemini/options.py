"""Options of the transport `gemini`."""

from __future__ import annotations

from dataclasses import dataclass

from mappa_batch import BatchOptions
from mappa_core import ConfigError
from mappa_core.transport import check_base_url

THINKING_LEVELS = ("minimal", "low", "medium", "high", "xhigh")
MULTI_REGIONS = ("us", "eu")


@dataclass
class Options:
    model: str = "???"
    """The model as Google names it."""
    api_key_env: str = "GEMINI_API_KEY"
    """The environment variable that holds the key; Vertex AI needs none."""
    base_url: str | None = None
    """Where the API stands, without its version; null: Google's own server."""
    vertex: bool = False
    """Ask Vertex AI, as whom the application-default credentials say (`gcloud auth application-default login`)."""
    project: str | None = None
    """The Google Cloud project that pays; null: the one of the credentials. Of Vertex AI only."""
    location: str = "global"
    """The region of Vertex AI."""
    thinking_budget: int | None = None
    """Tokens to think with: 0 none, -1 as the model likes; for models that take such a number."""
    thinking_level: str | None = None
    """minimal | low | medium | high | xhigh, for models that take such a word. Neither: the model's own."""
    batch_api: BatchOptions | None = None
    """{}: calls are gathered in batches, at about half the price, with replies after minutes to a day | null: not."""

    @property
    def url(self) -> str:
        """Base URL of the calls."""
        if self.base_url is not None:
            return self.base_url
        if not self.vertex:
            return "https://generativelanguage.googleapis.com"
        if self.location == "global":
            return "https://aiplatform.googleapis.com"
        if self.location in MULTI_REGIONS:
            return f"https://aiplatform.{self.location}.rep.googleapis.com"
        return f"https://{self.location}-aiplatform.googleapis.com"

    def check(self) -> None:
        """Raise ConfigError where a value is not allowed."""
        check_base_url("gemini", self.url)
        if self.project is not None and not self.vertex:
            raise ConfigError("gemini: project: only Vertex AI has projects: set vertex=true, or leave it out")
        if self.thinking_budget is not None and self.thinking_level is not None:
            raise ConfigError("gemini: thinking_level: a model takes either it or thinking_budget: leave one out")
        if self.thinking_level not in (None, *THINKING_LEVELS):
            raise ConfigError(
                f"gemini: thinking_level: must be one of {', '.join(THINKING_LEVELS)}, not {self.thinking_level!r}"
            )
