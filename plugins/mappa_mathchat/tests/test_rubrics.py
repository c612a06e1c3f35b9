"""By what a coach judges the three agents: templates that render in every setting and that no agent sees."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mappa.testing import play
from mappa_core import ConfigError, Scene, Task, Trajectory
from mappa_core.workflow import PromptTemplates
from mappa_mathchat.workflow import CODER, PROMPT_SETS, SOLVER, VERIFIER, MathChat, MathChatOptions
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

Instructions = Callable[..., Awaitable[str]]
BuildScenes = Callable[..., tuple[Scene, ...]]
TASK = Task(id="pens", prompt="Ana has 38 pens. Ana sells 9. How many pens?", reference="29")


@pytest.fixture
async def trajectory() -> Trajectory:
    workflow, tool = MathChat(MathChatOptions()), PythonTool(PythonOptions())
    try:
        return await play(workflow, TASK, ["start 38\nsub 9", "No code.", r"\boxed{29}"], tools={"python": tool})
    finally:
        await workflow.close()
        await tool.close()


@pytest.fixture
def instructions(prompt_builder: Callable[..., Any]) -> Instructions:
    """What a coach is told of how it judges."""

    async def build(scene: Scene, **options: object) -> str:
        question = await prompt_builder(**options).build(scene)
        return question.messages[0].content

    return build


def test_every_agent_has_a_rubric_of_its_own() -> None:
    rubrics = [role.rubric for role in MathChat.agents.values()]
    assert all(rubrics)
    assert len(set(rubrics)) == len(MathChat.agents) == 3


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
    shown = list(MathChat.agents) if truth else []
    build = partial(hindsight_scenes, metric="correct") if after else live_scenes
    for scene in build(trajectory, MathChat.agents, reference_for=shown):
        text = await instructions(scene, correction=correction)
        assert f"# Judging {scene.step.agent}\n\nThe {scene.step.agent.replace('_', ' ').title()} " in text
        assert "{%" not in text and "{{" not in text


async def test_the_rubrics_make_use_of_what_the_coach_may_know(
    trajectory: Trajectory, live_scenes: BuildScenes, hindsight_scenes: BuildScenes, instructions: Instructions
) -> None:
    live = live_scenes(trajectory, MathChat.agents, reference_for=[])
    knowing = hindsight_scenes(trajectory, MathChat.agents, metric="correct", reference_for=list(MathChat.agents))
    solver, coder, verifier = [await instructions(scene) for scene in live]
    told_solver, told_coder, told_verifier = [await instructions(scene) for scene in knowing]
    assert "Hold the plan against the truth" in told_solver and "Hold the plan against the truth" not in solver
    assert "is the Verifier's." in told_coder and "is the Verifier's." not in coder
    assert "The truth tells" in told_verifier and "Solve the problem yourself" in verifier


async def test_all_three_are_judged_together_by_their_rubrics(
    trajectory: Trajectory, live_scenes: BuildScenes, prompt_builder: Callable[..., Any]
) -> None:
    question = await prompt_builder().build_for_trajectory(live_scenes(trajectory, MathChat.agents, reference_for=[]))
    text = question.messages[0].content
    places = [text.index(f"# Judging {agent}\n") for agent in (SOLVER, CODER, VERIFIER)]
    assert places == sorted(places)


async def test_a_folder_of_ones_own_replaces_some_of_the_rubrics(
    trajectory: Trajectory, tmp_path: Path, live_scenes: BuildScenes, instructions: Instructions
) -> None:
    (tmp_path / f"{SOLVER}.md").write_text("Be short.")
    solver, coder, _ = live_scenes(trajectory, MathChat.agents, reference_for=[])
    assert f"# Judging {SOLVER}\n\nBe short." in await instructions(solver, rubrics=str(tmp_path))
    assert f"# Judging {CODER}\n\nThe Code Executor turns" in await instructions(coder, rubrics=str(tmp_path))


async def test_no_agent_sees_a_rubric(trajectory: Trajectory) -> None:
    lines = {line for role in MathChat.agents.values() for line in (role.rubric or "").splitlines() if len(line) > 40}
    for step in trajectory.steps:
        for message in step.messages:
            assert not lines & set(message.content.splitlines())


def test_rubrics_are_no_set_of_prompts() -> None:
    assert {path.name for path in PROMPT_SETS.iterdir()} == {"full", "smol", "tiny"}
    with pytest.raises(ConfigError, match="the sets full, smol, tiny, or a folder"):
        PromptTemplates("rubrics", (SOLVER,), sets=PROMPT_SETS, output_chars=100)
