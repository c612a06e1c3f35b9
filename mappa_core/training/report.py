"""What one iteration showed, as figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.records import Step, Trajectory, Verdict
from mappa_core.store.summary import AgentSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachFigures:
    """Verdicts of one iteration by status; `missing` is the share of judged actions without a score."""

    calls: int
    scored: int
    abstained: int
    failed: int
    usd: float | None
    reasons: Mapping[str, int]

    @property
    def missing(self) -> float:
        return (self.abstained + self.failed) / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """Everything that progress lines, trackers and the store say of an iteration.

    `seconds` maps a phase (collect, score, update, …) to wall seconds; `policies` the engine's metrics per policy.
    """

    iteration: int
    iterations: int
    accuracy: float | None
    rollouts: int
    failed_rollouts: Mapping[str, int]
    tokens: int
    agents: Mapping[str, AgentSummary]
    coach: CoachFigures
    policies: Mapping[str, Mapping[str, float]]
    seconds: Mapping[str, float]

    def metrics(self) -> dict[str, float]:
        """The figures under flat names; a missing figure has no entry."""
        flat: dict[str, float | None] = {
            "accuracy": self.accuracy,
            "rollouts": self.rollouts,
            "rollouts/failed": sum(self.failed_rollouts.values()),
            "tokens": self.tokens,
            "coach/calls": self.coach.calls,
            "coach/failed": self.coach.failed,
            "coach/abstained": self.coach.abstained,
            "coach/usd": self.coach.usd,
        }
        for agent, figures in self.agents.items():
            flat[f"agent/{agent}/score"] = figures.score
            flat[f"agent/{agent}/tool_success"] = figures.tool_success
            flat[f"agent/{agent}/turns"] = figures.turns
            flat[f"agent/{agent}/length"] = figures.length
        for policy, metrics in self.policies.items():
            flat.update({f"policy/{policy}/{name}": value for name, value in metrics.items()})
        flat.update({f"seconds/{name}": value for name, value in self.seconds.items()})
        return {name: float(value) for name, value in flat.items() if value is not None}


def agent_figures(agents: Sequence[str], trajectories: Sequence[Trajectory]) -> dict[str, AgentSummary]:
    """Figures per agent over the steps and live verdicts of `trajectories`."""
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


def coach_figures(trajectories: Sequence[Trajectory]) -> CoachFigures:
    """Count live verdicts by status, and the reasons why scores are missing."""
    verdicts = [one for trajectory in trajectories for one in trajectory.verdicts if one.phase == "live"]
    missing = [verdict for verdict in verdicts if verdict.score is None]
    return CoachFigures(
        calls=len(verdicts),
        scored=sum(verdict.status == "scored" for verdict in verdicts),
        abstained=sum(verdict.status == "abstained" for verdict in verdicts),
        failed=sum(verdict.status == "failed" for verdict in verdicts),
        usd=_spent(verdicts),
        reasons=Counter(f"{verdict.status}: {verdict.error or verdict.reasoning}" for verdict in missing),
    )


def _spent(verdicts: Sequence[Verdict]) -> float | None:
    """USD of all calls; None if the price of any call is unknown, 0 for coaches that call nobody."""
    prices = [verdict.usage.usd for verdict in verdicts if verdict.usage is not None]
    return None if any(price is None for price in prices) else float(sum(price for price in prices if price))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
