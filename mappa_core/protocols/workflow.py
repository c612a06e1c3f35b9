"""Interfaces for rollouts: task sources, workflows, stages, tools and workspaces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

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
    """Source of tasks. `load` is called once per split, with the same order and ids every time."""

    def load(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split. Raises TaskError that names file and row, and ConfigError for an option."""


@runtime_checkable
class AnswerGrader(Protocol):
    """Additional method of a TaskSource whose tasks have graders of their own: it replaces `Workflow.grade`."""

    async def grade_answer(self, answer: str, task: Task) -> float:
        """Grade what `Workflow.find_answer` found, from 0 to 1, by `task` alone: it may be one of an earlier run."""


class Workspace(Protocol):
    """Working folder of one trajectory, which tracks changes of its files."""

    @property
    def path(self) -> Path: ...

    @property
    def files(self) -> tuple[str, ...]:
        """Sorted relative paths of all files, the task's included."""

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
        """Run a probe program; return its sandbox. Called once; raises ConfigError that says what to do."""

    async def run(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run a program with command-line arguments; otherwise as a call of the tool with that code."""


@runtime_checkable
class Toolbox(Protocol):
    """Tools discovered at start, offered as one. A workflow selects them by name, or all by that of the toolbox."""

    async def connect(self) -> Sequence[Tool]:
        """Return the tools in a stable order. Called once; raises ConfigError that says what to do."""

    async def close(self) -> None: ...


class Bench(Protocol):
    """Runs programs on files of agents in the sandbox of the tool `python`. Unpickle them nowhere else."""

    def files(self, steps: Sequence[Step]) -> Mapping[str, Path]:
        """Return the files that the calls of `steps`, all steps so far, left: read-only paths to their contents by
        relative path. The task's files are included only if an action wrote them."""

    async def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, Path],
        files: Mapping[str, Path] | None = None,
        arguments: Sequence[str] = (),
    ) -> ProgramRun:
        """Run a program in a folder with `inputs` as read-only links and with copies of `files`. Raises ToolError if
        the infrastructure failed, retries included, and ConfigError if the run has no tool `python`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """Result of a program that ran on a Bench, and the files in its folder afterwards, without the inputs."""

    result: ToolResult
    files: Mapping[str, Path]


class Stage(Protocol):
    """Interface of a workflow to one trajectory. It supplies randomness and ids, so that a replay repeats them."""

    @property
    def task(self) -> Task:
        """The task without its `reference`."""

    @property
    def random(self) -> Random:
        """Generator of this trajectory, the same in every replay."""

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
        stop: Sequence[str] = (),
        turns_left: int = 0,
    ) -> Step:
        """Sample one action, run its tool calls in order in the workspace, check the file contract, start the coach in
        the background, and return the step. The files that the agent's role produces are required once `turns_left` is
        0 or the workflow's `inspect` reports that the agent is done.

        `tools` names tools or toolboxes of the run. `own_tools` are shown to the model too; the workflow answers their
        calls, which are in the step's `reply`. Sampling ends at the first text of `stop`, which the reply leaves out.
        Raises RolloutError (PromptTooLong, ToolError, CallError), which ends the trajectory.
        """

    def count_tokens(self, agent: str, messages: Sequence[Message], own_tools: Sequence[ToolSpec] = ()) -> int | None:
        """Count the tokens of a prompt of `act`; None for a policy behind an API."""

    async def verdict(self, step: Step) -> Verdict:
        """Wait for the live verdict of `step`, to pass feedback to agents: abstained in evaluation without a coach. The
        reasoning of a coach that was shown the ground truth is withheld."""

    async def grade(self, text: str) -> float:
        """Grade `text` with the task source or else the workflow's `grade`, without access to the ground truth."""

    async def grade_file(self, path: str) -> Mapping[str, float]:
        """Grade the file at `path`, as the actions left it, with the workflow's `grade_file`."""

    def record(self, **outcome: float) -> None:
        """Add metrics to the trajectory's outcome; leave out unknown ones, as NaN raises ValueError."""


class Workflow(ABC):
    """Decides which agent acts when, and what it sees. One instance runs many trajectories: keep state in `run`."""

    agents: Mapping[str, Role]
    metric: ClassVar[str] = "correct"
    """Outcome key that evaluation reports, a share from 0 to 1."""
    figures: ClassVar[tuple[str, ...]] = ()
    """Additional outcome keys that are reported, each a share from 0 to 1. `parsed` is for whether the final answer
    could be read at all (1 or 0); with it the metric among parsed answers is reported, too."""
    prompts: Mapping[str, str] = MappingProxyType({})
    """Texts that instruct agents and that `agents.NAME.prompt` replaces, by agent."""

    @abstractmethod
    async def run(self, stage: Stage) -> None:
        """Run one trajectory."""

    def with_prompts(self, prompts: Mapping[str, str]) -> Self:
        """Return a copy with other `prompts` of some agents, all else shared. Raises ConfigError for unusable texts."""
        changed = copy(self)
        changed.prompts = {**self.prompts, **prompts}
        return changed

    @property
    def max_turns(self) -> Mapping[str, int]:
        """Maximum actions per agent and trajectory, for bounds in `mappa plan`; no entry: no bound."""
        return {}

    @property
    def default_actions(self) -> Mapping[str, str]:
        """Action per agent that contributes nothing, for `credit.counterfactual.use=default`."""
        return {}

    def answer(self, steps: Sequence[Step]) -> str | None:
        """Return the final answer, normalised so that majority@k can compare strings; None: there is none."""
        return None

    def find_answer(self, text: str) -> str | None:
        """Return the answer in a graded text, for an AnswerGrader; None: there is none, which is worth 0."""
        return text

    async def grade(self, text: str, task: Task) -> float:
        """Grade a final answer by rule; `task.reference` is the ground truth, a text."""
        raise NotImplementedError(f"{type(self).__name__} does not grade")

    async def grade_file(self, file: Path | None, task: Task) -> Mapping[str, float]:
        """Grade a file that the team left, None if it left none; `task.reference` is the ground truth, or its path."""
        raise NotImplementedError(f"{type(self).__name__} grades no files")

    async def inspect(self, scene: Scene, bench: Bench, *, last: bool) -> Inspection | None:
        """Inspect the files after an action (without ground truth); `last`: of its agent's turns. None: not done."""
        return None

    async def reveal(self, scene: Scene, bench: Bench) -> str | None:
        """Describe the truth about `scene.step` for a coach that may see it; None: it gets the reference as it is."""
        return None

    def strata(self, scene: Scene) -> Mapping[str, str]:
        """Return additional strata {stratifier: stratum} of an action; the task's own is always stored as `task`."""
        return {}

    async def close(self) -> None:
        """Release the workflow's resources."""
