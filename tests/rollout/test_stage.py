"""A workflow on stage: what agents see, what coaches see, what is recorded, what is replayed."""

import asyncio
import re
from dataclasses import replace

import pytest

from mappa.rollout.collector import RolloutCollector
from mappa.rollout.replay import Replay
from mappa.rollout.team import Job, Team
from mappa.testing import FixedCoach, MemoryRecorder, ScriptedSampler, play
from mappa_core import (
    Coach,
    Message,
    ReplayError,
    Role,
    RunError,
    Sampling,
    Task,
    ToolCall,
    ToolLimits,
    ToolResult,
    ToolSpec,
    Verdict,
    Workflow,
)

TASK = Task(id="t", prompt="what is 2+2?", reference="canary-4", stratum="sum")


def ask(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


class Echo:
    """A tool that answers with its argument and leaves a file of that name."""

    spec = ToolSpec(name="echo", description="echo", schema={"type": "object", "properties": {"code": {}}})

    async def call(self, arguments, workspace, limits):
        (workspace.path / arguments["code"].strip()).write_text("x")
        return ToolResult(tool="echo", status="ok", stdout=arguments["code"], files=workspace.changes())

    async def close(self):
        pass


class Pair(Workflow):
    """A writer that leaves a file, and a reader that sees the writer's reply."""

    agents = {  # noqa: RUF012
        "writer": Role(brief="writes", produces=("plan.txt",)),
        "reader": Role(brief="reads", needs=("plan.txt",)),
    }

    async def run(self, stage):
        first = await stage.act("writer", ask(stage.task.prompt), tools=("python",))
        second = await stage.act("reader", ask(f"{first.reply.content} {stage.random.random()}"))
        stage.record(correct=await stage.grade(second.reply.content))

    async def grade(self, text, task):
        return float(text == task.reference)

    def strata(self, scene):
        return {"look": "short" if len(scene.step.reply.content) < 5 else "long"}


WRITES = "```python\nplan.txt\n```"


async def played(**kwargs):
    return await play(Pair(), TASK, [WRITES, "canary-4"], tools={"python": Echo()}, **kwargs)


class Halves:
    """A source that grades answers itself."""

    def load(self, split):
        return [TASK]

    async def grade_answer(self, answer, task):
        assert task == TASK
        return 0.5 if answer == "4" else 0.0


@pytest.mark.parametrize(("reply", "correct"), [("the answer is 4", 0.5), ("the answer is 5", 0.0), ("4", 0.0)])
async def test_a_source_grades_the_answer_that_the_workflow_finds(reply, correct):
    class Finds(Pair):
        def find_answer(self, text):
            return text.partition("the answer is ")[2] or None

    trajectory = await play(Finds(), TASK, [WRITES, reply], tools={"python": Echo()}, grader=Halves())
    assert trajectory.outcome == {"correct": correct}


async def test_workflow_that_records_nan_has_no_outcome():
    class Unsure(Pair):
        async def run(self, stage):
            await stage.act("writer", ask(stage.task.prompt), tools=("python",))
            stage.record(correct=float("nan"))

    trajectory = await play(Unsure(), TASK, [WRITES], tools={"python": Echo()})
    assert trajectory.outcome == {}
    said = "the workflow records correct=nan, and only finite numbers can be recorded: leave out what is not known"
    assert said in trajectory.error.message


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("yes", "the workflow records correct='yes', which is no number"),
        (None, "records correct=None, which is no number"),
        (5.0, r"records correct=5.0: its metric is a share from 0 to 1"),
        (-0.1, r"records correct=-0.1: its metric"),
    ],
)
async def test_outcome_outside_0_to_1_is_an_error_with_its_key(value, said):
    class Loose(Pair):
        async def run(self, stage):
            stage.record(points=5.0, correct=value)

    error = (await play(Loose(), TASK, [])).error
    assert error.kind.startswith("WorkflowError:") and re.search(said, error.message)


async def test_missing_await_in_a_workflow_is_named_in_the_error():
    class Hasty(Pair):
        async def run(self, stage):
            grade = stage.grade("x")
            try:
                stage.record(correct=grade)
            finally:
                grade.close()

    assert "is an await missing?" in (await play(Hasty(), TASK, [])).error.message


async def test_steps_are_recorded_in_order_with_what_was_seen_sampled_and_answered():
    recorder = MemoryRecorder()
    trajectory = await played(recorder=recorder)
    assert trajectory.error is None and trajectory.outcome == {"correct": 1.0}
    assert [step.id for step in recorder.steps] == [step.id for step in trajectory.steps]
    first, second = trajectory.steps
    assert (first.agent, first.turn, first.position) == ("writer", 0, 0)
    assert first.results[0].stdout == "plan.txt\n"
    assert [change.path for change in first.results[0].files] == ["plan.txt"]
    assert second.files == ("plan.txt",)
    assert first.strata == {"task": "sum", "look": "long"}
    assert not first.breaches and not second.breaches


