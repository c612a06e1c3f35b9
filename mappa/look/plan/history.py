"""Measurements of a recorded run for planning another: actions of agents, coach usage, and durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mappa.runs import RunReader
from mappa.store.iteration_report import IterationReport
from mappa_core import RunError, Split, Trajectory, Usage
from mappa_core.records import Phase

MAX_TRAJECTORIES = 512
"""Trajectories of a split that are read, spread evenly over the run."""


@dataclass(slots=True)
class UsageTotals:
    """Usage added up over `count` actions or verdicts; a figure is None once a provider did not report it. `replayed`
    ones came from a cassette and cost nothing."""

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
            value, before = getattr(usage, name), getattr(self, name)
            setattr(self, name, None if value is None or before is None else before + value)

    def mean(self, name: str) -> float | None:
        """The mean of one figure; None if it is unknown."""
        total = getattr(self, name)
        return None if not self.count or total is None else total / self.count


@dataclass(slots=True)
class AgentHistory:
    """Totals of one agent's actions over trajectories; `calls` are tool calls. Tokens are None if its policy was behind
    an API. `actions_after` counts, by acting agent, the actions from each of this agent's actions on, that one
    included."""

    actions: int = 0
    calls: int = 0
    actions_after: Counter[str] = field(default_factory=Counter)
    sampled: int | None = 0
    prompt: int | None = 0
    api: UsageTotals = field(default_factory=UsageTotals)
    longest: tuple[int, int] = (0, 0)
    """Tokens of prompt and action where their sum is largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitHistory:
    """Totals over the trajectories of one split: by agent, and for verdicts by agent and phase."""

    trajectories: int
    agents: Mapping[str, AgentHistory]
    verdicts: Mapping[tuple[str, Phase], UsageTotals]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """A recorded run. `splits` holds the splits that were rolled out. `seconds` is the mean duration of an iteration by
    phase, and `rollouts` its mean number of trajectories; both are None if no iteration finished. `replaced` is the
    share of these that dynamic sampling replaced; None without it. `peak_memory` is that of its processes, in bytes;
    None where it was not recorded."""

    folder: Path
    splits: Mapping[Split, SplitHistory]
    seconds: Mapping[str, float] | None
    rollouts: float | None
    replaced: float | None
    peak_memory: int | None = None

    def split_or_other(self, split: Split) -> SplitHistory:
        """The totals of a split, or of the other split if it was not rolled out."""
        return self.splits[split] if split in self.splits else next(iter(self.splits.values()))


def read_history(folder: Path, agents: Sequence[str]) -> RunHistory:
    """Read the measurements of the run in `folder`.

    Raises:
        RunError: it is not a run, holds no ended rollouts, or has other agents.
    """
    splits: tuple[Split, ...] = ("train", "eval")
    with RunReader(folder) as reader:
        histories = {split: totals for split in splits if (totals := _read_split(reader, split)) is not None}
        iterations = list(reader.iterations)
        peak = reader.peak_memory
    if not histories:
        raise RunError(f"{folder} holds no rollouts that ended, so nothing can be learned from it")
    seen = {agent for totals in histories.values() for agent in totals.agents}
    if not seen <= set(agents):
        raise RunError(
            f"{folder} was played by {', '.join(sorted(seen))}, and this recipe has {', '.join(agents)}: "
            "name a run of the same team"
        )
    return RunHistory(
        folder=folder,
        splits=histories,
        seconds=_mean_phase_seconds(iterations),
        rollouts=float(np.mean([report.rollouts for report in iterations])) if iterations else None,
        replaced=_replaced_share(iterations),
        peak_memory=peak,
    )


def _read_split(reader: RunReader, split: Split) -> SplitHistory | None:
    rows = [row for row in reader.trajectories.where(split=split) if row.status != "open"]
    if not rows:
        return None
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MAX_TRAJECTORIES)).round().astype(int))
    return summarize_split(reader.trajectory(rows[place].id) for place in chosen)


def summarize_split(trajectories: Iterable[Trajectory]) -> SplitHistory:
    """Add up the actions and verdicts of `trajectories`."""
    count, agents, verdicts = 0, dict[str, AgentHistory](), dict[tuple[str, Phase], UsageTotals]()
    for trajectory in trajectories:
        count += 1
        agent_of = {step.id: step.agent for step in trajectory.steps}
        for step in trajectory.steps:
            totals, done = agents.setdefault(step.agent, AgentHistory()), step.completion
            totals.actions += 1
            totals.calls += len(step.results)
            totals.actions_after.update(later.agent for later in trajectory.steps if later.position >= step.position)
            totals.sampled = _add_length(totals.sampled, None if done.tokens is None else len(done.tokens))
            totals.prompt = _add_length(totals.prompt, None if done.prompt_tokens is None else len(done.prompt_tokens))
            if done.tokens is not None and done.prompt_tokens is not None:
                totals.longest = max(totals.longest, (len(done.prompt_tokens), len(done.tokens)), key=sum)
            if done.tokens is None:
                totals.api.add(done.usage)
        for verdict in trajectory.verdicts:
            if verdict.phase != "again":
                usage = verdicts.setdefault((agent_of[verdict.step], verdict.phase), UsageTotals())
                usage.add(verdict.usage, replayed=verdict.replayed)
    return SplitHistory(trajectories=count, agents=agents, verdicts=verdicts)


def _add_length(total: int | None, length: int | None) -> int | None:
    return None if total is None or length is None else total + length


def _replaced_share(iterations: Sequence[IterationReport]) -> float | None:
    """Share of the iterations' trajectories that dynamic sampling replaced."""
    drawn = [(report.replaced, report.rollouts) for report in iterations if report.replaced is not None]
    return sum(replaced for replaced, _ in drawn) / sum(rollouts for _, rollouts in drawn) if drawn else None


def _mean_phase_seconds(iterations: Sequence[IterationReport]) -> Mapping[str, float] | None:
    """Mean seconds per iteration by phase."""
    if not iterations:
        return None
    phases = dict.fromkeys(phase for report in iterations for phase in report.seconds)
    return {
        phase: sum(report.seconds[phase] for report in iterations if phase in report.seconds) / len(iterations)
        for phase in phases
    }
