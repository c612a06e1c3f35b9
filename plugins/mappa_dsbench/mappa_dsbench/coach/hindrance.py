"""Who was in an agent's way: the predecessor that left a file broken which the agent needs, or meddled with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mappa_core import NOBODY, Scene, Step
from mappa_dsbench.coach.marks import faults_in
from mappa_dsbench.roles import MODELER


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What was done to the files that an agent needs, and whose fault it is. Nobody can work with what is broken
    `hard`."""

    agent: str
    what: str
    hard: bool


def hindrance(scene: Scene) -> Hindrance | None:
    """What hindered the agent of `scene.step`; None where all that it needs was as it should be.

    What is broken hard breaks what is made of it, so the first agent that did such a thing is meant. Other faults are
    not handed on: of those, the last one. A target in other words is nobody's fault, but a model of it is not graded.
    """
    found = [*_recoded(scene), *_faulty(scene), *_meddled(scene)]
    hard = [one for one in found if one.hard]
    return hard[0] if hard else found[-1] if found else None


def before(scene: Scene) -> Sequence[Step]:
    """The actions before the first one of this agent."""
    return [step for step in scene.earlier if step.agent != scene.step.agent]


def _faulty(scene: Scene) -> list[Hindrance]:
    """What earlier agents left when their turns ended, in the order of their turns."""
    last = {step.agent: step for step in before(scene)}
    return [
        Hindrance(agent, f"{agent} left {fault}", fault.hard)
        for agent, step in last.items()
        if step.inspection is not None
        for fault in faults_in(step.inspection.facts)
    ]


def _recoded(scene: Scene) -> list[Hindrance]:
    facts = [step.inspection.facts for step in before(scene) if step.inspection is not None]
    told = any(fact.get("target") == "recoded" for fact in facts)
    what = "the model was fitted to the target in other words"
    return [Hindrance(NOBODY, what, False)] if told and scene.step.agent == MODELER else []


def _meddled(scene: Scene) -> list[Hindrance]:
    """Changes of files that the agent needs by agents that do not make them."""
    makers = {path: agent for agent, role in scene.team.items() for path in role.produces}
    needed = {path for path in scene.role.needs if path in makers}
    return [
        Hindrance(step.agent, f"{step.agent} {change.kind} {change.path}", change.kind == "deleted")
        for step in before(scene)
        for result in step.results
        for change in result.files
        if change.path in needed and makers[change.path] != step.agent
    ]