async def test_breaches_of_the_contract_stand_on_the_step_of_the_agent_they_concern():
    trajectory = await play(Pair(), TASK, ["no file", "x"], tools={"python": Echo()})
    writer, reader = trajectory.steps
    assert [(breach.kind, breach.path) for breach in writer.breaches] == [("missing_output", "plan.txt")]
    assert [(breach.kind, breach.path) for breach in reader.breaches] == [("missing_input", "plan.txt")]


async def test_the_prompt_of_every_action_is_token_for_token_what_the_sampler_was_given():
    prompts = []

    def script(prompt, sampling):
        prompts.append(prompt)
        return "reply"

    trajectory = await play(Pair(), TASK, script, tools={"python": Echo()})
    assert [bytes(step.completion.prompt_tokens.astype("uint8")).decode() for step in trajectory.steps] == prompts


async def test_the_truth_reaches_no_agent_and_only_the_coach_it_is_meant_for():
    coach = FixedCoach(5)
    trajectory = await played(coach=coach, reference_for=["reader"])
    seen = [message.content for step in trajectory.steps for message in step.messages]
    assert not any("canary" in text for text in seen)
    assert {scene.step.agent: scene.task.reference for scene in coach.scenes} == {"writer": None, "reader": "canary-4"}


async def test_a_coach_works_while_the_next_agent_acts():
    class Slow(Coach):
        def __init__(self):
            self.second_action = asyncio.Event()

        async def score(self, scene):
            if scene.step.agent == "reader":
                self.second_action.set()
            else:
                await asyncio.wait_for(self.second_action.wait(), 5)
            return Verdict.scored(7, "fine")

    trajectory = await played(coach=Slow())
    assert [verdict.score for verdict in trajectory.verdicts] == [7.0, 7.0]


async def test_a_coach_that_fails_or_is_silent_gives_no_number():
    class Bad(Coach):
        async def score(self, scene):
            if scene.step.agent == "writer":
                raise OSError("refused")
            return Verdict(status="scored", score=11.0)

    verdicts = (await played(coach=Bad())).verdicts
    assert [(verdict.status, verdict.score) for verdict in verdicts] == [("failed", None)] * 2
    assert "refused" in verdicts[0].error and "between 0 and 10" in verdicts[1].error


async def test_an_undeclared_agent_or_tool_ends_the_trajectory_with_a_typed_failure():
    class Stranger(Pair):
        async def run(self, stage):
            if stage.task.id == "tool":
                await stage.act("writer", ask("?"), tools=("hammer",))
            await stage.act("stranger", ask("?"))

    by_agent = await play(Stranger(), TASK, ["x"])
    assert by_agent.error.kind == "WorkflowError" and "stranger" in by_agent.error.message
    by_tool = await play(Stranger(), replace(TASK, id="tool"), ["x"])
    assert "hammer" in by_tool.error.message and by_tool.steps == ()


async def test_a_replay_returns_recorded_steps_and_verdicts_and_restores_files(tmp_path):
    coach = FixedCoach(8)
    first = await played(coach=coach, archive=tmp_path)
    recorder = MemoryRecorder()
    again = await play(
        Pair(),
        TASK,
        [],
        tools={"python": Echo()},
        coach=coach,
        recorded=Replay(steps=first.steps, verdicts=first.verdicts),
        recorder=recorder,
        archive=tmp_path,
    )
    assert again.steps == first.steps and again.verdicts == first.verdicts
    assert recorder.steps == [] and recorder.verdicts == []
    assert len(coach.scenes) == 2


async def test_a_replay_goes_live_where_the_record_ends(tmp_path):
    first = await played(archive=tmp_path)
    recorded = Replay(steps=first.steps[:1])
    again = await play(Pair(), TASK, ["canary-4"], tools={"python": Echo()}, recorded=recorded, archive=tmp_path)
    assert again.steps[0] is first.steps[0]
    assert again.outcome == first.outcome


async def test_a_replayed_workflow_that_diverges_is_refused():
    first = await played()

    class Other(Pair):
        async def run(self, stage):
            await stage.act("writer", ask("something else"), tools=("python",))

    with pytest.raises(ReplayError, match=r"000.*other messages"):
        await play(Other(), TASK, [], tools={"python": Echo()}, recorded=Replay(steps=first.steps))


