"""What a recipe may set about the calls of one provider."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass

from mappa_core.config.checks import Rule, above, at_least
from mappa_core.errors import ConfigError, PluginError


@dataclass
class Price:
    """US dollars per million tokens. `cached` is of prompt tokens that the provider had in its cache."""

    input: float = "???"  # type: ignore[assignment]  # OmegaConf's mark of a value that has to be given
    output: float = "???"  # type: ignore[assignment]
    cached: float | None = None
    """None: the same as `input`."""


@dataclass
class CallLimits:
    concurrency: int = 64
    """Most calls at once; less for a while after the provider said that it is too much."""
    requests_per_minute: float | None = None
    """So many may go at once, then as many as that leaves room for."""
    tokens_per_minute: float | None = None
    """Prompt and completion tokens; a call waits by an estimate, which is put right when the reply is there."""
    attempts: int = 4
    """Calls for one reply, the first one included, where a fault may pass."""
    timeout_s: float = 60.0
    """Seconds that one call may take in all."""
    longest_wait_s: float = 60.0
    """Seconds to wait for another try at most; where the provider asks for more, the call fails."""
    breaker_failures: int = 16
    """Failures in a row, over all calls, after which the provider is left alone."""
    breaker_rest_s: float = 30.0
    """For so many seconds; then one call tries."""


@dataclass
class ApiPolicyOptions:
    """What core adds to the options of a transport where it is a policy."""

    send_temperature: bool = False
    """Send the temperature of the recipe; some models refuse any. False: the provider's own."""
    limits: CallLimits = field(default_factory=CallLimits)
    price: Price | None = None
    """None: unknown, and shown as unknown."""


_LIMITS = (
    at_least(1, "concurrency", "requests_per_minute", "tokens_per_minute", "attempts", "breaker_failures"),
    above(0, "timeout_s"),
    at_least(0, "longest_wait_s", "breaker_rest_s"),
)
_PRICE = (at_least(0, "input", "output", "cached"),)


def check(name: str, limits: CallLimits, price: Price | None) -> None:
    """Raise ConfigError where a limit or a price of the provider `name` makes no sense."""
    _check(f"{name}: limits", limits, _LIMITS)
    if price is not None:
        _check(f"{name}: price", price, _PRICE)


def _check(section: str, values: CallLimits | Price, rules: Iterable[Rule]) -> None:
    for rule in rules:
        for key in rule.keys:
            value = getattr(values, key)
            if value is not None and not rule.accepts(value):
                raise ConfigError(f"{section}.{key}: must be {rule.words}, not {value!r}")


def merged(added: type, options: type) -> type:
    """One dataclass with the fields of `options`, of a transport, and those that core adds.

    Raises:
        PluginError: a field is in both, or `options` is frozen, so that nothing can be added to it.
    """
    if not fields(options):
        return added
    if both := {one.name for one in fields(added)} & {one.name for one in fields(options)}:
        raise PluginError(f"{options.__qualname__} has the option {min(both)!r}, which core adds itself: rename it")
    try:
        return make_dataclass(f"{added.__name__}Of{options.__name__}", (), bases=(added, options))
    except TypeError as error:
        raise PluginError(f"{options.__qualname__}: options of a transport are a plain dataclass: {error}") from error
