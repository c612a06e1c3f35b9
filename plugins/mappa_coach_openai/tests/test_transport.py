"""The transport against servers that behave badly, and what its options put on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from mappa.testing import SdkTransportContract, TransportContract, WireAnswer, WireRequest, WireServer, json_answer
from mappa_coach_openai.options import Options
from mappa_coach_openai.transport import OpenAITransport
from mappa_core.transport import CallError, Request

CHAT = json_answer({"model": "m", "choices": [{"message": {"content": "Fine."}, "finish_reason": "stop"}]})
RESPONSE = json_answer(
    {
        "model": "m",
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Fine."}]}],
    }
)
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
NONSENSE = {
    "OPENAI_ADMIN_KEY": "another",
    "OPENAI_BASE_URL": "http://127.0.0.1:9",
    "OPENAI_CUSTOM_HEADERS": "authorization: Bearer another\nx-nonsense: yes",
    "OPENAI_LOG": "nonsense",
    "OPENAI_ORG_ID": "another",
    "OPENAI_PROJECT_ID": "another",
    "OPENAI_WEBHOOK_SECRET": "another",
}
TURNS = SdkTransportContract.turns
WRITTEN = [{"role": message.role, "content": message.content} for message in TURNS]


class TestChat(TransportContract):
    variable = "OPENAI_API_KEY"
    answer = CHAT
    nonsense = NONSENSE

    def transport(self, url: str) -> OpenAITransport:
        return OpenAITransport(Options(model="m", base_url=url))


class TestResponses(SdkTransportContract):
    variable = "OPENAI_API_KEY"
    offer = "openai"
    answer = RESPONSE
    nonsense = NONSENSE
    wrong_options = (
        ({"api": "completions"}, "api"),
        ({"json_mode": "json_schema"}, "json_mode"),
        ({"token_field": "n_predict"}, "token_field"),
        ({"base_url": "localhost:8000/v1"}, "base_url"),
        ({"base_url": "https://name:password@localhost/v1"}, "base_url"),
    )
    counter_faults = ((json_answer({}, 503), "overloaded"), (json_answer({"input_tokens": "many"}), "garbled"))

    def build(self, **options: Any) -> OpenAITransport:
        return OpenAITransport(Options(**{"model": "m", "api": "responses", **options}))


async def heard(answer: WireAnswer, request: Request, **options: Any) -> WireRequest:
    """What a server of one's own, without a key, gets from a transport with `options`."""
    return await TestResponses().sent(
        request, answer=answer, api_key_env=None, api="responses" if answer is RESPONSE else "chat", **options
    )


async def test_a_server_of_ones_own_needs_no_key() -> None:
    request = Request(messages=TURNS)
    assert (await heard(CHAT, request)).headers["authorization"] == "Bearer none"


async def test_a_long_error_without_a_key_is_shortened() -> None:
    endless = json_answer({"error": {"message": "No. " * 9999}}, 400)
    with pytest.raises(CallError, match="request: status 400: No") as error:
        await heard(endless, Request(messages=TURNS))
    assert len(str(error.value)) < 1000


async def test_settings_that_are_unset_are_not_sent() -> None:
    request = Request(messages=TURNS, max_tokens=64)
    assert (await heard(CHAT, request)).body == {"model": "m", "messages": WRITTEN, "max_completion_tokens": 64}
    assert (await heard(RESPONSE, request)).body == {
        "model": "m",
        "instructions": "Judge.",
        "input": WRITTEN[1:],
        "max_output_tokens": 64,
        "store": False,
    }


async def test_all_settings_are_sent() -> None:
    request = Request(messages=TURNS, answer="json", max_tokens=64, temperature=0.0, seed=7, cache_key="k")
    said = {"reasoning_effort": "none", "extra_body": {"top_k": 1, "chat_template_kwargs": {"enable_thinking": False}}}
    assert (await heard(CHAT, request, token_field="max_tokens", **said)).body == {
        "model": "m",
        "messages": WRITTEN,
        "max_tokens": 64,
        "temperature": 0.0,
        "seed": 7,
        "prompt_cache_key": "k",
        "reasoning_effort": "none",
        "response_format": {"type": "json_object"},
        **said["extra_body"],
    }
    assert (await heard(RESPONSE, request, **said)).body == {
        "model": "m",
        "instructions": "Judge.",
        "input": WRITTEN[1:],
        "max_output_tokens": 64,
        "temperature": 0.0,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "none"},
        "text": {"format": {"type": "json_object"}},
        "store": False,
        **said["extra_body"],
    }


async def test_fields_that_a_server_refuses_can_be_left_out() -> None:
    request = Request(messages=TURNS, seed=7, cache_key="k", max_tokens=64)
    body = (await heard(CHAT, request, send_seed=False, send_cache_key=False)).body
    assert body == {"model": "m", "messages": WRITTEN, "max_completion_tokens": 64}


@pytest.mark.parametrize(
    ("answer", "mode", "form"),
    [
        ("schema", "schema", "json_schema"),
        ("schema", "object", "json_object"),
        ("schema", "none", None),
        ("json", "schema", "json_object"),
        ("json", "object", "json_object"),
        ("json", "none", None),
        ("text", "schema", None),
    ],
)
async def test_the_reply_format_is_what_is_asked_for_as_far_as_the_server_supports_it(
    answer: Any, mode: str, form: str | None
) -> None:
    request = Request(messages=TURNS, answer=answer, schema=SCHEMA if answer == "schema" else None)
    chat = (await heard(CHAT, request, json_mode=mode)).body.get("response_format")
    response = (await heard(RESPONSE, request, json_mode=mode)).body.get("text", {}).get("format")
    assert (chat and chat["type"], response and response["type"]) == (form, form)
    if form == "json_schema":
        assert chat["json_schema"] == {"name": "reply", "strict": True, "schema": SCHEMA}
        assert response == {"type": "json_schema", "name": "reply", "strict": True, "schema": SCHEMA}


@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_without_a_token_counter_is_asked_once(status: int) -> None:
    async with WireServer([json_answer({"detail": "Not Found"}, status)]) as server:
        transport = OpenAITransport(Options(model="m", base_url=server.url, api_key_env=None, api="responses"))
        assert [await transport.count(TURNS) for _ in range(3)] == [None, None, None]
        await transport.close()
    assert len(server.requests) == 1


async def test_chats_have_no_token_counter() -> None:
    transport = OpenAITransport(Options(model="m", base_url="http://127.0.0.1:9", api_key_env=None))
    assert await transport.count(TURNS) is None


async def test_a_failing_token_counter_is_asked_again() -> None:
    async with WireServer([json_answer({}, 503), json_answer({"input_tokens": "many"})]) as server:
        transport = OpenAITransport(Options(model="m", base_url=server.url, api_key_env=None, api="responses"))
        for kind in ("overloaded", "garbled"):
            with pytest.raises(CallError, match=kind):
                await transport.count(TURNS)
        await transport.close()


def test_a_transport_names_its_model_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    transport = OpenAITransport(Options(model="gpt-5.6"))
    assert (transport.model, transport.host) == ("gpt-5.6", "api.openai.com")
    assert OpenAITransport(Options(model="m", base_url="http://[::1]:8000/v1")).host == "[::1]:8000"
