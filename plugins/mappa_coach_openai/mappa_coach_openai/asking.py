"""A Request as the arguments of the SDK's calls. What is not said is left out: the server's own value holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mappa_coach_openai.options import Options
from mappa_core import Message, Request

SCHEMA_NAME = "reply"
"""The API wants a name for the schema of a reply."""


def chat_arguments(options: Options, request: Request) -> dict[str, Any]:
    """What `chat.completions.create` takes."""
    form = {
        "schema": {"type": "json_schema", "json_schema": _schema(request)},
        "object": {"type": "json_object"},
        "free": None,
    }[_form(options, request)]
    return _said(
        model=options.model,
        messages=_turns(request.messages),
        temperature=request.temperature,
        seed=request.seed if options.send_seed else None,
        reasoning_effort=options.reasoning_effort,
        response_format=form,
        **{options.token_field: request.max_tokens},
        **_common(options, request),
    )


def response_arguments(options: Options, request: Request) -> dict[str, Any]:
    """What `responses.create` takes. The server is told not to keep the reply."""
    form = {
        "schema": {"format": {"type": "json_schema", **_schema(request)}},
        "object": {"format": {"type": "json_object"}},
        "free": None,
    }[_form(options, request)]
    return _said(
        model=options.model,
        temperature=request.temperature,
        max_output_tokens=request.max_tokens,
        reasoning=None if options.reasoning_effort is None else {"effort": options.reasoning_effort},
        text=form,
        store=False,
        **conversation(request.messages),
        **_common(options, request),
    )


def conversation(messages: Sequence[Message]) -> dict[str, Any]:
    """Messages as `responses` takes them, for its token counter too: the system's apart."""
    if messages[0].role == "system":
        return {"instructions": messages[0].content, "input": _turns(messages[1:])}
    return {"input": _turns(messages)}


def _common(options: Options, request: Request) -> dict[str, Any]:
    return {
        "prompt_cache_key": request.cache_key if options.send_cache_key else None,
        "extra_body": options.extra_body or None,
        "timeout": request.timeout_s,
    }


def _form(options: Options, request: Request) -> Literal["schema", "object", "free"]:
    """What the reply is held to: as much as is wanted, and no more than the server can do."""
    if request.answer == "text" or options.json_mode == "none":
        return "free"
    return "schema" if request.answer == "schema" and options.json_mode == "schema" else "object"


def _schema(request: Request) -> dict[str, Any]:
    return {"name": SCHEMA_NAME, "schema": request.schema, "strict": True}


def _turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _said(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
