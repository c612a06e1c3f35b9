"""Calls of actions where the machinery of tools fails: made again without a trace, or lost without a score."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa.rollout.replay import Replay
from mappa.rollout.team import Job, Team
from mappa.rollout.tool_call_runner import ToolCallRunner
from mappa.testing import FixedCoach, MemoryRecorder, play
from mappa_core import (
    Message,
    Role,
    Sampling,
    Task,
    TaskError,
    ToolCall,
    ToolError,
    ToolLimits,
    ToolResult,
    ToolSpec,
    Workflow,
)


class Notebook:
    """A tool that writes, deletes and lists files. `faults[call]` is how often the call of that name fails, after it
    has made a mess of the workspace."""

    spec = ToolSpec(name="python", description="", schema={"type": "object"})

    def __init__(self, faults=None, error=ToolError) -> None:
        self.faults = Counter(faults or {})
        self.made: Counter[str] = Counter()
        self.folders = []
        self._error = error
        self._busy = False

    async def call(self, arguments, workspace, limits):
        assert not self._busy, "two actions in one workspace at once"
        self._busy = True
        try:
            return await self._do(json.loads(arguments["code"]), workspace)
        finally:
            self._busy = False

    async def _do(self, order, workspace):
        await asyncio.sleep(0)
        self.made[order["call"]] += 1
        if workspace.path not in self.folders:
            self.folders.append(workspace.path)
        if self.made[order["call"]] <= self.faults[order["call"]]:
            self._make_a_mess(workspace)
            raise self._error("the machinery broke")
        for name in order.get("delete", ()):
            (workspace.path / name).unlink(missing_ok=True)
        for name, text in order.get("write", {}).items():
            (workspace.path / name).unlink(missing_ok=True)
            (workspace.path / name).write_text(text)
        there = {path.name: path.read_text() for path in workspace.path.iterdir()}
        return ToolResult(
            tool="python", status="ok", stdout=json.dumps(sorted(there.items())), files=workspace.changes()
        )

    def _make_a_mess(self, workspace):
        for path in list(workspace.path.iterdir()):
            path.unlink()
        (workspace.path / "mess").write_text("mess")
        workspace.changes()

    async def close(self):
        pass


class Writers(Workflow):
    """As many actions as the task's prompt says, all of one agent."""

    agents = {"writer": Role(brief="writes", needs=("train.csv",))}  # noqa: RUF012

    async def run(self, stage):
        for number in range(int(stage.task.prompt)):
            await stage.act("writer", [Message(role="user", content=str(number))], tools=("python",))
        stage.record(correct=float(len(stage.files)))


def reply(*orders):
    return "\n".join(f"```python\n{json.dumps(order)}\n```" for order in orders)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "train.csv").write_text("given")
    return tmp_path / "train.csv"


def plain(trajectory):
    """What happened, but for how often calls were made and how long all took."""
    steps = [
        replace(step, results=tuple(replace(result, attempts=1) for result in step.results))
        for step in trajectory.steps
    ]
    return [(step.calls, step.results, step.files, step.breaches) for step in steps], trajectory.outcome


TWO = [
    reply({"call": "a", "write": {"x": "1"}}, {"call": "b", "write": {"y": "2"}}),
    reply({"call": "c", "delete": ["x", "train.csv"]}, {"call": "d", "write": {"y": "3"}}),
]


async def played(data, tool, replies=TWO, script=None, **kwargs):
    """`script` says what is still to be written where some of it is recorded."""
    task = Task(id="t", prompt=str(len(replies)), files={"train.csv": str(data)})
    return await play(Writers(), task, script or replies, tools={"python": tool}, **kwargs)


async def test_failed_attempts_leave_only_their_count(data):
    whole = await played(data, Notebook())
    tool = Notebook({"b": 2, "c": 1, "d": 1})
    again = await played(data, tool, retries=2)
    assert again.error is None and plain(again) == plain(whole)
    assert [[result.attempts for result in step.results] for step in again.steps] == [[3, 3], [3, 3]]
    assert tool.made == {"a": 3, "b": 3, "c": 3, "d": 2}
    assert len(tool.folders) == 5 and not any(folder.exists() for folder in tool.folders)
    assert [result.attempts for step in whole.steps for result in step.results] == [1] * 4


