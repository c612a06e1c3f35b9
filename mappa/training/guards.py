"""Guards that stop a run: missing verdicts or rewards, the spending cap, or a disk too small for its checkpoints."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from mappa.rollout.tool_failures import format_reasons
from mappa.session import Session
from mappa.store.iteration_report import CoachFigures
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.errors import CallError, GuardStop
from mappa_core.experience import Experience
from mappa_core.records import Trajectory, Verdict


def guard_spending(ledger: Ledger) -> None:
    """Raise GuardStop if `coach.spend_usd` is reached."""
    try:
        ledger.check()
    except CallError as reached:
        known = "" if ledger.total_usd is None else f" (${ledger.total_usd:.2f} are spent)"
        raise GuardStop(f"{reached}{known}. Nothing is lost: go on with a higher cap.") from reached


def guard_disk(folder: Path, session: Session, *, checkpoints: int) -> None:
    """Raise GuardStop unless so many checkpoints, if their size is known, fit on the disk of `folder`."""
    size, free = session.engine.checkpoint_bytes(session.config.checkpoint.dtype), shutil.disk_usage(folder).free
    if size is not None and (needed := checkpoints * size) > free:
        each, all_of_them, there, more = (f"{one / 1e9:.2f} GB" for one in (size, needed, free, needed - free))
        raise GuardStop(
            f"{folder}: checkpoints need {checkpoints} x {each} = {all_of_them}, and {there} are free. Free {more}, "
            "keep fewer (checkpoint.keep), write smaller ones (checkpoint.dtype=bfloat16) or choose another run.root."
        )


def guard_verdicts(coach: CoachFigures, verdicts: Collection[Verdict], what: str, *, max_missing: float) -> None:
    """Raise GuardStop if more than the share `max_missing` of the verdicts of a phase in `what` has no score."""
    counts = Counter(verdict.phase for verdict in verdicts)
    missing = Counter(verdict.phase for verdict in verdicts if verdict.score is None)
    share, phase = max(((missing[phase] / count, phase) for phase, count in counts.items()), default=(0.0, "live"))
    if share > max_missing:
        raise GuardStop(
            f"{share:.0%} of the verdicts of {what} (phase {phase}) have no score, more than "
            f"coach.max_missing={max_missing:.0%}. Nothing was learned from them:\n"
            f"{format_reasons(Counter(coach.reasons))}{_suggest_coaches(coach)}"
        )


def guard_rewards(experience: Experience, trajectories: Iterable[Trajectory], what: str) -> None:
    """Raise GuardStop if `what` has actions of trained policies, and none of them has a reward."""
    if len(experience.weight) and not experience.weight.any():
        metrics = sorted({metric for trajectory in trajectories for metric in trajectory.outcome})
        raise GuardStop(
            f"No action of {what} has a reward, so there is nothing to learn: give a phase that is judged a weight "
            f"(coach.reward), or shapers that give or keep rewards (of the metrics {', '.join(metrics) or 'none'})."
        )


def _suggest_coaches(coach: CoachFigures) -> str:
    """A line on agents that the coach never judges, where there are others that it does."""
    silent = [agent for agent, count in coach.by_agent.items() if count.verdicts and count.abstained == count.verdicts]
    if not 0 < len(silent) < len(coach.by_agent):
        return ""
    return f"\nNo action of {', '.join(sorted(silent))} was judged: coach.by_agent gives an agent its own coach."
