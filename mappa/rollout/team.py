"""Team, jobs and recorder: what all stages of a run share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.replay import ActionRequest
from mappa.rollout.seeds import derive_seed
from mappa.store.queries import COUNTERFACTUAL, counterfactual_id
from mappa_core.calls.api_policy import ApiPolicy
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.protocols import AnswerGrader, Sampler, Split, Tool, Workflow
from mappa_core.records import Message, Sampling, Step, Task, ToolLimits, Trajectory, Verdict
from mappa_core.tools.retry import RETRY_AFTER_S
from mappa_core.tools.scratch import ScratchRunner


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Team:
    """A workflow with the policies, tools and coaches of its agents.

    Keys of `policy_of`, `sampling` and `coach_of` are agents, of `samplers` policies, of `tools`, `limits` and
    `retries` tools. When a tool's machinery fails, a call is retried at most `retries` times, first after
    `retry_after_s` seconds, with the delay doubling each time. `coach_of` lacks agents whose actions are not judged;
    `hindsight` judges all actions of a finished trajectory. `unjudged` lists agents that are judged in training but not
    here: a workflow that requests such a verdict gets an error. `grader` is the source of the tasks if it grades
    answers itself; without one the workflow does. `ledger` counts the cost of policies behind an API and of coaches.
    """

    workflow: Workflow
    grader: AnswerGrader | None = None
    policy_of: Mapping[str, str]
    samplers: Mapping[str, Sampler]
    sampling: Mapping[str, Sampling]
    tools: Mapping[str, Tool]
    limits: Mapping[str, ToolLimits]
    retries: Mapping[str, int]
    coach_of: Mapping[str, NamedCoach]
    toolboxes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hindsight: NamedCoach | None = None
    unjudged: frozenset[str] = frozenset()
    api_policies: Mapping[str, ApiPolicy] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=lambda: Ledger(None))
    reference_for: frozenset[str] = frozenset()
    coach_timeout_s: float = 300.0
    retry_after_s: float = RETRY_AFTER_S
    seed: int = 0

    def expand_toolboxes(self, tools: Iterable[str]) -> tuple[str, ...]:
        """Replace each toolbox name by the names of its tools; order is kept, duplicates are dropped."""
        expanded = [tool for name in tools for tool in self.toolboxes.get(name, (name,))]
        return tuple(dict.fromkeys(expanded))

    def render(self, policy: str, action: Step | ActionRequest, messages: Sequence[Message]) -> Any:
        """Render `messages` as the prompt of a policy that has the tools of `action`."""
        specs = (*(self.tools[name].spec for name in action.tools), *action.own_tools)
        return self.samplers[policy].render(messages, specs)

    def prompt_version(self, agent: str) -> str | None:
        """Hash of the agent's prompt; None if the workflow names none."""
        text = self.workflow.prompts.get(agent)
        return None if text is None else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def bench(self, archive: Path) -> ScratchRunner:
        """Runner of programs on files of this team that `archive` keeps."""
        return ScratchRunner(self.tools, self.limits, self.retries, wait_s=self.retry_after_s, archive=archive)

    def seed_of(self, *names: object) -> int:
        """The seed of what `names` name in this run; see `derive_seed`."""
        return derive_seed(self.seed, *names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The `number`-th replacement of the action at `position` of `trajectory`."""

    trajectory: str
    position: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One trajectory to collect; with a `replacement`, a counterfactual rollout of another trajectory."""

    task: Task
    split: Split
    iteration: int
    sample: int
    replacement: Replacement | None = None

    @property
    def id(self) -> str:
        """Id of the trajectory in the store; ids sort in canonical order."""
        if self.replacement is not None:
            return counterfactual_id(self.replacement.trajectory, self.replacement.position, self.replacement.number)
        return f"{self.split}-{self.iteration:06d}/{self.task.id}/{self.sample:03d}"

    @property
    def stored_split(self) -> str:
        """Split under which the store keeps the trajectory."""
        return self.split if self.replacement is None else COUNTERFACTUAL

    @property
    def origin(self) -> str:
        """Id of the trajectory whose seeds this one uses for all actions but the replaced one."""
        return self.id if self.replacement is None else self.replacement.trajectory

    def seed_name(self, position: int) -> str:
        """Trajectory id from which the seed of the action at `position` is derived."""
        # The replaced action is sampled anew; all others have the random numbers of the original.
        is_replaced = self.replacement is not None and self.replacement.position == position
        return self.id if is_replaced else self.origin


class Recorder(Protocol):
    """Records finished work at once, so that a killed run loses none of it."""

    def begin_trajectory(self, split: str, trajectory_id: str, task: Task, sample: int, iteration: int) -> None: ...

    def record_step(self, trajectory_id: str, step: Step) -> None: ...

    def record_verdict(self, verdict: Verdict) -> None: ...

    def end_trajectory(self, trajectory: Trajectory) -> None: ...
