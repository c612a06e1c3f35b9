"""An agent loop written with OpenAI's client alone: what it asks becomes actions, what it hears is the sampler's."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import threading
import time
from dataclasses import replace

import openai
import pytest

from mappa.sessions import Replay
from mappa.testing import FixedCoach
from mappa_core import ConfigError, Message, PromptTooLong, ReplayError, Task, ToolCall
from mappa_core.engine import EngineLost
from mappa_gateway.options import ExternalAgent

heard: list = []
"""What agents of a test were told; emptied before each."""
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


@pytest.fixture(autouse=True)
def silence():
    heard.clear()


CLIENT = openai.OpenAI(base_url="http://127.0.0.1:1/v1", api_key="none")
"""Connections that all sessions share: making a client takes longer than all else here."""


def client_of(session) -> openai.OpenAI:
    return CLIENT.with_options(base_url=session.base_url, api_key=session.api_key)


def ask(client, text, model="gpt-4o", **options):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **options)


def solve(session):
    return ask(client_of(session), session.task.prompt).choices[0].message.content


async def solve_async(session):
    client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    said = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": session.task.prompt}])
    return said.choices[0].message.content


@pytest.mark.parametrize("function", [solve, solve_async])
async def test_a_request_becomes_an_action(theatre, function):
    coach = FixedCoach(7)
    trajectory = await theatre.one(theatre.workflow(function), lambda prompt, sampling: "4", coach=coach)
    assert trajectory.error is None
    assert trajectory.outcome == {"correct": 1.0, "answered": 1.0}
    (step,) = trajectory.steps
    assert (step.agent, step.position, step.messages) == ("solver", 0, (Message(role="user", content="what is 2+2?"),))
    assert [verdict.score for verdict in trajectory.verdicts] == [7.0]
    assert [step.id for step in theatre.recorder.steps] == [step.id]


def both_ways(session):
    client = client_of(session)
    heard.append(ask(client, "whole", logprobs=True))
    heard.append(list(ask(client, "in pieces", stream=True, stream_options={"include_usage": True})))
    return "4"


async def test_the_client_hears_the_tokens_and_log_probabilities_of_the_sampler(theatre):
    script = {"<user>whole<assistant>": "wholly", "<user>in pieces<assistant>": "piecewise €"}
    trajectory = await theatre.one(theatre.workflow(both_ways), lambda prompt, sampling: script[prompt])
    whole, pieces = heard
    first, second = (step.completion for step in trajectory.steps)
    told = whole.choices[0].logprobs.content
    assert [one.token for one in told] == [f"token_id:{token}" for token in first.tokens]
    assert [one.logprob for one in told] == first.logprobs.tolist()
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(first.prompt_tokens), len(first.tokens))
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("wholly", "stop")
    said, ended, counted = pieces
    assert said.choices[0].delta.content == second.text == "piecewise €"
    assert (ended.choices[0].finish_reason, counted.usage.completion_tokens) == ("stop", len(second.tokens))


def search_then_answer(session):
    client, messages = client_of(session), [{"role": "user", "content": session.task.prompt}]
    while True:
        said = client.chat.completions.create(model="m", messages=messages, tools=[SEARCH]).choices[0]
        heard.append(said)
        if said.finish_reason != "tool_calls":
            return said.message.content
        messages.append(said.message.model_dump(exclude_none=True))
        for call in said.message.tool_calls:
            found = f"{json.loads(call.function.arguments)['query']} is 4"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


CALL = 'I look.<tool_call>{"name": "search", "arguments": {"query": "2+2"}}</tool_call>'


async def test_an_agent_runs_its_own_tools(theatre):
    trajectory = await theatre.one(
        theatre.workflow(search_then_answer), lambda prompt, sampling: "4" if "<tool>" in prompt else CALL
    )
    first, second = trajectory.steps
    assert trajectory.outcome["correct"] == 1.0
    assert [tool.name for tool in first.own_tools] == ["search"] and first.tools == ()
    assert first.own_tools[0].schema == SEARCH["function"]["parameters"]
    assert first.calls == first.results == ()
    asked = ToolCall(name="search", arguments={"query": "2+2"}, id="call_000_0")
    assert second.messages[1:] == (
        Message(role="assistant", content="I look.", tool_calls=(asked,)),
        Message(role="tool", content="2+2 is 4", tool_call_id="call_000_0"),
    )
    assert heard[0].message.content == "I look."


async def test_malformed_tool_call_stays_in_the_text(theatre):
    cut_off = 'I look.<tool_call>{"name": "sea'
    trajectory = await theatre.one(theatre.workflow(search_then_answer), lambda prompt, sampling: cut_off)
    assert heard[0].message.content == cut_off and heard[0].message.tool_calls is None
    assert trajectory.error is None and len(trajectory.steps) == 1


def offers_nothing(session):
    heard.append(ask(client_of(session), "?").choices[0])


async def test_a_call_of_an_agent_without_tools_stays_in_the_text(theatre):
    await theatre.one(theatre.workflow(offers_nothing), lambda prompt, sampling: f"<think>hm</think>{CALL}")
    assert (heard[0].message.content, heard[0].message.reasoning_content) == (CALL, "hm")
    assert heard[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        (f"\n<think>\na (b\n</think>\n\nSo: {CALL[:-20]}", f"So: {CALL[:-20]}", "a (b"),
        (f"<think>\n\n</think>{CALL}", CALL, ""),
        (f"First. <think>a</think>{CALL}", f"First. <think>a</think>{CALL}", None),
        (CALL, CALL, None),
    ],
)
async def test_think_text_is_split_off_if_a_call_stays_in_the_text(theatre, text, content, reasoning):
    await theatre.one(theatre.workflow(offers_nothing), lambda prompt, sampling: text)
    message = heard[0].message
    assert (message.content, getattr(message, "reasoning_content", None)) == (content, reasoning)


def think(session):
    heard.append(ask(client_of(session), "?").choices[0].message)


async def test_think_text_is_apart(theatre):
    await theatre.one(theatre.workflow(think), lambda prompt, sampling: "<think>hm</think>4")
    assert (heard[0].content, heard[0].reasoning_content) == ("4", "hm")


def one_role_each(session):
    client = client_of(session)
    heard.append([model.id for model in client.models.list()])
    plan = ask(client, "plan", model="planner").choices[0].message.content
    parts = [{"type": "text", "text": "do "}, {"type": "text", "text": plan}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    return client.chat.completions.create(model="gpt-4o-mini", messages=messages).choices[0].message.content


async def test_the_model_names_the_agent(theatre):
    agents = {"planner": ExternalAgent(brief="plans"), "doer": ExternalAgent(brief="does", models=["gpt-4o-mini"])}
    trajectory = await theatre.one(
        theatre.workflow(one_role_each, agents=agents), lambda prompt, sampling: "4" if "do " in prompt else "it"
    )
    assert [step.agent for step in trajectory.steps] == ["planner", "doer"]
    assert trajectory.steps[1].messages == (
        Message(role="system", content="be brief"), Message(role="user", content="do it")
    )  # fmt: skip
    assert heard[0] == ["planner", "doer", "gpt-4o-mini"]


def refused_requests(session):
    client = client_of(session)
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    tries = [
        lambda: ask(client, "?", model="stranger"),
        lambda: ask(client, "?", model="a", n=2),
        lambda: ask(client, "?", model="a", stop=["Observation:", ""]),
        lambda: ask(client, "?", model="a", response_format={"type": "json_object"}),
        lambda: ask(client, "?", model="a", tools=[SEARCH], tool_choice="required"),
        lambda: client.chat.completions.create(model="a", messages=[]),
        lambda: client.chat.completions.create(model="a", messages=[{"role": "user", "content": image}]),
        lambda: client.chat.completions.create(model="a", messages=[{"role": "function", "content": "x"}]),
        lambda: client.embeddings.create(model="a", input="?"),
        lambda: client.with_options(api_key="mappa-guessed").models.list(),
        lambda: client.with_options(default_headers={"authorization": "Basic x"}).models.list(),
    ]
    for attempt in tries:
        try:
            attempt()
        except openai.APIStatusError as error:
            heard.append((error.status_code, error.code))
    heard.append(client)
    return ask(client, "?", model="a").choices[0].message.content


async def test_request_that_is_no_action_is_refused_with_a_code(theatre):
    trajectory = await theatre.one(theatre.workflow(refused_requests, agents=("a", "b")), lambda prompt, sampling: "4")
    *codes, client = heard
    assert codes == [
        (404, "model_not_found"),
        (400, "unsupported"),
        (400, "invalid_request"),
        *[(400, "unsupported")] * 2,
        (400, "invalid_request"),
        (400, "unsupported"),
        (400, "invalid_request"),
        (404, "unknown_url"),
        *[(401, "invalid_api_key")] * 2,
    ]
    assert trajectory.error is None and len(trajectory.steps) == 1
    with pytest.raises(openai.AuthenticationError):
        await asyncio.to_thread(ask, client, "late", model="a")


def shortens(session):
    client = client_of(session)
    try:
        ask(client, "long " * 100)
    except openai.BadRequestError as error:
        heard.append(error.code)
    ask(client, "short")
    try:
        ask(client, "long " * 100)
    except openai.BadRequestError as error:
        heard.append(error.code)
    return ask(client, "short").choices[0].message.content


def window(prompt, sampling):
    if len(prompt) > 200:
        raise PromptTooLong("a prompt of 500 tokens does not fit the window")
    return "4"


async def test_a_prompt_that_does_not_fit_is_told_and_the_agent_may_go_on(theatre):
    first = await theatre.one(theatre.workflow(shortens), window)
    assert heard == ["context_length_exceeded"] * 2
    assert (first.error, [step.position for step in first.steps]) == (None, [1, 3])
    replay = {first.id: Replay(steps=first.steps)}
    recorded_at = len(theatre.recorder.steps)
    again = await theatre.one(theatre.workflow(shortens), window, recorded=replay)
    assert again.steps == first.steps and len(theatre.recorder.steps) == recorded_at


def asks_too_much(session):
    return ask(client_of(session), "long " * 100)


def raises(session):
    ask(client_of(session), "?")
    raise ValueError("a bug of the agent")


def leaves(session):
    sys.exit(3)


async def leaves_from_a_coroutine(session):
    sys.exit(3)


def hangs(session):
    ask(client_of(session), "?")
    threading.Event().wait(20)


def never_ends(session):
    while True:
        ask(client_of(session), "?")


def asks_nothing(session):
    return "4"


def answers_with_a_number(session):
    ask(client_of(session), "?")
    return 4


@pytest.mark.parametrize(
    ("function", "options", "kind", "message"),
    [
        (asks_too_much, {}, "PromptTooLong", "does not fit"),
        (raises, {}, "WorkflowError:ValueError", "a bug of the agent"),
        (leaves, {}, "WorkflowError", r"SystemExit\(3\)"),
        (leaves_from_a_coroutine, {}, "WorkflowError", r"SystemExit\(3\)"),
        (hangs, {"silence_s": 0.2}, "WorkflowError", "asked for nothing within 0.2 s"),
        (never_ends, {"max_actions": 3}, "WorkflowError", "more than max_actions=3"),
        (asks_nothing, {}, "WorkflowError", "without a request that became an action"),
        (answers_with_a_number, {}, "WorkflowError:TypeError", "returned int, not text or None"),
    ],
)
async def test_an_agent_that_does_not_finish_leaves_a_failure(theatre, function, options, kind, message):
    trajectory = await theatre.one(theatre.workflow(function, **options), window)
    assert trajectory.error.kind == kind
    assert trajectory.outcome == {}

    assert re.search(message, trajectory.error.message)


def says_nothing(session):
    ask(client_of(session), "?")


async def test_no_answer_is_no_solution_and_is_counted(theatre):
    trajectory = await theatre.one(theatre.workflow(says_nothing), lambda prompt, sampling: "4")
    assert (trajectory.error, trajectory.outcome) == (None, {"correct": 0.0, "answered": 0.0})
    last = await theatre.one(theatre.workflow(says_nothing, answer="last"), lambda prompt, sampling: " 4\n")
    assert last.outcome == {"correct": 1.0, "answered": 1.0}


def swallows(session):
    try:
        ask(client_of(session), "?")
    except openai.InternalServerError as error:
        heard.append(error.code)
    return "4"


async def test_fatal_error_stops_the_run_even_if_the_agent_swallows_it(theatre):
    def lost(prompt, sampling):
        raise EngineLost("sampler 0 was killed")

    with pytest.raises(EngineLost, match="sampler 0"):
        await theatre.one(theatre.workflow(swallows), lost)


def draws_by_its_seed(session):
    return ask(client_of(session), f"{session.seed}").choices[0].message.content


def draws_anew(session):
    return ask(client_of(session), f"{time.time_ns()}").choices[0].message.content


async def test_a_resume_starts_the_agent_again_over_its_record(theatre):
    first = await theatre.one(theatre.workflow(draws_by_its_seed), lambda prompt, sampling: "4")
    replay = {first.id: Replay(steps=first.steps)}
    again = await theatre.one(theatre.workflow(draws_by_its_seed), never_sampled, recorded=replay)
    assert (again.error, again.outcome) == (None, first.outcome)
    assert again.steps == first.steps


def never_sampled(prompt, sampling):
    raise AssertionError("a recorded action was sampled again")


async def test_an_agent_that_asks_otherwise_on_resume_stops_the_run_or_loses_its_trajectory(theatre):
    first = await theatre.one(theatre.workflow(draws_anew), lambda prompt, sampling: "4")
    replay = {first.id: Replay(steps=first.steps)}
    with pytest.raises(ReplayError, match=first.steps[0].id):
        await theatre.one(theatre.workflow(draws_anew), never_sampled, recorded=replay)
    lost = await theatre.one(theatre.workflow(draws_anew, on_divergence="fail"), never_sampled, recorded=replay)
    assert lost.error.kind == "WorkflowError" and first.steps[0].id in lost.error.message


def twice(session):
    client = client_of(session)
    ask(client, f"{session.task.id} once")
    return ask(client, session.task.id).choices[0].message.content


@pytest.mark.parametrize("waves", [True, False])
async def test_many_blocking_agents_play_at_once_each_on_its_own_stage(theatre, waves):
    tasks = tuple(
        Task(id=f"t{number:02d}", prompt="", reference=f"<user>t{number:02d}<assistant>") for number in range(20)
    )
    played = await theatre.play(theatre.workflow(twice), lambda prompt, sampling: prompt, tasks=tasks, waves=waves)
    assert [one.outcome for one in played] == [{"correct": 1.0, "answered": 1.0}] * 20
    assert [[step.messages[0].content for step in one.steps] for one in played] == [
        [f"{task.id} once", task.id] for task in tasks
    ]


kept: list[openai.AsyncOpenAI] = []
"""The client that asynchronous agents keep from task to task, as LangGraph and others do."""


async def twice_by_a_kept_client(session):
    if not kept:
        kept.append(openai.AsyncOpenAI(base_url=session.base_url, api_key="none"))
    client = kept[0].with_options(api_key=session.api_key)
    for text in (f"{session.task.id} once", session.task.id):
        messages = [{"role": "user", "content": text}]
        said = await client.chat.completions.create(model="m", messages=messages)
    return said.choices[0].message.content


@pytest.mark.parametrize("waves", [True, False])
async def test_asynchronous_agents_share_a_loop_and_so_may_keep_a_client(theatre, waves):
    kept.clear()
    workflow = theatre.workflow(twice_by_a_kept_client)
    for played_before in range(2):
        names = [f"r{played_before}t{number}" for number in range(6)]
        tasks = tuple(Task(id=name, prompt="", reference=f"<user>{name}<assistant>") for name in names)
        played = await theatre.play(workflow, lambda prompt, sampling: prompt, tasks=tasks, waves=waves)
        assert [one.error for one in played] == [None] * 6
        assert [one.outcome["correct"] for one in played] == [1.0] * 6


released = threading.Event()


async def blocks(session):
    released.wait(30)


async def test_agent_that_blocks_the_event_loop_fails_with_the_reason(theatre, monkeypatch):
    monkeypatch.setattr("mappa_gateway.launchers.TURN_S", 0.1)
    trajectory = await theatre.one(theatre.workflow(blocks, silence_s=0.2), window)
    released.set()
    assert trajectory.error.kind == "WorkflowError"
    assert "blocks the event loop that all asynchronous agents share" in trajectory.error.message


async def test_waves_hold_the_same_requests_in_the_same_order_every_time(theatre):
    tasks = tuple(Task(id=f"t{number}", prompt="", reference="x") for number in range(8))

    async def order():
        asked = []
        await theatre.play(
            theatre.workflow(twice), lambda prompt, _: asked.append(prompt) or "x", tasks=tasks, waves=True
        )
        return asked

    first = await order()
    assert await order() == first == sorted(first[:8]) + sorted(first[8:])


async def fans_out(session):
    client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
    messages = [[{"role": "user", "content": f"part {number}"}] for number in range(3)]
    said = await asyncio.gather(*(client.chat.completions.create(model="m", messages=message) for message in messages))
    return said[0].choices[0].message.content


class Gate:
    """A sampler that notes how many requests it holds at once."""

    def __init__(self, inner) -> None:
        self._inner, self.now, self.most = inner, 0, 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def sample(self, tokens, sampling):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        completion = await self._inner.sample(tokens, sampling)
        self.now -= 1
        return completion


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (3, 3)])
async def test_requests_of_one_agent_run_in_turn_unless_configured_otherwise(theatre, native, at_once, most):
    gate = Gate(native(lambda prompt, sampling: "4"))
    trajectory = await theatre.one(theatre.workflow(fans_out, at_once=at_once), gate)
    assert (gate.most, trajectory.error) == (most, None)
    assert sorted(step.position for step in trajectory.steps) == [0, 1, 2]


def impatient(session):
    client = client_of(session).with_options(timeout=0.3, max_retries=3)
    return ask(client, "?").choices[0].message.content


class Slow(Gate):
    async def sample(self, tokens, sampling):
        await asyncio.sleep(1.0)
        return await self._inner.sample(tokens, sampling)


async def test_a_request_that_a_client_sends_again_is_one_action(theatre, native):
    trajectory = await theatre.one(theatre.workflow(impatient), Slow(native(lambda prompt, sampling: "4")))
    assert (trajectory.error, len(trajectory.steps)) == (None, 1)
    assert trajectory.outcome["correct"] == 1.0


COMMAND = """
import json, os, sys, urllib.request
task = json.load(open(os.environ["MAPPA_TASK"]))
assert task["task"]["prompt"] == sys.stdin.read() and task["task"]["reference"] is None and task["seed"] > 0
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task["task"]["meta"]["source"]}]}).encode()
key = os.environ["OPENAI_API_KEY"]
headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""


