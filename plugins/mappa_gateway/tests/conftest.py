"""A team whose agents are played from outside: the real stage, the real server, OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.team import Team
from mappa.sessions import Job, Replay, RolloutCollector
from mappa.testing import MemoryRecorder, ScriptedSampler
from mappa_core import Coach, Completion, Message, Sampling, Task, Trajectory
from mappa_core.engine import split_calls
from mappa_engine.chat import split_think
from mappa_gateway.options import ExternalAgent, GatewayOptions
from mappa_gateway.workflow import GatewayWorkflow

TASK = Task(id="t", prompt="what is 2+2?", reference="4", stratum="sum", meta={"source": "book"})


class NativeSampler(ScriptedSampler):
    """Tokens are bytes; think text and native calls are parsed as an engine does it."""

    def __init__(self, script: Callable[[str, Sampling], str]) -> None:
        super().__init__(script)
        self.offered: list[list[str]] = []

    def render(self, messages, tools=()):
        self.offered.append([tool.name for tool in tools])
        return super().render(messages, tools)

    def reply(self, completion: Completion) -> Message:
        said, reasoning = split_think(completion.text, ("<think>", "</think>"), opened=False)
        said, calls = split_calls(said)
        return Message(role="assistant", content=said, reasoning=reasoning, tool_calls=calls)


class Theatre:
    """Plays outside agents. What it builds is closed at the end of the test."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self.workflows: list[GatewayWorkflow] = []
        self.recorder = MemoryRecorder()

    def workflow(self, function: Callable[..., Any] | str | None = None, **options: Any) -> GatewayWorkflow:
        names = options.pop("agents", ("solver",))
        agents = names if isinstance(names, dict) else {name: ExternalAgent(brief="solves") for name in names}
        if function is not None:
            named = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
            options["function"] = named
        self.workflows.append(GatewayWorkflow(GatewayOptions(agents=agents, **options)))
        return self.workflows[-1]

    async def play(
        self,
        workflow: GatewayWorkflow,
        script: Callable[[str, Sampling], str] | Any,
        *,
        tasks: tuple[Task, ...] = (TASK,),
        samples: int = 1,
        waves: bool = False,
        coach: Coach | None = None,
        recorded: dict[str, Replay] | None = None,
    ) -> tuple[Trajectory, ...]:
        sampler = NativeSampler(script) if callable(script) else script
        team = Team(
            workflow=workflow,
            policy_of=dict.fromkeys(workflow.agents, "scripted"),
            samplers={"scripted": sampler},
            sampling={agent: Sampling() for agent in workflow.agents},
            tools={},
            limits={},
            retries={},
            coach_of={}
            if coach is None
            else {agent: NamedCoach(name="test", coach=coach) for agent in workflow.agents},
        )
        collector = RolloutCollector(team, recorder=self.recorder, archive=self._archive, concurrency=64, waves=waves)
        jobs = [Job(task=task, split="train", iteration=0, sample=n) for task in tasks for n in range(samples)]
        return await collector.collect(jobs, recorded)

    async def one(self, workflow: GatewayWorkflow, script: Any, **options: Any) -> Trajectory:
        (trajectory,) = await self.play(workflow, script, **options)
        return trajectory


@pytest.fixture
async def theatre(tmp_path: Path) -> AsyncIterator[Theatre]:
    theatre = Theatre(tmp_path)
    yield theatre
    for workflow in theatre.workflows:
        await workflow.close()


@pytest.fixture
def native() -> type[NativeSampler]:
    """The sampler, for tests that stand in front of it."""
    return NativeSampler


@pytest.fixture(scope="session")
def theatre_type() -> type[Theatre]:
    """For tests that open a theatre per generated example."""
    return Theatre
