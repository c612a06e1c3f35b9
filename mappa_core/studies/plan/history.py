"""What a run that was made before tells of one to come: how agents acted, what was asked, and how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mappa_core.errors import RunError
from mappa_core.protocols import Split
from mappa_core.records import Phase, Trajectory, Usage
from mappa_core.store.reader import Reader

MOST = 512
"""Trajectories of a split that are looked into, spread evenly over the run."""
_ALL = 1 << 40


@dataclass(slots=True)
class Spent:
    """Usage added up over `count` actions or verdicts; a figure is None once a provider did not tell it. `replayed`
    ones were given by a cassette and took nothing."""

    count: int = 0
    replayed: int = 0
    calls: int = 0
    prompt_tokens: float | None = 0
    completion_tokens: float | None = 0
    cached_tokens: float | None = 0
    usd: float | None = 0.0

    def add(self, usage: Usage | None, *, replayed: bool = False) -> None:
        """Count one action or verdict."""
        if replayed:
            self.replayed += 1
            return
        self.count += 1
        if usage is None:
            return
        self.calls += usage.calls
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "usd"):
            told, before = getattr(usage, name), getattr(self, name)
            setattr(self, name, None if told is None or before is None else before + told)

    def each(self, name: str) -> float | None:
        """The mean of one figure; None where it is not known."""
        total = getattr(self, name)
        return None if not self.count or total is None else total / self.count


@dataclass(slots=True)
class Acted:
    """One agent's actions in so many trajectories, and the `calls` of tools that they made. Tokens are None where its
    policy was behind an API. `followed` counts by agent the actions of a trajectory from each of these on."""

    actions: int = 0
    calls: int = 0
    followed: Counter[str] = field(default_factory=Counter)
    sampled: int | None = 0
    prompt: int | None = 0
    api: Spent = field(default_factory=Spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What the trajectories of one split showed, by agent and, of verdicts, by phase."""

    trajectories: int
    agents: Mapping[str, Acted]
    verdicts: Mapping[tuple[str, Phase], Spent]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run that was made before. `splits` holds those that were played; `seconds` is the mean of an iteration by
    phase, in which `rollouts` trajectories were played; None where no iteration was finished."""

    folder: Path
    splits: Mapping[Split, Played]
    seconds: Mapping[str, float] | None
    rollouts: float | None

    def played(self, split: Split) -> Played:
        """What is known of a split, or where it was not played of the other."""
        return self.splits[split] if split in self.splits else next(iter(self.splits.values()))


def read_history(folder: Path, agents: Sequence[str]) -> History:
    """What the run in `folder` tells.

    Raises:
        RunError: it is no run, nothing was played there, or others played.
    """
    splits: tuple[Split, ...] = ("train", "eval")
    with Reader(folder) as reader:
        found = {split: played for split in splits if (played := _played(reader, split)) is not None}
        iterations = [metrics for _, metrics in reader.iterations()]
    if not found:
        raise RunError(f"{folder} holds no rollouts that ended, so nothing can be learned from it")
    seen = {agent for played in found.values() for agent in played.agents}
    if not seen <= set(agents):
        raise RunError(
            f"{folder} was played by {', '.join(sorted(seen))}, and this recipe has {', '.join(agents)}: "
            "name a run of the same team"
        )
    return History(
        folder=folder,
        splits=found,
        seconds=_seconds(iterations),
        rollouts=float(np.mean([metrics["rollouts"] for metrics in iterations])) if iterations else None,
    )


def _played(reader: Reader, split: Split) -> Played | None:
    rows = [row for row in reader.trajectories(split, limit=_ALL) if row.status != "open"]
    if not rows:
        return None
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST)).round().astype(int))
    return summed(reader.trajectory(rows[place].id) for place in chosen)


def summed(trajectories: Iterable[Trajectory]) -> Played:
    """Add up what was done, and asked, in `trajectories`."""
    count, agents, verdicts = 0, dict[str, Acted](), dict[tuple[str, Phase], Spent]()
    for trajectory in trajectories:
        count += 1
        agent_of = {step.id: step.agent for step in trajectory.steps}
        for step in trajectory.steps:
            acted, done = agents.setdefault(step.agent, Acted()), step.completion
            acted.actions += 1
            acted.calls += len(step.results)
            acted.followed.update(later.agent for later in trajectory.steps if later.position >= step.position)
            acted.sampled = _more(acted.sampled, None if done.tokens is None else len(done.tokens))
            acted.prompt = _more(acted.prompt, None if done.prompt_tokens is None else len(done.prompt_tokens))
            if done.tokens is None:
                acted.api.add(done.usage)
        for verdict in trajectory.verdicts:
            if verdict.phase != "again":
                spent = verdicts.setdefault((agent_of[verdict.step], verdict.phase), Spent())
                spent.add(verdict.usage, replayed=verdict.replayed)
    return Played(trajectories=count, agents=agents, verdicts=verdicts)


def _more(total: int | None, length: int | None) -> int | None:
    return None if total is None or length is None else total + length


def _seconds(iterations: Sequence[Mapping[str, float]]) -> Mapping[str, float] | None:
    """Mean seconds of an iteration by phase."""
    if not iterations:
        return None
    phases = dict.fromkeys(name for metrics in iterations for name in metrics if name.startswith("seconds/"))
    return {
        name.removeprefix("seconds/"): sum(metrics[name] for metrics in iterations if name in metrics) / len(iterations)
        for name in phases
    }
