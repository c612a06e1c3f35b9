"""Computes the figures of an iteration's trajectories and experience."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np

from mappa.store.iteration_report import CoachFigures, OutcomeFigures, Staleness, VerdictCount
from mappa.store.summary import PARSED, among_parsed
from mappa_core.config.schema import Overflow
from mappa_core.credit.overflow import is_overflow
from mappa_core.experience import Experience
from mappa_core.records import Trajectory, Verdict

T = TypeVar("T")


def measure_outcomes(
    trajectories: Sequence[Trajectory], metric: str, figures: Sequence[str], overflow: Overflow
) -> OutcomeFigures:
    """Means of what the workflow recorded of `trajectories`: its metric and further figures. What outgrew the window
    counts 0 in both where `overflow` is `unsolved`, as in an evaluation."""
    finished = [trajectory for trajectory in trajectories if trajectory.error is None]
    # Every finished trajectory has the metric, or it would have failed; further figures may not apply to its task.
    undefined = {
        (trajectory.task.id, name) for trajectory in finished for name in figures if name not in trajectory.outcome
    }
    outcomes = []
    for trajectory in trajectories:
        if trajectory.error is None:
            outcomes.append(trajectory.outcome)
        elif overflow == "unsolved" and is_overflow(trajectory.error):
            zeros = {name: 0.0 for name in figures if (trajectory.task.id, name) not in undefined}
            outcomes.append({metric: 0.0, **zeros, **trajectory.outcome})
    means = {name: _mean([outcome[name] for outcome in outcomes if name in outcome]) for name in figures}
    if PARSED in figures:
        parsed = (outcome for outcome in outcomes if PARSED in outcome and outcome[PARSED] > 0.5)
        means[among_parsed(metric)] = _mean([outcome[metric] for outcome in parsed])
    return OutcomeFigures(
        accuracy=_mean([outcome[metric] for outcome in outcomes]),
        figures=means,
        unsolved=len(outcomes) - len(finished),
    )


def measure_strata(
    trajectories: Sequence[Trajectory], metric: str, figures: Sequence[str], overflow: Overflow
) -> dict[str, OutcomeFigures]:
    """Outcome figures within each stratum of tasks."""
    parts = _group(trajectories, lambda trajectory: trajectory.task.stratum)
    return {stratum: measure_outcomes(part, metric, figures, overflow) for stratum, part in parts.items()}


def count_tool_retries(trajectories: Sequence[Trajectory]) -> int:
    """Count the retries of calls after a tool's machinery failed."""
    steps = (step for trajectory in trajectories for step in trajectory.steps)
    return sum(result.attempts - 1 for step in steps for result in step.results)


def count_verdicts(trajectories: Sequence[Trajectory]) -> CoachFigures:
    """Count the verdicts of all phases by status, and the reasons why scores are missing."""
    verdicts = [verdict for trajectory in trajectories for verdict in trajectory.verdicts]
    agent_of = {step.id: step.agent for trajectory in trajectories for step in trajectory.steps}
    missing = [verdict for verdict in verdicts if verdict.score is None]
    by_agent = _group(verdicts, lambda verdict: agent_of[verdict.step])
    by_coach = _group(verdicts, lambda verdict: verdict.coach)
    return CoachFigures(
        total=_count(verdicts),
        by_agent={agent: _count(part) for agent, part in by_agent.items()},
        by_coach={coach: _count(part) for coach, part in by_coach.items()},
        reasons=Counter(f"{verdict.status}: {verdict.error or verdict.reasoning}" for verdict in missing),
    )


def measure_staleness(experience: Experience, iteration: int, *, max_staleness: int) -> Staleness | None:
    """Mean and maximum staleness over tokens, in updates behind the learners' version `iteration`; None without tokens.

    Raises RuntimeError if a version is older than `max_staleness` updates or of the future: a bug of loop or engine.
    """
    if not len(experience.tokens):
        return None
    # Widened and signed: a version of the future has to give a negative age.
    age = iteration - experience.version.astype(np.int64)
    wrong = np.flatnonzero((age < 0) | (age > max_staleness))
    if len(wrong):
        step = experience.steps[experience.row_of_token[wrong[0]]]
        raise RuntimeError(
            f"step {step} was sampled by version {experience.version[wrong[0]]} of its weights, and learners of "
            f"version {iteration} may learn from those of {max(0, iteration - max_staleness)} to {iteration}"
        )
    return Staleness(mean=float(age.mean()), max=float(age.max()))


def _group(members: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    parts: dict[str, list[T]] = {}
    for member in members:
        parts.setdefault(key(member), []).append(member)
    return dict(sorted(parts.items()))


def _count(verdicts: Sequence[Verdict]) -> VerdictCount:
    status = Counter(verdict.status for verdict in verdicts)
    # What was replayed from a cassette was paid for when it was recorded.
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
