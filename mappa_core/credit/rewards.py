"""Verdicts to rewards: one number per action, or None where the judgement it needs is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from mappa_core.errors import ConfigError
from mappa_core.protocols import Rewards, Shaper
from mappa_core.records import Phase, Trajectory, Verdict


def rewards(trajectory: Trajectory, phases: Mapping[str, float], shapers: Sequence[Shaper]) -> Rewards:
    """One reward per step of `trajectory`, in the order of its steps.

    A step starts with the sum of its verdicts' scores (0-10 points), each times the weight of its phase in `phases`
    (`coach.reward`); of several verdicts of one phase the one added last counts. A step that has no scored verdict in
    some phase of non-zero weight starts with None, and so does every step where no phase has a weight. The shapers then
    run in their order.

    Raises:
        ConfigError: `phases` names no phase of a verdict.
        ValueError: a shaper did not return one reward per step.
    """
    unknown = sorted(set(phases) - set(get_args(Phase)))
    if unknown:
        raise ConfigError(f"coach.reward: {unknown[0]!r} is not a phase; the phases are {', '.join(get_args(Phase))}")
    last = {(verdict.step, str(verdict.phase)): verdict for verdict in trajectory.verdicts}
    counted = {phase: weight for phase, weight in phases.items() if weight != 0}
    result: Rewards = tuple(_points(step.id, counted, last) for step in trajectory.steps)
    for shaper in shapers:
        result = tuple(shaper(trajectory, result))
        if len(result) != len(trajectory.steps):
            raise ValueError(f"{shaper!r} returned {len(result)} rewards for {len(trajectory.steps)} steps")
    return result


def _points(step: str, weights: Mapping[str, float], last: Mapping[tuple[str, str], Verdict]) -> float | None:
    """The weighted sum of the step's verdicts, None where one is missing or there is nothing to add up."""
    total = None
    for phase, weight in weights.items():
        verdict = last.get((step, phase))
        if verdict is None or verdict.score is None:
            return None
        total = (total or 0.0) + weight * verdict.score
    return total
