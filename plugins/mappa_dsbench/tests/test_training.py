"""One short run of the recipe as it is shipped: real programs, real pickles, real verdicts, weights that move."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.runs import RunReader
from mappa.sessions import Run
from mappa_dsbench.reports.fault_comparison import compare_faults
from mappa_dsbench.roles import ROLES

SMALL = (
    "train.iterations=1",
    "train.prompts=4",
    "train.samples=1",
    "tasks.options.eval=2",
    "eval.samples=1",
)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    return Run.from_recipe("dsbench/tiny", *SMALL, f"run.root={root}", "run.name=run").train().folder


def test_every_action_has_a_verdict_and_every_rollout_an_outcome(run: Path) -> None:
    with RunReader(run) as reader:
        rollouts = [reader.trajectory(row.id) for row in reader.trajectories.where(split="train")]
    assert len(rollouts) == 4
    for rollout in rollouts:
        assert rollout.error is None and {"success", "fair_dummy"} <= rollout.outcome.keys()
        assert {step.agent for step in rollout.steps} == set(ROLES)
        assert len(rollout.verdicts) == len(rollout.steps)
        assert {verdict.status for verdict in rollout.verdicts} <= {"scored", "abstained"}


def test_strata_are_sampled_in_their_share_and_told(run: Path) -> None:
    with RunReader(run) as reader:
        (report,) = reader.iterations
        strata = [row.stratum for row in reader.trajectories.where(split="train")]
    assert sorted(strata) == ["classification", "classification", "regression", "regression"]
    assert {"classification", "regression"} == report.strata.keys()
    assert "fair_dummy" in report.strata["regression"].figures
    assert max(policy["mismatch_max"] for policy in report.policies.values()) < 1e-4


def test_programs_are_the_sampled_text_and_ran_in_a_cage(run: Path) -> None:
    with RunReader(run) as reader:
        steps = [step for row in reader.trajectories for step in reader.trajectory(row.id).steps]
    ran = [(call, result, step) for step in steps for call, result in zip(step.calls, step.results, strict=True)]
    assert len(ran) > 10
    for call, result, step in ran:
        if call.error is None:
            assert call.arguments["code"] in step.completion.text
            assert result.sandbox in ("bubblewrap", "landlock")


def test_the_run_is_judged_again_on_the_tables_of_its_tasks(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    assert main(["judge", str(copy), "--coach", "dsbench-rules", "--limit", "2", "--quiet"]) == 0
    with RunReader(copy) as reader:
        verdicts = [row.verdict for row in reader.verdicts]
    scores = {(one.step, one.phase): one.score for one in verdicts}
    again = {step: score for (step, phase), score in scores.items() if phase == "again"}
    assert again and again == {step: scores[step, "live"] for step in again}


def test_the_stored_run_can_be_observed_reported_and_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["observe", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "X_test.pkl: data_engineer -> modeler, analyst" in shown
    assert main(["report", str(run)]) == 0
    assert "fair_dummy" in (run / "report.html").read_text()
    assert main(["dsbench", "score", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["total"]["rollouts"] == 2
    assert [agent.agent for agent in compare_faults(run).agents] == list(ROLES)
