"""Rewards by which the best actions are imitated and all others left out, offered as a plugin that no package holds.

`load(modules={"imitation": imitation_offers})` adds it to a registry.
"""

from __future__ import annotations

from collections.abc import Iterable

from mappa_core import MAX_SCORE, Offer, Rewards, Shaper, Trajectory, hookimpl


def keep_best_actions(trajectory: Trajectory, rewards: Rewards) -> Rewards:
    """1 for an action that was given all points; None for any other, which is left out of the loss."""
    return tuple(1.0 if reward == MAX_SCORE else None for reward in rewards)


@hookimpl
def mappa_shapers() -> Iterable[Offer[Shaper]]:
    yield Offer("best_actions", lambda options: keep_best_actions)
