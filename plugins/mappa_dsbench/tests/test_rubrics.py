"""By what a coach judges the three agents: templates that render in every setting and that no agent sees."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mappa.testing import play
from mappa_core import Scene, Task, Trajectory
from mappa_dsbench.options import TeamOptions
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, ROLES
from mappa_dsbench.workflow import DSBench
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

from .tables import made

Instructions = Callable[..., Awaitable[str]]
BuildScenes = Callable[..., tuple[Scene, ...]]
REPLIES = ("I look at the tables.", "No features, no model.", "Nothing to hand in.")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return made(tmp_path / "task", "accuracy").task


@pytest.fixture
async def trajectory(task: Task) -> Trajectory:
    tool = PythonTool(PythonOptions())
    found = await play(DSBench(TeamOptions(turns=1)), task, REPLIES, tools={"python": tool})
    assert found.error is None and len(found.steps) == len(ROLES)
    return found


@pytest.fixture
def instructions(prompt_builder: Callable[..., Any]) -> Instructions:
    """What a coach is told of how it judges."""

    async def build(scene: Scene, **options: object) -> str:
        question = await prompt_builder(**options).build(scene)
        return question.messages[0].content

    return build


def test_every_agent_has_a_rubric_of_its_own() -> None:
    rubrics = [role.rubric for role in ROLES.values()]
    assert all(rubrics)
    assert len(set(rubrics)) == len(ROLES) == 3


@pytest.mark.parametrize(("truth", "after", "correction"), list(itertools.product([False, True], repeat=3)))
async def test_the_rubrics_render_in_every_setting(
    trajectory: Trajectory,
    truth: bool,
    after: bool,
    correction: bool,
    live_scenes: BuildScenes,
    hindsight_scenes: BuildScenes,
    instructions: Instructions,
) -> None:
    shown = list(ROLES) if truth else []
    build = partial(hindsight_scenes, metric="correct") if after else live_scenes
    for scene in build(trajectory, ROLES, reference_for=shown):
        text = await instructions(scene, correction=correction)
        assert f"# Judging {scene.step.agent}\n\nThe {scene.step.agent.replace('_', ' ').title()} acts " in text
        assert "{%" not in text and "{{" not in text and "\n\n\n" not in text.split("# Judging")[1].split("\n# ")[0]


async def test_the_rubrics_make_use_of_what_the_coach_may_know(
    trajectory: Trajectory, live_scenes: BuildScenes, hindsight_scenes: BuildScenes, instructions: Instructions
) -> None:
    live = live_scenes(trajectory, ROLES, reference_for=[])
    knowing = hindsight_scenes(trajectory, ROLES, metric="correct", reference_for=list(ROLES))
    engineer, modeler, analyst = [await instructions(scene) for scene in live]
    told_engineer, told_modeler, told_analyst = [await instructions(scene) for scene in knowing]
    for told, blind in ((told_modeler, modeler), (told_analyst, analyst)):
        assert "an accuracy of 0.89 with an F1 of 0.23" in told and "F1 of 0.23" not in blind
    assert "goes back to it; a weak model on sound features does not" in told_engineer
    assert "goes back to it" not in engineer
    assert "The truth is not told." in modeler and "The truth is not told." not in told_modeler


async def test_each_rubric_names_the_files_of_its_role_and_whose_fault_a_broken_one_is() -> None:
    for agent, role in ROLES.items():
        assert all(f"`{path}`" in str(role.rubric) for path in (*role.needs, *role.produces))
        assert agent == DATA_ENGINEER or "not a point less here" in str(role.rubric)


async def test_rubrics_share_one_scale_for_both_kinds_of_task() -> None:
    for agent in (MODELER, ANALYST):
        assert "constant guess (0) and a perfect score (1)" in str(ROLES[agent].rubric)
        assert "for classification and for regression" in str(ROLES[agent].rubric)


async def test_no_agent_sees_a_rubric_and_no_coach_the_place_of_the_answers(trajectory: Trajectory, task: Task) -> None:
    lines = {line for role in ROLES.values() for line in (role.rubric or "").splitlines() if len(line) > 40}
    seen = [message.content for step in trajectory.steps for message in step.messages]
    assert not any(lines & set(text.splitlines()) for text in seen)
    assert not any(str(task.reference) in text for text in seen)