async def test_a_command_is_an_agent_too(theatre):
    workflow = theatre.workflow(command=[sys.executable, "-c", COMMAND])
    trajectory = await theatre.one(workflow, lambda prompt, sampling: "4" if "book" in prompt else "?")
    assert (trajectory.error, trajectory.outcome) == (None, {"correct": 1.0, "answered": 1.0})


async def test_a_command_that_fails_says_why_and_leaves_no_process(theatre, tmp_path):
    beat = tmp_path / "beat"
    child = f"import time\nwhile True:\n    open({str(beat)!r}, 'a').write('x')\n    time.sleep(0.02)"
    code = (
        f"import subprocess, sys, os, time\nsubprocess.Popen([sys.executable, '-c', {child!r}], stdout=-3, stderr=-3)\n"
        f"while not os.path.exists({str(beat)!r}): time.sleep(0.02)\nsys.exit('no such file')"
    )
    trajectory = await theatre.one(theatre.workflow(command=[sys.executable, "-c", code]), never_sampled)
    assert trajectory.error.kind == "WorkflowError"
    assert "exit code 1: no such file" in trajectory.error.message
    size = beat.stat().st_size
    await asyncio.sleep(0.2)
    assert beat.stat().st_size == size


async def test_processes_left_by_a_command_do_not_delay_its_answer(theatre):
    """Neither a child in its group, which is killed, nor one in a session of its own."""
    leave = "import subprocess\nfor own in (False, True): subprocess.Popen(['sleep', '10'], start_new_session=own)\n"
    workflow = theatre.workflow(command=[sys.executable, "-c", COMMAND + leave], silence_s=5.0)
    trajectory = await theatre.one(workflow, lambda prompt, sampling: "4")
    assert (trajectory.error, trajectory.outcome) == (None, {"correct": 1.0, "answered": 1.0})


