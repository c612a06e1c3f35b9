"""An agent that speaks Anthropic's Messages, by Anthropic's own client and in the shape of Claude Code's requests."""

from __future__ import annotations

import asyncio
import sys
import threading

import anthropic
import pytest
from structlog.testing import capture_logs

from mappa.testing import ScriptedSampler
from mappa_core import Message, PromptTooLong, ToolCall
from mappa_core.engine import EngineLost

heard: list = []
"""What agents of a test were told; emptied before each."""
SEARCH = {
    "name": "search",
    "description": "Look it up.",
    "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
CALL = '<think>hm</think>I look.<tool_call>{"name": "search", "arguments": {"query": "2+2"}}</tool_call>'
CLIENT = anthropic.Anthropic(base_url="http://127.0.0.1:1", auth_token="none")


@pytest.fixture(autouse=True)
def silence():
    heard.clear()


def client_of(session) -> anthropic.Anthropic:
    return CLIENT.with_options(base_url=session.root_url, auth_token=session.api_key)


def ask(client, content="?", **options):
    messages = [{"role": "user", "content": content}]
    return client.messages.create(**{"model": "m", "max_tokens": 64, "messages": messages, **options})


def solve(session):
    said = ask(client_of(session), session.task.prompt, system="Be brief.")
    heard.append(said)
    return said.content[0].text


async def test_a_request_becomes_an_action(theatre):
    trajectory = await theatre.one(theatre.workflow(solve), lambda prompt, sampling: "4")
    (step,), (said,) = trajectory.steps, heard
    assert (trajectory.error, trajectory.outcome["correct"]) == (None, 1.0)
    assert step.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="what is 2+2?"),
    )
    assert (said.id, said.stop_reason, said.stop_sequence, said.model) == (f"msg_{step.id}", "end_turn", None, "m")
    counted = (len(step.completion.prompt_tokens), len(step.completion.tokens))
    assert (said.usage.input_tokens, said.usage.output_tokens) == counted
    assert said.usage.cache_read_input_tokens is None


def search_then_answer(session, *, stream=False):
    client, messages = client_of(session), [{"role": "user", "content": session.task.prompt}]
    while True:
        options = {"model": "m", "max_tokens": 64, "messages": messages, "tools": [SEARCH]}
        if stream:
            with client.messages.stream(**options) as events:
                heard.append(list(events))
                said = events.get_final_message()
        else:
            said = client.messages.create(**options)
        heard.append(said)
        if said.stop_reason != "tool_use":
            return said.content[0].text
        messages.append({"role": "assistant", "content": [block.model_dump() for block in said.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"{block.input['query']} is 4"}
            for block in said.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})


def search_in_a_stream(session):
    return search_then_answer(session, stream=True)


def searching(prompt, sampling):
    return "4" if "<tool>" in prompt else CALL


async def test_thinking_and_calls_are_blocks_and_come_back_as_one_message(theatre):
    trajectory = await theatre.one(theatre.workflow(search_then_answer), searching)
    first, second = trajectory.steps
    assert trajectory.outcome["correct"] == 1.0
    thinking, text, call = heard[0].content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "hm", "I look.")
    assert thinking.signature, "Anthropic's clients send a thinking block back only if it is signed"
    assert (call.type, call.name, call.input) == ("tool_use", "search", {"query": "2+2"})
    assert first.own_tools[0].schema == SEARCH["input_schema"]
    asked = ToolCall(name="search", arguments={"query": "2+2"}, id="call_000_0")
    assert second.messages[1:] == (
        Message(role="assistant", content="I look.", reasoning="hm", tool_calls=(asked,)),
        Message(role="tool", content="2+2 is 4", tool_call_id="call_000_0"),
        Message(role="user", content="Go on."),
    )


async def test_streamed_events_come_in_order_and_build_the_same_message(theatre):
    await theatre.one(theatre.workflow(search_then_answer), searching)
    await theatre.one(theatre.workflow(search_in_a_stream), searching)
    whole, _, events, built, *_ = heard
    assert built.model_dump(exclude_none=True) == whole.model_dump(exclude_none=True)
    # The client adds events of its own, named after what they hold.
    own = [event for event in events if event.type.startswith(("message_", "content_block_"))]
    kinds = [(event.type, getattr(getattr(event, "delta", None), "type", None)) for event in own]
    around = lambda *deltas: [("content_block_start", None), *deltas, ("content_block_stop", None)]  # noqa: E731
    assert kinds == [
        ("message_start", None),
        *around(("content_block_delta", "thinking_delta"), ("content_block_delta", "signature_delta")),
        *around(("content_block_delta", "text_delta")),
        *around(("content_block_delta", "input_json_delta")),
        ("message_delta", None),
        ("message_stop", None),
    ]


