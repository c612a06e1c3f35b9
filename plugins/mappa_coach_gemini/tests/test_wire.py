"""Every capture of the wire: the real SDK asks a local server that answers byte for byte as the provider does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from mappa.testing import CaptureContract, WireAnswer, WireRequest, WireServer, answer_from_capture, json_answer
from mappa_coach_gemini.options import Options
from mappa_coach_gemini.transport import GeminiTransport
from mappa_core import ConfigError, Message
from mappa_core.transport import CallError, Reply, Request

JUDGED = '{"score":7,"verdict":"pass","note":null,"tags":["ok"]}'
HALF = '{"score":7,"verdict"'
REPLIES: Mapping[str, Any] = {
    # text, stop, detail, tokens: prompt, completion, of these cached and thinking; zeros are left out on this wire
    "success_schema": (JUDGED, "end", "STOP", (1200, 25, 0, 0)),
    "success_cached": (JUDGED, "end", "STOP", (1200, 25, 1000, 0)),
    "thinking": (JUDGED, "end", "STOP", (1200, 105, 0, 80)),
    "thinking_budget_off": (JUDGED, "end", "STOP", (1200, 25, 0, 0)),
    "malformed_model_json": ('```json\n{"score": 7,', "end", "STOP", (1200, 25, 0, 0)),
    "truncated": (HALF, "length", "MAX_TOKENS", (1200, 25, 0, 0)),
    "truncated_by_thinking": ("", "length", "MAX_TOKENS", (1200, 8, 0, 8)),
    "continuation_not_followed": (HALF, "length", "CONTINUATION", (1200, 25, 0, 0)),
    "blocked_candidate": ("", "blocked", "SAFETY", (1200, 0, 0, 0)),
    "blocked_recitation": ("", "blocked", "RECITATION", (1200, 0, 0, 0)),
    "blocked_prompt": ("", "blocked", "prompt: SAFETY", (1200, 0, 0, 0)),
}
FAULTS: Mapping[str, Any] = {
    # kind, seconds to wait
    "error_400": ("request", None),
    "error_401": ("key", None),
    "error_403": ("key", None),
    "error_404": ("model", None),
    "error_429": ("rate_limit", 17.0),
    "error_500": ("server", None),
    "error_503": ("overloaded", None),
    "error_504": ("server", None),
    "empty_200": ("garbled", None),
    "empty_candidates": ("garbled", None),
    "malformed_200": ("garbled", None),
    "malformed_429": ("rate_limit", None),
    "malformed_html_502": ("server", None),
}
ANYTHING = Request(messages=(Message(role="user", content="?"),))
LEFT_TO_THE_PROVIDER = {"candidateCount", "include_thoughts", "cachedContent"}
"""What captures say and this transport does not."""


class TestCaptures(CaptureContract):
    variable = "GEMINI_API_KEY"
    folder = Path(__file__).parent / "wire"
    model = "gemini-3.8-flash"
    headers = ("x-goog-api-key",)
    replies = REPLIES
    faults = FAULTS
    counts: Mapping[str, int] = {"count_tokens": 1200}
    others = ("cache_create", "success_schema_vertex_adc")

    def transport(self, request: Mapping[str, Any], url: str, **options: Any) -> GeminiTransport:
        thinking = request["body"].get("generationConfig", {}).get("thinkingConfig", {})
        return GeminiTransport(
            Options(
                model=self.model,
                base_url=url,
                thinking_budget=thinking.get("thinking_budget"),
                thinking_level=thinking["thinking_level"].lower() if "thinking_level" in thinking else None,
                **options,
            )
        )

    def request(self, body: Mapping[str, Any]) -> Request:
        config = body["generationConfig"]
        return Request(
            messages=self.messages(body),
            answer="schema",
            schema=config["responseJsonSchema"],
            max_tokens=config["maxOutputTokens"],
            temperature=config["temperature"],
            timeout_s=30.0,
        )

    def messages(self, body: Mapping[str, Any]) -> tuple[Message, ...]:
        parts = body.get("systemInstruction", {}).get("parts", ())
        system = (Message(role="system", content=part["text"]) for part in parts)
        return *system, *(Message(role="user", content=turn["parts"][0]["text"]) for turn in body["contents"])

    def sent(self, body: Any) -> Any:
        if isinstance(body, dict):
            return {name: self.sent(value) for name, value in body.items() if name not in LEFT_TO_THE_PROVIDER}
        return [self.sent(value) for value in body] if isinstance(body, list) else body

    async def test_an_answer_to_another_question_is_garbled(self) -> None:
        async with WireServer([answer_from_capture(self.capture("cache_create"))]) as server:
            outcome = await outcome_of(GeminiTransport(Options(model="m", base_url=server.url)))
        assert isinstance(outcome, CallError)
        assert outcome.kind == "garbled"

    async def test_vertex_is_asked_with_application_default_credentials(self, account: Callable[[str], None]) -> None:
        exchange = self.capture("success_schema_vertex_adc")
        was, answer = exchange["request"], answer_from_capture(exchange)
        async with WireServer(serving(answer)) as server:
            account(server.url)
            transport = self.transport(was, server.url, vertex=True, location="us-central1")
            outcome = await outcome_of(transport, self.request(was["body"]))
        assert outcome == replace(self.reply("success_schema"), raw=answer.body.decode())
        token, received = server.requests
        assert token.path == "/token"
        assert (received.method, received.path) == (was["method"], was["path"])
        assert received.headers["authorization"] == was["headers"]["authorization"]
        assert "x-goog-api-key" not in received.headers
        assert received.body == self.sent(was["body"])


async def outcome_of(transport: GeminiTransport, request: Request = ANYTHING) -> Reply | CallError:
    try:
        return await transport.complete(request)
    except CallError as error:
        return error
    finally:
        await transport.close()


@pytest.fixture(scope="module")
def account_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@pytest.fixture
def account(account_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Be a service account, by Google's own credentials file, whose tokens the server at a URL gives out."""
    path = tmp_path / "account.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)

    def write(url: str) -> None:
        who = {"type": "service_account", "project_id": "proj", "client_email": "coach@proj", "private_key_id": "1"}
        path.write_text(json.dumps({**who, "private_key": account_key, "token_uri": f"{url}/token"}))

    return write


