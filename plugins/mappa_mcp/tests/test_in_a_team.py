"""The tools of a server in a run: one section of the recipe, offered to agents under their own names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mappa.sessions import Job, RolloutCollector, RunConfig
from mappa.testing import MemoryRecorder, ScriptedSampler
from mappa_core import ConfigError, Message, NoOptions, Role, Task, Workflow
from mappa_core.engine import split_calls
from mappa_core.sandbox import ToolSection
from mappa_mcp.options import McpOptions
from mappa_sandbox.calculator import Calculator

PLAIN = [sys.executable, str(Path(__file__).parent / "plain_server.py")]


class Reader(Workflow):
    """Asks with all tools of the shelf, and once more with what they answered."""

    agents = {"reader": Role(brief="reads")}  # noqa: RUF012

    async def run(self, stage):
        messages = [Message(role="user", content=stage.task.prompt)]
        step = await stage.act("reader", messages, tools=("shelf", "calculator"))
        answers = [Message(role="tool", content=result.stdout) for result in step.results]
        await stage.act("reader", [*messages, step.reply, *answers], tools=("look_up",))


class Native(ScriptedSampler):
    """Parses native calls as an engine does, and notes what it offered."""

    def __init__(self, script):
        super().__init__(script)
        self.offered = []

    def render(self, messages, tools=()):
        self.offered.append([tool.name for tool in tools])
        return super().render(messages, tools)

    def reply(self, completion):
        said, calls = split_calls(completion.text)
        return Message(role="assistant", content=said, tool_calls=calls)


def configured(**options):
    return RunConfig(
        tools={
            "shelf": ToolSection(use="mcp", options=McpOptions(command=PLAIN, **options)),
            "calculator": ToolSection(use="calculator", options=NoOptions()),
        }
    )


async def test_a_section_of_the_recipe_offers_every_tool_of_the_server(open_tools, team_with, tmp_path):
    call = json.dumps({"name": "look_up", "arguments": {"title": "Emma"}})
    sampler = Native(lambda prompt, sampling: "done" if "<tool>" in prompt else f"<tool_call>{call}</tool_call>")
    opened = await open_tools(configured())
    team = team_with(Reader(), sampler, opened)
    collector = RolloutCollector(team, recorder=MemoryRecorder(), archive=tmp_path, concurrency=1, waves=False)
    (trajectory,) = await collector.collect([Job(task=Task(id="t", prompt="?"), split="train", iteration=0, sample=0)])
    first, second = trajectory.steps
    assert sampler.offered == [["burn_down", "look_up", "calculator"], ["look_up"]]
    assert first.tools == ("burn_down", "look_up", "calculator") and second.tools == ("look_up",)
    assert [(result.tool, result.status, result.stdout) for result in first.results] == [
        ("look_up", "ok", "Emma None None")
    ]
    assert isinstance(opened.tools["calculator"], Calculator)


async def test_two_tools_of_one_name_are_told_apart_by_a_prefix(open_tools):
    config = configured(only=["look_up"])
    config.tools["other"] = ToolSection(use="mcp", options=McpOptions(command=PLAIN, only=["look_up"]))
    with pytest.raises(ConfigError, match=r"tools.other: there is a tool 'look_up' already; .*options.prefix"):
        await open_tools(config)
