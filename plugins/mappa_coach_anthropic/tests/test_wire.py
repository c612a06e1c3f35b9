"""Every capture of the wire: the real SDK asks a local server that answers byte for byte as the provider does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mappa.testing import WireServer, answer_from_capture
from mappa_coach_anthropic.options import Options
from mappa_coach_anthropic.transport import AnthropicTransport
from mappa_core.errors import CallError
from mappa_core.protocols import Reply, Request
from mappa_core.records import Message, Usage

KEY = "planted-key-of-anthropic"
WIRE = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "wire").glob("*.json"))}
JUDGED = '{"score":7,"verdict":"pass","note":null,"tags":["ok"]}'
HALF = '{"score":7,"verdict"'
SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
        "verdict": {"type": "string", "enum": ["pass", "fail", "unclear"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["score", "verdict", "note", "tags"],
    "additionalProperties": False,
}
"""What was asked for; on the wire stands what the SDK's rules make of it."""

REPLIES: dict[str, tuple[str, str, str, tuple[int, int, int, int]]] = {
    # text, stop, detail, tokens: prompt, completion, of these cached and thinking
    "success_schema": (JUDGED, "end", "end_turn", (1200, 25, 0, 0)),
    "success_cached": (JUDGED, "end", "end_turn", (1200, 25, 1000, 0)),
    "thinking": (JUDGED, "end", "end_turn", (1200, 105, 0, 80)),
    "thinking_budget": (JUDGED, "end", "end_turn", (1200, 105, 0, 80)),
    "thinking_disabled": (JUDGED, "end", "end_turn", (1200, 25, 0, 0)),
    "malformed_model_json": ('```json\n{"score": 7,', "end", "end_turn", (1200, 25, 0, 0)),
    "empty_content": ("", "end", "end_turn", (1200, 2, 0, 0)),
    "truncated": (HALF, "length", "max_tokens", (1200, 25, 0, 0)),
    "truncated_by_thinking": ("", "length", "max_tokens", (1200, 8, 0, 8)),
    "truncated_context_window": (HALF, "length", "model_context_window_exceeded", (1200, 25, 0, 0)),
    "blocked_refusal": ("", "blocked", "refusal: cyber: This request was declined.", (1200, 1, 0, 0)),
}
FAULTS: dict[str, tuple[str, float | None]] = {
    # kind, seconds to wait
    "error_400": ("schema", None),
    "error_401": ("key", None),
    "error_403": ("key", None),
    "error_404": ("model", None),
    "error_413": ("too_long", None),
    "error_429": ("rate_limit", 7.0),
    "error_500": ("server", None),
    "error_503": ("overloaded", None),
    "error_529": ("overloaded", None),
    "error_in_200": ("server", None),
    "malformed_200": ("garbled", None),
    "malformed_html_200": ("garbled", None),
    "malformed_html_502": ("server", None),
    "success_tool_forced": ("garbled", None),  # a call of a tool, which this transport never offers
}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def transport(body: dict[str, Any], url: str) -> AnthropicTransport:
    """The transport that asks as the capture did."""
    thinking = body.get("thinking", {})
    budget = thinking.get("budget_tokens")
    return AnthropicTransport(
        Options(
            model=body["model"],
            base_url=url,
            thinking=thinking.get("type") if budget is None else None,
            thinking_budget=budget,
            effort=body.get("output_config", {}).get("effort"),
            prompt_cache="1h",
        )
    )


def asked(body: dict[str, Any]) -> Request:
    """What was asked in the capture."""
    return Request(
        messages=messages(body),
        answer="schema" if "output_config" in body else "text",
        schema=SCHEMA if "output_config" in body else None,
        max_tokens=body["max_tokens"],
        cache_key="k" if isinstance(body["system"], list) else None,
        timeout_s=30.0,
    )


def messages(body: dict[str, Any]) -> tuple[Message, ...]:
    turns = (Message(role=one["role"], content=joined(one["content"])) for one in body["messages"])
    return Message(role="system", content=joined(body["system"])), *turns


def joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def sent(body: dict[str, Any]) -> dict[str, Any]:
    """The captured body as this transport writes it: one text a message, no summary of the thoughts, no tools."""
    body = json.loads(json.dumps(body))
    for message in body["messages"]:
        message["content"] = joined(message["content"])
    body.get("thinking", {}).pop("display", None)
    body.pop("tools", None)
    body.pop("tool_choice", None)
    return body


def test_every_capture_has_its_row() -> None:
    assert WIRE.keys() == REPLIES.keys() | FAULTS.keys() | {"count_tokens"}
    assert len(WIRE) == 26


@pytest.mark.parametrize("case", [*REPLIES, *FAULTS])
async def test_the_capture_is_read_as_it_is_meant_and_asked_as_it_was(case: str) -> None:
    capture = WIRE[case]
    was = capture["request"]
    answer = answer_from_capture(capture)
    async with WireServer([answer]) as server:
        one = transport(was["body"], server.url)
        outcome = await outcome_of(one, asked(was["body"]))
        await one.close()
    if case in REPLIES:
        text, stop, detail, tokens = REPLIES[case]
        prompt, completion, cached, thinking = tokens
        usage = Usage(
            calls=1,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            thinking_tokens=thinking,
        )
        raw = answer.body.decode()
        assert outcome == Reply(text=text, stop=stop, detail=detail, model="claude-sonnet-5-5", usage=usage, raw=raw)
    else:
        assert isinstance(outcome, CallError)
        assert (outcome.kind, outcome.retry_after_s) == FAULTS[case]
    (heard,) = server.requests
    assert (heard.method, heard.path) == (was["method"], was["path"])
    assert heard.headers["authorization"] == was["headers"]["authorization"].replace("<API_KEY>", KEY)
    assert heard.headers["anthropic-version"] == was["headers"]["anthropic-version"]
    assert heard.body == sent(was["body"])


async def outcome_of(one: AnthropicTransport, request: Request) -> Reply | CallError:
    try:
        return await one.complete(request)
    except CallError as error:
        return error


async def test_tokens_are_counted() -> None:
    was = WIRE["count_tokens"]["request"]
    async with WireServer([answer_from_capture(WIRE["count_tokens"])]) as server:
        one = transport(was["body"], server.url)
        assert await one.count(messages(was["body"])) == 1200
        await one.close()
    assert (server.requests[0].method, server.requests[0].path) == (was["method"], was["path"])
    assert server.requests[0].body == sent(was["body"])