def serving(answer: WireAnswer) -> Callable[[WireRequest], WireAnswer]:
    """A server that gives out tokens too."""
    token = json_answer({"access_token": "ADC-TOKEN", "expires_in": 3600, "token_type": "Bearer"})
    return lambda request: token if request.path == "/token" else answer


async def test_a_token_that_vertex_quotes_does_not_show(account: Callable[[str], None]) -> None:
    said = {"error": {"code": 403, "message": "Not with ADC-TOKEN."}}
    async with WireServer(serving(json_answer(said, 403))) as server:
        account(server.url)
        transport = GeminiTransport(Options(model="m", base_url=server.url, vertex=True))
        outcome = await outcome_of(transport)
    assert str(outcome) == "key: status 403: Not with [access token]."


async def test_credentials_that_are_refused_are_a_fault_of_the_key(account: Callable[[str], None]) -> None:
    said = {"error": "invalid_grant", "error_description": "No. " * 9999}
    async with WireServer([json_answer(said, 400)]) as server:
        account(server.url)
        outcome = await outcome_of(GeminiTransport(Options(model="m", base_url=server.url, vertex=True)))
    assert isinstance(outcome, CallError)
    assert outcome.kind == "key"
    assert len(str(outcome)) < 1000
    assert [heard.path for heard in server.requests] == ["/token"]


async def test_tokens_that_cannot_be_had_are_a_fault_of_the_connection(account: Callable[[str], None]) -> None:
    account("http://127.0.0.1:9")
    outcome = await outcome_of(GeminiTransport(Options(model="m", vertex=True)))
    assert isinstance(outcome, CallError)
    assert outcome.kind == "connection"


def test_without_credentials_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ConfigError, match="gemini needs application-default credentials"):
        GeminiTransport(Options(model="m", vertex=True))
