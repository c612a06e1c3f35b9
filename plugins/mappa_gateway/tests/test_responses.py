"""An agent that speaks OpenAI's Responses: the same actions, the same answers, in the other form."""

from __future__ import annotations

import json
from dataclasses import replace

import openai
import pytest

from mappa_core import Message, ToolCall

heard: list = []
"""What agents of a test were told; emptied before each."""
SEARCH = {
    "type": "function",
    "name": "search",
    "description": "Look it up.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    "strict": False,
}
CALL = '<think>hm</think>I look.<tool_call>{"name": "search", "arguments": {"query": "2+2"}}</tool_call>'
CLIENT = openai.OpenAI(base_url="http://127.0.0.1:1/v1", api_key="none")


@pytest.fixture(autouse=True)
def silence():
    heard.clear()


def client_of(session) -> openai.OpenAI:
    return CLIENT.with_options(base_url=session.base_url, api_key=session.api_key)


def solve(session):
    said = client_of(session).responses.create(model="m", instructions="Be brief.", input=session.task.prompt)
    heard.append(said)
    return said.output_text


async def test_a_request_becomes_an_action(theatre):
    trajectory = await theatre.one(theatre.workflow(solve), lambda prompt, sampling: "4")
    (step,), (said,) = trajectory.steps, heard
    assert (trajectory.error, trajectory.outcome["correct"]) == (None, 1.0)
    assert step.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="what is 2+2?"),
    )
    assert (said.status, said.incomplete_details, said.id) == ("completed", None, f"resp_{step.id}")
    counted = (len(step.completion.prompt_tokens), len(step.completion.tokens))
    assert (said.usage.input_tokens, said.usage.output_tokens) == counted
    assert said.usage.output_tokens_details.reasoning_tokens is None


def search_then_answer(session, *, stream=False):
    client, items = client_of(session), [{"role": "user", "content": session.task.prompt}]
    while True:
        said = client.responses.create(model="m", input=items, tools=[SEARCH], stream=stream)
        if stream:
            events = list(said)
            heard.append(events)
            said = events[-1].response
        else:
            heard.append(said)
        calls = [item for item in said.output if item.type == "function_call"]
        if not calls:
            return said.output_text
        items += [item.model_dump(exclude_none=True) for item in said.output]
        for call in calls:
            found = f"{json.loads(call.arguments)['query']} is 4"
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": found})


def search_in_a_stream(session):
    return search_then_answer(session, stream=True)


@pytest.mark.parametrize("function", [search_then_answer, search_in_a_stream])
async def test_an_agent_runs_its_own_tools(theatre, function):
    trajectory = await theatre.one(
        theatre.workflow(function), lambda prompt, sampling: "4" if "<tool>" in prompt else CALL
    )
    first, second = trajectory.steps
    assert (trajectory.error, trajectory.outcome["correct"]) == (None, 1.0)
    assert first.own_tools[0].schema == SEARCH["parameters"]
    asked = ToolCall(name="search", arguments={"query": "2+2"}, id="call_000_0")
    assert second.messages == (
        Message(role="user", content="what is 2+2?"),
        Message(role="assistant", content="I look.", reasoning="hm", tool_calls=(asked,)),
        Message(role="tool", content="2+2 is 4", tool_call_id="call_000_0"),
    )


async def test_streamed_events_build_the_same_response(theatre):
    script = lambda prompt, sampling: "4" if "<tool>" in prompt else CALL  # noqa: E731
    await theatre.one(theatre.workflow(search_then_answer), script)
    await theatre.one(theatre.workflow(search_in_a_stream), script)
    whole, _, events, _ = heard
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events if "item" in event.type] == ["response.output_item.added",
                                                                       "response.output_item.done"] * 3  # fmt: skip
    built = [event.item.model_dump() for event in events if event.type == "response.output_item.done"]
    alike = [item.model_dump() for item in whole.output]
    assert built == alike == [item.model_dump() for item in events[-1].response.output]
    deltas = {event.type: event.delta for event in events if event.type.endswith(".delta")}
    assert deltas == {
        "response.reasoning_text.delta": "hm",
        "response.output_text.delta": "I look.",
        "response.function_call_arguments.delta": '{"query": "2+2"}',
    }


def cut_off(session):
    heard.append(client_of(session).responses.create(model="m", input="?"))


async def test_an_action_that_was_cut_off_is_incomplete(theatre, native):
    await theatre.one(theatre.workflow(cut_off), Short(native(lambda prompt, sampling: "so")))
    assert (heard[0].status, heard[0].incomplete_details.reason) == ("incomplete", "max_output_tokens")


class Short:
    """A sampler that is stopped by its limit."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def sample(self, tokens, sampling):
        completion = await self._inner.sample(tokens, sampling)
        return replace(completion, finish="length")


def says_it_in_pieces(session):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "message", "role": "assistant", "content": "c"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    return client_of(session).responses.create(model="m", input=items).output_text


async def test_reasoning_and_calls_of_one_message_are_joined(theatre):
    trajectory = await theatre.one(theatre.workflow(says_it_in_pieces), lambda prompt, sampling: "4")
    calls = (ToolCall(name="f", arguments={}, id="1"), ToolCall(name="g", arguments={"x": 1}, id="2"))
    assert trajectory.steps[0].messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="assistant", content="c"),
        Message(role="assistant", content="", reasoning="so", tool_calls=calls),
        Message(role="tool", content="one", tool_call_id="1"),
        Message(role="tool", content="two", tool_call_id="2"),
    )


REFUSED = [
    ({"input": []}, "invalid_request", "at least one item"),
    ({"input": [{"type": "function_call", "call_id": "1"}]}, "invalid_request", "input.0: a function_call without"),
    ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}]}, "invalid_request", "JSON"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported", "item_reference: only text"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "unsupported",
     "input_image: only text"),
    ({"previous_response_id": "resp_1"}, "unsupported", "Send the whole conversation as `input`"),
    ({"tools": [{"type": "web_search"}]}, "unsupported", "web_search: nobody is here to run it"),
    ({"tools": [SEARCH], "tool_choice": "required"}, "unsupported", "tool_choice"),
    ({"text": {"format": {"type": "json_object"}}}, "unsupported", "text.format"),
    ({"include": ["message.output_text.logprobs"]}, "unsupported", "logprobs"),
    ({"truncation": "auto"}, "unsupported", "truncation"),
    ({"background": True}, "unsupported", "background"),
]  # fmt: skip


def refused(session):
    client = client_of(session)
    for options, _, _ in REFUSED:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**{"model": "m", "input": "?", **options})
        heard.append((caught.value.code, caught.value.body["message"]))
    return solve(session)


async def test_request_that_is_no_action_is_refused_with_a_code(theatre):
    trajectory = await theatre.one(theatre.workflow(refused), lambda prompt, sampling: "4")
    assert (trajectory.error, len(trajectory.steps)) == (None, 1)
    for (_, code, says), (got, message) in zip(REFUSED, heard, strict=False):
        assert (got, says in message) == (code, True), message
