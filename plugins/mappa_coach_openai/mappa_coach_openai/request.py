"""Converts a Request to arguments of the SDK. Settings that are None are left out: the server's default applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mappa_coach_openai.options import Options
from mappa_core import Message
from mappa_core.transport import Request

SCHEMA_NAME = "reply"
"""Name of the reply schema, which the API requires."""


def build_chat_arguments(options: Options, request: Request) -> dict[str, Any]:
    """Build the arguments of `chat.completions.create`."""
    reply_format = {
        "schema": {"type": "json_schema", "json_schema": _named_schema(request)},
        "object": {"type": "json_object"},
        "free": None,
    }[_reply_format(options, request)]
    return _drop_none(
        model=options.model,
        messages=_to_wire_messages(request.messages),
        temperature=request.temperature,
        seed=request.seed if options.send_seed else None,
        reasoning_effort=options.reasoning_effort,
        response_format=reply_format,
        **{options.token_field: request.max_tokens},
        **_common_arguments(options, request),
    )


def build_response_arguments(options: Options, request: Request) -> dict[str, Any]:
    """Build the arguments of `responses.create`. `store=False`: the server does not keep the reply."""
    reply_format = {
        "schema": {"format": {"type": "json_schema", **_named_schema(request)}},
        "object": {"format": {"type": "json_object"}},
        "free": None,
    }[_reply_format(options, request)]
    return _drop_none(
        model=options.model,
        temperature=request.temperature,
        max_output_tokens=request.max_tokens,
        reasoning=None if options.reasoning_effort is None else {"effort": options.reasoning_effort},
        text=reply_format,
        store=False,
        **build_input(request.messages),
        **_common_arguments(options, request),
    )


def build_input(messages: Sequence[Message]) -> dict[str, Any]:
    """Build the arguments that `responses` and its token counter take: the input and, apart, the system message."""
    if messages[0].role == "system":
        return {"instructions": messages[0].content, "input": _to_wire_messages(messages[1:])}
    return {"input": _to_wire_messages(messages)}


def _common_arguments(options: Options, request: Request) -> dict[str, Any]:
    return {
        "prompt_cache_key": request.cache_key if options.send_cache_key else None,
        "extra_body": options.extra_body or None,
        "timeout": request.timeout_s,
    }


def _reply_format(options: Options, request: Request) -> Literal["schema", "object", "free"]:
    """Choose the format to enforce: what the request asks for, as far as the server supports it (`json_mode`)."""
    if request.answer == "text" or options.json_mode == "none":
        return "free"
    return "schema" if request.answer == "schema" and options.json_mode == "schema" else "object"


def _named_schema(request: Request) -> dict[str, Any]:
    return {"name": SCHEMA_NAME, "schema": request.schema, "strict": True}


def _to_wire_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _drop_none(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
