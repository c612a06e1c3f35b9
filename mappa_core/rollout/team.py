"""Everything a stage needs, the same for all trajectories of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mappa_core.calls.policy import ApiPolicy
from mappa_core.calls.spend import Ledger
from mappa_core.protocols import Coach, Sampler, Split, Tool, Workflow
from mappa_core.records import Sampling, Step, Task, ToolLimits, Trajectory, Verdict
from mappa_core.store.counterfactuals import COUNTERFACTUAL, name_of
from mappa_core.tools.bench import ToolBench


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judge:
    """A coach under the name that a recipe gave it."""

    name: str
    coach: Coach


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Team:
    """A workflow and what its agents work with.

    Keys of `policy_of`, `sampling` and `judges` are agents, of `samplers` policies, of `tools`, `limits` and `retries`
    tools; `boxes` names the tools of each box of them.
    `retries` is how often calls are made again where a tool's machinery failed: the first time after `retry_after_s`
    seconds, and after twice as long every time. `judges` lacks an agent whose actions nobody judges (evaluation without
    a coach); `hindsight` judges all actions of a finished trajectory. `unheard` are agents whose actions are judged
    elsewhere and not here: a workflow that asks for such a verdict is refused. `outside` holds the policies behind an
    API; `ledger` counts what they and the coaches cost.
    """

    workflow: Workflow
    policy_of: Mapping[str, str]
    samplers: Mapping[str, Sampler]
    sampling: Mapping[str, Sampling]
    tools: Mapping[str, Tool]
    limits: Mapping[str, ToolLimits]
    retries: Mapping[str, int]
    judges: Mapping[str, Judge]
    boxes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hindsight: Judge | None = None
    unheard: frozenset[str] = frozenset()
    outside: Mapping[str, ApiPolicy] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=lambda: Ledger(None))
    reference_for: frozenset[str] = frozenset()
    coach_timeout_s: float = 120.0
    retry_after_s: float = 0.5
    seed: int = 0

    def offered(self, tools: Iterable[str]) -> tuple[str, ...]:
        """The tools that a workflow means, in order: a box stands for its tools."""
        return tuple(dict.fromkeys(one for name in tools for one in self.boxes.get(name, (name,))))

    def bench(self, archive: Path) -> ToolBench:
        """Where programs are run on files of this team that `archive` keeps."""
        return ToolBench(self.tools, self.limits, self.retries, wait_s=self.retry_after_s, archive=archive)

    def seed_of(self, *names: object) -> int:
        """A 63-bit seed for what `names` identify, the same in every process and every replay."""
        text = "/".join(str(name) for name in (self.seed, *names))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """The action at `position` of `trajectory`, to be replaced the `number`-th time."""

    trajectory: str
    position: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One trajectory to be collected; where it is another one `altered`, a counterfactual rollout of that."""

    task: Task
    split: Split
    iteration: int
    sample: int
    altered: Altered | None = None

    @property
    def id(self) -> str:
        """Names the trajectory in the store; sorts in canonical order."""
        if self.altered is not None:
            return name_of(self.altered.trajectory, self.altered.position, self.altered.number)
        return f"{self.split}-{self.iteration:06d}/{self.task.id}/{self.sample:03d}"

    @property
    def kept_as(self) -> str:
        """The split under which the store keeps the trajectory."""
        return self.split if self.altered is None else COUNTERFACTUAL

    @property
    def origin(self) -> str:
        """The trajectory whose randomness this one has, its own but for the action that is replaced."""
        return self.id if self.altered is None else self.altered.trajectory

    def drawn_by(self, position: int) -> str:
        """The name that the seed of an action is made from."""
        return self.id if self.altered is not None and self.altered.position == position else self.origin


class Recorder(Protocol):
    """Where finished work goes at once, so that a killed run loses none of it."""

    def begin(self, split: str, trajectory_id: str, task: Task, sample: int, iteration: int) -> None: ...

    def step(self, trajectory_id: str, step: Step) -> None: ...

    def verdict(self, verdict: Verdict) -> None: ...

    def end(self, trajectory: Trajectory) -> None: ...
