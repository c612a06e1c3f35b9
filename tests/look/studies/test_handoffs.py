"""What was handed on: files that were made, missing or broken, and what that cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mappa.look.cli.diagnosis_tables import diagnosis_json, show_diagnosis
from mappa.look.handoffs import summarize_handoffs
from mappa.look.observe import diagnose
from mappa.runs import build_evaluation
from mappa_core import Breach, Completion, Failure, Message, Role, Step, Task, ToolResult, Trajectory
from mappa_core.sandbox import FileChange

ROLES = {
    "engineer": Role(brief="prepares", needs=("raw.csv",), produces=("X.pkl", "y.pkl")),
    "modeler": Role(brief="fits", needs=("X.pkl", "y.pkl"), produces=("model.pkl",)),
    "analyst": Role(brief="predicts", needs=("model.pkl", "X.pkl"), produces=("submission.csv",)),
}


def act(agent, *writes, breaches=(), deletes=()):
    """An action of an agent: what it wrote, and its breaches as `kind path reason`."""
    changes = [FileChange(path=path, kind="created", size=1, sha256="0" * 64) for path in writes]
    changes += [FileChange(path=path, kind="deleted") for path in deletes]
    words = [breach.split() for breach in breaches]
    return agent, (ToolResult(tool="python", status="ok", files=tuple(changes)),), tuple(
        Breach(agent=agent, kind=kind, path=path, reason=" ".join(reason)) for kind, path, *reason in words
    )  # fmt: skip


def played(name, correct, *acts, error=None):
    tokens = np.zeros(1, dtype=np.int32)
    said = Completion(text="x", prompt_tokens=tokens, tokens=tokens, logprobs=np.zeros(1, np.float32), finish="stop")
    steps = tuple(
        Step(id=f"{name}/{position:03d}", agent=agent, turn=0, position=position, policy=agent, messages=(),
             reply=Message(role="assistant", content="x"), completion=said, results=results, breaches=breaches)
        for position, (agent, results, breaches) in enumerate(acts)
    )  # fmt: skip
    task = Task(id=name, prompt="p", files={"raw.csv": "/data/raw.csv"})
    outcome = {} if correct is None else {"correct": correct}
    return Trajectory(id=name, task=task, sample=0, iteration=0, steps=steps, outcome=outcome, error=error)


GOOD = (act("engineer", "X.pkl", "y.pkl"), act("modeler", "model.pkl"), act("analyst", "submission.csv"))
ROLLOUTS = [
    played("good", 1.0, *GOOD),
    played("mended", 1.0, act("engineer", "X.pkl", "y.pkl", breaches=["broken_output X.pkl rows"]), *GOOD),
    played(
        "unusable", 0.0,
        act("engineer", "X.pkl", "y.pkl", breaches=["broken_output X.pkl rows", "broken_output X.pkl columns"]),
        act("modeler", breaches=["missing_output model.pkl"]),
        act("analyst", breaches=["missing_input model.pkl", "missing_output submission.csv"]),
    ),
    played(
        "forgotten", 0.0,
        act("engineer", "X.pkl", breaches=["missing_output y.pkl"]),
        act("modeler", "y.pkl", "model.pkl", breaches=["missing_input y.pkl"]),
        act("analyst", "submission.csv"),
    ),
    played(
        "deleted", 0.5,
        act("engineer", "X.pkl", "y.pkl"),
        act("modeler", "model.pkl", deletes=["X.pkl"]),
        act("analyst", "submission.csv", breaches=["missing_input X.pkl", "broken_output submission.csv header"]),
    ),
]  # fmt: skip


@pytest.fixture
def by_path():
    return {one.path: one for one in summarize_handoffs(ROLLOUTS, ROLES, "correct")}


def test_files_are_those_of_the_contract_and_not_those_of_the_task(by_path):
    assert list(by_path) == ["X.pkl", "y.pkl", "model.pkl", "submission.csv"]
    assert (by_path["X.pkl"].makers, by_path["X.pkl"].needed_by) == (("engineer",), ("modeler", "analyst"))
    assert by_path["submission.csv"].needed_by == ()
    assert {value.rollouts for value in by_path.values()} == {5}


def test_a_file_counts_as_its_maker_left_it(by_path):
    mended_and_unusable = by_path["X.pkl"]
    assert (mended_and_unusable.missing, mended_and_unusable.broken) == (0, 1)
    assert mended_and_unusable.reasons == {"rows": 1, "columns": 1}
    assert (by_path["model.pkl"].missing, by_path["submission.csv"].missing) == (1, 1)
    assert (by_path["submission.csv"].broken, by_path["submission.csv"].reasons) == (1, {"header": 1})


def test_maker_of_a_file_is_named_if_it_is_not_the_contracts_agent(by_path):
    assert (by_path["y.pkl"].made, by_path["y.pkl"].missing) == (5, 1)
    assert by_path["y.pkl"].made_by == {"engineer": 4, "modeler": 1}
    assert by_path["model.pkl"].made == 4


def test_the_metric_is_held_against_the_state_of_the_file(by_path):
    model = by_path["model.pkl"]
    assert (model.fine, model.metric_fine, model.metric_flawed) == (4, pytest.approx(2.5 / 4), 0.0)
    first = {path: one.failed_first for path, one in by_path.items()}
    assert first == {"X.pkl": 1, "y.pkl": 1, "model.pkl": 0, "submission.csv": 1}


def test_a_file_that_its_maker_left_and_another_took_away_is_missing_where_it_was_needed():
    taken = played(
        "taken", 0.0,
        act("engineer", "X.pkl", "y.pkl"), act("engineer", deletes=["y.pkl"]),
        act("modeler", "model.pkl", breaches=["missing_input y.pkl"]), act("analyst", "submission.csv"),
    )  # fmt: skip
    found = {one.path: one for one in summarize_handoffs([taken], ROLES, "correct")}
    assert (found["y.pkl"].missing, found["y.pkl"].failed_first) == (1, 1)
    assert (found["X.pkl"].fine, found["model.pkl"].fine) == (1, 1)


def test_a_file_that_went_once_it_was_used_was_fine():
    tidy = played("tidy", 1.0, *GOOD[:2], act("analyst", "submission.csv", deletes=["model.pkl"]))
    assert [one.fine for one in summarize_handoffs([tidy], ROLES, "correct")] == [1, 1, 1, 1]


def test_absent_file_without_an_inspection_is_missing():
    silent = played("silent", 0.0, *GOOD[:2], act("analyst"))
    assert summarize_handoffs([silent], ROLES, "correct")[-1].missing == 1


def test_an_unfinished_rollout_counts_0_and_only_the_files_that_were_due():
    cut = played("cut", None, GOOD[0], act("modeler"), error=Failure(kind="PromptTooLong", message="too long"))
    found = {one.path: one for one in summarize_handoffs([cut], ROLES, "correct")}
    assert (found["X.pkl"].fine, found["X.pkl"].metric_fine) == (1, 0.0)
    assert found["model.pkl"].rollouts == found["submission.csv"].rollouts == 0
    assert found["model.pkl"].metric_fine is None


def test_rollouts_lost_to_tool_failures_are_not_counted():
    lost = replace(ROLLOUTS[2], error=Failure(kind="ToolError", message="no sandbox"))
    assert summarize_handoffs([lost], ROLES, "correct")[0].rollouts == 0


def test_a_team_without_contracts_has_no_hand_offs():
    assert summarize_handoffs(ROLLOUTS, {name: Role(brief="acts") for name in ROLES}, "correct") == ()


def test_the_table_names_makers_reasons_and_what_it_cost(capsys):
    evaluation = build_evaluation(ROLLOUTS, metric="correct", iteration=0)
    seen = diagnose(ROLLOUTS, ROLES, evaluation, Path("run"), examples=1)
    show_diagnosis(Console(width=90), seen)
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split("  ") for line in lines if line.startswith(" y.pkl "))
    assert [cell.strip() for cell in row if cell.strip()] == [
        "y.pkl",
        "5",
        "5",
        "1",
        "0",
        "62.5 % of 4",
        "0.0 % of 1",
        "1",
    ]
    assert " y.pkl: engineer -> modeler; made by modeler in 1" in lines
    assert " X.pkl: engineer -> modeler, analyst; broken: columns 1, rows 1" in lines
    assert " submission.csv: analyst -> the outcome; broken: header 1" in lines
    assert "no coach was asked about them" in lines
    assert '"path":"X.pkl","makers":["engineer"]' in diagnosis_json(seen)
