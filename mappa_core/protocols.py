"""The verbs: what offers must be able to do. Async where they wait, plain where they compute."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.records import (
    Completion,
    FileChange,
    Message,
    Role,
    Sampling,
    Sandbox,
    Scene,
    Step,
    Task,
    ToolLimits,
    ToolResult,
    ToolSpec,
    Trajectory,
    Usage,
    Verdict,
)

Split = Literal["train", "eval"]
Rewards = tuple[float | None, ...]
"""One reward per step of a trajectory, in order; None where the verdict is missing."""


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
        turns_left: int = 0,
    ) -> Step:
        """Sample one action, run its calls in order in one workspace, check the contract, start the coach in the
        background, and return the step. What the agent's role produces is due once `turns_left` is 0."""

    async def verdict(self, step: Step) -> Verdict:
        """The live verdict of `step`, for workflows that show feedback on. Waits for the coach. In evaluation without
        a coach it is an abstained verdict. Where the coach was shown the truth, its words are withheld."""

    async def grade(self, text: str) -> float:
        """Grade `text` against the truth with the workflow's `grade`; the truth itself stays out of reach."""

    def record(self, **outcome: float) -> None:
        """Add to the trajectory's outcome."""


class Workflow(ABC):
    """Who acts, in which order, seeing what. One instance runs many trajectories at once: keep state in `run`."""

    agents: Mapping[str, Role]
    metric: ClassVar[str] = "correct"
    """The key of the outcome that evaluation reports."""

    @abstractmethod
    async def run(self, stage: Stage) -> None:
        """Play one trajectory."""

    async def grade(self, text: str, task: Task) -> float:
        """Grade a final answer by rule; `task.reference` is the truth."""
        raise NotImplementedError(f"{type(self).__name__} does not grade")

    def strata(self, scene: Scene) -> Mapping[str, str]:
        """Further strata of an action, as {stratifier: stratum}; the task's own is always kept as `task`."""
        return {}

    async def close(self) -> None:
        """Release what the workflow holds."""


class Coach(ABC):
    """Judges steps. Only `score` has to be written.

    `score` may read the coach's state but never writes it: concurrent scoring must not depend on order. State is
    learned in `learn`, once an iteration, on the driver.
    """

    @abstractmethod
    async def score(self, scene: Scene) -> Verdict:
        """Judge `scene.step`. An exception becomes a `failed` verdict."""

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        """Judge several actions of one finished trajectory together: a verdict per scene, in order."""
        return await asyncio.gather(*(self.score(scene) for scene in scenes))

    @property
    def by_trajectory(self) -> bool:
        """Whether live verdicts are asked for with one `review` when a trajectory ends, not action by action."""
        return False

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Whom the coach asks: everything it is shown leaves for them."""
        return ()

    def keep_on(self, cassette: Cassette) -> None:
        """Look verdicts up on `cassette` before a provider is asked, and keep them there. Called once, at the start."""

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        """Update the state from one iteration."""

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""

    async def close(self) -> None:
        """Release connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Someone outside who is asked: the name of the offer (`gemini`), the `model`, where its server stands (`host`),
    and whether the price of its tokens is known."""

    name: str
    model: str
    host: str
    priced: bool


class Cassette(Protocol):
    """Verdicts by the content address of what was asked."""

    def get(self, address: str) -> Verdict | None:
        """The verdict kept at `address`, None where the provider is to be asked. Raises CoachError where nobody is to
        be asked and there is none."""

    def put(self, address: str, verdict: Verdict) -> None:
        """Keep a verdict that is not `failed`."""


Answer = Literal["schema", "json", "text"]
"""What a reply is to be: JSON that fits a schema, any JSON object, or text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of a provider.

    `messages` may begin with one of role `system`; the others are `user` and `assistant` in turn. `schema` is JSON
    schema in the portable form (`answer="schema"` has one). `max_tokens` bounds the reply, thinking included.
    `temperature` and `seed` None leave the provider's own. Calls of one `cache_key` begin alike, which a provider's
    prompt cache can use. `timeout_s` bounds the whole call in seconds.
    """

    messages: tuple[Message, ...]
    answer: Answer = "text"
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 2048
    temperature: float | None = None
    seed: int | None = None
    cache_key: str | None = None
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a provider answered.

    `stop`: `end`, it finished; `length`, it was cut off at its token limit (thinking may have used it up); `blocked`,
    the provider or the model refused. `detail` is the provider's own word for it, and its reason. `model` is what
    answered, as the provider names it; `raw` is the reply as received. `usage` is None where the provider does not say.
    """

    text: str
    stop: Literal["end", "length", "blocked"]
    model: str
    raw: str
    usage: Usage | None = None
    detail: str = ""