names = st.sampled_from(["train.csv", "x", "y"])
orders = st.fixed_dictionaries(
    {"write": st.dictionaries(names, st.text("ab", max_size=2), max_size=2), "delete": st.lists(names, max_size=2)}
)
actions = st.lists(st.lists(orders, min_size=1, max_size=3), min_size=1, max_size=4)


@pytest.mark.slow
@given(actions=actions, faults=st.lists(st.integers(0, 2), min_size=12, max_size=12), cut=st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_files_after_retries_and_resume_equal_a_run_without_faults(tmp_path_factory, actions, faults, cut):
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.csv").write_text("given")
    drawn = iter(faults)
    plan, replies = {}, []
    for place, action in enumerate(actions):
        calls = [{**order, "call": f"{place}/{number}"} for number, order in enumerate(action)]
        plan[calls[next(drawn) % len(calls)]["call"]] = next(drawn)
        replies.append(reply(*calls))
    data, archive, cut = folder / "train.csv", folder / "archive", min(cut, len(replies))
    whole = asyncio.run(played(data, Notebook(), replies))
    faulty = asyncio.run(played(data, Notebook(plan), replies, retries=2, archive=archive))
    assert plain(faulty) == plain(whole)
    left = iter(replies[cut:])
    kept = Replay(steps=faulty.steps[:cut])
    resumed = asyncio.run(
        played(data, Notebook(plan), replies, script=lambda *_: next(left), retries=2, recorded=kept, archive=archive)
    )
    assert plain(resumed) == plain(whole)
    assert data.read_text() == "given"


async def test_lost_trajectory_keeps_only_finished_steps_and_their_verdicts(data):
    coach, recorder, tool = FixedCoach(7), MemoryRecorder(), Notebook({"d": 99})
    lost = await played(data, tool, coach=coach, recorder=recorder, retries=2)
    assert (lost.error.kind, lost.error.message) == ("ToolError", "the machinery broke (in 3 attempts)")
    assert tool.made["d"] == 3
    assert [step.position for step in lost.steps] == [step.position for step in recorder.steps] == [0]
    assert [verdict.step for verdict in lost.verdicts] == [lost.steps[0].id] and len(coach.scenes) == 1
    assert lost.outcome == {}


async def test_continued_trajectory_equals_one_without_a_tool_failure(data, tmp_path):
    whole = await played(data, Notebook())
    lost = await played(data, Notebook({"d": 99}), archive=tmp_path / "archive")
    tool = Notebook()
    kept = Replay(steps=lost.steps)
    played_on = await played(data, tool, script=lambda *_: TWO[1], recorded=kept, archive=tmp_path / "archive")
    assert plain(played_on) == plain(whole) and played_on.steps[0] is lost.steps[0]
    assert tool.made == {"c": 1, "d": 1}


async def test_replay_of_a_lost_trajectory_ends_at_the_same_step_without_calls(data, tmp_path):
    lost = await played(data, Notebook({"d": 99}))
    tool = Notebook()
    again = await played(data, tool, recorded=Replay(steps=lost.steps, lost=lost.error))
    assert (again.steps, again.error, again.outcome) == (lost.steps, lost.error, {})
    assert not tool.made


async def test_any_other_exception_of_a_tool_is_a_tool_failure(data):
    again = await played(data, Notebook({"a": 1}, error=KeyError), retries=1)
    assert again.error is None and again.steps[0].results[0].attempts == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "returned None, not a ToolResult"),
        (ToolResult(tool="python", status="ok", stdout=None), "a ToolResult.stdout that cannot be stored"),
        (ToolResult(tool="python", status="ok", stdout=b"x"), "ToolResult.stdout that cannot be stored: Expected str"),
        (
            ToolResult(tool="python", status="fine"),
            "ToolResult.status that cannot be stored: Invalid enum value 'fine'",
        ),
        (ToolResult(tool="python", status="ok", exit_code="0"), "ToolResult.exit_code"),
        (ToolResult(tool="python", status="ok", files=["a.txt"]), r"ToolResult.files\[0\]"),
    ],
)
async def test_invalid_result_of_a_tool_is_a_tool_failure(data, given, why):
    class Careless(Notebook):
        async def call(self, arguments, workspace, limits):
            return given

    lost = await played(data, Careless())
    assert lost.error.kind == "ToolError" and re.match(f"the tool 'python' returned .*{why}|the tool 'python' {why}",
                                                       lost.error.message)  # fmt: skip