async def test_failed_verdict_is_requested_again_under_a_new_id(tmp_path):
    class Once(Coach):
        calls = 0

        async def score(self, scene):
            Once.calls += 1
            if Once.calls <= 2:
                raise OSError("down")
            return Verdict.scored(6, "up again")

    first = await played(coach=Once(), archive=tmp_path)
    replay = Replay(steps=first.steps, verdicts=first.verdicts)
    again = await played(coach=Once(), recorded=replay, archive=tmp_path)
    assert [verdict.status for verdict in again.verdicts] == ["scored", "scored"]
    assert not {verdict.id for verdict in first.verdicts} & {verdict.id for verdict in again.verdicts}


async def test_feedback_is_there_for_the_workflow_but_not_the_words_of_a_coach_that_saw_the_truth():
    class Open(Pair):
        async def run(self, stage):
            for agent in self.agents:
                self.heard[agent] = await stage.verdict(await stage.act(agent, ask("?")))

        heard: dict = {}  # noqa: RUF012

    await play(Open(), TASK, ["a", "b"], coach=FixedCoach(3), reference_for=["reader"])
    heard = {agent: (verdict.score, verdict.reasoning) for agent, verdict in Open.heard.items()}
    assert heard == {"writer": (3.0, "the same for everyone"), "reader": (3.0, "")}


async def test_verdict_without_a_coach_is_abstained_and_empty():
    class Curious(Pair):
        async def run(self, stage):
            Curious.heard = await stage.verdict(await stage.act("writer", ask("?")))

    await play(Curious(), TASK, ["a"])
    assert (Curious.heard.status, Curious.heard.reasoning) == ("abstained", "")


async def test_a_fault_of_the_store_stops_the_run_and_leaves_no_task_behind():
    class Full(MemoryRecorder):
        def record_verdict(self, verdict):
            raise RunError("run.db: there is no space left")

    with pytest.raises(RunError, match="no space"):
        await played(coach=FixedCoach(5), recorder=Full())
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Stopping(Pair):
    """A writer whose action ends at a stop text."""

    def __init__(self, *stop: str) -> None:
        self._stop = stop

    async def run(self, stage):
        counted = stage.count_tokens("writer", ask(stage.task.prompt))
        step = await stage.act("writer", ask(stage.task.prompt), stop=self._stop)
        stage.record(counted=counted == len(step.completion.prompt_tokens))


async def test_an_action_ends_at_a_stop_text_which_a_replay_has_to_repeat():
    first = await play(Stopping("\nObs:"), TASK, ["Act: look\nObs: made up"])
    (step,) = first.steps
    assert (step.reply.content, step.stop, step.completion.stop_text) == ("Act: look", ("\nObs:",), "\nObs:")
    assert bytes(step.completion.tokens.astype("uint8")) == b"Act: look\nObs:", "what is trained on was sampled"
    assert first.outcome == {"counted": 1.0}
    again = await play(Stopping("\nObs:"), TASK, [], recorded=Replay(steps=first.steps))
    assert again.steps == first.steps
    with pytest.raises(ReplayError, match="other stop than when it was recorded"):
        await play(Stopping(), TASK, [], recorded=Replay(steps=first.steps))


async def test_calls_of_own_tools_are_answered_by_the_workflow(tmp_path):
    """Those of the run are answered, in the same action."""
    own = ToolSpec(name="search", description="", schema={})
    calls = (ToolCall(name="search"), ToolCall(name="echo", arguments={"code": "a"}), ToolCall(name="unknown"))

    class Both(Workflow):
        agents = {"writer": Role(brief="writes")}  # noqa: RUF012

        def __init__(self, **tools):
            self.tools = tools

        async def run(self, stage):
            await stage.act("writer", ask("?"), **self.tools)

    class Calling(ScriptedSampler):
        def reply(self, completion):
            return Message(role="assistant", content="", tool_calls=calls)

    async def step_of(workflow):
        team = Team(
            workflow=workflow,
            policy_of={"writer": "p"},
            samplers={"p": Calling(lambda prompt, sampling: "x")},
            sampling={"writer": Sampling()},
            tools={"echo": Echo()},
            limits={"echo": ToolLimits()},
            retries={"echo": 0},
            coach_of={},
        )
        collector = RolloutCollector(team, recorder=MemoryRecorder(), archive=tmp_path, concurrency=1, waves=False)
        (trajectory,) = await collector.collect([Job(task=TASK, split="train", iteration=0, sample=0)])
        return trajectory.steps[0] if trajectory.steps else trajectory.error

    both = await step_of(Both(tools=("echo",), own_tools=(own,)))
    assert [(call.name, result.status) for call, result in zip(both.calls, both.results, strict=True)] == [
        ("echo", "ok"), ("unknown", "error")
    ]  # fmt: skip
    alone = await step_of(Both(own_tools=(own,)))
    assert (alone.calls, alone.own_tools) == ((), (own,))
    clash = await step_of(Both(tools=("echo",), own_tools=(replace(own, name="echo"),)))
    assert "'echo' as a tool of the run and as one of the workflow" in clash.message
