"""Every capture of the wire: the real SDK asks a local server that answers byte for byte as the provider does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mappa.testing import WireServer, answer_from_capture
from mappa_coach_openai.options import Options
from mappa_coach_openai.transport import OpenAITransport
from mappa_core.errors import CallError
from mappa_core.protocols import Reply, Request
from mappa_core.records import Message, Usage

KEY = "planted-key-of-openai"
WIRE = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "wire").glob("*.json"))}
JUDGED = '{"score":7,"verdict":"pass","note":null,"tags":["ok"]}'
HALF = '{"score":7,"verdict"'
SORRY = "refusal: I'm sorry, I can't help with that."

REPLIES: dict[str, tuple[str, str, str, tuple[int, int, int, int]]] = {
    # text, stop, detail, tokens: prompt, completion, of these cached and thinking
    "success_schema": (JUDGED, "end", "stop", (1200, 25, 0, 0)),
    "success_cached": (JUDGED, "end", "stop", (1200, 25, 1024, 0)),
    "thinking": (JUDGED, "end", "stop", (1200, 105, 0, 80)),
    "malformed_model_json": ('```json\n{"score": 7,', "end", "stop", (1200, 25, 0, 0)),
    "truncated": (HALF, "length", "length", (1200, 25, 0, 0)),
    "truncated_by_thinking": ("", "length", "length", (1200, 8, 0, 8)),
    "blocked_content_filter": ("", "blocked", "content_filter", (1200, 0, 0, 0)),
    "blocked_refusal": ("", "blocked", SORRY, (1200, 25, 0, 0)),
    "responses_success_schema": (JUDGED, "end", "completed", (1200, 105, 0, 80)),
    "responses_truncated": (HALF, "length", "max_output_tokens", (1200, 33, 0, 8)),
    "responses_truncated_by_thinking": ("", "length", "max_output_tokens", (1200, 41, 0, 16)),
    "responses_blocked_content_filter": ("", "blocked", "content_filter", (1200, 25, 0, 0)),
    "responses_blocked_refusal": ("", "blocked", SORRY, (1200, 25, 0, 0)),
}
FAULTS: dict[str, tuple[str, float | None]] = {
    # kind, seconds to wait
    "error_400": ("schema", None),
    "error_401": ("key", None),
    "error_403": ("key", None),
    "error_404": ("model", None),
    "error_413": ("too_long", None),
    "error_429": ("rate_limit", 7.0),
    "error_429_insufficient_quota": ("quota", None),
    "error_500": ("server", None),
    "error_503": ("overloaded", None),
    "error_in_200": ("server", None),
    "empty_choices": ("garbled", None),
    "malformed_200": ("garbled", None),
    "malformed_html_200": ("garbled", None),
    "malformed_html_502": ("server", None),
    "responses_failed": ("server", None),
}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def transport(body: dict[str, Any], path: str, url: str) -> OpenAITransport:
    """The transport that asks as the capture did."""
    effort = body.get("reasoning_effort", body.get("reasoning", {}).get("effort"))
    api = "responses" if path.startswith("/v1/responses") else "chat"
    return OpenAITransport(Options(model=body["model"], base_url=f"{url}/v1", api=api, reasoning_effort=effort))


def asked(body: dict[str, Any]) -> Request:
    """What was asked in the capture."""
    form = body.get("response_format", {}).get("json_schema") or body.get("text", {}).get("format")
    return Request(
        messages=messages(body),
        answer="schema",
        schema=form["schema"],
        max_tokens=body.get("max_completion_tokens", body.get("max_output_tokens")),
        cache_key=body["prompt_cache_key"],
        timeout_s=30.0,
    )


def messages(body: dict[str, Any]) -> tuple[Message, ...]:
    if "input" in body:
        return Message(role="system", content=body["instructions"]), Message(role="user", content=body["input"])
    return tuple(Message(role=one["role"], content=joined(one["content"])) for one in body["messages"])


def joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def sent(body: dict[str, Any]) -> dict[str, Any]:
    """The captured body as this transport writes it: another name of the schema, an input always as a list, one text a
    message, no cache marks inside a message."""
    body = json.loads(json.dumps(body))
    if "input" in body:
        body["input"] = [{"role": "user", "content": body["input"]}]
    for message in body.get("messages", ()):
        message["content"] = joined(message["content"])
    body.pop("prompt_cache_options", None)
    if "response_format" in body:
        body["response_format"]["json_schema"]["name"] = "reply"
    elif "text" in body:
        body["text"]["format"]["name"] = "reply"
    return body


def test_every_capture_has_its_row() -> None:
    assert WIRE.keys() == REPLIES.keys() | FAULTS.keys() | {"count_tokens"}
    assert len(WIRE) == 29


@pytest.mark.parametrize("case", [*REPLIES, *FAULTS])
async def test_the_capture_is_read_as_it_is_meant_and_asked_as_it_was(case: str) -> None:
    capture = WIRE[case]
    was = capture["request"]
    answer = answer_from_capture(capture)
    async with WireServer([answer]) as server:
        one = transport(was["body"], was["path"], server.url)
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
        assert outcome == Reply(text=text, stop=stop, detail=detail, model="gpt-5.6", usage=usage, raw=raw)
    else:
        assert isinstance(outcome, CallError)
        assert (outcome.kind, outcome.retry_after_s) == FAULTS[case]
    (heard,) = server.requests
    assert (heard.method, heard.path) == (was["method"], was["path"])
    assert heard.headers["authorization"] == was["headers"]["authorization"].replace("<API_KEY>", KEY)
    assert heard.body == sent(was["body"])


async def outcome_of(one: OpenAITransport, request: Request) -> Reply | CallError:
    try:
        return await one.complete(request)
    except CallError as error:
        return error


async def test_tokens_are_counted_by_responses() -> None:
    was = WIRE["count_tokens"]["request"]
    async with WireServer([answer_from_capture(WIRE["count_tokens"])]) as server:
        one = transport(was["body"], was["path"], server.url)
        assert await one.count(messages(was["body"])) == 1200
        await one.close()
    assert (server.requests[0].method, server.requests[0].path) == (was["method"], was["path"])
    assert server.requests[0].body == sent(was["body"])
