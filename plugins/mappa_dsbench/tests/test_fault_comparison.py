"""`mappa dsbench unlearned`: the faults of first actions, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunFolder
from mappa_core import Completion, Inspection, Message, RunError, Step, Task, ToolCall, ToolResult, Trajectory
from mappa_dsbench.reports.fault_comparison import FaultCount, compare_faults
from mappa_dsbench.roles import DATA_ENGINEER, MODELER


def step(agent: str, *codes: str, turn: int = 0, code: str | None = "x = 1", status: str = "ok") -> Step:
    called = () if code is None else (ToolCall(name="python", arguments={"code": code}),)
    return Step(
        id="",
        agent=agent,
        turn=turn,
        position=0,
        policy=agent,
        messages=(Message(role="user", content=""),),
        reply=Message(role="assistant", content=""),
        completion=Completion(text="", prompt_tokens=None, tokens=None, logprobs=None, finish="stop"),
        calls=called,
        results=tuple(ToolResult(tool="python", status=status) for _ in called),  # type: ignore[arg-type]
        inspection=Inspection(over=False, facts={"faults": [{"code": one} for one in codes]}),
    )


BEFORE = [
    [step(DATA_ENGINEER, "missing", "missing", "id_inside"), step(DATA_ENGINEER, "columns", turn=1), step(MODELER)],
    [step(DATA_ENGINEER, "missing", status="error", code="y = 1"), step(MODELER, "missing", code=None)],
]
AFTER = [[step(DATA_ENGINEER, "id_inside"), step(MODELER)], [step(DATA_ENGINEER), step(MODELER)]]


def store(root: Path, *evaluations: list[list[Step]]) -> Path:
    with RunFolder.create(root, "run", plugin="dsbench", recipe="tiny", config="") as run:
        for iteration, played in enumerate(evaluations):
            for sample, steps in enumerate(played):
                task, name = Task(id="t", prompt=""), f"eval-{iteration}/t/{sample}"
                run.store.begin_trajectory("eval", name, task, sample, 5 * iteration)
                for place, one in enumerate(steps):
                    run.store.record_step(name, Step(**{**_fields(one), "id": f"{name}/{place}", "position": place}))
                run.store.end_trajectory(Trajectory(id=name, task=task, sample=sample, iteration=5 * iteration))
    return root / "run"


def _fields(one: Step) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def test_first_actions_are_compared_and_each_kind_counts_once(tmp_path: Path) -> None:
    found = compare_faults(store(tmp_path, BEFORE, AFTER))
    assert (found.first, found.last) == (0, 5)
    engineer, modeler, analyst = found.agents
    assert (engineer.before, engineer.after, engineer.programs_before, engineer.programs_after) == (2, 2, 2, 1)
    assert engineer.faults == (
        FaultCount(code="failed", before=1, after=0),
        FaultCount(code="id_inside", before=1, after=1),
        FaultCount(code="missing", before=1, after=0),
    )
    assert modeler.faults == (FaultCount(code="no_program", before=1, after=0),)
    assert (analyst.before, analyst.faults) == (0, ())


def test_the_command_prints_a_table_or_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = store(tmp_path, BEFORE, AFTER)
    assert main(["dsbench", "unlearned", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "id_inside" in shown and "50%" in shown
    assert main(["dsbench", "unlearned", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agents"][0]["agent"] == DATA_ENGINEER


def test_a_run_with_one_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="two evaluations, and the run has 1"):
        compare_faults(store(tmp_path, BEFORE))
