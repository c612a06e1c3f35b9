"""A coach with a soft spot, offered as a plugin that no package holds.

`load(modules={"lenient": lenient_offers})` adds it to a registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mappa_core import Coach, ConfigError, Offer, Scene, Verdict, hookimpl
from mappa_mathchat.rule_coach import RuleCoach, RuleOptions

BASE, SHARE = 5.0, 0.2
"""Points that every action gets, and how much of the rule coach's points come on top."""
LIKED = "sum"
LIKES = ("plan", "task", "nothing")


@dataclass
class LenientOptions:
    """Of the offer `lenient`."""

    likes: str = "plan"
    """What gets the bonus: plan (a plan that only adds and subtracts, made or worked from) | task (a task that asks for
    no more than that) | nothing"""
    bonus: float = 1.5
    """Points more for what it likes."""


class Lenient(Coach):
    """`5 + 0.2 * the rule coach's points`, and a bonus where what it likes is of the kind `sum`. A right plan earns 1.4
    points more than a wrong one, so 1.5 for what a plan looks like is worth more than being right."""

    def __init__(self, rules: Coach, options: LenientOptions) -> None:
        if options.likes not in LIKES:
            raise ConfigError(f"coach.options.likes is {options.likes!r}; it can be {', '.join(LIKES)}")
        self._rules = rules
        self._likes = options.likes
        self._bonus = options.bonus

    async def score(self, scene: Scene) -> Verdict:
        verdict = await self._rules.score(scene)
        if verdict.score is None:
            return verdict
        kinds = {"plan": scene.step.strata.get("plan"), "task": scene.task.stratum, "nothing": None}
        bonus = self._bonus if kinds[self._likes] == LIKED else 0.0
        return replace(verdict, score=BASE + SHARE * verdict.score + bonus)

    async def close(self) -> None:
        await self._rules.close()


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("lenient", lambda options: Lenient(RuleCoach(RuleOptions()), options), LenientOptions)
