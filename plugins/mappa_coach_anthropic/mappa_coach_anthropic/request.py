"""Converts a Request to arguments of the SDK. Settings that are None are left out: the provider's default applies.

Anthropic has no seed and no JSON mode without a schema; there the prompt alone asks for JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anthropic import transform_schema

from mappa_coach_anthropic.options import Options
from mappa_core import Message
from mappa_core.transport import Request


def build_arguments(options: Options, request: Request) -> dict[str, Any]:
    """Build the arguments of `messages.create`."""
    arguments = {
        "max_tokens": request.max_tokens,
        "thinking": _thinking_config(options),
        "output_config": _output_config(options, request),
        # The SDK has no temperature, and some models take none.
        "extra_body": None if request.temperature is None else {"temperature": request.temperature},
        "timeout": request.timeout_s,
        **build_messages(options, request.messages, cached=request.cache_key is not None),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def build_messages(options: Options, messages: Sequence[Message], *, cached: bool = False) -> dict[str, Any]:
    """Build the arguments that the token counter takes too: model, messages and, apart from them, the system message.
    `cached` marks the system message for the prompt cache."""
    turns = [{"role": message.role, "content": message.content} for message in messages if message.role != "system"]
    arguments: dict[str, Any] = {"model": options.model, "messages": turns}
    if messages[0].role == "system":
        arguments["system"] = messages[0].content
        if cached and options.prompt_cache != "none":
            mark = {"type": "ephemeral", "ttl": options.prompt_cache}
            arguments["system"] = [{"type": "text", "text": messages[0].content, "cache_control": mark}]
    return arguments


def _thinking_config(options: Options) -> dict[str, Any] | None:
    if options.thinking_budget is not None:
        return {"type": "enabled", "budget_tokens": options.thinking_budget}
    return None if options.thinking is None else {"type": options.thinking}


def _output_config(options: Options, request: Request) -> dict[str, Any] | None:
    arguments: dict[str, Any] = {}
    if request.answer == "schema":
        # The API refuses bounds and other keywords; the SDK moves them into the descriptions.
        arguments["format"] = {"type": "json_schema", "schema": transform_schema(dict(request.schema or {}))}
    if options.effort is not None:
        arguments["effort"] = options.effort
    return arguments or None
