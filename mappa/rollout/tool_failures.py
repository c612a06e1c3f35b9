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
    reasons = Counter(one.error.message for one in trajectories if one.error is not None and is_tool_failure(one.error))
    lost = reasons.total()
    if not lost or (lost <= max_share * len(trajectories) and lost < len(trajectories)):
        return
    how_many, bound = f"{lost} of the {len(trajectories)}", f", more than train.max_tool_failure_share={max_share:.0%}"
    if lost == len(trajectories):
        how_many, bound = f"all {lost}", ""
    raise GuardStop(
        f"{how_many} trajectories of {what} were lost to failures of tools{bound}. They count for nothing:\n"
        f"{format_reasons(reasons)}"
    )


def format_reasons(reasons: Counter[str]) -> str:
    """Format one line per reason with its count, the ten most frequent first."""
    return "\n".join(f"  {count:5d} x {reason}" for reason, count in reasons.most_common(10))
