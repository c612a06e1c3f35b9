"""Who sees what in MathChat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mappa.testing import WorkflowContract, play
from mappa_core import (
    Coach,
    Completion,
    ConfigError,
    Message,
    Scene,
    Step,
    Task,
    Tool,
    ToolCall,
    ToolResult,
    Trajectory,
    Verdict,
)
from mappa_core.workflow import PromptTemplates
from mappa_mathchat.workflow import (
    CODER,
    PROMPT_SETS,
    SOLVER,
    VERIFIER,
    MathChat,
    MathChatOptions,
    needs_another_try,
)
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

TASK = Task(id="pens", prompt="Ana has 38 pens. Ana sells 9. How many pens?", reference="29")
PLAN = "start 38\nsub 9"
BROKEN = "```python\nprint(38 -\n```"
SILENT = "```python\nx = 38 - 9\n```"
GOOD = "```python\nprint(38 - 9)\n```"


async def played(
    replies: Sequence[str], coach: Coach | None = None, shown: Sequence[str] = (), **options: object
) -> Trajectory:
    tool = PythonTool(PythonOptions())
    workflow = MathChat(MathChatOptions(**options))  # type: ignore[arg-type]
    try:
        return await play(workflow, TASK, replies, tools={"python": tool}, coach=coach, reference_for=shown)
    finally:
        await workflow.close()
        await tool.close()


def prompt_of(step: Step) -> str:
    return step.messages[0].content


class TestContractInFull(WorkflowContract):
    task = TASK
    replies = (PLAN, BROKEN, GOOD, r"\boxed{29}")
    prompts = "full"

    def workflow(self) -> MathChat:
        return MathChat(MathChatOptions(prompts=self.prompts))

    def tools(self) -> Mapping[str, Tool]:
        return {"python": PythonTool(PythonOptions())}


class TestContractInTiny(TestContractInFull):
    prompts = "tiny"


async def test_solver_plans_coder_runs_verifier_answers() -> None:
    trajectory = await played([PLAN, GOOD, r"It is \boxed{29}."])
    assert [(step.agent, step.turn) for step in trajectory.steps] == [(SOLVER, 0), (CODER, 0), (VERIFIER, 0)]
    assert [step.tools for step in trajectory.steps] == [(), ("python",), ()]
    assert trajectory.steps[1].results[0].stdout == "29\n"
    assert trajectory.outcome == {"correct": 1.0, "parsed": 1.0}


@pytest.mark.parametrize(
    ("final", "outcome"),
    [
        (r"\boxed{30}", {"correct": 0.0, "parsed": 1.0}),
        ("It is 29.", {"correct": 0.0, "parsed": 0.0}),
        (r"It is \boxed{29", {"correct": 0.0, "parsed": 0.0}),  # cut off
    ],
)
async def test_an_answer_without_a_box_is_wrong_and_not_parsed(final: str, outcome: Mapping[str, float]) -> None:
    assert (await played([PLAN, GOOD, final])).outcome == outcome


@pytest.mark.parametrize("first", [BROKEN, SILENT, "```python\nprint(1)"])
async def test_coder_gets_a_second_turn_after_a_failure_or_silence(first: str) -> None:
    trajectory = await played([PLAN, first, GOOD, r"\boxed{29}"])
    again = trajectory.steps[2]
    assert (again.agent, again.turn) == (CODER, 1)
    opening, own, result = again.messages
    assert opening == trajectory.steps[1].messages[0]
    assert own == trajectory.steps[1].reply
    assert result.role == "user" and result.content


async def test_an_unclosed_block_is_reported_as_such() -> None:
    trajectory = await played([PLAN, "```python\nprint(1)", GOOD, r"\boxed{29}"])
    assert "not closed" in trajectory.steps[2].messages[2].content


async def test_coder_without_code_gets_no_second_turn() -> None:
    trajectory = await played([PLAN, "No code is needed.", r"\boxed{29}"])
    assert [step.agent for step in trajectory.steps] == [SOLVER, CODER, VERIFIER]


async def test_coder_turns_are_an_option() -> None:
    trajectory = await played([PLAN, BROKEN, r"\boxed{29}"], coder_turns=1)
    assert [step.agent for step in trajectory.steps] == [SOLVER, CODER, VERIFIER]


@pytest.mark.parametrize("prompts", ["full", "smol", "tiny"])
async def test_full_context_shows_the_verifier_everything_before_it(prompts: str) -> None:
    trajectory = await played([PLAN, BROKEN, GOOD, r"\boxed{29}"], prompts=prompts)
    seen = prompt_of(trajectory.steps[-1])
    for said in (TASK.prompt, PLAN, BROKEN, GOOD, "SyntaxError", "29"):
        assert said in seen


@pytest.mark.parametrize("prompts", ["full", "smol", "tiny"])
async def test_partial_context_shows_the_problem_and_the_predecessor_only(prompts: str) -> None:
    trajectory = await played([PLAN, BROKEN, GOOD, r"\boxed{29}"], context="partial", prompts=prompts)
    assert PLAN in prompt_of(trajectory.steps[1])
    seen = prompt_of(trajectory.steps[-1])
    assert TASK.prompt in seen and GOOD in seen
    assert PLAN not in seen and BROKEN not in seen and "SyntaxError" not in seen


async def test_agents_with_one_message_each_and_no_system_message() -> None:
    trajectory = await played([PLAN, GOOD, r"\boxed{29}"])
    assert all([message.role for message in step.messages] == ["user"] for step in trajectory.steps)


def test_text_in_braces_of_a_problem_is_not_rendered() -> None:
    problem = "What is {{ 7 * 6 }} {% raw %}?"
    assert problem in MathChat(MathChatOptions()).build_prompt(SOLVER, problem, [])


class TellingCoach(Coach):
    async def score(self, scene: Scene) -> Verdict:
        return Verdict.scored(5, f"remark on {scene.step.agent}; truth {scene.task.reference}")


@pytest.mark.parametrize("prompts", ["full", "smol", "tiny"])
async def test_feedback_of_a_coach_that_knows_no_truth_is_shown(prompts: str) -> None:
    trajectory = await played([PLAN, BROKEN, GOOD, r"\boxed{29}"], TellingCoach(), feedback=True, prompts=prompts)
    assert f"remark on {SOLVER}" in prompt_of(trajectory.steps[1])
    assert f"remark on {CODER}" in trajectory.steps[2].messages[2].content
    assert f"remark on {CODER}" in prompt_of(trajectory.steps[3])


async def test_feedback_of_a_coach_that_saw_the_truth_is_withheld() -> None:
    trajectory = await played([PLAN, GOOD, r"\boxed{29}"], TellingCoach(), shown=[SOLVER, CODER], feedback=True)
    seen = [message.content for step in trajectory.steps for message in step.messages]
    assert not any("remark" in text or "truth" in text for text in seen)


async def test_no_feedback_unless_asked_for() -> None:
    trajectory = await played([PLAN, GOOD, r"\boxed{29}"], TellingCoach())
    assert not any("remark" in message.content for step in trajectory.steps for message in step.messages)


@pytest.mark.parametrize(
    ("plan", "stratum"), [(PLAN, {"plan": "sum"}), ("start 2\nmul 3", {"plan": "scale"}), ("Well …", {})]
)
async def test_strata_tell_what_the_plan_looks_like(plan: str, stratum: dict[str, str]) -> None:
    trajectory = await played([plan, GOOD, r"\boxed{29}"])
    assert all(step.strata == {"task": "all", **stratum} for step in trajectory.steps)


def test_several_blocks_are_told_apart_in_order() -> None:
    briefing = PromptTemplates("full", (), sets=PROMPT_SETS, output_chars=100)
    calls = [ToolCall(name="python"), ToolCall(name="python"), ToolCall(name="python", error="it is not closed")]
    results = [
        ToolResult(tool="python", status="ok", exit_code=0, stdout="first\n"),
        ToolResult(tool="python", status="error", exit_code=1, stderr="Traceback\nValueError: second\n"),
        ToolResult(tool="python", status="error", stderr="it is not closed"),
    ]
    text = briefing.render_results(calls, results)
    places = [
        text.index(word) for word in ("Code block 1 of 3", "first", "exit code 1", "ValueError: second", "not run")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("prompts", ["full", "smol", "tiny"])
def test_long_output_is_cut_in_the_middle(prompts: str) -> None:
    briefing = PromptTemplates(prompts, (), sets=PROMPT_SETS, output_chars=100)
    long = "\n".join(f"line {number}" for number in range(1000))
    for status in ("ok", "error"):
        result = ToolResult(tool="python", status=status, exit_code=0, stdout=long, stderr=long)  # type: ignore[arg-type]
        text = briefing.render_results([ToolCall(name="python")], [result])
        assert len(text) < 400
        assert "line 999" in text


def test_no_results_make_no_text() -> None:
    assert PromptTemplates("full", (), sets=PROMPT_SETS, output_chars=100).render_results([], []) == ""


def test_token_limit_is_told_to_the_agents() -> None:
    assert "under 1234 tokens" in MathChat(MathChatOptions(token_limit=1234)).build_prompt(SOLVER, "What?", [])


def test_prompts_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    for name in (SOLVER, CODER, VERIFIER, "results"):
        (tmp_path / f"{name}.md").write_text("{{ problem }}!")
    assert MathChat(MathChatOptions(prompts=str(tmp_path))).build_prompt(SOLVER, "What?", []) == "What?!"


def test_prompts_that_lack_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / f"{SOLVER}.md").write_text("x")
    with pytest.raises(ConfigError, match=r"lacks code_executor\.md, verifier\.md, results\.md"):
        MathChat(MathChatOptions(prompts=str(tmp_path)))


def test_prompts_that_do_not_parse_are_refused(tmp_path: Path) -> None:
    for name in (SOLVER, CODER, VERIFIER, "results"):
        (tmp_path / f"{name}.md").write_text("{{ problem")
    with pytest.raises(ConfigError, match="does not parse"):
        MathChat(MathChatOptions(prompts=str(tmp_path)))


@pytest.mark.parametrize("wrong", [{"coder_turns": 0}, {"output_chars": 5}, {"token_limit": -5}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        MathChatOptions(**wrong).check()  # type: ignore[arg-type]


def test_another_try_after_any_failure_or_no_output_at_all() -> None:
    ok = ToolResult(tool="python", status="ok", stdout="1\n")
    silent = replace(ok, stdout=" \n")
    failed = replace(ok, status="error")
    assert not needs_another_try([])
    assert not needs_another_try([ok])
    assert not needs_another_try([silent, ok])
    assert needs_another_try([silent])
    assert needs_another_try([ok, failed])
    assert needs_another_try([replace(ok, status="timeout")])


class ThinkingStage:
    """A stage whose agents think aloud; the coder's first program fails."""

    task = replace(TASK, reference=None)

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.outcome: dict[str, float] = {}

    async def act(self, agent: str, messages: Sequence[Message], *, tools: Sequence[str] = ()) -> Step:
        self.seen += [message.content for message in messages]
        first = len(self.seen) == 2
        result = ToolResult(tool="python", status="error" if first else "ok", stdout="29")
        return Step(
            id=str(len(self.seen)),
            agent=agent,
            turn=0,
            position=0,
            policy=agent,
            messages=tuple(messages),
            reply=Message(role="assistant", content=f"{agent} said", reasoning="secret"),
            completion=Completion(text="secret", prompt_tokens=None, tokens=None, logprobs=None, finish="stop"),
            calls=(ToolCall(name="python"),) if agent == CODER else (),
            results=(result,) if agent == CODER else (),
        )

    async def grade(self, text: str) -> float:
        self.seen.append(text)
        return 1.0

    def record(self, **outcome: float) -> None:
        self.outcome.update(outcome)


async def test_think_text_is_not_passed_on() -> None:
    stage = ThinkingStage()
    await MathChat(MathChatOptions()).run(stage)  # type: ignore[arg-type]
    assert stage.outcome == {"correct": 1.0, "parsed": 0.0}
    assert any(f"{SOLVER} said" in text for text in stage.seen)
    assert not any("secret" in text for text in stage.seen)


def test_a_replaced_prompt_is_a_template_and_the_others_stay() -> None:
    chat = MathChat(MathChatOptions(prompts="tiny"))
    changed = chat.with_prompts({SOLVER: "Solve {{ problem }}"})
    assert changed.build_prompt(SOLVER, "1+1", ()) == "Solve 1+1"
    assert changed.build_prompt(VERIFIER, "1+1", ()) == chat.build_prompt(VERIFIER, "1+1", ())
    same = chat.with_prompts(chat.prompts)
    assert all(same.build_prompt(agent, "1+1", ()) == chat.build_prompt(agent, "1+1", ()) for agent in chat.agents)


def test_a_replaced_prompt_that_does_not_parse_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not parse as a template"):
        MathChat(MathChatOptions()).with_prompts({SOLVER: "{{ problem"})
