"""Guards that stop a run: missing verdicts or rewards, the spending cap, or a disk too small for its checkpoints."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from mappa.rollout.tool_failures import format_reasons
from mappa.session import Session
from mappa.store.iteration_report import CoachFigures
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.config.schema import RunConfig
from mappa_core.errors import CallError, GuardStop
from mappa_core.experience import Experience
from mappa_core.records import Trajectory, Verdict


def guard_spending(ledger: Ledger) -> None:
    """Raise GuardStop if `coach.spend_usd` is reached."""
    try:
        ledger.check()
    except CallError as reached:
        known = "" if ledger.total_usd is None else f" (${ledger.total_usd:.2f} are spent{_describe_uncertain(ledger)})"
        raise GuardStop(f"{reached}{known}. Nothing is lost: resume the run with a higher cap.") from reached


def _describe_uncertain(ledger: Ledger) -> str:
    calls = ledger.uncertain_calls
    return f", and at most ${ledger.uncertain_usd:.2f} by {calls:,} calls of unknown bill" if calls else ""


def max_new_checkpoints(config: RunConfig, start: int, *, existing: int) -> int:
    """Upper bound of the checkpoints that a run has to write to the end after `start` iterations and keeps at once,
    beside the `existing` ones."""
    # Rounded up, because the last iteration has a checkpoint whether or not `every` divides it.
    due = math.ceil(config.train.iterations / config.checkpoint.every) - start // config.checkpoint.every
    # Two even if one is kept, because the old one is removed only when the new one is complete; one more for the best.
    kept = max(2, config.checkpoint.keep) + int(config.checkpoint.best)
    return min(due, kept - existing)


def guard_disk(folder: Path, session: Session, *, checkpoints: int) -> None:
    """Raise GuardStop unless so many checkpoints, if their size is known, fit on the disk of `folder`."""
    size = session.engine.checkpoint_bytes(session.config.checkpoint.dtype)
    if size is None:
        return
    needed, free = checkpoints * size, shutil.disk_usage(folder).free
    if needed > free:
        raise GuardStop(
            f"{folder}: checkpoints need {checkpoints} x {_gigabytes(size)} = {_gigabytes(needed)}, and "
            f"{_gigabytes(free)} are free. Free {_gigabytes(needed - free)}, keep fewer (checkpoint.keep), write "
            "smaller ones (checkpoint.dtype=bfloat16) or choose another run.root."
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def guard_verdicts(coach: CoachFigures, verdicts: Collection[Verdict], what: str, *, max_missing: float) -> None:
    """Raise GuardStop if more than the share `max_missing` of the verdicts of a phase in `what` has no score."""
    counts = Counter(verdict.phase for verdict in verdicts)
    missing = Counter(verdict.phase for verdict in verdicts if verdict.score is None)
    # By phase: many scored live verdicts would hide that all of those in hindsight failed.
    shares = ((missing[phase] / count, phase) for phase, count in counts.items())
    share, phase = max(shares, default=(0.0, "live"))
    if share > max_missing:
        raise GuardStop(
            f"{share:.0%} of the verdicts of {what} (phase {phase}) have no score, more than "
            f"coach.max_missing={max_missing:.0%}. Nothing was learned from them:\n"
            f"{format_reasons(Counter(coach.reasons))}{_suggest_coaches(coach)}"
        )


def guard_rewards(experience: Experience, trajectories: Iterable[Trajectory], what: str) -> None:
    """Raise GuardStop if `what` has actions of trained policies, and none of them has a reward."""
    # A row without a reward has weight 0.
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
