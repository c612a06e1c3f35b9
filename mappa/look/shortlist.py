"""Where to look first in a play: the actions that a coach suspects most, without accusing anybody."""

from __future__ import annotations

from mappa_core import MAX_SCORE, Trajectory, Verdict

MAX_SUSPECTS = 3
"""How many actions of a play are shown as where to look first."""


def rank_suspects(trajectory: Trajectory) -> list[Verdict]:
    """The last verdict on each action that says something of it, the most suspicious first: by `suspicion` where a
    coach gives it, else by the lowest score; of equals the earlier action. Perfect scores are no suspects."""
    positions = {step.id: step.position for step in trajectory.steps}
    last = {verdict.step: verdict for verdict in trajectory.verdicts if _suspicion(verdict) is not None}
    suspects = [verdict for verdict in last.values() if verdict.suspicion is not None or verdict.score != MAX_SCORE]
    ranked = any(verdict.suspicion is not None for verdict in suspects)
    if ranked:
        suspects = [verdict for verdict in suspects if verdict.suspicion is not None]
    return sorted(suspects, key=lambda verdict: (-(_suspicion(verdict) or 0.0), positions[verdict.step]))


def _suspicion(verdict: Verdict) -> float | None:
    if verdict.suspicion is not None:
        return verdict.suspicion
    return None if verdict.score is None else MAX_SCORE - verdict.score
