"""What an action was worth, from what came of its trajectory without it."""

from __future__ import annotations

from dataclasses import dataclass

from mappa_core.errors import ToolError
from mappa_core.records import Trajectory

NONE_PLAYED = "not_played"
NO_OUTCOME = "no_outcome"
LOST = ToolError.__name__
"""Why an action has no credit, beside the kinds of error that counterfactual rollouts end in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """An action's credit in the unit of the outcome, or None and `why` there is none: nothing was played for it, its
    own trajectory has no outcome, or the kind of error that a counterfactual rollout ended in."""

    value: float | None
    why: str | None = None


def credit_of(trajectory: Trajectory, position: int, metric: str) -> Credit:
    """The counterfactual credit of the action at `position`:

        credit = outcome(actual) - mean over j of outcome(counterfactual j)

    where in counterfactual j the actions before `position` are the recorded ones, the action itself is replaced, and
    all that follows is played live. Replaced by samples of the policy it is an advantage whose baseline does not depend
    on the action, as in COMA (Foerster et al. 2018, eq. 4), where a critic stands for the rollouts; replaced by a
    default action it is a difference reward (Wolpert and Tumer 2002).

    A rollout that a tool's machinery lost says nothing and is left out of the mean; where all were lost there is no
    credit. One that the team could not finish has no outcome, yet to leave it out would favour replacements after which
    teams finish: the action then has no credit.
    """
    actual = trajectory.outcome.get(metric)
    if actual is None or trajectory.error is not None:
        return Credit(value=None, why=NO_OUTCOME)
    played = [one for one in trajectory.counterfactuals if one.position == position]
    if not played:
        return Credit(value=None, why=NONE_PLAYED)
    there = [one for one in played if one.error is None or one.error.kind != LOST]
    failed = next((one.error.kind for one in there if one.error is not None), None)
    if failed is not None or not there:
        return Credit(value=None, why=failed or LOST)
    without = [one.outcome[metric] for one in there if metric in one.outcome]
    if len(without) < len(there):
        return Credit(value=None, why=NO_OUTCOME)
    return Credit(value=actual - sum(without) / len(without))
