"""What stops a run: too much that is missing, or too much that was spent."""

from __future__ import annotations

from collections import Counter

from mappa_core.calls.spend import Ledger
from mappa_core.errors import CallError, GuardStop
from mappa_core.rollout.lost import table
from mappa_core.training.report import CoachFigures


def guard_spending(ledger: Ledger) -> None:
    """Raise GuardStop where `coach.spend_usd` is reached."""
    try:
        ledger.check()
    except CallError as reached:
        known = "" if ledger.spent is None else f" (${ledger.spent:.2f} are spent)"
        raise GuardStop(f"{reached}{known}. Nothing is lost: go on with a higher cap.") from reached


def guard_verdicts(coach: CoachFigures, what: str, *, most: float) -> None:
    """Raise GuardStop where more than the share `most` of the verdicts of `what` has no score."""
    if coach.total.missing > most:
        raise GuardStop(
            f"{coach.total.missing:.0%} of the verdicts of {what} have no score, more than "
            f"coach.max_missing={most:.0%}. Nothing was learned from them:\n{table(Counter(coach.reasons))}"
        )
