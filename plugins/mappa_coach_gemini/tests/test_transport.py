"""The transport against servers that behave badly, and what its options put on the wire."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.genai import Client

from mappa.testing import SdkTransportContract, WireAnswer, WireServer, answer_from_capture, json_answer
from mappa_coach_gemini.options import Options
from mappa_coach_gemini.transport import GeminiTransport
from mappa_core import ConfigError
from mappa_core.transport import Request

GOOD = answer_from_capture(json.loads((Path(__file__).parent / "wire" / "success_schema.json").read_text()))
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
NONSENSE = {
    "GOOGLE_API_KEY": "another",
    "GOOGLE_CLOUD_LOCATION": "nowhere",
    "GOOGLE_CLOUD_PROJECT": "another",
    "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:9",
    "GOOGLE_GENAI_API_VERSION": "v9",
    "GOOGLE_GENAI_CLIENT_MODE": "replay",
    "GOOGLE_GENAI_HTTP_CLIENT": "httpx",
    "GOOGLE_GENAI_REPLAYS_DIRECTORY": "/nowhere",
    "GOOGLE_GENAI_REPLAY_ID": "another",
    "GOOGLE_GENAI_USE_ENTERPRISE": "true",
    "GOOGLE_GENAI_USE_VERTEXAI": "true",
    "GOOGLE_VERTEX_BASE_URL": "http://127.0.0.1:9",
}
TURNS = SdkTransportContract.turns
WRITTEN = [
    {"role": "user", "parts": [{"text": "An action."}]},
    {"role": "model", "parts": [{"text": "Ten."}]},
    {"role": "user", "parts": [{"text": "In JSON."}]},
]


class TestGemini(SdkTransportContract):
    variable = "GEMINI_API_KEY"
    offer = "gemini"
    answer = GOOD
    nonsense = NONSENSE
    wrong_options = (
        ({"base_url": "generativelanguage.googleapis.com"}, "base_url"),
        ({"base_url": "https://name:password@localhost"}, "base_url"),
        ({"project": "proj"}, "project"),
        ({"thinking_level": "HIGH"}, "thinking_level"),
        ({"thinking_level": "high", "thinking_budget": 0}, "thinking_level"),
    )
    counter_faults = (
        (json_answer({}), "garbled"),
        (json_answer([1]), "garbled"),
        (json_answer({"totalTokens": "many"}), "garbled"),
        (WireAnswer(body=b"<html>"), "garbled"),
        (json_answer({}, 503), "overloaded"),
    )

    def build(self, **options: Any) -> GeminiTransport:
        return GeminiTransport(Options(**{"model": "m", **options}))

    async def body(self, request: Request, **options: Any) -> dict[str, Any]:
        return dict((await self.sent(request, **options)).body)

    async def test_settings_that_are_unset_are_not_sent(self) -> None:
        said: dict[str, Any] = {"contents": WRITTEN, "generationConfig": {"maxOutputTokens": 64}}
        assert await self.body(Request(messages=TURNS[1:], max_tokens=64)) == said
        said["systemInstruction"] = {"role": "user", "parts": [{"text": "Judge."}]}
        assert await self.body(Request(messages=TURNS, max_tokens=64, cache_key="k")) == said

    @pytest.mark.parametrize(
        ("answer", "form"),
        [
            ("text", {}),
            ("json", {"responseMimeType": "application/json"}),
            ("schema", {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}),
        ],
    )
    @pytest.mark.parametrize(
        ("options", "thinking"),
        [
            ({}, {}),
            ({"thinking_budget": 0}, {"thinkingConfig": {"thinking_budget": 0}}),
            ({"thinking_level": "xhigh"}, {"thinkingConfig": {"thinking_level": "XHIGH"}}),
        ],
    )
    async def test_all_settings_are_sent(self, answer: Any, form: Any, options: Any, thinking: Any) -> None:
        schema = SCHEMA if answer == "schema" else None
        request = Request(messages=TURNS, answer=answer, schema=schema, max_tokens=64, temperature=0.0, seed=7)
        said = (await self.body(request, **options))["generationConfig"]
        assert said == {"maxOutputTokens": 64, "temperature": 0.0, "seed": 7, **form, **thinking}

    async def test_the_system_is_counted_with_the_rest(self) -> None:
        async with WireServer([json_answer({"totalTokens": 9})]) as server:
            transport = GeminiTransport(Options(model="m", base_url=server.url))
            assert await transport.count(TURNS) == 9
            await transport.close()
        assert server.requests[0].body == {"contents": [{"role": "user", "parts": [{"text": "Judge."}]}, *WRITTEN]}

    async def test_a_plain_call_warns_of_nothing(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await self.body(Request(messages=TURNS))

    def test_with_only_google_api_key_set_the_error_says_how_to_use_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GEMINI_API_KEY")
        monkeypatch.setenv("GOOGLE_API_KEY", "another")
        with pytest.raises(ConfigError, match=r"GEMINI_API_KEY .* GOOGLE_API_KEY is read where api_key_env names it"):
            GeminiTransport(Options(model="m"))
        assert (
            GeminiTransport(Options(model="m", api_key_env="GOOGLE_API_KEY")).host
            == "generativelanguage.googleapis.com"
        )


@pytest.mark.parametrize("location", ["global", "us", "eu", "us-central1"])
def test_the_address_of_vertex_is_that_of_the_sdk(location: str) -> None:
    client = Client(enterprise=True, project="proj", location=location, credentials=AnonymousCredentials())
    assert f"{Options(vertex=True, location=location).url}/" == client._api_client._http_options.base_url
    client.close()
