"""A Request as the arguments of the SDK's calls. What is not said is left out: the provider's own value holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from google.genai import types

from mappa_coach_gemini.options import Options
from mappa_core import Message, Request

ROLES = {"system": "user", "user": "user", "assistant": "model"}


def arguments(options: Options, request: Request) -> dict[str, Any]:
    """What `generate_content` takes: one call, whose answer comes back as it is."""
    messages = request.messages
    system = messages[0].content if messages[0].role == "system" else None
    config = types.GenerateContentConfig(
        system_instruction=system,
        temperature=request.temperature,
        seed=request.seed,
        max_output_tokens=request.max_tokens,
        response_mime_type=None if request.answer == "text" else "application/json",
        response_json_schema=request.schema if request.answer == "schema" else None,
        thinking_config=_thinking(options),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        automatic_continuation=False,
        should_return_http_response=True,
        http_options=deadline(request.timeout_s),
    )
    return {"model": options.model, "contents": turns(messages if system is None else messages[1:]), "config": config}


def turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as contents. The token counter takes the system's as one of them."""
    return [{"role": ROLES[message.role], "parts": [{"text": message.content}]} for message in messages]


def deadline(seconds: float) -> types.HttpOptions:
    """The SDK counts in whole milliseconds."""
    return types.HttpOptions(timeout=math.ceil(seconds * 1000))


def _thinking(options: Options) -> types.ThinkingConfig | None:
    if options.thinking_level is not None:
        return types.ThinkingConfig(thinking_level=types.ThinkingLevel(options.thinking_level.upper()))
    return None if options.thinking_budget is None else types.ThinkingConfig(thinking_budget=options.thinking_budget)
