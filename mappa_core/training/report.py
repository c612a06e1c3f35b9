"""Metrics of one iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

import numpy as np

from mappa_core.coaching.drift import DriftReport
from mappa_core.errors import ToolError
from mappa_core.records import Step, Trajectory, Usage, Verdict
from mappa_core.store.summary import AgentSummary
from mappa_core.training.health import HealthWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCount:
    """Verdicts by status, and the usage of their calls. `usage` is None if no provider was called; verdicts from a
    cassette count as `replayed` and not as usage."""

    scored: int
    abstained: int
    failed: int
    replayed: int
    usage: Usage | None

    @property
    def verdicts(self) -> int:
        return self.scored + self.abstained + self.failed

    @property
    def missing(self) -> float:
        """The share of verdicts without a score."""
        return (self.abstained + self.failed) / self.verdicts if self.verdicts else 0.0

    @property
    def usd(self) -> float | None:
        """Cost of the calls; None if the price of any is unknown."""
        return 0.0 if self.usage is None else self.usage.usd

    def metrics(self) -> dict[str, float | None]:
        """Metrics by name; usage only if a provider was called."""
        counted = {"verdicts": self.verdicts, "abstained": self.abstained, "failed": self.failed, "usd": self.usd}
        if self.usage is None:
            return counted
        names = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")
        return {**counted, "replayed": self.replayed, **{name: getattr(self.usage, name) for name in names}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachFigures:
    """Verdict counts of one iteration: total, by agent and by coach; `reasons` counts why scores are missing."""

    total: VerdictCount
    by_agent: Mapping[str, VerdictCount]
    by_coach: Mapping[str, VerdictCount]
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFigures:
    """Means over finished rollouts, None if there is none: the workflow's metric, and its further figures by name."""

    accuracy: float | None
    figures: Mapping[str, float | None]

    def metrics(self, prefix: str = "") -> dict[str, float | None]:
        """Metrics by flat name."""
        further = {f"{prefix}figure/{name}": value for name, value in self.figures.items()}
        return {f"{prefix}accuracy": self.accuracy, **further}


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """Everything that progress output, trackers and the store get of an iteration.

    `strata` are the outcomes within each stratum of tasks. `failed_rollouts` counts by kind of error; `retried_calls`
    counts retries of calls after a tool's machinery failed. `late` of this iteration's own rollouts are left to a later
    one, and `joined` of the `rollouts` come from earlier ones. `staleness` is the age of the weights that sampled.
    `corrections` counts the corrections that were learned from and, by reason, those that were not
    (`credit.demonstrations`); it is empty without a supervised term. `counterfactuals` are metrics of counterfactual
    rollouts. `seconds` maps a phase (collect, score, update, …) to wall seconds; `policies` holds the engine's metrics
    per policy and the spread of its rewards (`training.health`); `warnings` lists what is newly out of bounds.
    """

    iteration: int
    iterations: int
    outcomes: OutcomeFigures
    strata: Mapping[str, OutcomeFigures]
    rollouts: int
    late: int
    joined: int
    staleness: Mapping[str, float]
    failed_rollouts: Mapping[str, int]
    retried_calls: int
    tokens: int
    agents: Mapping[str, AgentSummary]
    coach: CoachFigures
    drift: DriftReport
    policies: Mapping[str, Mapping[str, float]]
    warnings: tuple[HealthWarning, ...]
    corrections: Mapping[str, int]
    seconds: Mapping[str, float]
    counterfactuals: Mapping[str, float] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Number of rollouts lost to tool failures."""
        return sum(count for kind, count in self.failed_rollouts.items() if kind == ToolError.__name__)

    def metrics(self) -> dict[str, float]:
        """Metrics by flat name; a missing metric has no entry."""
        flat: dict[str, float | None] = {
            **self.outcomes.metrics(),
            "rollouts": self.rollouts,
            "rollouts/failed": sum(self.failed_rollouts.values()),
            "rollouts/late": self.late,
            "rollouts/joined": self.joined,
            **self.staleness,
            **self.counterfactuals,
            "tools/lost": self.lost,
            "tools/attempts_again": self.retried_calls,
            "tokens": self.tokens,
            **{f"coach/{name}": value for name, value in self.coach.total.metrics().items()},
        }
        for stratum, outcomes in self.strata.items():
            flat.update(outcomes.metrics(f"stratum/{stratum}/"))
        for agent, count in self.coach.by_agent.items():
            flat.update({f"coach/agent/{agent}/{name}": value for name, value in count.metrics().items()})
        for coach, count in self.coach.by_coach.items():
            flat.update({f"coach/name/{coach}/{name}": value for name, value in count.metrics().items()})
        for agent, figures in self.agents.items():
            flat[f"agent/{agent}/score"] = figures.score
            flat[f"agent/{agent}/tool_success"] = figures.tool_success
            flat[f"agent/{agent}/turns"] = figures.turns
            flat[f"agent/{agent}/length"] = figures.length
        flat.update(self.drift.metrics())
        flat["health/warnings"] = len(self.warnings)
        for policy, metrics in self.policies.items():
            flat.update({f"policy/{policy}/{name}": value for name, value in metrics.items()})
        flat.update({f"corrections/{name}": count for name, count in self.corrections.items()})
        flat.update({f"seconds/{name}": value for name, value in self.seconds.items()})
        return {name: float(value) for name, value in flat.items() if value is not None}


def outcome_figures(trajectories: Sequence[Trajectory], metric: str, figures: Sequence[str]) -> OutcomeFigures:
    """Means of what the workflow recorded of `trajectories`: its metric and further figures."""
    finished = [one.outcome for one in trajectories if one.error is None]
    return OutcomeFigures(
        accuracy=_mean([outcome[metric] for outcome in finished]),
        figures={name: _mean([outcome[name] for outcome in finished if name in outcome]) for name in figures},
    )


def stratum_figures(
    trajectories: Sequence[Trajectory], metric: str, figures: Sequence[str]
) -> dict[str, OutcomeFigures]:
    """Outcome figures within each stratum of tasks."""
    parts: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        parts.setdefault(one.task.stratum, []).append(one)
    return {stratum: outcome_figures(parts[stratum], metric, figures) for stratum in sorted(parts)}


def agent_figures(agents: Sequence[str], trajectories: Sequence[Trajectory]) -> dict[str, AgentSummary]:
    """Metrics per agent over the steps and live verdicts of `trajectories`."""
    steps: dict[str, list[Step]] = {agent: [] for agent in agents}
    scores: dict[str, list[float]] = {agent: [] for agent in agents}
    acted = dict.fromkeys(agents, 0)
    for trajectory in trajectories:
        agent_of = {step.id: step.agent for step in trajectory.steps}
        for agent in set(agent_of.values()):
            acted[agent] += 1
        for step in trajectory.steps:
            steps[step.agent].append(step)
        for verdict in trajectory.verdicts:
            if verdict.phase == "live" and verdict.score is not None:
                scores[agent_of[verdict.step]].append(verdict.score)
    return {agent: _figures(steps[agent], scores[agent], acted[agent]) for agent in agents}


def _figures(steps: Sequence[Step], scores: Sequence[float], acted: int) -> AgentSummary:
    results = [result for step in steps for result in step.results]
    lengths = [len(step.completion.tokens) for step in steps if step.completion.tokens is not None]
    return AgentSummary(
        score=_mean(scores),
        tool_success=_mean([result.status == "ok" for result in results]),
        turns=len(steps) / acted if acted else None,
        length=_mean(lengths),
    )


def count_retried_calls(trajectories: Sequence[Trajectory]) -> int:
    """Count the retries of calls after a tool's machinery failed."""
    steps = (step for trajectory in trajectories for step in trajectory.steps)
    return sum(result.attempts - 1 for step in steps for result in step.results)


