"""Counterfactual rollouts in the store: under a split and ids of their own, so that nothing that is counted or learned
from includes them."""

from __future__ import annotations

import re

from mappa_core.records import Counterfactual, Failure
from mappa_core.store.schema import Database

COUNTERFACTUAL = "counterfactual"
"""Split of counterfactual rollouts. Their ids are `counterfactual/<id of the trajectory>/<position>/<number>`."""
_PLACE = re.compile(r"(\d{3,})/(\d{2,})")


def counterfactual_id(trajectory: str, position: int, number: int) -> str:
    """Id of the `number`-th rollout in which the action at `position` of a trajectory is replaced."""
    return f"{COUNTERFACTUAL}/{trajectory}/{position:03d}/{number:02d}"


def load_counterfactuals(database: Database, trajectory: str) -> tuple[Counterfactual, ...]:
    """Load the finished counterfactuals of one trajectory, by position and number."""
    before = f"{COUNTERFACTUAL}/{trajectory}/"
    rows = database.rows(
        "SELECT id, outcome, error FROM trajectories WHERE id > ? AND id < ? AND split = ? AND finished ORDER BY id",
        before,
        before[:-1] + chr(ord("/") + 1),
        COUNTERFACTUAL,
    )
    # The id of another trajectory may begin like this one.
    placed = [(_PLACE.fullmatch(name.removeprefix(before)), outcome, error) for name, outcome, error in rows]
    return tuple(
        Counterfactual(
            position=int(place[1]),
            number=int(place[2]),
            outcome={} if outcome is None else database.unpack(dict[str, float], outcome),
            error=None if error is None else database.unpack(Failure, error),
        )
        for place, outcome, error in placed
        if place is not None
    )
