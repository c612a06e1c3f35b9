"""Finds upstream faults: predecessors that left a file broken that an agent needs, or changed another agent's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mappa_core import NOBODY, Scene, Step
from mappa_core.coach import quote_name
from mappa_dsbench.coach.scoring import parse_faults
from mappa_dsbench.roles import MODELER


@dataclass(frozen=True, slots=True)
class UpstreamFault:
    """A fault of a file that an agent needs, and the agent to blame. A `hard` fault makes the file unusable."""

    agent: str
    what: str
    hard: bool


def find_upstream_fault(scene: Scene) -> UpstreamFault | None:
    """Find the fault that affects the agent of `scene.step`; None where all files that it needs are in order.

    A hard fault breaks the files made from it, so the first one counts. Other faults do not propagate: of those, the
    last one counts. A recoded target is nobody's fault, but a model of it is not graded.
    """
    faults = [*_recoded_target(scene), *_faulty_files(scene), *_foreign_changes(scene)]
    hard = [one for one in faults if one.hard]
    return hard[0] if hard else faults[-1] if faults else None


def steps_of_predecessors(scene: Scene) -> Sequence[Step]:
    """Return the actions of earlier agents."""
    return [step for step in scene.earlier if step.agent != scene.step.agent]


def _faulty_files(scene: Scene) -> list[UpstreamFault]:
    """Find faulty files that earlier agents left at the end of their turns, in the order of their turns."""
    last = {step.agent: step for step in steps_of_predecessors(scene)}
    return [
        UpstreamFault(agent, f"{agent} left {fault}", fault.hard)
        for agent, step in last.items()
        if step.inspection is not None
        for fault in parse_faults(step.inspection.facts)
    ]


def _recoded_target(scene: Scene) -> list[UpstreamFault]:
    facts = [step.inspection.facts for step in steps_of_predecessors(scene) if step.inspection is not None]
    recoded = any(fact.get("target") == "recoded" for fact in facts)
    what = "the model was fitted to the target in other words"
    return [UpstreamFault(NOBODY, what, False)] if recoded and scene.step.agent == MODELER else []


def _foreign_changes(scene: Scene) -> list[UpstreamFault]:
    """Find changes of needed files by agents that do not produce them."""
    makers = {path: agent for agent, role in scene.team.items() for path in role.produces}
    needed = {path for path in scene.role.needs if path in makers}
    return [
        UpstreamFault(step.agent, f"{step.agent} {change.kind} {quote_name(change.path)}", change.kind == "deleted")
        for step in steps_of_predecessors(scene)
        for result in step.results
        for change in result.files
        if change.path in needed and makers[change.path] != step.agent
    ]
