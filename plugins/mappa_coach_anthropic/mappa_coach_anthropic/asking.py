"""A Request as the arguments of the SDK's calls. What is not said is left out: the provider's own value holds.

Anthropic has no seed, and no JSON without a schema: the words of the question have to do there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anthropic import transform_schema

from mappa_coach_anthropic.options import Options
from mappa_core import Message, Request


def arguments(options: Options, request: Request) -> dict[str, Any]:
    """What `messages.create` takes."""
    said = {
        "max_tokens": request.max_tokens,
        "thinking": _thinking(options),
        "output_config": _output(options, request),
        # The SDK has no temperature, and some models take none.
        "extra_body": None if request.temperature is None else {"temperature": request.temperature},
        "timeout": request.timeout_s,
        **conversation(options, request.messages, cached=request.cache_key is not None),
    }
    return {name: value for name, value in said.items() if value is not None}


def conversation(options: Options, messages: Sequence[Message], *, cached: bool = False) -> dict[str, Any]:
    """The model and the messages, for the token counter too: the system's apart. `cached` marks it for the cache."""
    turns = [{"role": message.role, "content": message.content} for message in messages if message.role != "system"]
    said: dict[str, Any] = {"model": options.model, "messages": turns}
    if messages[0].role == "system":
        said["system"] = messages[0].content
        if cached and options.prompt_cache != "none":
            mark = {"type": "ephemeral", "ttl": options.prompt_cache}
            said["system"] = [{"type": "text", "text": messages[0].content, "cache_control": mark}]
    return said


def _thinking(options: Options) -> dict[str, Any] | None:
    if options.thinking_budget is not None:
        return {"type": "enabled", "budget_tokens": options.thinking_budget}
    return None if options.thinking is None else {"type": options.thinking}


def _output(options: Options, request: Request) -> dict[str, Any] | None:
    said: dict[str, Any] = {}
    if request.answer == "schema":
        # The API refuses bounds and more; the SDK's own rules turn them into words.
        said["format"] = {"type": "json_schema", "schema": transform_schema(dict(request.schema or {}))}
    if options.effort is not None:
        said["effort"] = options.effort
    return said or None
