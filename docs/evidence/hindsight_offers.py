"""A coach that looks back, offered as a plugin that no package holds.

`load(modules={"looking_back": hindsight_offers})` adds it to a registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mappa_core import Coach, Offer, Scene, Verdict, hookimpl
from mappa_mathchat.extract_answer import extract_final_answer
from mappa_mathchat.plans import parse_plan
from mappa_mathchat.rule_coach import RuleCoach, RuleOptions
from mappa_mathchat.workflow import CODER, SOLVER

METRIC = "correct"
REFUTED = r"\text{another}"
"""Stands for a truth that is not known but for not being the team's answer: no answer equals it."""


class LookingBack(Coach):
    """Judges by the rules of `mathchat-rules` without having seen the truth, from what became of the team's answer.

    Where the answer was right it is the truth, and all actions are held against it. Where it was wrong, the truth is
    known to be another: a plan that comes to the answer, and a box that holds it, are wrong; of a plan that comes to
    something else nothing can be said. The Code Executor is held against its plan in any case.
    """

    def __init__(self, rules: Coach) -> None:
        self._rules = rules

    async def score(self, scene: Scene) -> Verdict:
        return await self._rules.score(replace(scene, task=replace(scene.task, reference=inferred(scene))))

    async def close(self) -> None:
        await self._rules.close()


def inferred(scene: Scene) -> str | None:
    """What the outcome says of the truth, for the judgement of this action; None where it says nothing.

    Raises:
        ValueError: the scene is not one of hindsight.
    """
    if scene.later is None or scene.outcome is None:
        raise ValueError("the coach looking_back judges in hindsight alone: name it in coach.hindsight.use")
    last = (scene.later or (scene.step,))[-1]
    answer = extract_final_answer(last.reply.content)
    if scene.step.agent == CODER or answer is None:
        return None
    if scene.outcome[METRIC] == 1.0:
        return answer
    if scene.step.agent != SOLVER:
        return REFUTED
    plan = parse_plan(scene.step.reply.content)
    return REFUTED if plan is not None and str(plan.value) == answer else None


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("looking_back", lambda options: LookingBack(RuleCoach(RuleOptions())))
