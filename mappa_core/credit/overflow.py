"""What a rollout is worth that ended because a prompt outgrew the context window."""

from __future__ import annotations

from dataclasses import replace

from mappa_core.errors import PromptTooLong
from mappa_core.records import Trajectory, Verdict


def settle_overflow(trajectory: Trajectory, metric: str) -> Trajectory:
    """Return a trajectory that ended in a prompt beyond the window as one that the team ended, unsolved.

    Its outcome `metric` is 0, as an evaluation counts it. The actions that wrote the long texts, at least the mean of
    those quoted in the prompt that did not fit (`Failure.quoted`), score 0 points in place of their coach's verdicts;
    all others keep theirs. Other trajectories are returned as they are, and so is one whose prompt quotes nobody: the
    team did not make it long.
    """
    error = trajectory.error
    if error is None or error.kind != PromptTooLong.__name__ or not error.quoted:
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