def near(text, task):
    return 0.5 if task.reference in text else 0.0


async def near_async(text, task):
    return near(text, task)


@pytest.mark.parametrize("grade", [near, near_async])
async def test_an_answer_is_graded_by_a_function_of_ones_own(theatre, grade):
    workflow = theatre.workflow(solve, grade=f"{grade.__module__}:{grade.__name__}")
    trajectory = await theatre.one(workflow, lambda prompt, sampling: "it is 4")
    assert trajectory.outcome["correct"] == 0.5


def percent(text, task):
    return 100.0


def undefined(text, task):
    return math.nan


@pytest.mark.parametrize(("grade", "value"), [(percent, "100"), (undefined, "nan")])
async def test_a_grade_that_is_no_share_is_refused(theatre, grade, value):
    workflow = theatre.workflow(solve, grade=f"{grade.__module__}:{grade.__name__}")
    with pytest.raises(ConfigError, match=f"{grade.__name__} gave {value} for the task .*; a grade is a number from 0"):
        await theatre.one(workflow, lambda prompt, sampling: "it is 4")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"function": "nowhere:solve"}, "function: 'nowhere:solve' cannot be imported: ModuleNotFoundError"),
        ({"function": "json:solve"}, "cannot be imported: AttributeError"),
        ({"function": "json"}, "not of the form module:function"),
        ({"function": "json:__name__"}, "is no function"),
        ({}, "give one of function"),
        ({"function": "json:loads", "command": ["true"]}, "give one of function"),
        ({"command": ["no-such-program"]}, "there is no program 'no-such-program'"),
        ({"function": "json:loads", "agents": ()}, "names no agent"),
        ({"function": "json:loads", "answer": "first"}, "answer is output or last"),
        ({"function": "json:loads", "on_divergence": "go"}, "on_divergence is stop or fail"),
        ({"function": "json:loads", "silence_s": 0.0}, "silence_s is above 0"),
        ({"function": "json:loads", "grade": "exactly"}, "grade: 'exactly' is not of the form"),
        ({"function": "json:loads", "agents": {"a": ExternalAgent(brief="", rubric="no.md")}}, "no.md cannot be read"),
        ({"function": "json:loads", "agents": {"a": ExternalAgent(brief="", models=["b"]),
                                               "b": ExternalAgent(brief="")}}, "'b' means a and b"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_with_the_reason(theatre, options, says):
    with pytest.raises(ConfigError, match=says):
        theatre.workflow(**options)


async def test_two_runs_of_one_team_do_not_hear_each_other(theatre):
    quiet = replace(Task(id="u", prompt="?", reference="4"))
    first, second = await asyncio.gather(
        theatre.one(theatre.workflow(solve), lambda prompt, sampling: "4"),
        theatre.one(theatre.workflow(solve), lambda prompt, sampling: "5", tasks=(quiet,)),
    )
    assert (first.outcome["correct"], second.outcome["correct"]) == (1.0, 0.0)


async def test_replay_with_waves_samples_the_same_requests_and_continues(theatre):
    tasks = tuple(Task(id=f"t{number}", prompt="", reference="x") for number in range(4))
    asked = []

    def script(prompt, sampling):
        asked.append((prompt, sampling.seed))
        return "x"

    whole = await theatre.play(theatre.workflow(twice), script, tasks=tasks, waves=True)
    first, asked = asked, []
    begun = {one.id: Replay(steps=one.steps[: place % 3]) for place, one in enumerate(whole)}
    again = await theatre.play(theatre.workflow(twice), script, tasks=tasks, waves=True, recorded=begun)
    assert asked == first, "other requests, or in other waves"
    assert [[step.id for step in one.steps] for one in again] == [[step.id for step in one.steps] for one in whole]


async def test_a_run_that_is_broken_off_waits_for_no_agent(theatre, native):
    playing = asyncio.create_task(theatre.one(theatre.workflow(solve), Never(native(lambda prompt, sampling: "4"))))
    await asyncio.sleep(0.3)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(playing, 5)


class Never(Gate):
    async def sample(self, tokens, sampling):
        await asyncio.Event().wait()


def instructed(session):
    return ask(client_of(session), f"Be terse.\n{session.task.prompt}").choices[0].message.content


@pytest.mark.parametrize("named", ["Be terse.\n", "Be terse.", "Be kind."])
async def test_a_run_puts_another_prompt_where_requests_hold_the_named_one(theatre, tmp_path, named):
    (tmp_path / "solver.md").write_text(named)
    agents = {"solver": ExternalAgent(brief="solves", prompt=str(tmp_path / "solver.md"))}
    workflow = theatre.workflow(instructed, agents=agents)
    assert workflow.prompts == {"solver": named.strip()}
    untouched = await theatre.one(workflow, lambda prompt, sampling: "4")
    assert untouched.steps[0].messages[0].content == "Be terse.\nwhat is 2+2?"
    changed = await theatre.one(workflow.with_prompts({"solver": "Be thorough."}), lambda prompt, sampling: "4")
    if named == "Be kind.":
        assert "does not hold the text that its option `prompt` names" in changed.error.message
    else:
        assert changed.steps[0].messages[0].content == "Be thorough.\nwhat is 2+2?"


def test_a_prompt_that_is_empty_or_missing_is_refused(theatre, tmp_path):
    (tmp_path / "empty.md").write_text("\n")
    for name, why in (("empty.md", "is empty"), ("none.md", "cannot be read")):
        agents = {"solver": ExternalAgent(brief="solves", prompt=str(tmp_path / name))}
        with pytest.raises(ConfigError, match=rf"workflow.options.agents.solver.prompt: .*{name} {why}"):
            theatre.workflow(solve, agents=agents)
