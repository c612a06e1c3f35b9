"""Options of the calls to one provider."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Any

from mappa_core.config.rules import above, at_least, check_fields
from mappa_core.errors import PluginError
from mappa_core.records import Usage


@dataclass
class Price:
    """US dollars per million tokens. `cached` is the price of prompt tokens from the provider's cache."""

    input: float = "???"  # type: ignore[assignment]  # OmegaConf's marker of a required value
    output: float = "???"  # type: ignore[assignment]
    cached: float | None = None
    """None: the same as `input`."""

    def cost(self, usage: Usage) -> float | None:
        """Return the price of `usage` in US dollars; None if a needed token count is unknown."""
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        # Without a price of their own, how many of the prompt's tokens were cached changes nothing.
        cached = 0 if self.cached is None else usage.cached_tokens
        if prompt is None or completion is None or cached is None:
            return None
        cached_price = self.input if self.cached is None else self.cached
        # `prompt_tokens` include the cached ones.
        return ((prompt - cached) * self.input + cached * cached_price + completion * self.output) / 1_000_000

    def highest(self, *, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price in US dollars of that many tokens at most, with none or all of the prompt cached."""
        prompt_price = max(self.input, self.cached or 0.0)
        return (prompt_tokens * prompt_price + completion_tokens * self.output) / 1_000_000

    def scale(self, share: float) -> Price:
        cached = None if self.cached is None else self.cached * share
        return replace(self, input=self.input * share, output=self.output * share, cached=cached)

    def check(self) -> None:
        check_fields(self, at_least(0, "input", "output", "cached"))


@dataclass
class CallLimits:
    concurrency: int = 64
    """Maximum number of concurrent calls; lowered for a while after the provider reports overload."""
    requests_per_minute: float | None = None
    """Token bucket: a burst of this many, then this rate."""
    tokens_per_minute: float | None = None
    """Prompt and completion tokens; a call waits by an estimate, which is corrected when the reply arrives."""
    attempts: int = 4
    """Calls for one reply, including the first, if the fault is retryable."""
    timeout_s: float = 60.0
    """Timeout of one call in seconds."""
    max_wait_s: float = 60.0
    """Maximum seconds to wait before a retry; if the provider asks for more, the call fails."""
    breaker_failures: int = 16
    """Consecutive failures, over all calls, after which the circuit breaker opens."""
    breaker_rest_s: float = 30.0
    """Seconds for which it stays open; then one call probes."""

    def check(self) -> None:
        check_fields(
            self,
            at_least(1, "concurrency", "requests_per_minute", "tokens_per_minute", "attempts", "breaker_failures"),
            above(0, "timeout_s"),
            at_least(0, "max_wait_s", "breaker_rest_s"),
        )


@dataclass
class ApiPolicyOptions:
    """Options that core adds to those of a transport that is used as a policy."""

    send_temperature: bool = False
    """Send the temperature of the recipe; some models refuse any. False: the provider's default."""
    limits: CallLimits = field(default_factory=CallLimits)
    price: Price | None = None
    """None: unknown, and reported as unknown."""


def charged_price(options: Any) -> Price | None:
    """Return the price of calls under the `options` of a coach or policy: in batches (`batch_api`) its `price_share` of
    `price`; None if unknown."""
    price: Price | None = getattr(options, "price", None)
    batches = getattr(options, "batch_api", None)
    if price is None or batches is None:
        return price
    return price.scale(batches.price_share)


def merge_options(added: type, options: type) -> type:
    """Build one dataclass with the fields of a transport's `options` and those that core adds. Raises PluginError if a
    field is in both, or `options` is frozen and cannot be extended."""
    if not fields(options):
        return added
    both = {field.name for field in fields(added)} & {field.name for field in fields(options)}
    if both:
        raise PluginError(f"{options.__qualname__} has the option {min(both)!r}, which core adds itself: rename it")

    def check(self: object) -> None:
        # Both: of two methods in the bases, only that of the first would be called.
        for part in (added, options):
            part_check = getattr(part, "check", None)
            if callable(part_check):
                part_check(self)

    try:
        name = f"{added.__name__}Of{options.__name__}"
        return make_dataclass(name, (), bases=(added, options), namespace={"check": check})
    except TypeError as error:
        raise PluginError(f"{options.__qualname__}: options of a transport are a plain dataclass: {error}") from error