def stops(session):
    client = client_of(session)
    heard.append(ask(client, stop_sequences=["Observation:", "\n\n"]))
    heard.append(ask(client, "short", stop_sequences=["Observation:"]))
    return "4"


async def test_sampling_ends_at_a_stop_sequence_whose_tokens_are_kept(theatre):
    script = lambda prompt, sampling: "4" if "short" in prompt else "Act: look\nObservation: made up"  # noqa: E731
    trajectory = await theatre.one(theatre.workflow(stops), script)
    cut, whole = heard
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == (
        "Act: look\n", "stop_sequence", "Observation:"
    )  # fmt: skip
    assert (whole.content[0].text, whole.stop_reason, whole.stop_sequence) == ("4", "end_turn", None)
    first = trajectory.steps[0]
    assert first.stop == ("Observation:", "\n\n") and first.reply.content == "Act: look\n"
    assert bytes(first.completion.tokens.astype("uint8")) == b"Act: look\nObservation:"


CLAUDE_CODE = {
    "model": "claude-sonnet-4-5-20250929",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.40.a1b; cc_entrypoint=cli; cch=0f3a1;"},
        {"type": "text", "text": "You are a CLI agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Today is a day.</system-reminder>"},
                {"type": "text", "text": "what is 2+2?", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "forged"},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "bc"}, "caller": None},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no such program"}],
                },
            ],
        },
    ],
    "tools": [{"name": "Bash", "description": "Runs it.", "input_schema": {"type": "object"}, "strict": False}],
    "tool_choice": {"type": "auto"},
    "metadata": {"user_id": "user_1_account__session_2"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "temperature": 1,
}


def as_claude_code(session):
    client = anthropic.Anthropic(
        base_url=session.root_url,
        auth_token=session.api_key,
        default_headers={"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"},
    )
    send = lambda path, body: client.post(path, body=body, cast_to=object, options={"params": {"beta": "true"}})  # noqa: E731
    counted = {key: CLAUDE_CODE[key] for key in ("model", "messages", "system", "tools")}
    heard.append(send("/v1/messages/count_tokens", counted))
    reply = send("/v1/messages", CLAUDE_CODE)
    heard.append(reply)
    return reply["content"][0]["text"]


async def test_requests_in_the_shape_of_claude_code_are_played(theatre):
    with capture_logs() as logs:
        trajectory = await theatre.one(theatre.workflow(as_claude_code), lambda prompt, sampling: "4")
    assert (trajectory.error, trajectory.outcome["correct"]) == (None, 1.0)
    (step,), (counted, said) = trajectory.steps, heard
    assert step.messages == (
        Message(role="system", content="You are a CLI agent.\n\nBe brief."),
        Message(role="user", content="<system-reminder>Today is a day.</system-reminder>\n\nwhat is 2+2?"),
        Message(
            role="assistant",
            content="",
            reasoning="hm",
            tool_calls=(ToolCall(name="Bash", arguments={"command": "bc"}, id="toolu_1"),),
        ),
        Message(role="tool", content="Error: no such program", tool_call_id="toolu_1"),
    )
    assert counted["input_tokens"] == said["usage"]["input_tokens"] == len(step.completion.prompt_tokens)
    (ignored,) = [log["settings"] for log in logs if log["event"] == "gateway.unheeded"]
    assert ignored == ["anthropic-beta", "context_management", "temperature", "thinking"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
REFUSED = [
    ({"messages": []}, "at least one message"),
    ({"max_tokens": None}, "max_tokens: field required"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content: image: only text"),
    ({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "{"}]}, "end with one of"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}] * 2 + [
        {"role": "user", "content": "?"}]}, "redacted_thinking: only text"),
    ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "search"}}, "tool_choice"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124: only Anthropic's models know it"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format: a grammar leaves"),
    ({"stop_sequences": [""]}, "stop_sequences: an empty text ends nothing"),
]  # fmt: skip


