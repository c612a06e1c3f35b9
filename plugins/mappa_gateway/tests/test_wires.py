"""One conversation in every form of request: the same action, and the same reply in every form of answer."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from mappa_gateway.wire import chat_completions, messages, responses

RECORDED = Path(__file__).parents[4] / "shared" / "provider-wire"
SEARCH = '{"type": "object", "properties": {"query": {"type": "string"}}}'
CALL = '<tool_call>{"name": "search", "arguments": {"query": "2+2"}}</tool_call>'
REPLIES = {
    "text": "It is 4.",
    "nothing": "",
    "thinking": "<think>hm</think>It is 4.",
    "call": f"<think>hm</think>I look.{CALL}",
    "two calls": f"I look.{CALL}{CALL}",
    "cut call": f"I look.{CALL[:-20]}",
    "stop": "Act: look\nObservation: made up",
}


@dataclass(frozen=True)
class Reply:
    """What a client is told, whatever the form."""

    text: str
    thinking: str | None
    calls: tuple[tuple[str, str, str], ...]
    tokens: tuple[int, int]


@dataclass(frozen=True)
class Conversation:
    """What a request says, whatever its form; tools have a name, a description, and a schema as JSON."""

    system: str
    user: str
    tools: tuple[tuple[str, str, str], ...] = ()
    parallel: bool = True


def forms(said: Conversation) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and body of each wire."""
    question = {"role": "user", "content": said.user}
    tools = [{"name": name, "description": text, "parameters": json.loads(schema)} for name, text, schema in said.tools]
    parallel = {} if said.parallel else {"parallel_tool_calls": False}
    stop = {"stop": ["Observation:"]}
    yield (
        "/chat/completions",
        {
            "model": "m",
            "messages": [*([{"role": "system", "content": said.system}] if said.system else []), question],
            "tools": [{"type": "function", "function": tool} for tool in tools],
            **parallel,
            **stop,
        },
    )
    yield (
        "/responses",
        {
            "model": "m",
            "instructions": said.system,
            "input": [question],
            "tools": [{"type": "function", **tool} for tool in tools],
            **parallel,
            **stop,
        },
    )
    yield (
        "/messages",
        {
            "model": "m",
            "max_tokens": 8,
            "system": [{"type": "text", "text": said.system}],
            "messages": [question],
            "tools": [
                {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                for tool in tools
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": not said.parallel},
            "stop_sequences": ["Observation:"],
        },
    )


def post(session, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    url = urlsplit(session.base_url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
    connection.request("POST", url.path + path, json.dumps(body), {"Authorization": f"Bearer {session.api_key}"})
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def read_whole(path: str, body: bytes) -> Reply:
    answer = json.loads(body)
    usage = answer["usage"]
    if path == "/chat/completions":
        message = answer["choices"][0]["message"]
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
        told = tuple((name, call["name"], call["arguments"]) for name, call in calls)
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        return Reply(message["content"], message.get("reasoning_content"), told, counts)
    counts = usage["input_tokens"], usage["output_tokens"]
    if path == "/messages":
        blocks = answer["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        thinking = [block["thinking"] for block in blocks if block["type"] == "thinking"]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        told = tuple((call["id"], call["name"], json.dumps(call["input"])) for call in calls)
        return Reply(text, thinking[0] if thinking else None, told, counts)
    items = answer["output"]
    text = "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
    thinking = [item["content"][0]["text"] for item in items if item["type"] == "reasoning"]
    calls = [item for item in items if item["type"] == "function_call"]
    told = tuple((call["call_id"], call["name"], call["arguments"]) for call in calls)
    return Reply(text, thinking[0] if thinking else None, told, counts)


def read_stream(path: str, body: bytes) -> Reply:
    """Put the whole together from the deltas alone."""
    data = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]
    text, thinking, counts = "", None, (0, 0)
    calls: dict[int, list[str]] = {}
    for event in data:
        if path == "/chat/completions":
            if event.get("usage"):
                counts = event["usage"]["prompt_tokens"], event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                thinking = delta.get("reasoning_content", thinking)
                for call in delta.get("tool_calls", ()):
                    calls[call["index"]] = [call["id"], call["function"]["name"], call["function"]["arguments"]]
        elif path == "/messages":
            delta, block = event.get("delta", {}), event.get("content_block", {})
            if block.get("type") == "tool_use":
                calls[event["index"]] = [block["id"], block["name"], ""]
            text += delta.get("text", "")
            thinking = delta.get("thinking", thinking)
            if "partial_json" in delta:
                calls[event["index"]][2] += delta["partial_json"]
            if event["type"] == "message_delta":
                counts = event["usage"]["input_tokens"], event["usage"]["output_tokens"]
        else:
            kind = event["type"].removeprefix("response.")
            if kind == "output_item.added" and event["item"]["type"] == "function_call":
                calls[event["output_index"]] = [event["item"]["call_id"], event["item"]["name"], ""]
            if kind == "output_text.delta":
                text += event["delta"]
            if kind == "reasoning_text.delta":
                thinking = (thinking or "") + event["delta"]
            if kind == "function_call_arguments.delta":
                calls[event["output_index"]][2] += event["delta"]
            if kind in ("completed", "incomplete"):
                usage = event["response"]["usage"]
                counts = usage["input_tokens"], usage["output_tokens"]
    return Reply(text, thinking, tuple((name, tool, given) for name, tool, given in calls.values()), counts)


asked: list[Conversation] = []
told: dict[tuple[Conversation, str, bool], Reply] = {}


def ask_in_every_form(session):
    for said in asked:
        for (path, body), stream in itertools.product(forms(said), (False, True)):
            options = {"stream_options": {"include_usage": True}} if path == "/chat/completions" else {}
            status, answer = post(session, path, {**body, "stream": stream, **(options if stream else {})})
            assert status == 200, answer
            told[said, path, stream] = (read_stream if stream else read_whole)(path, answer)
    return "4"


def without_position(reply: Reply) -> Reply:
    """Calls are numbered by their action."""
    return Reply(reply.text, reply.thinking, tuple(("", *call[1:]) for call in reply.calls), reply.tokens)


async def played(theatre, script, conversations) -> tuple:
    asked[:] = conversations
    told.clear()
    workflow = theatre.workflow(ask_in_every_form, max_actions=6 * len(conversations))
    trajectory = await theatre.one(workflow, script)
    assert trajectory.error is None, trajectory.error
    return trajectory.steps


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("case", REPLIES)
async def test_a_reply_is_the_same_in_every_form(theatre, case, parallel):
    said = Conversation("Be brief.", "what is 2+2?", (("search", "Look it up.", SEARCH),), parallel)
    steps = await played(theatre, lambda prompt, sampling: REPLIES[case], [said])
    assert len({(step.messages, step.stop) for step in steps}) == 1, "one request in all forms"
    assert len({json.dumps([tool.name, tool.schema]) for step in steps for tool in step.own_tools}) == 1
    (reply,) = {without_position(reply) for reply in told.values()}
    assert len(told) == 6
    expected = {"text": "It is 4.", "nothing": "", "thinking": "It is 4.", "call": "I look.", "stop": "Act: look\n"}
    assert reply.text == expected.get(case, "I look." if case == "two calls" and parallel else REPLIES[case])
    assert reply.thinking == ("hm" if case in ("thinking", "call") else None)
    calls = {"call": 1, "two calls": 2 if parallel else 0}.get(case, 0)
    assert reply.calls == (("", "search", '{"query": "2+2"}'),) * calls


def recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(RECORDED.glob("*/*.json")):
        yield f"{path.parent.name}/{path.stem}", json.loads(path.read_text())["request"]


def conversation_of(body: dict[str, Any]) -> Conversation:
    """The conversation of a recorded request of any of the three providers."""
    config = body.get("config", body)
    system = body.get("system") or body.get("instructions") or config.get("systemInstruction") or ""
    turns = body.get("messages") or body.get("contents") or [{"role": "user", "content": body.get("input", "")}]
    texts = {"system": [words(system)], "user": []}
    for turn in turns:
        role = "system" if turn.get("role") in ("system", "developer") else "user"
        texts[role].append(words(turn.get("content") or turn.get("parts")))
    tools = tuple(
        (tool["name"], tool["description"], json.dumps(tool["input_schema"])) for tool in body.get("tools", ())
    )
    return Conversation("".join(texts["system"]), "".join(texts["user"]), tools)


def words(content: Any) -> str:
    if isinstance(content, dict):
        content = content["parts"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


needs_recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded requests in {RECORDED}")


@needs_recorded
async def test_what_recorded_requests_say_is_answered_the_same_in_every_form(theatre):
    distinct = {conversation_of(request["body"]) for _, request in recorded()}
    assert all(said.user for said in distinct)
    steps = await played(theatre, lambda prompt, sampling: f"<think>{len(prompt)}</think>Seen.{CALL}", distinct)
    assert len(steps) == 6 * len(distinct)
    for said in distinct:
        replies = {without_position(reply) for (found, *_), reply in told.items() if found == said}
        assert len(replies) == 1, said


sent: list[tuple[str, str, dict[str, Any]]] = []
answered: dict[str, tuple[int, dict[str, Any]]] = {}


def send_as_recorded(session):
    for name, path, body in sent:
        status, answer = post(session, path.removeprefix("/v1"), body)
        answered[name] = status, json.loads(answer)
    return "4"


def without_format(body: dict[str, Any]) -> dict[str, Any]:
    """A request without the format and the call that it demands."""
    kept = {key: value for key, value in body.items() if key not in ("response_format", "output_config", "text")}
    if kept.get("tool_choice", {}).get("type") == "tool":
        kept["tool_choice"] = {"type": "auto"}
    return kept


@needs_recorded
async def test_recorded_requests_are_played_or_refused_with_the_reason(theatre):
    requests = list(recorded())
    assert len(requests) >= 80
    sent[:] = [(name, request["path"], request["body"]) for name, request in requests]
    sent[len(sent) :] = [(f"{name} without format", path, without_format(body)) for name, path, body in sent]
    answered.clear()
    workflow = theatre.workflow(send_as_recorded, max_actions=200)
    trajectory = await theatre.one(workflow, lambda prompt, sampling: "Seen.")
    assert trajectory.error is None, trajectory.error
    replies = set()
    for name, (status, answer) in answered.items():
        if name.startswith("gemini/"):
            assert status == 404 and "the gateway answers" in answer["error"]["message"], name
        elif "count_tokens" in name:
            assert status == 200 and answer["input_tokens"] > 0, name
        elif name.endswith("without format"):
            assert status == 200, (name, answer)
            path = {"choices": "/chat/completions", "output": "/responses", "content": "/messages"}
            (found,) = (path[key] for key in path if key in answer)
            replies.add(read_whole(found, json.dumps(answer).encode()))
        else:
            refused = "tool_choice: " if "tool_forced" in name else "a grammar leaves"
            assert status == 400 and refused in answer["error"]["message"], (name, answer)
    assert {reply.text for reply in replies} == {"Seen."}


STRUCTS = [
    value
    for module in (chat_completions, messages, responses)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct)
]


@pytest.mark.parametrize("form", STRUCTS, ids=lambda form: form.__name__)
def test_null_is_taken_where_a_field_may_be_left_out(form):
    hints = msgspec.inspect.type_info(form)
    optional = [field for field in hints.fields if not field.required]
    for field in optional:
        kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        assert any(isinstance(kind, msgspec.inspect.NoneType) for kind in kinds), f"{form.__name__}.{field.name}"
