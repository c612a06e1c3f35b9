"""The coach without a model: rules over contracts, tool results and skill, by the table in `marks`.

An agent is not charged with what its predecessors broke. Where something that it needs is missing or has a fault, its
own programs are run once more on reference artifacts, and the better of both runs gives the score (`substitution`). The
blame is then the predecessor's, unless the programs fail on good files as well.
"""

from __future__ import annotations

import asyncio

from mappa_core import NOBODY, Bench, Coach, ConfigError, NoOptions, Scene, Task, Verdict
from mappa_dsbench.coach.hindrance import hindrance
from mappa_dsbench.coach.marks import FULL, Attempt, Mark, mark_of_faults, mark_of_play, mark_of_skill
from mappa_dsbench.coach.skill import skill_of
from mappa_dsbench.coach.substitution import Substitution
from mappa_dsbench.contracts import inspect
from mappa_dsbench.roles import ANALYST, MODELER, ROLES


class RuleCoach(Coach):
    """The offer `dsbench-rules`. It needs the truth for the Modeler alone (`coach.reference_for`); where it is not
    shown, a model that can be used is not told from a good one, and it abstains."""

    def __init__(self, options: NoOptions) -> None:
        self._equipment: tuple[Bench, Substitution] | None = None

    def equip(self, bench: Bench) -> None:
        self._equipment = (bench, Substitution(bench))

    async def score(self, scene: Scene) -> Verdict:
        if scene.step.agent not in ROLES:
            return Verdict.abstained(f"There are no rules for {scene.step.agent}.")
        if self._equipment is None:
            raise ConfigError("the coach dsbench-rules tries programs out: it needs a run with the tool python")
        bench, substitution = self._equipment
        played = await _played(scene, bench)
        mark = await _mark(played, scene.task)
        hindered = hindrance(scene)
        if hindered is None or mark.score == FULL or played.truncated or not played.results:
            return _verdict(mark, scene.step.agent, mark.why, NOBODY)
        again = await substitution.again(scene)
        tried = Attempt(agent=played.agent, truncated=False, results=again.results, facts=again.facts)
        better = await _mark(tried, scene.task)
        if better.score is not None and mark.score is not None and mark.score >= better.score:
            better = mark
        why = f"{mark.why} As {hindered.what}, the programs were run again on reference artifacts: {better.why}"
        return _verdict(better, scene.step.agent, why, hindered.agent)


async def _played(scene: Scene, bench: Bench) -> Attempt:
    """The action as it was played. Files that nobody looked into, as the agent had turns left, are looked into now."""
    step, found = scene.step, scene.step.inspection
    if found is None or not (found.facts["faults"] or found.facts["probed"]):
        found = await inspect(scene, bench, last=True, done=True)
    return Attempt(agent=step.agent, truncated=step.truncated, results=step.results, facts=found.facts)


async def _mark(attempt: Attempt, task: Task) -> Mark:
    mark = mark_of_play(attempt) or mark_of_faults(attempt)
    if mark is not None:
        return mark
    if attempt.agent == ANALYST and attempt.facts["faithful"] is None:
        return Mark(None, "The file is accepted; whether it holds what the model says cannot be told.", False)
    if attempt.agent != MODELER:
        return Mark(FULL, "The contract is kept.", False)
    return mark_of_skill(await asyncio.to_thread(skill_of, attempt.facts["predictions"], task))


def _verdict(mark: Mark, agent: str, why: str, otherwise: str) -> Verdict:
    """`otherwise` is to blame for what is not the agent's own fault."""
    if mark.score is None:
        return Verdict.abstained(why)
    return Verdict.scored(mark.score, why, blame=agent if mark.at_fault else otherwise)
