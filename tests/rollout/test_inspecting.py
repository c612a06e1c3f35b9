"""Workflows that look into what agents left, grade a file, and tell a coach of the truth; coaches with a bench."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio

from mappa.rollout.replay import Replay
from mappa.testing import MemoryRecorder, play
from mappa_core import (
    Breach,
    Coach,
    ConfigError,
    Inspection,
    Message,
    Role,
    Task,
    ToolError,
    ToolResult,
    ToolSpec,
    Verdict,
    Workflow,
)
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

COUNT = "import pathlib, sys; print(sum(map(int, pathlib.Path(sys.argv[1]).read_text().split())))"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def python():
    tool = PythonTool(PythonOptions(workers=1))
    yield tool
    await tool.close()


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "numbers.txt").write_text("1 2 3")
    (tmp_path / "truth.txt").write_text("canary 6")
    return Task(
        id="t",
        prompt="sum",
        reference=str(tmp_path / "truth.txt"),
        files={"numbers.txt": str(tmp_path / "numbers.txt")},
    )


class Sums(Workflow):
    """A clerk writes numbers into a file in at most three turns; they have to add up to what the task's numbers do."""

    agents = {"clerk": Role(brief="adds up", needs=("numbers.txt",), produces=("sum.txt",))}  # noqa: RUF012

    def __init__(self) -> None:
        self.seen = []

    async def run(self, stage):
        for turn in range(3):
            step = await stage.act(
                "clerk", [Message(role="user", content=f"turn {turn}")], tools=("python",), turns_left=2 - turn
            )
            if step.inspection is not None and step.inspection.over:
                break
        stage.record(**await stage.grade_file("sum.txt"))

    async def inspect(self, scene, bench, *, last):
        self.seen.append((scene.step.turn, last, scene.task.reference))
        files = bench.files((*scene.earlier, scene.step))
        if "sum.txt" not in files:
            return None
        inputs = {name: Path(path) for name, path in scene.task.files.items()}
        want = await bench.run(COUNT, inputs=inputs, arguments=["numbers.txt"])
        have = await bench.run(COUNT, inputs={}, files=files, arguments=["sum.txt"])
        if have.result.stdout == want.result.stdout:
            return Inspection(over="DONE" in scene.step.reply.content, facts={"sum": int(have.result.stdout)})
        breach = Breach(agent="clerk", kind="broken_output", path="sum.txt", reason="sum", detail=have.result.stdout)
        return Inspection(over=False, breaches=(breach,), findings=("It does not add up.",))

    async def grade_file(self, file, task):
        truth = Path(task.reference).read_text().split()[1]
        return {"correct": float(file is not None and file.read_text() == truth), "there": float(file is not None)}

    async def reveal(self, scene, bench):
        return f"{scene.step.id} should have come to {Path(scene.task.reference).read_text().split()[1]}"


def writes(text: str, said: str = "") -> str:
    return f"```python\nopen('sum.txt', 'w').write('{text}')\n```\n{said}"


async def played(task, python, replies, **kwargs):
    return await play(Sums(), task, replies, tools={"python": python}, **kwargs)


async def test_an_agent_whose_contract_is_met_and_who_says_so_ends_its_turns(task, python):
    trajectory = await played(task, python, [writes("6", "DONE")])
    (step,) = trajectory.steps
    assert trajectory.error is None
    assert step.inspection == Inspection(over=True, facts={"sum": 6})
    assert step.breaches == ()
    assert trajectory.outcome == {"correct": 1.0, "there": 1.0}


async def test_outputs_are_due_when_the_turns_end_and_not_before(task, python):
    trajectory = await played(task, python, ["nothing", writes("5"), writes("6")])
    first, second, third = trajectory.steps
    assert (first.inspection, first.breaches) == (None, ())
    assert [(breach.kind, breach.path, breach.reason) for breach in second.breaches] == [
        ("broken_output", "sum.txt", "sum")
    ]
    assert third.inspection is not None and not third.inspection.over
    assert trajectory.outcome["correct"] == 1.0


async def test_a_file_that_is_missing_at_the_end_is_a_breach_and_graded_as_missing(task, python):
    trajectory = await played(task, python, ["a", "b", "c"])
    assert [step.breaches for step in trajectory.steps[:2]] == [(), ()]
    assert [breach.kind for breach in trajectory.steps[2].breaches] == ["missing_output"]
    assert trajectory.outcome == {"correct": 0.0, "there": 0.0}


