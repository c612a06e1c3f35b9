"""Iterations of a run of mappa-core 0.1.0, which stored flat metrics, are read as reports and rewritten by a resume."""

import json
import runpy
import sqlite3
from pathlib import Path

import pytest

from mappa.runs import RunReader
from mappa.store.iteration_report import CounterfactualFigures, HealthWarning, IterationReport, Staleness
from mappa.store.iterations import report_of_flat
from mappa.store.schema import DATABASE_SCHEMA
from mappa.store.writer import Store
from mappa_core.coach import Alarm, Gap
from mappa_core.records import Interval

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_0_1_0" / "build.py"
FLAT = {
    "accuracy": 0.5, "figure/fair": 0.25, "stratum/a/b/accuracy": 0.5, "stratum/a/b/figure/fair": 0.25, "rollouts": 8.0,
    "rollouts/failed": 3.0, "rollouts/late": 1.0, "rollouts/joined": 2.0, "staleness_mean": 0.5, "staleness_max": 1.0,
    "counterfactual/rollouts": 4.0, "counterfactual/lost": 1.0, "counterfactual/settled": 3.0,
    "counterfactual/missing/lost": 1.0, "tools/lost": 1.0, "tools/attempts_again": 5.0, "tokens": 900.0,
    "coach/verdicts": 9.0, "coach/abstained": 1.0, "coach/failed": 2.0, "coach/replayed": 3.0, "coach/calls": 6.0,
    "coach/prompt_tokens": 70.0, "coach/agent/x/y/verdicts": 9.0, "coach/agent/x/y/abstained": 1.0,
    "coach/agent/x/y/failed": 2.0, "coach/agent/x/y/usd": 0.0, "coach/name/judge/verdicts": 9.0,
    "coach/name/judge/abstained": 1.0, "coach/name/judge/failed": 2.0, "coach/name/judge/usd": 0.0,
    "agent/x/y/score": 5.0, "agent/x/y/turns": 2.0, "drift/alarms": 1.0, "drift/live/x/task/easy/gap": 1.0,
    "drift/live/x/task/easy/gap_low": 0.5, "drift/live/x/task/easy/gap_high": 1.5, "drift/live/x/task/easy/growth": 0.1,
    "drift/live/x/correlation": 0.3, "health/warnings": 1.0, "policy/p/q/loss": 0.5, "policy/p/q/steps": 4.0,
    "corrections/used": 2.0, "seconds/collect": 10.0, "seconds/update": 5.0,
}  # fmt: skip
GAP = Gap(phase="live", agent="x", stratifier="task", stratum="easy", points=Interval(mean=1.0))
WARNING = HealthWarning(rule="kl", policy="p/q", value=1.0, limit=0.5, says="far", do="less")


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    return runpy.run_path(str(FIXTURE))["build"](tmp_path / "old")


def test_a_report_has_every_flat_metric_that_it_is_read_from():
    report = report_of_flat(3, FLAT, (WARNING,), (Alarm(kind="level", gap=GAP),))
    retries = FLAT["tools/attempts_again"]
    assert report.metrics() == {name: FLAT[name] for name in FLAT if name != "tools/attempts_again"} | {
        "tools/retries": retries
    }
    assert report.failed_rollouts == {"ToolError": 1, "unknown": 2}
    assert report.staleness == Staleness(mean=0.5, max=1.0)
    assert report.counterfactuals == CounterfactualFigures(rollouts=4, lost=1, settled=3, missing={"lost": 1})
    assert report.agents["x/y"].tool_success is None and report.coach.total.usd is None


def test_a_run_of_0_1_0_is_read_as_it_was_recorded(old_run):
    with sqlite3.connect(old_run / "run.db") as database:
        recorded = dict(database.execute("SELECT number, metrics FROM iterations").fetchall())
    with RunReader(old_run) as reader:
        reports = list(reader.iterations)
        assert reader.latest_iteration() == reports[-1]
    for report in reports:
        flat = json.loads(recorded[report.iteration])
        flat["tools/retries"] = flat.pop("tools/attempts_again")
        assert report.metrics() == flat
    assert len(reports) == len(recorded) == 2


def test_a_writer_brings_it_to_the_schema_of_today(old_run):
    with RunReader(old_run) as reader:
        before = list(reader.iterations)
    store = Store(old_run / "run.db")
    store.record_iteration(IterationReport(iteration=3, tokens=7))
    store.close()
    with sqlite3.connect(old_run / "run.db") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (DATABASE_SCHEMA,)
    with RunReader(old_run) as reader:
        assert list(reader.iterations) == [*before, IterationReport(iteration=3, tokens=7)]
