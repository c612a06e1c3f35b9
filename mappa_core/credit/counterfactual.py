"""Counterfactual credit: the value of an action, estimated from rollouts in which it is replaced."""

from __future__ import annotations

from dataclasses import dataclass

from mappa_core.errors import ToolError
from mappa_core.records import Trajectory

NOT_PLAYED = "not_played"
NO_OUTCOME = "no_outcome"
TOOL_FAILURE = ToolError.__name__
"""Reasons for a missing credit, besides the error types of counterfactual rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Credit of an action in the unit of the outcome, or None with a `reason`."""

    value: float | None
    reason: str | None = None


def counterfactual_credit(trajectory: Trajectory, position: int, metric: str) -> Credit:
    """Compute the counterfactual credit of the action at `position`:

        credit = outcome(actual) - mean over j of outcome(counterfactual j)

    where in counterfactual j the actions before `position` are replayed, the action itself is replaced, and all later
    actions are sampled anew. With replacements sampled from the policy, it is an advantage whose baseline does not
    depend on the action, as in COMA (Foerster et al. 2018, eq. 4), which uses a critic instead of rollouts; with a
    default action it is a difference reward (Wolpert and Tumer 2002).

    A rollout that failed in a tool's infrastructure is left out of the mean; if all did, there is no credit. If the
    team could not finish a rollout, the action has no credit: leaving that rollout out would favour replacements after
    which teams finish. What outgrew the window has an outcome once it is settled (`settle_overflow`).
    """
    actual = trajectory.outcome.get(metric)
    if actual is None or trajectory.error is not None:
        return Credit(value=None, reason=NO_OUTCOME)
    played = [rollout for rollout in trajectory.counterfactuals if rollout.position == position]
    if not played:
        return Credit(value=None, reason=NOT_PLAYED)
    # A tool's failure depends on no action, so what is left is as good a sample.
    valid = [rollout for rollout in played if rollout.error is None or rollout.error.kind != TOOL_FAILURE]
    if not valid:
        return Credit(value=None, reason=TOOL_FAILURE)
    team_errors = [rollout.error.kind for rollout in valid if rollout.error is not None]
    if team_errors:
        return Credit(value=None, reason=team_errors[0])
    outcomes = [rollout.outcome[metric] for rollout in valid if metric in rollout.outcome]
    if len(outcomes) < len(valid):
        return Credit(value=None, reason=NO_OUTCOME)
    return Credit(value=actual - sum(outcomes) / len(outcomes))
