"""The table of the rule coach, every row by hand, and who is blamed for what.

The facts are written down as the check of the contracts tells them, so no program runs, but where a program is tried
once more on reference artifacts: the bench of those tests is real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest

from mappa.testing import CoachContract
from mappa_core import (
    NOBODY,
    Completion,
    ConfigError,
    Inspection,
    Message,
    NoOptions,
    Scene,
    Step,
    Task,
    ToolCall,
    ToolError,
    ToolResult,
)
from mappa_core.sandbox import ProgramRun
from mappa_dsbench.coach.reference_programs.features import build_features
from mappa_dsbench.coach.rule_coach import RuleCoach
from mappa_dsbench.coach.scoring import POINTS_OF_FAULT
from mappa_dsbench.contracts.faults import FAULT_IS_HARD, build_fault
from mappa_dsbench.grading.grade import Anchors
from mappa_dsbench.grading.submission import RejectionReason
from mappa_dsbench.problem import Problem
from mappa_dsbench.roles import (
    ANALYST,
    DATA_ENGINEER,
    MODEL,
    MODELER,
    ROLES,
    SUBMISSION,
    X_TEST,
    X_TRAIN,
    Y_TRAIN,
)  # fmt: skip
from mappa_dsbench.table import Table, table_to_meta

PROBLEM = Problem(name="t", kind="regression", metric="mae", id_column="id", targets=("y",), range=(0.0, 40.0))
TABLE = Table(
    problem=PROBLEM,
    anchors=Anchors(dummy=10.0, perfect=0.0, paper=20.0),
    features=("a",),
    missing=False,
    categorical=False,
    reference_score=2.0,
)
TRUTH = (10.0, 20.0, 30.0)
OK = ToolResult(tool="python", status="ok", exit_code=0)
FAILED = ToolResult(tool="python", status="error", exit_code=1, stderr="Traceback\nKeyError: 'price'\n")
LATE = ToolResult(tool="python", status="timeout", stderr="")


class NoBench:
    """Where nothing may be run."""

    def files(self, steps: Sequence[Step]) -> Mapping[str, Path]:
        raise AssertionError("nothing is to be looked into")

    async def run(self, code: str, **rest: Any) -> ProgramRun:
        raise AssertionError("nothing is to be run")


class BrokenBench(NoBench):
    """Whose machinery fails."""

    def files(self, steps: Sequence[Step]) -> Mapping[str, Path]:
        return {}

    async def run(self, code: str, **rest: Any) -> ProgramRun:
        raise ToolError("the warden is gone")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Three rows to be predicted; a constant guess is off by 10, the reference model by 2."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "test.csv").write_text("id,a\n7,1\n8,2\n9,3\n")
    (folder / "answers.csv").write_text("id,y\n" + "".join(f"{7 + at},{y}\n" for at, y in enumerate(TRUTH)))
    return Task(
        id="t",
        prompt="",
        reference=str(folder / "answers.csv"),
        files={"test.csv": str(folder / "test.csv")},
        meta=table_to_meta(TABLE),
    )


def facts(*faults: tuple[str, str], **told: Any) -> dict[str, Any]:
    found = [build_fault(code, path) for code, path in faults]
    return {"faults": found, "hard": any(one["hard"] for one in found), "probed": True, **told}


def off_by(error: float) -> dict[str, Any]:
    """What the check tells of a model whose predictions are all too large by `error`."""
    values = [[truth + error] for truth in TRUTH]
    return facts(model="Ridge", predictions={"how": "predict", "values": values})


GOOD = {
    DATA_ENGINEER: facts(columns=["a"], rows_train=9, rows_test=3, target="same"),
    MODELER: off_by(2.0),
    ANALYST: facts(reason=None, faithful=True, hard_labels=False),
}


def acted(
    agent: str, found: Mapping[str, Any] | None, *results: ToolResult, cut: bool = False, position: int = 0
) -> Step:
    return Step(
        id=f"{agent}/{position}",
        agent=agent,
        turn=0,
        position=position,
        policy=agent,
        messages=(),
        reply=Message(role="assistant", content="…"),
        completion=Completion(
            text="…",
            prompt_tokens=None,
            tokens=np.zeros(1, np.int32),
            logprobs=None,
            finish="length" if cut else "stop",
        ),
        calls=tuple(ToolCall(name="python", arguments={"code": "…"}) for _ in results),
        results=results,
        inspection=None if found is None else Inspection(over=False, facts=found),
    )


def scene(task: Task, step: Step, *earlier: Step) -> Scene:
    return Scene(task=task, role=ROLES[step.agent], step=step, team=ROLES, earlier=earlier)


def coach(bench: Any = None) -> RuleCoach:
    one = RuleCoach(NoOptions())
    one.set_bench(bench or NoBench())
    return one


E, M, A = DATA_ENGINEER, MODELER, ANALYST
ROWS = [
    # the Data Engineer
    ("kept", E, GOOD[E], (OK,), 10, NOBODY),
    ("nothing there", E, facts(("missing", X_TRAIN), ("missing", Y_TRAIN), ("missing", X_TEST)), (OK,), 2, E),
    ("no features to predict from", E, facts(("missing", X_TEST)), (OK,), 3, E),
    ("no target", E, facts(("missing", Y_TRAIN)), (OK,), 3, E),
    ("features that cannot be opened", E, facts(("unreadable", X_TRAIN)), (OK,), 2, E),
    ("the wrong target", E, facts(("wrong_target", Y_TRAIN)), (OK,), 3, E),
    ("target inside", E, facts(("target_inside", X_TRAIN)), (OK,), 4, E),
    ("gaps in both", E, facts(("not_finite", X_TRAIN), ("not_finite", X_TEST)), (OK,), 4, E),
    ("rows", E, facts(("rows", Y_TRAIN)), (OK,), 4, E),
    ("columns", E, facts(("columns", X_TEST)), (OK,), 5, E),
    ("id inside", E, facts(("id_inside", X_TRAIN)), (OK,), 6, E),
    ("rows dropped", E, facts(("rows_dropped", X_TRAIN)), (OK,), 6, E),
    ("filled by the test rows", E, facts(("refit_on_test", X_TEST)), (OK,), 7, E),
    ("two kinds of faults", E, facts(("refit_on_test", X_TEST), ("id_inside", X_TRAIN)), (OK,), 5, E),
    # the Modeler: 5 + 5 x skill, which is (10 - error) / (10 - 2)
    ("as good as the reference", M, off_by(2.0), (OK,), 10, NOBODY),
    ("better than the reference", M, off_by(0.0), (OK,), 10, NOBODY),
    ("half way", M, off_by(6.0), (OK,), 7.5, NOBODY),
    ("a quarter of the way", M, off_by(8.0), (OK,), 6.25, NOBODY),
    ("no better than a constant guess", M, off_by(12.0), (OK,), 5, M),
    (
        "too many predictions to tell",
        M,
        facts(model="M", predictions={"how": "predict", "values": None}),
        (OK,),
        None,
        None,
    ),
    ("no model", M, facts(("missing", MODEL)), (OK,), 2, M),
    ("a model that cannot be opened", M, facts(("unreadable", MODEL)), (OK,), 2, M),
    ("no model but its settings", M, facts(("no_predict", MODEL)), (OK,), 3, M),
    ("a model that was not fitted", M, facts(("predicts_badly", MODEL)), (OK,), 3, M),
    ("a classifier of numbers", M, facts(("wrong_kind", MODEL)), (OK,), 3, M),
    ("no probabilities", M, facts(("no_probabilities", MODEL), predictions=None), (OK,), 4, M),
    # the Analyst
    ("faithful", A, GOOD[A], (OK,), 10, NOBODY),
    ("cannot be held against the model", A, facts(reason=None, faithful=None, hard_labels=None), (OK,), None, None),
    ("no submission", A, facts(("missing", SUBMISSION)), (OK,), 2, A),
    ("wrong header", A, facts(("columns", SUBMISSION), reason="columns"), (OK,), 4, A),
    ("a submission with gaps", A, facts(("missing", SUBMISSION), reason="missing"), (OK,), 4, A),
    ("other ids", A, facts(("id_mismatch", SUBMISSION), reason="id_mismatch"), (OK,), 4, A),
    ("made up", A, facts(("unfaithful", SUBMISSION)), (OK,), 3, A),
    ("labels", A, facts(("hard_labels", SUBMISSION)), (OK,), 3, A),
    # all of them
    ("a program fails", E, facts(("missing", X_TRAIN)), (FAILED,), 1, E),
    ("a program fails although all is there", A, GOOD[A], (OK, FAILED), 1, A),
    ("a program is stopped", M, facts(("missing", MODEL)), (LATE,), 1, M),
    ("no program", A, facts(("missing", SUBMISSION)), (), 0, A),
    ("all is there already", A, GOOD[A], (), 10, NOBODY),
]


@pytest.mark.parametrize(
    ("agent", "found", "results", "score", "blame"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
async def test_table(
    task: Task,
    agent: str,
    found: Mapping[str, Any],
    results: Sequence[ToolResult],
    score: float | None,
    blame: str | None,
) -> None:
    before = [acted(name, GOOD[name], OK) for name in ROLES]
    verdict = await coach().score(scene(task, acted(agent, found, *results), *before[: list(ROLES).index(agent)]))
    assert (verdict.score, verdict.blame) == (score, blame)
    assert verdict.reasoning


async def test_action_that_was_cut_off_scores_0(task: Task) -> None:
    verdict = await coach().score(scene(task, acted(E, GOOD[E], OK, cut=True)))
    assert (verdict.score, verdict.blame) == (0, E)


async def test_a_model_is_not_judged_without_the_truth(task: Task) -> None:
    verdict = await coach().score(scene(replace(task, reference=None), acted(M, GOOD[M], OK), acted(E, GOOD[E], OK)))
    assert verdict.status == "abstained"


async def test_where_no_reference_is_known_the_skill_counts_up_to_perfection(task: Task) -> None:
    unknown = replace(task, meta=table_to_meta(replace(TABLE, reference_score=None)))
    verdict = await coach().score(scene(unknown, acted(M, off_by(2.0), OK), acted(E, GOOD[E], OK)))
    assert verdict.score == pytest.approx(5 + 5 * 0.8)


async def test_counts_below_nothing_are_graded_as_nothing(task: Task) -> None:
    """The truth is 10, 20, 30; the predictions are 15 less, and the first, below 0, is taken for 0."""
    problem = replace(PROBLEM, metric="rmsle")
    table = replace(TABLE, problem=problem, anchors=Anchors(dummy=4.0, perfect=0.0, paper=None), reference_score=None)
    verdict = await coach().score(
        scene(replace(task, meta=table_to_meta(table)), acted(M, off_by(-15.0), OK), acted(E, GOOD[E], OK))
    )
    error = np.sqrt(np.mean((np.log1p(TRUTH) - np.log1p([0.0, 5.0, 15.0])) ** 2))
    assert verdict.score == pytest.approx(5 + 5 * (4 - error) / 4)


async def test_agents_of_another_team_are_not_judged(task: Task) -> None:
    step = acted("critic", None)
    assert (await coach().score(Scene(task=task, role=ROLES[E], step=step))).status == "abstained"


async def test_coach_without_a_bench_names_the_missing_setting(task: Task) -> None:
    with pytest.raises(ConfigError, match="python"):
        await RuleCoach(NoOptions()).score(scene(task, acted(E, GOOD[E], OK)))


def test_every_fault_of_every_role_has_its_points() -> None:
    assert {code for points in POINTS_OF_FAULT.values() for code in points} == set(FAULT_IS_HARD)
    assert set(get_args(RejectionReason)) <= set(POINTS_OF_FAULT[ANALYST])


# What predecessors did


async def test_agent_without_a_fault_keeps_10_points_after_a_broken_input(task: Task) -> None:
    earlier = (acted(E, facts(("id_inside", X_TRAIN)), OK), acted(M, GOOD[M], OK))
    verdict = await coach().score(scene(task, acted(A, GOOD[A], OK), *earlier))
    assert (verdict.score, verdict.blame) == (10, NOBODY)


async def test_tool_failure_gives_no_score(task: Task) -> None:
    earlier = acted(E, facts(("missing", X_TRAIN)), OK)
    with pytest.raises(ToolError, match="warden"):
        await coach(BrokenBench()).score(scene(task, acted(M, facts(("missing", MODEL)), FAILED), earlier))


# Reference programs


def test_reference_features_are_numbers_whatever_the_columns_hold() -> None:
    rows = 60
    known = pd.DataFrame(
        {
            "size": [1.0, np.nan, np.inf] * 20,
            "open": [True, False] * 30,
            "empty": [np.nan] * rows,
            "day": [f"2024-01-{1 + at % 28:02d}" for at in range(rows)],
            "note": [f"{'long ' * at}note" for at in range(rows)],
            "town": [f"town {at % 25}" for at in range(rows)],
        }
    )
    asked = pd.DataFrame(
        {"size": [np.nan], "open": [True], "empty": [1.0], "day": ["not a day"], "note": [None], "town": ["elsewhere"]}
    )
    train, test = build_features(known, asked)
    assert list(train.columns) == list(test.columns)
    assert np.isfinite(train.to_numpy()).all() and np.isfinite(test.to_numpy()).all()
    assert train["note words"].tolist() == [at + 1 for at in range(rows)]
    assert train["day day"].tolist()[:3] == [1, 2, 3]
    assert sum(name.startswith("town is") for name in train.columns) == 20 and not test.filter(like="town").any(
        axis=None
    )
    assert test["size"].tolist() == [1.0]


class TestContract(CoachContract):
    scenes = tuple(
        scene(Task(id="t", prompt="", meta=table_to_meta(TABLE)), acted(agent, found, *results))
        for _, agent, found, results, _, _ in ROWS
    )

    def coach(self) -> RuleCoach:
        return coach()
