"""Runs whose tools fail: what is lost, what is guarded, what a resume makes good, and where programs run."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from mappa.cli import main
from mappa.runs import RunFolder, RunReader
from mappa.sessions import evaluate_standalone
from mappa.testing import ScriptedEngine, load_plugins
from mappa.training import Run
from mappa.training.listener import Listener
from mappa_core import (
    ConfigError,
    GuardStop,
    Message,
    Offer,
    Role,
    Task,
    TaskError,
    TaskSource,
    ToolError,
    ToolResult,
    ToolSpec,
    Workflow,
    hookimpl,
)
from mappa_core.sandbox import Sandbox

RECIPE = """
tasks: {use: numbers}
workflow: {use: programmers}
policies: {default: {model: none}}
sampling: {max_tokens: 8, concurrency: 3}
tools: {python: {use: doubler, retries: 0}}
coach: {use: strict}
estimator: {use: reinforce}
engine: {use: scripted}
train: {iterations: 4, prompts: 5, samples: 2, max_tool_failure_share: 0.2}
checkpoint: {every: 2}
"""


@dataclass
class FaultyOptions:
    faults: str = ""
    """A file with the numbers that the machinery fails on, each with how often it still does."""
    opens: bool = True


class Doubling:
    """Doubles a number, unless its machinery is broken."""

    spec = ToolSpec(name="python", description="", schema={"type": "object"})

    def __init__(self, options: FaultyOptions) -> None:
        self._options = options
        self.opened = self.closed = 0

    async def open(self) -> Sandbox:
        self.opened += 1
        if not self._options.opens:
            raise ConfigError("no cage works here: set allow_unsafe=true")
        return Sandbox(name="padded", detail="a [soft] one", warnings=("the door is open",))

    async def call(self, arguments, workspace, limits):
        return await self.run(arguments["code"], (), workspace, limits)

    async def run(self, code, arguments, workspace, limits):
        number = code.strip()
        if self._options.faults and _fails(Path(self._options.faults), number):
            raise ToolError("the sandbox is out of sand")
        return ToolResult(tool="python", status="ok", stdout=str(2 * int(number)), sandbox="padded")

    async def close(self):
        self.closed += 1


def _fails(path: Path, number: str) -> bool:
    left = {name: int(count) for name, count in (line.split() for line in path.read_text().splitlines())}
    if number not in left or left[number] == 0:
        return False
    left[number] -= 1
    path.write_text("".join(f"{name} {count}\n" for name, count in left.items()))
    return True


class Programmers(Workflow):
    agents = {"doubler": Role(brief="doubles"), "checker": Role(brief="repeats")}  # noqa: RUF012

    def __init__(self, options) -> None:
        pass

    async def run(self, stage):
        first = await stage.act("checker", [Message(role="user", content=f"say {stage.task.prompt}")])
        doubled = await stage.act(
            "doubler", [Message(role="user", content=f"double {first.reply.content}")], tools=("python",)
        )
        last = await stage.act("checker", [Message(role="user", content=f"say {doubled.results[0].stdout}")])
        stage.record(correct=await stage.grade(last.reply.content))

    async def grade(self, text, task):
        return float(text == task.reference)


def obeying(prompt, sampling):
    order, number = prompt.removeprefix("<user>").removesuffix("<assistant>").split()
    return number if order == "say" else f"```python\n{number}\n```"


class Making:
    """Builds the tool, and keeps hold of what was built."""

    def __init__(self) -> None:
        self.made: list[Doubling] = []

    def __call__(self, options):
        self.made.append(Doubling(options))
        return self.made[-1]


@pytest.fixture
def making():
    return Making()


@pytest.fixture
def registry(tmp_path, making, plugin):
    recipe = tmp_path / "programs.yaml"
    recipe.write_text(RECIPE)

    class Programs(plugin):
        @hookimpl
        def mappa_workflows(self):
            yield Offer("programmers", Programmers)

        @hookimpl
        def mappa_tasks(self):
            yield from super().mappa_tasks()
            yield Offer("missing", Missing)

        @hookimpl
        def mappa_tools(self):
            yield Offer("doubler", making, FaultyOptions)

        @hookimpl
        def mappa_engines(self):
            yield Offer("scripted", lambda options: ScriptedEngine(obeying))

    return load_plugins(only=("engine", "sandbox"), modules={"programs": Programs(recipe)})


@pytest.fixture
def start(registry, tmp_path):
    def start(*settings, faults="", name="run"):
        path = tmp_path / f"{name}.faults"
        path.write_text("".join(f"{line}\n" for line in faults.split(", ") if line))
        words = (f"run.root={tmp_path / 'runs'}", f"run.name={name}", f"tools.python.options.faults={path}", *settings)
        return Run.from_recipe("programs/tiny", *words, registry=registry)

    return start


def mended(tmp_path, name="run"):
    (tmp_path / f"{name}.faults").write_text("")


def traces(folder):
    """Everything recorded but times."""
    with sqlite3.connect(folder / "run.db") as db:
        steps = db.execute("SELECT id, agent, turn, tokens FROM steps ORDER BY id").fetchall()
        verdicts = db.execute("SELECT id, step, score FROM verdicts ORDER BY id").fetchall()
        ends = db.execute("SELECT id, outcome, error FROM trajectories ORDER BY id").fetchall()
    return steps, verdicts, ends


# --- what is lost -----------------------------------------------------------------------------------------------------


def test_tool_failures_are_counted_and_score_no_agent(start):
    trained = start("tools.python.retries=1", "train.iterations=1", faults="3 1, 4 1, 6 2").train()
    with RunReader(trained.folder) as reader:
        (report,) = reader.iterations
        lost = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train") if row.status == "failed"]
    assert (report.rollouts, report.failed, report.lost) == (10, len(lost), len(lost))
    assert all(one.error.message == "the sandbox is out of sand (in 2 attempts)" for one in lost)
    assert all([verdict.step for verdict in one.verdicts] == [one.steps[0].id] for one in lost)
    assert (trained.summary.tools.lost, trained.summary.tools.retries) == (
        len(lost),
        report.tool_retries,
    )


def test_too_many_lost_trajectories_stop_the_run_and_a_resume_continues_them(start, tmp_path, kept):
    whole = start(name="whole").train()
    run = start(faults="2 9, 3 9, 4 9, 5 9")
    with pytest.raises(GuardStop) as stopped:
        run.train()
    said = str(stopped.value)
    assert "iteration 1 were lost to failures of tools, more than train.max_tool_failure_share=20%" in said
    assert "x the sandbox is out of sand\n" in said and said.endswith("A checkpoint was written.")
    folder = tmp_path / "runs" / "run"
    assert kept(folder) == (0,)
    assert (folder / "checkpoints/000000/policies/updates").read_text() == "0"
    with RunReader(folder) as reader:
        assert reader.summary.status == "stopped"
    mended(tmp_path)
    resumed = Run.resume(folder, registry=run._registry).train()
    assert resumed.summary.status == "done" and resumed.summary.tools.lost == 0
    assert traces(folder) == traces(whole.folder)


def test_a_lost_trajectory_that_was_learned_from_stays_lost_on_resume(start, tmp_path):
    class Killed(BaseException):
        pass

    class Killer(Listener):
        def on_iteration_end(self, report):
            if report.iteration == 3:
                raise Killed

    no_checkpoint, faults = "checkpoint.every=4", "5 1, 9 1"
    whole = start(no_checkpoint, faults=faults, name="whole").train()
    run = start(no_checkpoint, faults=faults)
    with pytest.raises(Killed):
        run.train(Killer())
    folder = tmp_path / "runs" / "run"
    mended(tmp_path)
    resumed = Run.resume(folder, registry=run._registry).train()
    assert resumed.summary.tools.lost == whole.summary.tools.lost == 2
    assert traces(folder) == traces(whole.folder)


def test_continued_trajectories_are_never_sampled_again_for_comparison(start, tmp_path, resume_iteration):
    with pytest.raises(GuardStop):
        start(faults="2 9, 3 9, 4 9, 5 9").train()
    with RunFolder.open(tmp_path / "runs" / "run") as folder:
        settled = resume_iteration(folder.store, "train", 0, is_consumed=True)
        lost = sorted(name for name, one in settled.replays.items() if one.lost is not None)
        assert lost and settled.resample and set(lost) < set(settled.finished)
        assert folder.store.events("played_on") == []
        again = resume_iteration(folder.store, "train", 0, is_consumed=False)
        assert not again.resample and not set(lost) & set(again.finished)
        assert all(value.lost is None for value in again.replays.values())
        (told,) = folder.store.events("played_on")
        assert told.body == {"split": "train", "iteration": 0, "trajectories": lost}
        assert not resume_iteration(folder.store, "train", 0, is_consumed=True).resample
        assert resume_iteration(folder.store, "train", 1, is_consumed=False).resample


def test_evaluation_with_too_many_losses_stops_the_run_and_is_repeated_on_resume(start, tmp_path):
    run = start(
        faults="20 1, 21 1",
    )
    with pytest.raises(GuardStop, match="2 of the 4 trajectories of the evaluation after 0 iterations were lost"):
        run.train()
    folder = tmp_path / "runs" / "run"
    with RunReader(folder) as reader:
        assert reader.events("evaluation") == []
    resumed = Run.resume(folder, registry=run._registry).train()
    assert resumed.evaluations[0].failures == {} and resumed.evaluations[0].interval.mean == 1.0


def test_evaluation_with_allowed_losses_is_not_repeated_on_resume(start, tmp_path):
    run = start("train.iterations=1", "train.max_tool_failure_share=0.3", faults="20 1")
    assert run.train().evaluations[0].failures == {"ToolError": 1}
    resumed = Run.resume(tmp_path / "runs" / "run", "train.iterations=2", registry=run._registry).train()
    assert [evaluation.failures for evaluation in resumed.evaluations] == [{"ToolError": 1}, {}]


def test_standalone_evaluation_has_a_result_unless_all_trajectories_are_lost(start, registry, observe):
    some = start("eval.coach=true", faults="20 1, 21 1, 22 1").composed
    evaluation = asyncio.run(evaluate_standalone(some, registry)).evaluation
    assert evaluation.failures == {"ToolError": 3} and evaluation.interval.mean == 1.0
    none = start("eval.coach=true", faults="20 1, 21 1, 22 1, 23 1", name="none").composed
    with pytest.raises(
        GuardStop, match=r"all 4 trajectories .* were lost to failures of tools. They(.|\n)*4 x the sandbox"
    ):
        asyncio.run(observe(none, registry))


# --- where programs run -----------------------------------------------------------------------------------------------


def test_tools_are_opened_once_announced_recorded_and_closed(start, making):
    heard = []

    class Ears(Listener):
        def on_sandboxes(self, sandboxes):
            heard.append(dict(sandboxes))

    trained = start("train.iterations=1").train(Ears())
    (tool,) = making.made
    assert (tool.opened, tool.closed) == (1, 1)
    assert heard == [{"python": Sandbox(name="padded", detail="a [soft] one", warnings=("the door is open",))}]
    with RunReader(trained.folder) as reader:
        (event,) = reader.events("sandbox")
    assert event.body == {
        "tool": "python",
        "name": "padded",
        "detail": "a [soft] one",
        "warnings": ["the door is open"],
    }


def test_tools_are_opened_and_closed_before_anything_is_written(start, making, tmp_path):
    assert start().check().endswith("; programs of python run in padded")
    with pytest.raises(ConfigError, match="no cage works here"):
        start("tools.python.options.opens=false").train()
    assert [(tool.opened, tool.closed) for tool in making.made] == [(1, 1), (1, 1)]
    assert not (tmp_path / "runs").exists()


def test_standalone_evaluation_announces_and_records_its_sandboxes(start, registry):
    heard = []
    evaluated = asyncio.run(evaluate_standalone(start().composed, registry, on_sandboxes=heard.append))
    assert [list(sandboxes) for sandboxes in heard] == [["python"]]
    with RunReader(evaluated.folder) as reader:
        assert [event.body["name"] for event in reader.events("sandbox")] == ["padded"]


def test_retried_tool_calls_are_printed_at_the_end_of_a_run(start, capsys, line_progress, show_result, report_of):
    console = Console(width=200)
    show_result(console, start("tools.python.retries=1", "train.iterations=1", faults="20 1").train())
    assert "retries" not in capsys.readouterr().out
    trained = start("tools.python.retries=9", "train.iterations=2", faults="4 1, 5 1", name="faulty").train(
        line_progress(console, 2)
    )
    show_result(console, trained)
    out = capsys.readouterr().out
    assert trained.summary.tools.retries == 2
    assert "  1 retries of tool calls" in out or "  2 retries of tool calls" in out
    assert "\n2 retries of tool calls\n" in out
    assert "0 rollouts lost, 2 retries of calls" in report_of(trained)


def test_trace_prints_the_sandbox_and_the_attempts_of_a_program(start, capsys):
    trained = start("tools.python.retries=9", "train.iterations=1", faults="20 1").train()
    for task, ran in (("n20", "python: ok, in padded, in attempt 2\n"), ("n21", "python: ok, in padded\n")):
        assert main(["runs", "trace", str(trained.folder), f"eval-000000/{task}/000"]) == 0
        assert ran in capsys.readouterr().out


class Missing(TaskSource):
    def __init__(self, options) -> None:
        pass

    def load(self, split):
        return [Task(id=f"n{n}", prompt=str(n), reference="", files={"a.csv": "/nowhere/a.csv"}) for n in range(5)]


def test_a_task_whose_file_is_gone_is_refused_before_anything_is_written(start):
    with pytest.raises(TaskError, match=r"the task 'n0': the task file 'a.csv' is not there: /nowhere/a.csv"):
        start("tasks.use=missing").check()
