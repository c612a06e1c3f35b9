"""Every capture of the wire: the real SDK asks a local server that answers byte for byte as the provider does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappa.testing import CaptureContract
from mappa_coach_openai.options import Options
from mappa_coach_openai.transport import OpenAITransport
from mappa_core import Message
from mappa_core.transport import Request

JUDGED = '{"score":7,"verdict":"pass","note":null,"tags":["ok"]}'
HALF = '{"score":7,"verdict"'
SORRY = "refusal: I'm sorry, I can't help with that."

REPLIES: Mapping[str, Any] = {
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
FAULTS: Mapping[str, Any] = {
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


class TestCaptures(CaptureContract):
    variable = "OPENAI_API_KEY"
    folder = Path(__file__).parent / "wire"
    model = "gpt-5.6"
    replies = REPLIES
    faults = FAULTS
    counts: Mapping[str, int] = {"count_tokens": 1200}

    def transport(self, request: Mapping[str, Any], url: str) -> OpenAITransport:
        body = request["body"]
        effort = body.get("reasoning_effort", body.get("reasoning", {}).get("effort"))
        api = "responses" if request["path"].startswith("/v1/responses") else "chat"
        return OpenAITransport(Options(model=body["model"], base_url=f"{url}/v1", api=api, reasoning_effort=effort))

    def request(self, body: Mapping[str, Any]) -> Request:
        form = body.get("response_format", {}).get("json_schema") or body.get("text", {}).get("format")
        return Request(
            messages=self.messages(body),
            answer="schema",
            schema=form["schema"],
            max_tokens=body.get("max_completion_tokens", body.get("max_output_tokens")),
            cache_key=body["prompt_cache_key"],
            timeout_s=30.0,
        )

    def messages(self, body: Mapping[str, Any]) -> tuple[Message, ...]:
        if "input" in body:
            return Message(role="system", content=body["instructions"]), Message(role="user", content=body["input"])
        return tuple(Message(role=turn["role"], content=joined(turn["content"])) for turn in body["messages"])

    def sent(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The captured body with another name of the schema, an input always as a list, one text a message, no cache
        marks inside a message."""
        written = dict(json.loads(json.dumps(body)))
        if "input" in written:
            written["input"] = [{"role": "user", "content": written["input"]}]
        for message in written.get("messages", ()):
            message["content"] = joined(message["content"])
        written.pop("prompt_cache_options", None)
        if "response_format" in written:
            written["response_format"]["json_schema"]["name"] = "reply"
        elif "text" in written:
            written["text"]["format"]["name"] = "reply"
        return written


def joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
