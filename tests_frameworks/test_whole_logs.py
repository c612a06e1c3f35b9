"""Logs that the libraries themselves write are in their runs whole: thoughts, texts, parallel calls of which one fails,
and their answers. Every team asks for the weather of two cities and is told that of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import inspect_ai
import pytest
from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.middleware.builtin.telemetry import TelemetryMiddleware
from ag2.testing import TestConfig
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import SelectorGroupChat
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, RequestUsage
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from autogen_ext.models.replay import ReplayChatCompletionClient
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ContentToolUse,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolCall, ToolError, tool
from langchain_anthropic import ChatAnthropic
from langchain_core.load import dumps
from langchain_core.messages import HumanMessage, ToolMessage, messages_to_dict
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from provider import serving
from spans import instrumented

from mappa.look.importing import LogMapping, import_logs
from mappa.look.importing.content import ENCRYPTED
from mappa.look.importing.import_result import ImportResult
from mappa.runs import RunReader
from mappa_core.plugins import load_plugins

QUESTION, THOUGHT, TEXT, END = "Weather in Oslo and Rome?", "Both are needed.", "I look up both.", "Rome has 21 C."
FAILED, TOLD = "service down", "21 C"
CITIES = ("Oslo", "Rome")


def imported(path: Path, **mapped: Any) -> tuple[ImportResult, Sequence[Any]]:
    made = import_logs(load_plugins(only=("look",)), [path], LogMapping(**mapped), root=path.parent, name="run")
    with RunReader(made.folder) as reader:
        (row,) = reader.trajectories
        return made, reader.trajectory(row.id).steps


def hold(steps: Sequence[Any], *, thought: str | None = THOUGHT, text: str = TEXT) -> None:
    """The first action thinks, speaks and calls twice, and the last says the end."""
    first, last = steps[0], steps[-1]
    assert (first.reply.reasoning, first.reply.content, last.reply.content) == (thought, text, END)
    called = [(call.name, call.arguments["city"]) for call in first.reply.tool_calls if "city" in call.arguments]
    assert called == [("weather", city) for city in CITIES]
    answers = [(result.stdout, result.status) for call, result in zip(first.calls, first.results, strict=True)
               if "city" in call.arguments]  # fmt: skip
    assert [status for _, status in answers] == ["error", "ok"]
    assert FAILED in answers[0][0] and answers[1][0] == TOLD


# --- a provider that speaks Anthropic's messages ----------------------------------------------------------------------

CALLS = [{"type": "tool_use", "id": f"c{city}", "name": "weather", "input": {"city": city}} for city in CITIES]
FIRST = [
    {"type": "thinking", "thinking": THOUGHT, "signature": "s"},
    {"type": "redacted_thinking", "data": "cipher"},
    {"type": "text", "text": TEXT},
    *CALLS,
]
TOOL = {
    "name": "weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def answer_messages(asked: Any) -> dict[str, Any]:
    """Thinks and calls at first, and says the end when it is shown answers."""
    is_first = len(asked["messages"]) == 1
    return {
        "id": "m", "type": "message", "role": "assistant", "model": asked["model"],
        "content": FIRST if is_first else [{"type": "text", "text": END}],
        "stop_reason": "tool_use" if is_first else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }  # fmt: skip


@pytest.fixture
def url() -> Iterator[str]:
    with serving(answer_messages) as place:
        yield place


def ask_anthropic(url: str) -> list[dict[str, Any]]:
    """The conversation as a program keeps it: what the SDK returned, dumped, and answers of its own."""
    client = anthropic.Anthropic(base_url=url, api_key="none")
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        reply = client.messages.create(model="m", max_tokens=99, messages=messages, tools=[TOOL])
        parts = [part.model_dump(exclude_none=True) for part in reply.content]
        messages.append({"role": "assistant", "content": parts})
        answers = [
            {
                "type": "tool_result",
                "tool_use_id": part.id,
                "content": FAILED if part.input["city"] == "Oslo" else TOLD,
                "is_error": part.input["city"] == "Oslo",
            }
            for part in reply.content
            if part.type == "tool_use"
        ]
        messages += [{"role": "user", "content": answers}] if answers else []
    return messages


def test_messages_of_anthropics_sdk(url: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"messages": ask_anthropic(url)}))
    made, steps = imported(path)
    hold(steps)
    assert made.ledgers[str(path)].notes == {ENCRYPTED: 1}


@pytest.mark.parametrize("form", ["dumps", "dict", "model_dump"])
def test_messages_of_langchain(url: str, tmp_path: Path, form: str) -> None:
    model = ChatAnthropic(model="m", base_url=url, api_key="none", max_tokens=99).bind_tools([TOOL])
    messages: list[Any] = [HumanMessage(QUESTION)]
    messages.append(model.invoke(messages))
    for call in messages[1].tool_calls:
        failed = call["args"]["city"] == "Oslo"
        messages.append(
            ToolMessage(FAILED if failed else TOLD, tool_call_id=call["id"], status="error" if failed else "success")
        )
    messages.append(model.invoke(messages))
    forms = {
        "dumps": lambda: dumps({"messages": messages}),
        "dict": lambda: json.dumps({"messages": messages_to_dict(messages)}),
        "model_dump": lambda: json.dumps({"messages": [message.model_dump() for message in messages]}),
    }
    path = tmp_path / "log.json"
    path.write_text(forms[form]())
    made, steps = imported(path)
    hold(steps)
    assert (made.format, made.ledgers[str(path)].notes) == ("langchain", {ENCRYPTED: 1})
    assert steps[0].completion.usage.completion_tokens == 7


def test_spans_of_openinference(url: str, tmp_path: Path) -> None:
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with (
        instrumented("openinference.instrumentation.anthropic.AnthropicInstrumentor", provider),
        provider.get_tracer("team").start_as_current_span("team"),
    ):
        ask_anthropic(url)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(span.to_json(indent=None) + "\n" for span in kept.get_finished_spans()))
    made, steps = imported(path)
    first = steps[0]
    assert (first.reply.reasoning, first.reply.content, steps[-1].reply.content) == (THOUGHT, TEXT, END)
    assert [dict(call.arguments) for call in first.reply.tool_calls] == [{"city": city} for city in CITIES]
    assert [result.stdout for result in first.results] == [FAILED, TOLD]
    assert made.ledgers[str(path)].notes == {ENCRYPTED: 1}


# --- AutoGen ----------------------------------------------------------------------------------------------------------


def weather_of(city: str) -> str:
    """The weather of a city."""
    if city == "Oslo":
        raise RuntimeError(FAILED)
    return TOLD


weather_of.__name__ = "weather"


def written(content: Any, thought: str | None = None) -> CreateResult:
    return CreateResult(
        content=content, finish_reason="stop", usage=RequestUsage(prompt_tokens=5, completion_tokens=7), cached=False,
        thought=thought,
    )  # fmt: skip


def replaying(*replies: Any) -> ReplayChatCompletionClient:
    known = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown",
             "structured_output": False}  # fmt: skip
    return ReplayChatCompletionClient(list(replies), model_info=known)


async def test_a_team_of_autogen(tmp_path: Path) -> None:
    calls = [FunctionCall(id=f"c{city}", name="weather", arguments=json.dumps({"city": city})) for city in CITIES]
    forecaster = AssistantAgent(
        "forecaster", replaying(written(calls, THOUGHT), written("I know it.", "Oslo failed.")), tools=[weather_of],
        reflect_on_tool_use=True,
    )  # fmt: skip
    coder = CodeExecutorAgent(
        "coder", LocalCommandLineCodeExecutor(work_dir=tmp_path),
        model_client=replaying(written("```python\nprint(6 * 7)\n```"), written(END)),
    )  # fmt: skip
    team = SelectorGroupChat(
        [forecaster, coder], replaying("forecaster", "coder"), emit_team_events=True,
        termination_condition=TextMentionTermination(END),
    )  # fmt: skip
    path = tmp_path / "log.json"
    path.write_text((await team.run(task=QUESTION)).model_dump_json())
    made, steps = imported(path)
    hold(steps, text="")
    assert [step.agent for step in steps] == ["forecaster", "forecaster", "coder", "coder"]
    assert (steps[1].reply.reasoning, steps[2].results[0].stdout) == ("Oslo failed.", "42\n")
    assert made.counts.left_out["SelectSpeakerEvents"] == 2
    assert made.ledgers[str(path)].notes == {}


# --- AG2 --------------------------------------------------------------------------------------------------------------


def answer(city: str) -> str:
    """The weather of a city."""
    return f"error: {FAILED}" if city == "Oslo" else TOLD


answer.__name__ = "weather"


async def test_spans_of_ag2(tmp_path: Path) -> None:
    """They have OpenAI's messages in the attributes of the GenAI conventions."""
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    calls = [ToolCallEvent(id=f"c{city}", name="weather", arguments=json.dumps({"city": city})) for city in CITIES]
    telemetry = TelemetryMiddleware(tracer_provider=provider, agent_name="forecaster")
    agent = Agent("forecaster", "You forecast.", config=TestConfig(calls, END), tools=[answer], middleware=[telemetry])
    await agent.ask(QUESTION)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(span.to_json(indent=None) + "\n" for span in kept.get_finished_spans()))
    made, steps = imported(path)
    hold(steps, thought=None, text="")
    assert made.agents == {"forecaster": 2}


