"""The objects behind the offers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mappa.runs import RunFolder
from mappa.sessions import Session
from mappa_core import (
    Advantages,
    Coach,
    Experience,
    Message,
    Role,
    Scene,
    Split,
    Stage,
    Task,
    ToolLimits,
    ToolResult,
    ToolSpec,
    Tracker,
    Trajectory,
    Verdict,
    Workflow,
    Workspace,
)
from mappa_core.transport import Reply, Request


class Tasks:
    def __init__(self, options: Any) -> None:
        self.options = options

    def load(self, split: Split) -> Sequence[Task]:
        return [Task(id=f"{split}-0", prompt="2 + 2?", reference="4")]


class Team(Workflow):
    def __init__(self, options: Any) -> None:
        self.options = options
        self.agents = {"solo": Role(brief="Answer.")}

    async def run(self, stage: Stage) -> None:
        await stage.act("solo", [Message(role="user", content=stage.task.prompt)])


class Echo:
    spec = ToolSpec(name="echo", description="Say it again.", schema={"type": "object"})

    def __init__(self, options: Any) -> None:
        self.options = options

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        return ToolResult(tool="echo", status="ok", stdout=str(arguments))

    async def close(self) -> None: ...


class Judge(Coach):
    def __init__(self, options: Any) -> None:
        self.options = options

    async def score(self, scene: Scene) -> Verdict:
        return Verdict.scored(5.0, "Good enough.")


class Wire:
    def __init__(self, options: Any) -> None:
        self.options = options

    model = "acme-1"
    host = "acme.example"

    async def complete(self, request: Request) -> Reply:
        return Reply(text="{}", stop="end", model="acme-1", raw="{}")

    async def count(self, messages: Sequence[Message]) -> int | None:
        return None

    async def close(self) -> None: ...


class Scale:
    def __init__(self, options: Any) -> None:
        self.options = options

    def __call__(self, trajectory: Trajectory, rewards: Sequence[float | None]) -> tuple[float | None, ...]:
        return tuple(None if reward is None else reward / self.options.high for reward in rewards)


class Estimate:
    def __init__(self, options: Any) -> None:
        self.options = options

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        return Advantages(advantages=experience.reward[experience.row_of_token] * experience.token_weight), state


class Reword:
    def __init__(self, options: Any) -> None:
        self.options = options

    def set_apart(self, tasks: Sequence[Task]) -> Collection[str]:
        return [tasks[0].id]

    async def improve(self, session: Session, folder: RunFolder, done: int) -> Mapping[str, str]:
        return {agent: f"{text} {done}" for agent, text in session.workflow.prompts.items()}


class Track(Tracker):
    def __init__(self, options: Any) -> None:
        self.options = options

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None: ...
