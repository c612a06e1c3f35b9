"""Who acts: tasks, workflows, stages, tools, and the places where programs run."""

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

Split = Literal["train", "eval"]


class TaskSource(Protocol):
    """Where tasks come from. `load` is called once per split; order and ids must be the same every time."""

    def load(self, split: Split) -> Sequence[Task]: ...


class Workspace(Protocol):
    """The folder of one trajectory, with the lineage of its files."""

    @property
    def path(self) -> Path: ...

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths of the files that are there now, those of the task included, sorted."""

    @property
    def inputs(self) -> Mapping[str, Path]:
        """The files of the task by name. Each stands in the folder as a symbolic link to a file that must not be
        written to."""

    def changes(self) -> tuple[FileChange, ...]:
        """What happened to the files since the last call."""

    def left_behind(self) -> tuple[str, ...]:
        """What the last call of `changes` found that is no regular file and is not kept: `link.csv (symbolic link)`."""


@runtime_checkable
class Tool(Protocol):
    """Something an agent can call. One instance serves all trajectories at once."""

    spec: ToolSpec

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run one call. A program that fails is a ToolResult; faults of the machinery raise ToolError."""

    async def close(self) -> None: ...


@runtime_checkable
class Sandboxed(Protocol):
    """What a tool that runs programs has beside a Tool's methods."""

    async def open(self) -> Sandbox:
        """Called once, before the first call: run a program, and say where it ran.

        Raises:
            ConfigError: programs cannot be run as configured; the message says why and what to do.
        """

    async def run(self, code: str, arguments: Sequence[str], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run a program with arguments on its command line; otherwise like a call of the tool with that code."""


@runtime_checkable
class Toolbox(Protocol):
    """Several tools that are found where they are (on a server), offered in place of one Tool. Agents are offered each
    of them by its own name, and all of them by that of the box."""

    async def connect(self) -> Sequence[Tool]:
        """Called once, before the first call: the tools, in an order that does not change.

        Raises:
            ConfigError: they cannot be had as configured; the message says why and what to do.
        """

    async def close(self) -> None:
        """Release what the tools hold."""


class Bench(Protocol):
    """Where workflows look into what agents left, and coaches try it out: programs run as those of the tool `python`
    do, each in a folder of its own. What agents write is data from strangers: never unpickle it anywhere else."""

    def files(self, steps: Sequence[Step]) -> Mapping[str, Path]:
        """What the calls of `steps`, which are all so far, left: the content of each file by its path, not to be
        written to. The files of the task are not among them unless an action wrote them."""

    async def run(
        self,
        code: str,
        *,
        inputs: Mapping[str, Path],
        files: Mapping[str, Path] | None = None,
        arguments: Sequence[str] = (),
    ) -> Ran:
        """Run a program where `inputs` stand as links that cannot be written to, and copies of `files`.

        Raises:
            ToolError: the machinery failed, again and again.
            ConfigError: the run has no tool `python` that runs programs.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A program that was run on a bench: what it answered, and what lay in its folder afterwards, inputs apart."""

    result: ToolResult
    files: Mapping[str, Path]


class Stage(Protocol):
    """What a workflow holds while it runs one trajectory. Time, randomness and ids come from here, so that the
    workflow can be replayed."""

    @property
    def task(self) -> Task:
        """The task without its `reference`."""

    @property
    def random(self) -> Random:
        """Randomness of this trajectory, the same in every replay."""

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths in the workspace now."""

    async def act(
        self,
        agent: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[str] = (),
        own_tools: Sequence[ToolSpec] = (),
        turns_left: int = 0,
    ) -> Step:
        """Sample one action, run its calls in order in one workspace, check the contract, start the coach in the
        background, and return the step. What the agent's role produces is due once `turns_left` is 0, or the workflow's
        `inspect` says that the agent is done.

        `tools` names tools of the run, or boxes of them. `own_tools` are shown to the model beside those, and the
        workflow answers their calls, which it finds in the step's `reply`."""

    async def verdict(self, step: Step) -> Verdict:
        """The live verdict of `step`, for workflows that show feedback on. Waits for the coach. In evaluation without
        a coach it is an abstained verdict. Where the coach was shown the truth, its words are withheld."""

    async def grade(self, text: str) -> float:
        """Grade `text` against the truth with the workflow's `grade`; the truth itself stays out of reach."""

    async def grade_file(self, path: str) -> Mapping[str, float]:
        """Grade the file at `path`, as the actions left it, with the workflow's `grade_file`."""

    def record(self, **outcome: float) -> None:
        """Add to the trajectory's outcome."""


class Workflow(ABC):
    """Who acts, in which order, seeing what. One instance runs many trajectories at once: keep state in `run`."""

    agents: Mapping[str, Role]
    metric: ClassVar[str] = "correct"
    """The key of the outcome that evaluation reports."""
    figures: ClassVar[tuple[str, ...]] = ()
    """Further keys of the outcome that are reported beside it, each a share from 0 to 1."""

    @abstractmethod
    async def run(self, stage: Stage) -> None:
        """Play one trajectory."""

    @property
    def most_turns(self) -> Mapping[str, int]:
        """The most actions of each agent in one trajectory, by which `mappa plan` bounds calls and tokens. An agent
        that is not named may act any number of times."""
        return {}

    @property
    def default_actions(self) -> Mapping[str, str]:
        """What each agent says when it contributes nothing, for `credit.counterfactual.use=default`."""
        return {}

    def answer(self, steps: Sequence[Step]) -> str | None:
        """The final answer of a trajectory of these steps, written so that equal answers are equal texts: what
        majority@k counts. None: it has none that could be compared."""
        return None

    async def grade(self, text: str, task: Task) -> float:
        """Grade a final answer by rule; `task.reference` is the truth."""
        raise NotImplementedError(f"{type(self).__name__} does not grade")

    async def grade_file(self, file: Path | None, task: Task) -> Mapping[str, float]:
        """Grade a file that the team left, None where it left none; `task.reference` is the truth."""
        raise NotImplementedError(f"{type(self).__name__} grades no files")

    async def inspect(self, scene: Scene, bench: Bench, *, last: bool) -> Inspection | None:
        """Look into the files after an action; `last`: it is the last of its agent's turns. The truth is not in
        `scene`. None: nothing was looked at."""
        return None

    async def reveal(self, scene: Scene, bench: Bench) -> str | None:
        """What a coach that may see the truth is told of it about `scene.step`; `scene.task.reference` is the truth.
        None: the reference as it is."""
        return None

    def strata(self, scene: Scene) -> Mapping[str, str]:
        """Further strata of an action, as {stratifier: stratum}; the task's own is always kept as `task`."""
        return {}

    async def close(self) -> None:
        """Release what the workflow holds."""
