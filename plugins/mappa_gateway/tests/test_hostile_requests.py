"""What a model, or a program that passes its text on, can write into a request or a call: no fault of the server."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mappa_core.safe_json import MAX_CHARACTERS, MAX_DEPTH

answers: list[tuple[int, dict]] = []
"""Status and body of what the agent of a test was answered; emptied before each."""
bodies: list[bytes] = []
"""What it posts."""
PATHS = ("/chat/completions", "/responses")
OTHER_PATHS = ("/responses/input_tokens", "/messages", "/messages/count_tokens")


def post_all(assignment, paths=PATHS):
    """Post `bodies` as they are to all `paths`, then ask once for an action as usual."""
    url = urlsplit(assignment.base_url)
    for body in [*bodies, b'{"model": "m", "messages": [{"role": "user", "content": "?"}]}']:
        for path in paths:
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
            connection.request("POST", url.path + path, body, {"Authorization": f"Bearer {assignment.api_key}"})
            response = connection.getresponse()
            answers.append((response.status, json.loads(response.read())))
            connection.close()
    return "4"


def post_everywhere(assignment):
    return post_all(assignment, (*PATHS, *OTHER_PATHS))


async def posted(theatre, script=lambda prompt, sampling: "4", agent=post_all):
    answers.clear()
    trajectory = await theatre.one(theatre.workflow(agent, max_actions=1_000), script)
    assert trajectory.error is None, trajectory.error
    return trajectory


def request(**fields) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}).encode()


def with_call(arguments: str) -> bytes:
    call = {"id": "1", "function": {"name": "search", "arguments": arguments}}
    return request(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"[" * 100_000, 400, "invalid_request"),
        (
            b'{"model": "m", "messages": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
            400,
            "invalid_request",
        ),
        (request(tools=json.loads('[{"a":' * 30 + "1" + "}]" * 30)), 400, "invalid_request"),
        (b'{"model": "m", "messages": [], "temperature": ' + b"9" * 5_000 + b"}", 400, "invalid_request"),
        (b'{"model": "\\ud800"}', 400, "invalid_request"),
        (b"\xff\xfe", 400, "invalid_request"),
        (b"7", 400, "invalid_request"),
        (b" " * (MAX_CHARACTERS + 1), 413, "too_large"),
        (with_call("[" * 2_000), 400, "invalid_request"),
        (with_call("1" * 5_000), 400, "invalid_request"),
        (with_call("7"), 400, "invalid_request"),
    ],
)
async def test_a_request_beyond_the_limits_is_refused_and_the_trajectory_goes_on(theatre, body, status, code):
    bodies[:] = [body]
    trajectory = await posted(theatre)
    refused, _, action, _ = answers
    assert (refused[0], refused[1]["error"]["code"]) == (status, code)
    assert action[0] == 200 and len(trajectory.steps) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"guided_json": {"type": "object"}},
        {"guided_regex": "a+"},
        {"structured_outputs": {"regex": "a"}},
        {"stop_token_ids": [1]},
        {"min_tokens": 5},
        {"ignore_eos": True},
        {"best_of": 3},
        {"echo": True},
        {"suffix": "z"},
        {"modalities": ["text", "audio"], "audio": {"voice": "x"}},
        {"prediction": {"type": "content", "content": "x"}},
        {"web_search_options": {}},
        {"verbosity": "low"},
        {"add_generation_prompt": False, "continue_final_message": True},
    ],
)
async def test_a_setting_that_would_change_the_reply_is_refused(theatre, fields):
    bodies[:] = [request(**fields, input="?")]
    trajectory = await posted(theatre)
    for status, answer in answers[:2]:
        assert (status, answer["error"]["code"]) == (400, "unsupported")
        assert all(name in answer["error"]["message"] for name in fields)
    assert len(trajectory.steps) == 1


async def test_settings_that_change_nothing_are_accepted_and_unknown_ones_are_named_once(theatre):
    neutral = {"best_of": 1, "modalities": ["text"], "min_tokens": 0, "functions": [], "verbosity": "medium"}
    harmless = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "flex", "prompt_cache_key": "x"}
    bodies[:] = [request(**neutral, **harmless, input="?", unheard_of=1, top_p=0.5)] * 2
    with capture_logs() as logs:
        await posted(theatre)
    assert [status for status, _ in answers[:4]] == [200] * 4
    named = [log["settings"] for log in logs if log["event"] == "gateway.unheeded"]
    assert named == [["input", "top_p", "unheard_of"], ["messages"]]


async def test_a_refusal_of_the_history_is_its_text_and_a_call_of_the_old_form_is_refused(theatre):
    question, part = {"role": "user", "content": "?"}, [{"type": "refusal", "refusal": "not that"}]
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    refusal = {"role": "assistant", "content": None, "refusal": "not this"}
    bodies[:] = [request(messages=[question, old]), request(messages=[refusal, {**refusal, "content": part}, question])]
    trajectory = await posted(theatre)
    (status, answer), _, (accepted, _), *_ = answers
    assert (status, answer["error"]["code"], accepted) == (400, "unsupported", 200)
    assert "messages.1.function_call" in answer["error"]["message"]
    assert [message.content for message in trajectory.steps[0].messages] == ["not this", "not that", "?"]


def hangs_up(assignment):
    url = urlsplit(assignment.base_url)
    head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {assignment.api_key}\r\n"
    with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return post_all(assignment)


async def test_a_client_that_hangs_up_before_its_body_ended_is_no_failure_of_the_server(theatre, caplog):
    answers.clear()
    bodies.clear()
    trajectory = await theatre.one(theatre.workflow(hangs_up), lambda prompt, sampling: "4")
    assert trajectory.error is None and answers[0][0] == 200
    assert [record.getMessage() for record in caplog.records if record.name == "uvicorn.error"] == []


CALLS = [
    '<tool_call>{"name":"search","arguments":' + "[" * 1_024,
    '<tool_call>{"name":"search","arguments":{"query":' + "[" * 1_500 + "]" * 1_500 + "}}</tool_call>",
    '<tool_call>{"name":"search","arguments":{"query":' + "1" * 4_301 + "}}</tool_call>",
    '<tool_call>{"name":"search","arguments":{"query":"\\ud800"}}</tool_call>',
]


@pytest.mark.parametrize("text", CALLS)
async def test_a_call_beyond_the_limits_stays_in_the_text_of_its_action(theatre, text):
    tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    bodies[:] = [request(tools=[tool])]
    trajectory = await posted(theatre, lambda prompt, sampling: text)
    status, reply = answers[0]
    assert status == 200 and reply["choices"][0]["message"]["content"] == text
    assert trajectory.steps[0].reply.tool_calls[0].error is not None


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("\ud800")
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_blocks = st.lists(st.deferred(lambda: _item), max_size=3)
_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "stranger"]), "content": _values | _blocks},
    optional={"tool_calls": _values, "name": _values, "tool_call_id": _values, "reasoning_content": _values},
)
_item = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "message",
                "function_call",
                "function_call_output",
                "reasoning",
                "image",
                "text",
                "tool_use",
                "tool_result",
            ]
        )
    },
    optional={
        "role": _values,
        "content": _values,
        "call_id": _values,
        "name": _values,
        "arguments": _values,
        "output": _values,
        "text": _values,
        "thinking": _values,
        "input": _values,
        "tool_use_id": _values,
    },
)
_request = st.fixed_dictionaries(
    {"model": st.just("m") | _values},
    optional={
        "messages": st.lists(_message | _values, max_size=3), "input": st.lists(_item | _values, max_size=3) | _values,
        "tools": st.lists(_values, max_size=2) | _values, "tool_choice": _values, "stream": _values,
        "top_logprobs": _values, "text": _values,
        "max_tokens": _values, "system": _values, "stop": _values, "stop_sequences": _values,
        "include": _values, "logprobs": _values, "stream_options": _values, "temperature": _values,
    },
)  # fmt: skip
_bodies = (
    st.binary(max_size=200)
    | (_request | _values).map(lambda value: json.dumps(value).encode())
    | st.tuples(st.sampled_from([b"[", b'{"a":', b'"', b"9"]), st.integers(1, 3_000)).map(lambda one: one[0] * one[1])
)


def check_requests(theatre_type, folder, generated: list[bytes]) -> None:
    async def play() -> None:
        theatre = theatre_type(folder)
        try:
            await posted(theatre, agent=post_everywhere)
        finally:
            for workflow in theatre.workflows:
                await workflow.close()

    bodies[:] = [body for body in generated if b'"stream": true' not in body]
    asyncio.run(play())
    assert {status for status, _ in answers} <= {200, 400, 404, 413}


@settings(max_examples=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_bodies, min_size=5, max_size=15))
def test_no_request_is_a_fault_of_the_server(theatre_type, tmp_path, generated):
    check_requests(theatre_type, tmp_path, generated)


@pytest.mark.soak
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_bodies, min_size=5, max_size=15))
def test_no_request_of_thousands_is_a_fault_of_the_server(theatre_type, tmp_path, generated):
    check_requests(theatre_type, tmp_path, generated)
