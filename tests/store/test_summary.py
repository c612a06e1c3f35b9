from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mappa.store.agent_columns import AgentSummary
from mappa.store.summary import (
    CoachSummary,
    EvalSummary,
    FigureSummary,
    Interval,
    Seconds,
    SelectionSummary,
    StratumSummary,
    Summary,
    read_summary,
    write_summary,
)
from mappa_core import RunError

NEW = Summary(plugin="mathchat", recipe="tiny", recipe_hash="ab", seed=3, status="running")
FULL = Summary(
    plugin="mathchat",
    recipe="tiny",
    recipe_hash="ab",
    seed=3,
    status="done",
    iterations=40,
    eval=EvalSummary(
        metric="correct",
        n=256,
        known=(256, 250),
        before=Interval(mean=0.125, low=0.0625, high=0.25),
        after=Interval(mean=0.75, low=0.5, high=0.875),
        gain=Interval(mean=0.625, low=0.5, high=0.75),
        paired=250,
        figures={"fair": FigureSummary(before=Interval(mean=0.5))},
        strata={"sum": StratumSummary(n=128, after=Interval(mean=1.0))},
        selection=SelectionSummary(n=250, iteration=20, value=0.875, evaluations=5),
    ),
    agents={"solver": AgentSummary(score=8.5, tool_success=None, turns=1.0, length=32.0)},
    coach=CoachSummary(verdicts=100, failed=1, usd=None),
    seconds=Seconds(wall=120.0, cpu=200.0),
)


@pytest.mark.parametrize("summary", [NEW, FULL])
def test_a_summary_comes_back(tmp_path: Path, summary: Summary) -> None:
    write_summary(tmp_path, summary)
    assert read_summary(tmp_path) == summary
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_the_file_has_the_form_that_scripts_rely_on(tmp_path: Path) -> None:
    write_summary(tmp_path, FULL)
    interval = {"mean": 1.0, "low": None, "high": None}
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "schema": 1,
        "plugin": "mathchat",
        "recipe": "tiny",
        "recipe_hash": "ab",
        "seed": 3,
        "status": "done",
        "iterations": 40,
        "eval": {
            "metric": "correct",
            "n": 256,
            "known": [256, 250],
            "clusters": None,
            "before": {"mean": 0.125, "low": 0.0625, "high": 0.25},
            "after": {"mean": 0.75, "low": 0.5, "high": 0.875},
            "gain": {"mean": 0.625, "low": 0.5, "high": 0.75},
            "paired": 250,
            "figures": {
                "fair": {
                    "before": {"mean": 0.5, "low": None, "high": None},
                    "after": None,
                    "gain": None,
                    "paired": None,
                },
            },
            "strata": {
                "sum": {"n": 128, "before": None, "after": interval, "gain": None, "paired": None, "figures": {}},
            },
            "selection": {"n": 250, "iteration": 20, "value": 0.875, "evaluations": 5},
        },
        "agents": {"solver": {"score": 8.5, "tool_success": None, "turns": 1.0, "length": 32.0}},
        "coach": {"verdicts": 100, "failed": 1, "usd": None},
        "tools": {"lost": 0, "retries": 0},
        "engine_losses": 0,
        "transport_losses": 0,
        "seconds": {"wall": 120.0, "cpu": 200.0},
    }


def test_unknown_number_is_null(tmp_path: Path) -> None:
    write_summary(tmp_path, Summary(**{**as_fields(NEW), "agents": {"solver": AgentSummary(score=math.nan)}}))
    assert json.loads((tmp_path / "summary.json").read_text())["agents"]["solver"]["score"] is None
    assert read_summary(tmp_path).agents["solver"].score is None


def as_fields(summary: Summary) -> dict[str, object]:
    return {name: getattr(summary, name) for name in Summary.__slots__}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": "1"}'])
def test_a_file_that_is_no_summary_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(RunError, match=r"summary\.json is damaged"):
        read_summary(tmp_path)


def test_a_missing_summary_or_one_of_another_schema_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"summary\.json is missing"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text('{"schema": 2}')
    with pytest.raises(RunError, match=r"summary\.json has schema 2, and this version of Mappa reads schema 1"):
        read_summary(tmp_path)
