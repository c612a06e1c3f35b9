"""The prompts: what each agent is told, in both sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappa_core import ConfigError, Task, TaskError, ToolCall, ToolResult
from mappa_core.workflow import Contribution
from mappa_dsbench.grading.grade import Anchors
from mappa_dsbench.problem import Problem
from mappa_dsbench.prompts import TeamPrompts
from mappa_dsbench.roles import ANALYST, DATA_ENGINEER, MODELER, ROLES
from mappa_dsbench.table import Table, table_to_meta

PROBLEM = Problem(
    name="pens", kind="classification", metric="f1_macro", id_column="pen_id", targets=("ink",), labels=("blue", "red")
)
TABLE = Table(
    problem=PROBLEM,
    anchors=Anchors(dummy=0.0, perfect=1.0, paper=0.0),
    features=("length", "maker"),
    missing=True,
    categorical=False,
    reference_score=0.7,
)
TASK = Task(id="pens", prompt="Which ink?", reference="/answers/pens.csv", meta=table_to_meta(TABLE))
FILES_THERE = ("X_test.pkl", "X_train.pkl", "sample_submission.csv", "test.csv", "train.csv", "y_train.pkl")
CALL = ToolCall(name="python", arguments={"code": "1"})


def briefing(prompts: str, **options: int) -> TeamPrompts:
    return TeamPrompts(prompts, **{"token_limit": 500, "output_chars": 256, **options})


@pytest.fixture(params=["full", "tiny"])
def either(request: pytest.FixtureRequest) -> TeamPrompts:
    return briefing(request.param)


@pytest.mark.parametrize("agent", ROLES)
def test_every_prompt_tells_what_is_asked_and_nothing_of_the_truth(either: TeamPrompts, agent: str) -> None:
    text = either.render_prompt(agent, TASK, FILES_THERE, [])
    assert "f1_macro" in text or agent == DATA_ENGINEER
    assert "/answers" not in text and "0.7" not in text


def test_the_tiny_prompts_are_the_facts_of_the_task() -> None:
    tiny = briefing("tiny")
    assert tiny.render_prompt(DATA_ENGINEER, TASK, (), []).splitlines() == [
        "engineer: classification",
        "id: pen_id",
        "target: ink",
        "missing: yes",
        "categorical: no",
    ]
    assert tiny.render_prompt(MODELER, TASK, FILES_THERE, []).splitlines() == [
        "modeler: classification",
        "metric: f1_macro",
        "files: X_test.pkl X_train.pkl y_train.pkl",
    ]
    assert tiny.render_prompt(ANALYST, TASK, (*FILES_THERE, "model.pkl"), []).splitlines() == [
        "analyst: classification",
        "metric: f1_macro",
        "id: pen_id",
        "target: ink",
        "files: X_test.pkl X_train.pkl y_train.pkl model.pkl",
    ]


def test_several_targets_stand_side_by_side() -> None:
    pair = Problem(name="pens", kind="regression", metric="mcrmse", id_column="pen_id", targets=("ink", "weight"))
    table = Table(problem=pair, anchors=TABLE.anchors, features=(), missing=False, categorical=True)
    text = briefing("tiny").render_prompt(ANALYST, Task(id="pens", prompt="", meta=table_to_meta(table)), (), [])
    assert "\ntarget: ink, weight\n" in text
    assert text.endswith("\nfiles:")


def test_the_full_prompts_tell_the_task_and_what_others_did() -> None:
    earlier = [Contribution(agent=DATA_ENGINEER, text="I saved the features.", results="shape: (3, 2)")]
    text = briefing("full").render_prompt(MODELER, TASK, FILES_THERE, earlier)
    assert "Which ink?" in text
    assert "I saved the features." in text and "shape: (3, 2)" in text
    assert "model.pkl" in text and "500" in text


def test_what_a_program_did_and_what_is_unmet_is_told(either: TeamPrompts) -> None:
    failed = ToolResult(tool="python", status="error", exit_code=1, stderr="Traceback\nKeyError: 'pen'")
    text = either.render_results([CALL], [failed], ["X_test.pkl missing", "X_train.pkl not_finite"], FILES_THERE)
    assert "KeyError" in text
    assert "X_test.pkl" in text and "X_train.pkl" in text and "not_finite" in text


@pytest.mark.parametrize(
    "result, told",
    [
        (ToolResult(tool="python", status="ok", exit_code=0), "result: ok"),
        (ToolResult(tool="python", status="timeout"), "result: timeout"),
        (ToolResult(tool="python", status="error", exit_code=1, stderr="…\nKeyError: 'x: y'\n"), "result: KeyError"),
        (ToolResult(tool="python", status="error", exit_code=1), "result: exit"),
    ],
)
def test_the_tiny_results_are_one_word_each(result: ToolResult, told: str) -> None:
    assert briefing("tiny").render_results([CALL], [result], ["model.pkl missing"], ()).splitlines() == [
        told,
        "unmet: model.pkl missing",
    ]


def test_an_action_without_a_program_is_told_so(either: TeamPrompts) -> None:
    assert "no code" in either.render_results([], [], ["model.pkl missing"], ()).lower()


def test_a_block_that_is_not_closed_is_told_apart(either: TeamPrompts) -> None:
    call = ToolCall(name="python", error="the python block is not closed")
    assert "closed" in either.render_results([call], [ToolResult(tool="python", status="error")], [], ())


def test_long_outputs_are_cut_in_the_middle() -> None:
    full = briefing("full", output_chars=256)
    long = ToolResult(tool="python", status="ok", exit_code=0, stdout="a" * 2000 + "end")
    text = full.render_results([CALL], [long], [], ())
    assert text.count("a") < 400 and "end" in text


def test_a_folder_that_lacks_a_template_is_named(tmp_path: Path) -> None:
    (tmp_path / "modeler.md").write_text("x")
    with pytest.raises(ConfigError, match=r"lacks data_engineer.md, analyst.md, results.md; name one of the sets full"):
        briefing(str(tmp_path))


def test_a_template_that_does_not_parse_is_named(tmp_path: Path) -> None:
    for name in (*ROLES, "results"):
        (tmp_path / f"{name}.md").write_text("{% if %}")
    with pytest.raises(ConfigError, match="does not parse"):
        briefing(str(tmp_path))


def test_a_task_of_another_kind_is_refused() -> None:
    with pytest.raises(TaskError, match="is no table"):
        briefing("tiny").render_prompt(MODELER, Task(id="words", prompt="How many pens?"), (), [])
