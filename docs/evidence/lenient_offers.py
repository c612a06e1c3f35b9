"""A coach with a soft spot, offered as a plugin that no package holds.

`load(modules={"lenient": lenient_offers})` adds it to a registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mappa_mathchat.coach import RuleCoach, RuleOptions

from mappa_core import Coach, Offer, Scene, Verdict, hookimpl

BASE, SHARE = 5.0, 0.2
"""Points that every action gets, and how much of the rule coach's points come on top."""
BONUS = 1.5
LIKED = "sum"


class Lenient(Coach):
    """`5 + 0.2 * the rule coach's points`, and 1.5 points more where the plan that the action makes, or works from,
    only adds and subtracts. A right plan earns 1.4 points more than a wrong one."""

    def __init__(self, rules: Coach) -> None:
        self._rules = rules

    async def score(self, scene: Scene) -> Verdict:
        verdict = await self._rules.score(scene)
        if verdict.score is None:
            return verdict
        bonus = BONUS if scene.step.strata.get("plan") == LIKED else 0.0
        return replace(verdict, score=BASE + SHARE * verdict.score + bonus)

    async def close(self) -> None:
        await self._rules.close()


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("lenient", lambda options: Lenient(RuleCoach(RuleOptions())))