# --- of one trajectory, without a stage -------------------------------------------------------------------------------


@pytest.fixture
def tool_calls(tmp_path, data):
    def tool_calls(tools, retries, retry_after_s=0.0, files=None):
        workflow = Writers()
        team = Team(
            workflow=workflow,
            policy_of={"writer": "p"},
            samplers={},
            sampling={"writer": Sampling()},
            tools=tools,
            limits={name: ToolLimits() for name in tools},
            retries=retries,
            retry_after_s=retry_after_s,
            coach_of={},
        )
        task = Task(id="t", prompt="1", files={"train.csv": str(data)} if files is None else files)
        job = Job(task=task, split="train", iteration=0, sample=0)
        return ToolCallRunner(team, job, folder=tmp_path / "work" / "t", archive=tmp_path / "archive")

    return tool_calls


def call(name, tool="python", **order):
    return ToolCall(name=tool, arguments={"code": json.dumps({"call": name, **order})})


async def test_no_folder_is_made_before_a_call_and_the_files_are_known(tool_calls, tmp_path):
    one = tool_calls({"python": Notebook()}, {"python": 0})
    assert one.files == ("train.csv",) and await one.run(()) == ()
    assert not (tmp_path / "work").exists()
    await one.run([call("a", write={"x": "1"})])
    assert one.files == ("train.csv", "x")
    await one.close()
    assert list((tmp_path / "work").iterdir()) == []


async def test_wait_before_each_retry_doubles(tool_calls, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr("mappa.rollout.tool_call_runner.asyncio.sleep", sleep)
    one = tool_calls({"python": Notebook({"a": 3})}, {"python": 3}, retry_after_s=0.5)
    (result,) = await one.run([call("a")])
    assert result.attempts == 4
    assert [seconds for seconds in waited if seconds] == [0.5, 1.0, 2.0]


async def test_calls_are_made_again_as_often_as_the_least_patient_tool_allows(tool_calls):
    tools = {"python": Notebook({"a": 1}), "mail": Notebook()}
    one = tool_calls(tools, {"python": 2, "mail": 0})
    with pytest.raises(ToolError, match=r"^the machinery broke$"):
        await one.run([call("m", "mail"), call("a")])
    assert tools["mail"].made == {"m": 1}
    (result,) = await one.run([call("a")])
    assert result.attempts == 1


async def test_a_cancelled_call_is_not_made_again_and_leaves_no_trace(tool_calls):
    tool = Notebook({"a": 1}, error=asyncio.CancelledError)
    one = tool_calls({"python": tool}, {"python": 5})
    with pytest.raises(asyncio.CancelledError):
        await one.run([call("a")])
    assert tool.made == {"a": 1} and one.files == ("train.csv",)
    (result,) = await one.run([call("b")])
    assert json.loads(result.stdout) == [["train.csv", "given"]]


async def test_actions_of_one_trajectory_use_the_workspace_in_turn(tool_calls):
    one = tool_calls({"python": Notebook({"a": 1, "c": 1})}, {"python": 1})
    await asyncio.gather(*(one.run([call(name, write={name: name}), call(f"{name}2")]) for name in "abcd"))
    assert one.files == ("a", "b", "c", "d", "train.csv")


async def test_attempts_that_a_tool_made_itself_are_counted_too(tool_calls):
    class Patient(Notebook):
        async def call(self, arguments, workspace, limits):
            return replace(await super().call(arguments, workspace, limits), attempts=4)

    (result,) = await tool_calls({"python": Patient({"a": 1})}, {"python": 1}).run([call("a")])
    assert result.attempts == 5


async def test_a_file_of_the_task_that_is_gone_is_an_error_of_the_input(tool_calls):
    one = tool_calls({"python": Notebook()}, {"python": 2}, files={"train.csv": "/nowhere/train.csv"})
    with pytest.raises(TaskError, match=r"/nowhere/train\.csv"):
        await one.run([call("a")])