def refused(session):
    client = client_of(session)
    for options, _ in REFUSED:
        with pytest.raises(anthropic.BadRequestError) as caught:
            ask(client, extra_body=options)
        heard.append(caught.value.body)
    with pytest.raises(anthropic.AuthenticationError) as unknown:
        ask(client.with_options(auth_token="guessed"))
    with pytest.raises(anthropic.NotFoundError) as nowhere:
        client.post("/v1/complete", body={}, cast_to=object)
    with pytest.raises(anthropic.NotFoundError) as stranger:
        ask(client, model="stranger")
    heard.extend(caught.value.body for caught in (unknown, nowhere, stranger))
    heard.append([model.id for model in client.models.list()])
    return ask(client, model="a").content[0].text


async def test_request_that_is_no_action_is_refused_in_anthropics_form(theatre):
    trajectory = await theatre.one(theatre.workflow(refused, agents=("a", "b")), lambda prompt, sampling: "4")
    assert (trajectory.error, len(trajectory.steps)) == (None, 1)
    *bodies, unknown, nowhere, stranger, models = heard
    for (_, says), body in zip(REFUSED, bodies, strict=True):
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert says in body["error"]["message"]
    kinds = [body["error"]["type"] for body in (unknown, nowhere, stranger)]
    assert kinds == ["authentication_error", "not_found_error", "not_found_error"]
    assert models == ["a", "b"]


def shortens(session):
    client = client_of(session)
    try:
        ask(client, "long " * 100)
    except anthropic.BadRequestError as error:
        heard.append(error.body["error"]["message"])
    return ask(client, "short").content[0].text


def window(prompt, sampling):
    if len(prompt) > 200:
        raise PromptTooLong("a prompt of 500 tokens does not fit the window")
    return "4"


async def test_a_prompt_that_does_not_fit_is_told_as_anthropic_tells_it(theatre):
    trajectory = await theatre.one(theatre.workflow(shortens), window)
    assert heard == ["prompt is too long: a prompt of 500 tokens does not fit the window"]
    assert trajectory.outcome["correct"] == 1.0


answered = threading.Event()


def swallows(session):
    try:
        ask(client_of(session))
    except anthropic.InternalServerError as error:
        heard.append((error.body["error"]["type"], error.response.headers["x-should-retry"]))
    finally:
        answered.set()
    return "4"


async def test_fatal_error_stops_the_run_and_is_not_sent_again(theatre):
    def lost(prompt, sampling):
        raise EngineLost("sampler 0 was killed")

    with pytest.raises(EngineLost, match="sampler 0"):
        await theatre.one(theatre.workflow(swallows), lost)
    # The agent has a thread of its own, which may hear of it after the run has stopped.
    assert await asyncio.to_thread(answered.wait, 60)
    assert heard == [("api_error", "false")]


COMMAND = """
import anthropic, sys
said = anthropic.Anthropic().messages.create(
    model="m", max_tokens=8, messages=[{"role": "user", "content": sys.stdin.read()}]
)
print(said.content[0].text)
"""


@pytest.mark.parametrize("inherited", [None, "sk-ant-of-the-user"])
async def test_a_command_finds_the_gateway_in_anthropics_variables(theatre, monkeypatch, inherited):
    if inherited is not None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", inherited)
    workflow = theatre.workflow(command=[sys.executable, "-c", COMMAND])
    trajectory = await theatre.one(workflow, lambda prompt, sampling: "4")
    assert (trajectory.error, trajectory.outcome["correct"]) == (None, 1.0)


class Behind(ScriptedSampler):
    """A policy behind an API: its prompts are messages."""

    def render(self, messages, tools=()):
        return tuple(messages)


def counts(session):
    try:
        client_of(session).messages.count_tokens(model="m", messages=[{"role": "user", "content": "?"}])
    except anthropic.BadRequestError as error:
        heard.append(error.body["error"]["message"])


async def test_tokens_of_a_policy_behind_an_api_are_not_made_up(theatre):
    await theatre.one(theatre.workflow(counts), Behind(lambda prompt, sampling: "4"))
    assert heard == ["solver's policy is behind an API, whose tokens are not known here"]
