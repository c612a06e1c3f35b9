"""Computes the figures of an iteration's trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

from mappa_core.records import Trajectory, Verdict
from mappa_core.store.iteration_report import CoachFigures, OutcomeFigures, VerdictCount


def measure_outcomes(trajectories: Sequence[Trajectory], metric: str, figures: Sequence[str]) -> OutcomeFigures:
    """Means of what the workflow recorded of `trajectories`: its metric and further figures."""
    finished = [one.outcome for one in trajectories if one.error is None]
    return OutcomeFigures(
        accuracy=_mean([outcome[metric] for outcome in finished]),
        figures={name: _mean([outcome[name] for outcome in finished if name in outcome]) for name in figures},
    )


def measure_strata(
    trajectories: Sequence[Trajectory], metric: str, figures: Sequence[str]
) -> dict[str, OutcomeFigures]:
    """Outcome figures within each stratum of tasks."""
    parts: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        parts.setdefault(one.task.stratum, []).append(one)
    return {stratum: measure_outcomes(parts[stratum], metric, figures) for stratum in sorted(parts)}


def count_retried_calls(trajectories: Sequence[Trajectory]) -> int:
    """Count the retries of calls after a tool's machinery failed."""
    steps = (step for trajectory in trajectories for step in trajectory.steps)
    return sum(result.attempts - 1 for step in steps for result in step.results)


def count_verdicts(trajectories: Sequence[Trajectory]) -> CoachFigures:
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
