"""Trajectories that a tool's machinery lost: nobody's doing, so that nobody is scored for the action it happened at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mappa_core.errors import GuardStop, ToolError
from mappa_core.records import Failure, Trajectory

SHOWN = 10
"""Reasons that a message gives."""


def is_lost(error: Failure | None) -> bool:
    """Whether a trajectory that ended so was lost."""
    return error is not None and error.kind == ToolError.__name__


def guard_lost(trajectories: Sequence[Trajectory], what: str, *, most: float) -> None:
    """Raise GuardStop where more than the share `most` of the trajectories of `what` was lost, or all of them."""
    reasons = Counter(one.error.message for one in trajectories if one.error is not None and is_lost(one.error))
    lost = reasons.total()
    if not lost or (lost <= most * len(trajectories) and lost < len(trajectories)):
        return
    how_many, bound = f"{lost} of the {len(trajectories)}", f", more than train.max_lost={most:.0%}"
    if lost == len(trajectories):
        how_many, bound = f"all {lost}", ""
    raise GuardStop(
        f"{how_many} trajectories of {what} were lost to failures of tools{bound}. They count for nothing:\n"
        f"{table(reasons)}"
    )


def table(reasons: Counter[str]) -> str:
    """A line per reason and how often it was met, the most frequent first."""
    return "\n".join(f"  {count:5d} x {reason}" for reason, count in reasons.most_common(SHOWN))
