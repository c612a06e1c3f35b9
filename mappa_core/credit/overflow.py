"""What a rollout is worth that ended because a prompt outgrew the context window."""

from __future__ import annotations

from dataclasses import replace

from mappa_core.errors import PromptTooLong
from mappa_core.records import Counterfactual, Failure, Trajectory, Verdict


def is_overflow(error: Failure | None) -> bool:
    """Whether a rollout ended with `error` in a prompt beyond the window that the team made long: it quotes actions."""
    return error is not None and error.kind == PromptTooLong.__name__ and bool(error.quoted)


def settle_overflow(trajectory: Trajectory, metric: str) -> Trajectory:
    """Return a trajectory that ended in a prompt beyond the window as one that the team ended, unsolved; its
    counterfactuals likewise.

    Its outcome `metric` is 0, as an evaluation counts it. The actions that wrote the long texts, at least the mean of
    those quoted in the prompt that did not fit (`Failure.quoted`), score 0 points in place of their coach's verdicts;
    all others keep theirs. Other trajectories are returned as they are, and so is one whose prompt quotes nobody: the
    team did not make it long.
    """
    if any(is_overflow(rollout.error) for rollout in trajectory.counterfactuals):
        settled = tuple(_settle_counterfactual(rollout, metric) for rollout in trajectory.counterfactuals)
        trajectory = replace(trajectory, counterfactuals=settled)
    error = trajectory.error
    if error is None or not is_overflow(error):
        return trajectory
    # The mean, not the longest: of ten texts of one length each had its part.
    mean = sum(error.quoted.values()) / len(error.quoted)
    long = {step for step, characters in error.quoted.items() if characters >= mean}
    # An agent that no coach judges is not punished either. In hindsight nobody has been judged: the rollout failed.
    judged = {(verdict.step, verdict.phase) for verdict in trajectory.verdicts if verdict.step in long}
    judged |= {(step, "after") for step in long}
    findings = tuple(
        replace(Verdict.scored(0.0, f"its text outgrew the window: {error.message}"), step=step, phase=phase)
        for step, phase in sorted(judged)
    )
    return replace(
        trajectory,
        verdicts=(*trajectory.verdicts, *findings),
        outcome={metric: 0.0, **trajectory.outcome},
        error=None,
    )


def _settle_counterfactual(rollout: Counterfactual, metric: str) -> Counterfactual:
    if not is_overflow(rollout.error):
        return rollout
    return replace(rollout, outcome={metric: 0.0, **rollout.outcome}, error=None)
