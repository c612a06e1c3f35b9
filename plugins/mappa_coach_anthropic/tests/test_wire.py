"""Every capture of the wire: the real SDK asks a local server that answers byte for byte as the provider does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappa.testing import CaptureContract
from mappa_coach_anthropic.options import Options
from mappa_coach_anthropic.transport import AnthropicTransport
from mappa_core import Message
from mappa_core.transport import Request

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

REPLIES: Mapping[str, Any] = {
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
FAULTS: Mapping[str, Any] = {
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


class TestCaptures(CaptureContract):
    variable = "ANTHROPIC_API_KEY"
    folder = Path(__file__).parent / "wire"
    model = "claude-sonnet-5-5"
    headers = ("authorization", "anthropic-version")
    replies = REPLIES
    faults = FAULTS
    counts: Mapping[str, int] = {"count_tokens": 1200}

    def transport(self, request: Mapping[str, Any], url: str) -> AnthropicTransport:
        body = request["body"]
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

    def request(self, body: Mapping[str, Any]) -> Request:
        return Request(
            messages=self.messages(body),
            answer="schema" if "output_config" in body else "text",
            schema=SCHEMA if "output_config" in body else None,
            max_tokens=body["max_tokens"],
            cache_key="k" if isinstance(body["system"], list) else None,
            timeout_s=30.0,
        )

    def messages(self, body: Mapping[str, Any]) -> tuple[Message, ...]:
        turns = (Message(role=turn["role"], content=joined(turn["content"])) for turn in body["messages"])
        return Message(role="system", content=joined(body["system"])), *turns

    def sent(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The captured body with one text a message, no summary of the thoughts, no tools."""
        written = dict(json.loads(json.dumps(body)))
        for message in written["messages"]:
            message["content"] = joined(message["content"])
        written.get("thinking", {}).pop("display", None)
        written.pop("tools", None)
        written.pop("tool_choice", None)
        return written


def joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
