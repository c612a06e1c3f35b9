"""LLM coaches that core builds from transports."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from mappa_core.calls.client import ProviderClient
from mappa_core.calls.options import merge_options
from mappa_core.coaching.llm_coach import LLMCoach
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import PromptBuilder
from mappa_core.hookspecs import Offer
from mappa_core.protocols import Coach, Transport


def llm_coach_offer(offer: Offer[Transport]) -> Offer[Coach]:
    """Build the offer of an LLM coach from a transport, under the same name; its options are those of the transport and
    of LLMCoachOptions.

    Raises:
        PluginError: the transport's options cannot be extended.
    """

    def build(options: Any) -> Coach:
        caller = ProviderClient(offer.build(options), name=offer.name, limits=options.limits, price=options.price)
        return LLMCoach(caller, PromptBuilder(options, count=caller.count), options, settings=_settings(offer, options))

    return Offer(offer.name, build, merge_options(LLMCoachOptions, offer.options))


def _settings(offer: Offer[Transport], options: Any) -> str:
    """Serialize the transport's own options, without names of environment variables, which affect no answer."""
    names = (field.name for field in fields(offer.options) if not field.name.endswith("_env"))
    return json.dumps({name: getattr(options, name) for name in names}, sort_keys=True, default=str)