async def test_a_file_that_was_deleted_again_is_not_graded(task, python):
    deletes = "```python\nimport os; os.remove('sum.txt')\n```"
    trajectory = await played(task, python, [writes("6"), deletes, "c"])
    assert trajectory.outcome == {"correct": 0.0, "there": 0.0}


async def test_inspecting_workflow_never_sees_the_truth(task, python):
    workflow = Sums()
    await play(workflow, task, [writes("5"), "b", "c"], tools={"python": python})
    assert workflow.seen == [(0, False, None), (1, False, None), (2, True, None)]


async def test_replay_reuses_recorded_inspections_and_grades(task, python, tmp_path):
    archive = tmp_path / "archive"
    first = await played(task, python, [writes("5"), writes("6"), "c"], archive=archive)
    workflow = Sums()
    again = await play(
        workflow, task, [], tools={"python": python}, recorded=Replay(steps=first.steps, verdicts=()), archive=archive
    )
    assert workflow.seen == []
    assert again.steps == first.steps
    assert again.outcome == first.outcome == {"correct": 1.0, "there": 1.0}


async def test_looking_leaves_no_trace_in_the_workspace(task, python):
    trajectory = await played(
        task, python, [writes("5"), "```python\nimport os; print(sorted(os.listdir('.')))\n```", "c"]
    )
    assert trajectory.steps[1].results[0].stdout == "['numbers.txt', 'sum.txt']\n"


class Curious(Coach):
    """Scores by what it is told, and by what a program on its bench prints."""

    def __init__(self) -> None:
        self.told = []

    def set_bench(self, bench):
        self._bench = bench

    async def score(self, scene):
        self.told.append((scene.task.reference, scene.truth))
        ran = await self._bench.run(
            "open('sum.txt', 'a').write(' 1')", inputs={}, files=self._bench.files((*scene.earlier, scene.step))
        )
        return Verdict.scored(3, ran.files["sum.txt"].read_text())


@pytest.mark.parametrize("shown", [False, True])
async def test_a_coach_runs_programs_on_copies_and_is_told_of_the_truth_where_it_may_be(task, python, shown):
    coach = Curious()
    trajectory = await played(
        task, python, [writes("5"), "b", "c"], coach=coach, reference_for=("clerk",) if shown else ()
    )
    assert [verdict.reasoning for verdict in trajectory.verdicts] == ["5 1"] * 3
    words = [f"{step.id} should have come to 6" for step in trajectory.steps]
    assert sorted(coach.told) == ([(task.reference, word) for word in words] if shown else [(None, None)] * 3)


async def test_bench_has_the_agents_version_of_a_task_file(task, python):
    changes = "```python\nimport os; os.remove('numbers.txt'); open('numbers.txt', 'w').write('7'); "
    trajectory = await played(task, python, [changes + "open('sum.txt', 'w').write('7')\n```", "b", "c"])
    assert trajectory.steps[0].inspection is not None
    assert Path(task.files["numbers.txt"]).read_text() == "1 2 3"
    ran = trajectory.steps[0].inspection
    assert ran.breaches[0].detail == "7\n"


class Failing:
    """A tool `python` whose machinery fails."""

    spec = ToolSpec(name="python", description="", schema={"type": "object"})

    async def open(self):
        raise AssertionError("nobody opens it")

    async def call(self, arguments, workspace, limits):
        (workspace.path / "sum.txt").write_text("6")
        return ToolResult(tool="python", status="ok", files=workspace.changes())

    async def run(self, code, arguments, workspace, limits):
        raise ToolError("the bench broke")

    async def close(self):
        pass


async def test_tool_failure_on_the_bench_loses_the_trajectory_without_scores(task):
    recorder = MemoryRecorder()
    trajectory = await play(
        Sums(), task, [writes("6", "DONE")], tools={"python": Failing()}, retries=1, recorder=recorder
    )
    assert trajectory.error is not None
    assert (trajectory.error.kind, trajectory.error.message) == ("ToolError", "the bench broke (in 2 attempts)")
    assert recorder.steps == []


async def test_inspecting_workflow_requires_a_tool_that_runs_programs(task):
    class Plain:
        spec, call, close = Failing.spec, Failing.call, Failing.close

    with pytest.raises(ConfigError, match=r"tools\.python"):
        await play(Sums(), task, [writes("6")], tools={"python": Plain()})