class Transport(Protocol):
    """One provider's wire. Core makes a coach and an `api` policy of its name of each."""

    @property
    def model(self) -> str:
        """The model that is asked, as the recipe names it."""

    @property
    def host(self) -> str:
        """Where the server stands, for people to read: what is sent goes there."""

    async def complete(self, request: Request) -> Reply:
        """Make one call, once: whoever calls decides on another try.

        Raises:
            CallError: there is no reply.
        """

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Tokens of `messages` by the provider's own free counter; None where it has none."""

    async def close(self) -> None: ...


class Tracker(Protocol):
    """A log of metrics elsewhere (a dashboard). One that fails never stops a run."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Shaper(Protocol):
    """Rewards of one trajectory to rewards; None stays None unless the formula says otherwise."""

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards: ...


class Estimator(Protocol):
    """Rewards to advantages, over one iteration. `state` is JSON values kept in the checkpoint."""

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossRows:
    """What a loss sees beside the new log-probabilities: torch tensors over the n tokens of one micro-batch.

    `row` numbers the rows from 0 in this micro-batch; `weight` is the row's weight on every token.
    """

    logprobs: Any  # (n,) of the sampler
    old_logprobs: Any  # (n,) of the learner before the update
    ref_logprobs: Any | None  # (n,)
    weight: Any  # (n,)
    row: Any  # (n,) int64


class Loss(Protocol):
    """Per-token policy loss in torch; the engine owns the mean. Metrics are sums over tokens; the engine divides."""

    def __call__(self, new_logprobs: Any, rows: LossRows, advantages: Any) -> tuple[Any, Mapping[str, Any]]: ...


class Sampler(Protocol):
    """The weights of one policy, ready to write. Many callers may await `sample` at once."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Any:
        """The prompt as `sample` takes it: of an engine, tokens int32 (P,) by the model's own chat template."""

    async def sample(self, prompt: Any, sampling: Sampling) -> Completion:
        """Sample one action. Raises PromptTooLong where prompt and max_tokens exceed the window."""

    def reply(self, completion: Completion) -> Message:
        """The completion as an assistant message: think text apart, native tool calls parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """What has weights. `full`: own weights, trained. `frozen`: own weights, not trained. (Policies behind an API have
    none, and no engine sees them.)"""

    name: str
    model: str
    kind: Literal["full", "frozen"] = "full"
    value_head: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the model's chat template as they are (for example enable_thinking)."""


class Engine(Protocol):
    """Samplers and learners of all policies. The loop never asks which engine it drives."""

    @property
    def deterministic(self) -> bool:
        """Whether equal requests in equal waves give bit-equal completions; rollouts are then admitted in waves."""

    async def open(self, policies: Sequence[PolicySpec], train: Any | None, *, seed: int) -> None:
        """Load every policy; `train` is the recipe's `train` section, None for sampling only. `seed` orders rows."""

    def sampler(self, policy: str) -> Sampler: ...

    async def score(self, experience: Experience) -> Experience:
        """Fill old_logprobs, ref_logprobs (and values) of all rows."""

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; metrics per policy. `progress` in [0, 1) is the share of
        iterations done, the clock of the learning-rate schedule."""

    async def publish(self) -> Mapping[str, Receipt]:
        """Hand the new weights to the samplers, verified."""

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...

    async def export(self, policy: str, folder: Path) -> None:
        """Write one policy as an ordinary Hugging Face folder."""

    async def close(self) -> None: ...


__all__ = [name for name in dir() if name[0].isupper()]
