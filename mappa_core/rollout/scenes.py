"""What a coach may see of the steps of a trajectory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mappa_core.protocols import Bench, Workflow
from mappa_core.records import Role, Scene, Step, Task, Trajectory


def scene(step: Step, earlier: Sequence[Step], task: Task, roles: Mapping[str, Role]) -> Scene:
    """`step` as its coach sees it when it was just made. `task` holds the truth only where the coach may see it."""
    return Scene(task=task, role=roles[step.agent], step=step, team=roles, earlier=tuple(earlier))


def scenes(trajectory: Trajectory, roles: Mapping[str, Role], *, reference_for: Collection[str]) -> tuple[Scene, ...]:
    """Every step of `trajectory` as its coach saw it live, in order. The truth is in those of the agents that
    `reference_for` lists."""
    task, steps = trajectory.task, trajectory.steps
    hidden = replace(task, reference=None)
    return tuple(
        scene(step, steps[:place], task if step.agent in reference_for else hidden, roles)
        for place, step in enumerate(steps)
    )


def hindsight(
    trajectory: Trajectory, roles: Mapping[str, Role], *, reference_for: Collection[str]
) -> tuple[Scene, ...]:
    """Every step of a finished `trajectory` with what came after it and the outcome, in order."""
    return tuple(
        replace(one, later=trajectory.steps[place + 1 :], outcome=trajectory.outcome)
        for place, one in enumerate(scenes(trajectory, roles, reference_for=reference_for))
    )


async def told(scene: Scene, workflow: Workflow, bench: Bench) -> Scene:
    """`scene` with what the workflow tells of the truth, where its coach may see it."""
    if scene.task.reference is None:
        return scene
    return replace(scene, truth=await workflow.reveal(scene, bench))
