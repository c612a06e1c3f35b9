"""The coach that core makes of a provider's transport."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from mappa_core.calls.caller import Caller
from mappa_core.calls.options import merged
from mappa_core.coaching.llm import LLMCoach
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.question import Questions
from mappa_core.config.checks import at_least, one_of
from mappa_core.errors import ConfigError
from mappa_core.hookspecs import Offer
from mappa_core.protocols import Coach, Transport

RULES = (
    one_of(("step", "trajectory"), "batch"),
    at_least(1, "max_tokens"),
    at_least(0, "temperature"),
)


def coach_of(offer: Offer[Transport]) -> Offer[Coach]:
    """The coach of the transport's name; its options are those of the transport and of LLMCoachOptions.

    Raises:
        PluginError: the transport's options cannot be added to. `build` of the offer raises ConfigError.
    """

    def build(options: Any) -> Coach:
        _check(offer.name, options)
        caller = Caller(offer.build(options), name=offer.name, limits=options.limits, price=options.price)
        return LLMCoach(caller, Questions(options, count=caller.count), options, settings=_settings(offer, options))

    return Offer(offer.name, build, merged(LLMCoachOptions, offer.options))


def _check(name: str, options: LLMCoachOptions) -> None:
    for rule in RULES:
        for key in rule.keys:
            value = getattr(options, key)
            if value is not None and not rule.accepts(value):
                raise ConfigError(f"{name}: {key}: must be {rule.words}, not {value!r}")


def _settings(offer: Offer[Transport], options: Any) -> str:
    """The transport's own options, but for names of environment variables, which change no answer."""
    names = (field.name for field in fields(offer.options) if not field.name.endswith("_env"))
    return json.dumps({name: getattr(options, name) for name in names}, sort_keys=True, default=str)