# --- inspect_ai -------------------------------------------------------------------------------------------------------


@tool
def weather() -> Any:
    async def execute(city: str) -> str:
        """Weather of a city.

        Args:
            city: The city.
        """
        if city == "Oslo":
            raise ToolError(FAILED)
        return TOLD

    return execute


@pytest.mark.parametrize("suffix", ["json", "eval"])
def test_a_log_of_inspect_ai(tmp_path: Path, suffix: str) -> None:
    usage = ModelUsage(input_tokens=5, output_tokens=7, total_tokens=12)
    search = ContentToolUse(tool_type="web_search", id="s", name="search", arguments='{"q": "x"}', result="found")
    calls = [ToolCall(id=f"c{city}", function="weather", arguments={"city": city}) for city in CITIES]
    thought = ContentReasoning(reasoning="cipher", summary=THOUGHT, redacted=True)
    replies = [
        ChatMessageAssistant(content=[thought, search, ContentText(text=TEXT)], tool_calls=calls),
        ChatMessageAssistant(content=END),
    ]
    outputs = [ModelOutput(model="m", usage=usage, choices=[{"message": reply}]) for reply in replies]
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = inspect_ai.Task(
        [Sample(QUESTION, target=TOLD)], solver=[use_tools(weather()), generate()], scorer=match("any")
    )
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), log_format=suffix, display="none")
    path = Path(log.location.removeprefix("file://"))
    made, steps = imported(path)
    hold(steps)
    assert [(call.name, result.stdout) for call, result in zip(steps[0].calls, steps[0].results, strict=True)][2:] == [
        ("search", "found")
    ]
    assert (made.ledgers[str(path)].notes, made.measured) == ({ENCRYPTED: 1}, 1)
