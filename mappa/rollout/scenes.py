"""Scenes: what a coach may see of the steps of a trajectory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mappa_core.protocols import Bench, Workflow
from mappa_core.records import Role, Scene, Step, Task, Trajectory


def live_scene(step: Step, earlier: Sequence[Step], task: Task, roles: Mapping[str, Role]) -> Scene:
    """Scene of `step` right after the action. `task` holds the truth only if the coach may see it."""
    return Scene(task=task, role=roles[step.agent], step=step, team=roles, earlier=tuple(earlier))


def live_scenes(
    trajectory: Trajectory, roles: Mapping[str, Role], *, reference_for: Collection[str]
) -> tuple[Scene, ...]:
    """Scenes of all steps of `trajectory` as their coaches saw them live, in order. The truth is included for the
    agents in `reference_for`."""
    task, steps = trajectory.task, trajectory.steps
    hidden = replace(task, reference=None)
    return tuple(
        live_scene(step, steps[:place], task if step.agent in reference_for else hidden, roles)
        for place, step in enumerate(steps)
    )


def hindsight_scenes(
    trajectory: Trajectory, roles: Mapping[str, Role], *, metric: str, reference_for: Collection[str]
) -> tuple[Scene, ...]:
    """Scenes of all steps of a finished `trajectory`, in order, with the later steps and the outcome, whose `metric`
    tells success."""
    return tuple(
        replace(scene, later=trajectory.steps[place + 1 :], outcome=trajectory.outcome, metric=metric)
        for place, scene in enumerate(live_scenes(trajectory, roles, reference_for=reference_for))
    )


async def with_truth(scene: Scene, workflow: Workflow, bench: Bench) -> Scene:
    """Add the workflow's description of the truth to `scene`, if its coach may see it."""
    if scene.task.reference is None:
        return scene
    return replace(scene, truth=await workflow.reveal(scene, bench))