def coach_figures(trajectories: Sequence[Trajectory]) -> CoachFigures:
    """Count the verdicts of all phases by status, and the reasons why scores are missing."""
    verdicts = [verdict for trajectory in trajectories for verdict in trajectory.verdicts]
    agent_of = {step.id: step.agent for trajectory in trajectories for step in trajectory.steps}
    missing = [verdict for verdict in verdicts if verdict.score is None]
    return CoachFigures(
        total=_count(verdicts),
        by_agent=_counts(verdicts, lambda verdict: agent_of[verdict.step]),
        by_coach=_counts(verdicts, lambda verdict: verdict.coach),
        reasons=Counter(f"{verdict.status}: {verdict.error or verdict.reasoning}" for verdict in missing),
    )


def _counts(verdicts: Sequence[Verdict], key: Callable[[Verdict], str]) -> dict[str, VerdictCount]:
    parts: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        parts.setdefault(key(verdict), []).append(verdict)
    return {name: _count(part) for name, part in sorted(parts.items())}


def _count(verdicts: Sequence[Verdict]) -> VerdictCount:
    status = Counter(verdict.status for verdict in verdicts)
    usages = [verdict.usage for verdict in verdicts if verdict.usage is not None and not verdict.replayed]
    return VerdictCount(
        scored=status["scored"],
        abstained=status["abstained"],
        failed=status["failed"],
        replayed=sum(verdict.replayed for verdict in verdicts),
        usage=reduce(add, usages) if usages else None,
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
