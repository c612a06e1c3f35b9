"""Interfaces for rollouts: task sources, workflows, stages, tools and workspaces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from mappa_core.records import (
    FileChange,
    Inspection,
    Message,
    Role,
    Sandbox,
    Scene,
    Step,
    Task,
    ToolLimits,
    ToolResult,
    ToolSpec,
    Verdict,
)

Split = Literal["train", "eval"]  # Tasks to learn from, and held-out ones.


class TaskSource(Protocol):
    """Source of tasks. `load` is called once per split; order and ids must be the same every time."""

    def load(self, split: Split) -> Sequence[Task]: ...


class Workspace(Protocol):
    """Working folder of one trajectory, which tracks changes of its files."""

    @property
    def path(self) -> Path: ...

    @property
    def files(self) -> tuple[str, ...]:
        """Sorted relative paths of all current files, the task's files included."""

    @property
    def inputs(self) -> Mapping[str, Path]:
        """The task's files by name. Each is a symbolic link in the folder to a file that must not be written."""

    def changes(self) -> tuple[FileChange, ...]:
        """Return the file changes since the last call."""

    def irregular_files(self) -> tuple[str, ...]:
        """Return what the last call of `changes` skipped, as it is no regular file: `link.csv (symbolic link)`."""


@runtime_checkable
class Tool(Protocol):
    """Tool that an agent can call. One instance serves all trajectories concurrently."""

    spec: ToolSpec

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run one call. A program that fails is a ToolResult; infrastructure failures raise ToolError."""

    async def close(self) -> None: ...


@runtime_checkable
class Sandboxed(Protocol):
    """Additional methods of a Tool that runs programs."""

    async def open(self) -> Sandbox:
        """Run a probe program and return its sandbox. Called once, before the first call.

        Raises:
            ConfigError: programs cannot be run as configured; the message says why and what to do.
        """

    async def run(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run a program with command-line arguments; otherwise the same as a call of the tool with that code."""


@runtime_checkable
class Toolbox(Protocol):
    """Group of tools that is discovered at start (on a server), offered in place of one Tool. A workflow selects a tool
    by its own name, or all of them by the name of the toolbox."""

    async def connect(self) -> Sequence[Tool]:
        """Return the tools in a stable order. Called once, before the first call.

        Raises:
            ConfigError: the tools are not available as configured; the message says why and what to do.
        """

    async def close(self) -> None:
        """Release the resources of the tools."""


class Bench(Protocol):
    """Runs programs of workflows and coaches that examine the files of agents, in the sandbox of the tool `python` and
    each in a folder of its own. Files of agents are untrusted: never unpickle them anywhere else."""

    def files(self, steps: Sequence[Step]) -> Mapping[str, Path]:
        """Return the files that the calls of `steps`, all steps so far, left, as read-only paths to their
        contents by relative path. The task's files are included only if an action wrote them."""

    async def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, Path],
        files: Mapping[str, Path] | None = None,
        arguments: Sequence[str] = (),
    ) -> ProgramRun:
        """Run a program in a folder with `inputs` as read-only links and with copies of `files`.

        Raises:
            ToolError: the infrastructure failed, and so did all retries.
            ConfigError: the run has no tool `python` that runs programs.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """Result of a program that ran on a Bench, and the files in its folder afterwards, without the inputs."""

    result: ToolResult
    files: Mapping[str, Path]


class Stage(Protocol):
    """Interface of a workflow to one trajectory. It supplies time, randomness and ids, so that the workflow can be
    replayed."""

    @property
    def task(self) -> Task:
        """The task without its `reference`."""

    @property
    def random(self) -> Random:
        """Random number generator of this trajectory, the same in every replay."""

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths of the current workspace files."""

    async def act(
        self,
        agent: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[str] = (),
        own_tools: Sequence[ToolSpec] = (),
        turns_left: int = 0,
    ) -> Step:
        """Sample one action, run its tool calls in order in the workspace, check the file contract, start the coach in
        the background, and return the step. The files that the agent's role produces are required once `turns_left` is
        0 or the workflow's `inspect` reports that the agent is done.

        `tools` names tools or toolboxes of the run. `own_tools` are additionally shown to the model; the workflow
        answers their calls itself, which are in the step's `reply`."""

    async def verdict(self, step: Step) -> Verdict:
        """Wait for the live verdict of `step`, for workflows that pass feedback to agents. In evaluation without a
        coach it is an abstained verdict. If the coach was shown the ground truth, its reasoning is withheld."""

    async def grade(self, text: str) -> float:
        """Grade `text` with the workflow's `grade`, without access to the ground truth."""

    async def grade_file(self, path: str) -> Mapping[str, float]:
        """Grade the file at `path`, as the actions left it, with the workflow's `grade_file`."""

    def record(self, **outcome: float) -> None:
        """Add metrics to the trajectory's outcome."""


class Workflow(ABC):
    """Decides which agent acts when, and what it sees. One instance runs many trajectories concurrently: keep state in
    `run`."""

    agents: Mapping[str, Role]
    metric: ClassVar[str] = "correct"
    """Outcome key that evaluation reports."""
    figures: ClassVar[tuple[str, ...]] = ()
    """Additional outcome keys that are reported, each a share from 0 to 1."""

    @abstractmethod
    async def run(self, stage: Stage) -> None:
        """Run one trajectory."""

    @property
    def max_turns(self) -> Mapping[str, int]:
        """Maximum number of actions per agent in one trajectory, which `mappa plan` uses to bound calls and tokens. An
        agent that is not listed may act any number of times."""
        return {}

    @property
    def default_actions(self) -> Mapping[str, str]:
        """Default action per agent, which contributes nothing, for `credit.counterfactual.use=default`."""
        return {}

    def answer(self, steps: Sequence[Step]) -> str | None:
        """Return the final answer of a trajectory in a normalised form, so that majority@k can compare answers as
        strings. None: there is no comparable answer."""
        return None

    async def grade(self, text: str, task: Task) -> float:
        """Grade a final answer by rule; `task.reference` is the ground truth."""
        raise NotImplementedError(f"{type(self).__name__} does not grade")

    async def grade_file(self, file: Path | None, task: Task) -> Mapping[str, float]:
        """Grade a file that the team left, None if it left none; `task.reference` is the ground truth."""
        raise NotImplementedError(f"{type(self).__name__} grades no files")

    async def inspect(self, scene: Scene, bench: Bench, *, last: bool) -> Inspection | None:
        """Inspect the files after an action; `last`: it is the last of its agent's turns. `scene` does not contain the
        ground truth. None: nothing was inspected."""
        return None

    async def reveal(self, scene: Scene, bench: Bench) -> str | None:
        """Describe the ground truth about `scene.step` for a coach that may see it; `scene.task.reference` is the
        ground truth. None: the coach gets the reference as it is."""
        return None

    def strata(self, scene: Scene) -> Mapping[str, str]:
        """Return additional strata of an action as {stratifier: stratum}; the task's own stratum is always stored as
        `task`."""
        return {}

    async def close(self) -> None:
        """Release the workflow's resources."""
