"""`mappa dsbench score`: what a stored run came to, told without touching it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunFolder
from mappa_core import Failure, RunError, Task, TaskError, Trajectory
from mappa_dsbench.grading.grade import Anchors, Grade, normalise_score
from mappa_dsbench.outcome import build_outcome
from mappa_dsbench.problem import Problem
from mappa_dsbench.reports.score import score_run
from mappa_dsbench.table import Table, table_to_meta


def table(name: str, metric: str, *, dummy: float, paper: float | None, published=None, reference=None) -> Table:
    regression = metric in ("rmse", "rmsle")
    return Table(
        problem=Problem(
            name=name,
            kind="regression" if regression else "classification",
            metric=metric,
            id_column="id",
            targets=("y",),
        ),
        anchors=Anchors(dummy=dummy, perfect=0.0 if regression else 1.0, paper=paper),
        features=("x",),
        missing=False,
        categorical=False,
        reference_score=reference,
        published=published,
    )


AUC = table("auc", "roc_auc", dummy=0.5, paper=0.5, published=(0.5, 1.0))
RMSE = table("rmse", "rmse", dummy=4.0, paper=10.0, published=(5.0, 0.0), reference=2.0)
RMSLE = table("rmsle", "rmsle", dummy=2.0, paper=None)


def graded(table: Table, raw: float | None, reason: str | None = None) -> dict[str, float]:
    anchors = table.anchors
    grade = Grade(
        metric=table.problem.metric,
        success=raw is not None,
        reason=reason,
        detail="",
        raw=raw,
        fair_dummy=anchors.dummy if raw is None else raw,
        fair_paper=None if anchors.paper is None else anchors.paper if raw is None else raw,
        normalised=0.0 if raw is None else normalise_score(raw, anchors.dummy, anchors.perfect),
        n_clipped=0,
        degenerate=(),
    )
    return build_outcome(grade, table)


ROLLOUTS = [
    (AUC, 0, graded(AUC, 0.9), None),
    (AUC, 1, graded(AUC, None, "columns"), None),
    (RMSE, 0, graded(RMSE, 2.0), None),
    (RMSE, 1, graded(RMSE, 0.1), None),
    (RMSLE, 0, graded(RMSLE, 1.0), None),
    (RMSLE, 1, {}, Failure(kind="PromptTooLong", message="too long")),
    (RMSLE, 2, {}, Failure(kind="ToolError", message="the disk is full")),
    (RMSE, 2, {}, Failure(kind="ToolError", message="the disk is full")),
    (AUC, 2, graded(AUC, 0.7), None),
]


def add(run: RunFolder, rollouts, iteration: int) -> None:
    for table, sample, outcome, error in rollouts:
        task = Task(id=table.problem.name, prompt="", stratum=table.problem.kind, meta=table_to_meta(table))
        name = f"eval-{iteration}/{task.id}/{sample}"
        run.store.begin_trajectory("eval", name, task, sample, iteration)
        run.store.end_trajectory(
            Trajectory(id=name, task=task, sample=sample, iteration=iteration, outcome=outcome, error=error)
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    with RunFolder.create(root, "run", plugin="dsbench", recipe="tiny", config="") as run:
        add(run, [(AUC, 0, graded(AUC, None, "no_file"), None)], 0)
        add(run, ROLLOUTS, 3)
    return root / "run"


def test_figures_by_hand(run: Path) -> None:
    found = score_run(run, "eval")
    assert (found.iteration, found.lost, found.total.rollouts) == (3, 2, 7)
    assert found.total.success == pytest.approx(5 / 7)
    assert found.total.fair_dummy == pytest.approx((0.8 + 0 + 0.4 + 0.5 + 0.975 + 0.5 + 0) / 7)
    assert found.total.fair_paper == pytest.approx((0.8 + 0 + 0.4 + 0.8 + 0.99) / 5)
    assert found.total.reasons == {"columns": 1, "unfinished": 1}
    assert found.total.flagged == ("eval-3/rmse/1",)
    assert {name: (one.rollouts, one.success) for name, one in found.strata.items()} == {
        "classification": (3, pytest.approx(2 / 3)),
        "regression": (4, 0.75),
    }
    auc, rmse, rmsle = found.tasks
    assert (auc.raw, auc.dummy, auc.paper) == (pytest.approx(0.8), pytest.approx(0.7), pytest.approx(0.7))
    assert (rmse.raw, rmse.dummy, rmse.paper) == (pytest.approx(1.05), pytest.approx(1.05), pytest.approx(1.05))
    assert (rmsle.raw, rmsle.dummy, rmsle.paper, rmsle.fair_paper) == (1.0, pytest.approx(1.5), None, None)


def test_as_dsbench_sums_up_over_the_tasks_that_it_has(run: Path) -> None:
    published = score_run(run, "eval").published
    assert published is not None
    assert published.tasks == 2
    assert published.completion_rate == pytest.approx((1 + 0.5 + 1) / 3)
    first, second, third = (0.8 + 0.6) / 2, (0 + 0.98) / 2, 0.4
    assert published.relative_performance_gap == pytest.approx((first + second + third) / 3)


def test_one_iteration_can_be_named(run: Path) -> None:
    found = score_run(run, "eval", 0)
    assert (found.total.rollouts, found.total.reasons) == (1, {"no_file": 1})
    with pytest.raises(RunError, match="no rollouts of the split 'train' ended"):
        score_run(run, "train")
    with pytest.raises(RunError, match="in iteration 7"):
        score_run(run, "eval", 7)


def test_a_run_of_other_tasks_is_refused(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run", plugin="mathchat", recipe="tiny", config="") as folder:
        task = Task(id="word", prompt="")
        folder.store.begin_trajectory("eval", "t", task, 0, 0)
        folder.store.end_trajectory(Trajectory(id="t", task=task, sample=0, iteration=0, outcome={"correct": 1.0}))
    with pytest.raises(TaskError, match="'word' is no table"):
        score_run(tmp_path / "run", "eval")


def test_the_command_prints_tables_and_leaves_the_run_as_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def content() -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in run.iterdir() if path.is_file()}

    before = content()
    assert main(["dsbench", "score", str(run)]) == 0
    said = capsys.readouterr().out
    for part in (
        "eval, after 3 iterations: 7 rollouts, 2 more lost by the machinery",
        "71.4%",
        "roc_auc",
        "rejected: 1 columns, 1 unfinished",
        "1 rollouts scored far above the reference model",
        "2 tasks: task completion rate 83.3%, RPG 53.0%",
    ):
        assert part in said
    assert content() == before


def test_the_command_prints_one_object(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dsbench", "score", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["lost"], len(found["tasks"])) == (1, 2, 3)
    assert found["published"]["relative_performance_gap"] == pytest.approx(0.53)
    assert found["strata"]["regression"]["flagged"] == ["eval-3/rmse/1"]


def test_a_folder_that_is_no_run_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dsbench", "score", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
