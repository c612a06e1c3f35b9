"""Trajectories lost to tool failures: no agent caused them, so the action where it happened gets no score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mappa_core.errors import GuardStop, ToolError
from mappa_core.records import Failure, Trajectory


def is_tool_failure(error: Failure | None) -> bool:
    """Whether a trajectory that ended with `error` was lost to a tool failure."""
    return error is not None and error.kind == ToolError.__name__


def guard_tool_failures(trajectories: Sequence[Trajectory], what: str, *, max_share: float) -> None:
    """Raise GuardStop if tools lost more than the share `max_share` of the trajectories of `what`, or all of them."""
    errors = [trajectory.error for trajectory in trajectories if trajectory.error is not None]
    reasons = Counter(error.message for error in errors if is_tool_failure(error))
    lost, total = reasons.total(), len(trajectories)
    # All of them stop the run whatever the limit: nothing is left to learn from.
    if lost == total and lost > 0:
        how_many, bound = f"all {lost}", ""
    elif lost > max_share * total:
        how_many, bound = f"{lost} of the {total}", f", more than train.max_tool_failure_share={max_share:.0%}"
    else:
        return
    raise GuardStop(
        f"{how_many} trajectories of {what} were lost to failures of tools{bound}. They count for nothing:\n"
        f"{format_reasons(reasons)}"
    )


def format_reasons(reasons: Counter[str]) -> str:
    """Format one line per reason with its count, the ten most frequent first."""
    return "\n".join(f"  {count:5d} x {reason}" for reason, count in reasons.most_common(10))
