"""Converts a Request to arguments of the SDK. Settings that are None are left out: the provider's default applies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from google.genai import types

from mappa_coach_gemini.options import Options
from mappa_core import Message
from mappa_core.transport import Request

WIRE_ROLES = {"system": "user", "user": "user", "assistant": "model"}


def build_arguments(options: Options, request: Request) -> dict[str, Any]:
    """Build the arguments of `generate_content`: one call without continuation, whose raw HTTP response is returned."""
    arguments = build_batch_request(options, request)
    config: types.GenerateContentConfig = arguments["config"]
    config.automatic_function_calling = types.AutomaticFunctionCallingConfig(disable=True)
    config.automatic_continuation = False
    config.should_return_http_response = True
    config.http_options = build_http_options(request.timeout_s)
    return {"model": options.model, **arguments}


def build_batch_request(options: Options, request: Request) -> dict[str, Any]:
    """Build the arguments of one request of a batch, whose model is that of the batch."""
    messages = request.messages
    system = messages[0].content if messages[0].role == "system" else None
    config = types.GenerateContentConfig(
        system_instruction=system,
        temperature=request.temperature,
        seed=request.seed,
        max_output_tokens=request.max_tokens,
        response_mime_type=None if request.answer == "text" else "application/json",
        response_json_schema=request.schema if request.answer == "schema" else None,
        thinking_config=_thinking_config(options),
    )
    return {"contents": build_contents(messages if system is None else messages[1:]), "config": config}


def build_contents(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert messages to contents. The token counter takes the system message as one of them."""
    return [{"role": WIRE_ROLES[message.role], "parts": [{"text": message.content}]} for message in messages]


def build_http_options(seconds: float) -> types.HttpOptions:
    """Build HTTP options with a timeout; the SDK counts in whole milliseconds."""
    return types.HttpOptions(timeout=math.ceil(seconds * 1000))


def _thinking_config(options: Options) -> types.ThinkingConfig | None:
    if options.thinking_level is not None:
        return types.ThinkingConfig(thinking_level=types.ThinkingLevel(options.thinking_level.upper()))
    return None if options.thinking_budget is None else types.ThinkingConfig(thinking_budget=options.thinking_budget)
