"""The outcome `correct` is what one scorer said, and within 0..1; what is not keeps its own name, or is refused."""

from __future__ import annotations

import json

import pytest

from mappa.cli import main
from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa_core import InputError

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "name": "a", "content": "4"}]


def imported(tmp_path, *lines, **mapped):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return import_logs(load_plugins(only=("look",)), [path], LogMapping(**mapped), root=tmp_path / "runs", name="run")


def evaluated(*scores):
    """A log of inspect_ai whose samples have these values by scorer."""
    samples = [
        {"id": number, "epoch": 1, "messages": CHAT, "scores": {name: {"value": value} for name, value in one.items()}}
        for number, one in enumerate(scores)
    ]
    return {"eval": {"task": "t"}, "samples": samples}


def outcomes(made):
    with RunReader(made.folder) as reader:
        return [dict(row.outcome) for row in reader.trajectories]


# --- inspect_ai -------------------------------------------------------------------------------------------------------


def test_correct_is_what_the_first_scorer_of_the_log_said_and_no_other(tmp_path):
    exact = ["C", "I", None, "incorrect", 0.25]
    made = imported(tmp_path, evaluated(*({"exact": value, "fluency": 1.0} for value in exact), {"fluency": 1.0}, {}))
    found = outcomes(made)
    assert [one.get("correct") for one in found] == [1.0, 0.0, None, None, 0.25, None, None]
    assert [one.get("exact") for one in found] == [1.0, 0.0, None, None, 0.25, None, None]
    assert [one.get("fluency") for one in found] == [1.0] * 6 + [None]
    assert (made.trajectories, made.measured, made.problems) == (7, 3, ())


def test_scorer_named_correct_gives_the_outcome_correct(tmp_path):
    made = imported(tmp_path, evaluated({"fluency": 1.0, "correct": "I"}, {"fluency": 1.0, "correct": None}))
    assert outcomes(made) == [{"fluency": 1.0, "correct": 0.0}, {"fluency": 1.0}]


def test_a_key_that_an_option_names_is_not_filled_by_a_scorer(tmp_path):
    log = evaluated({"exact": "C", "fluency": 0.5}, {"exact": "C", "fluency": None})
    made = imported(tmp_path, log, outcomes={"correct": "scores.fluency.value"})
    assert [outcome.get("correct") for outcome in outcomes(made)] == [0.5, None]


def test_scores_that_are_no_shares_keep_their_name_and_are_said(tmp_path):
    made = imported(tmp_path, evaluated({"points": 1}, {"points": 74.5}, {"points": None}, {"points": -3}))
    assert outcomes(made) == [{"points": 1.0}, {"points": 74.5}, {}, {"points": -3.0}]
    assert made.measured == 0
    assert made.problems == (
        f"{tmp_path / 'log.jsonl'}, line 1: samples.1: scores.points: 74.5 is not within 0..1 (and in 1 more), so the "
        "scores of this log are no outcome `correct`; they are kept as `points`",
    )


def test_scores_called_correct_that_are_no_shares_are_kept_by_an_option(tmp_path):
    log = evaluated({"correct": 7})
    made = imported(tmp_path, log, outcomes={"points": "scores.correct.value"})
    assert outcomes(made) == [{"points": 7.0}]
    assert made.problems[0].endswith("they are kept with --outcome NAME=scores.correct.value")


# --- keys that options name -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [55, -3, 1.0001])
def test_a_correct_that_is_no_share_is_refused_with_what_to_do(tmp_path, value):
    lines = [{"messages": CHAT, "result": {"ok": one}} for one in (True, 0.5, value)]
    says = rf"log\.jsonl, line 3: result\.ok: {value} is not within 0\.\.1, .*: --outcome NAME=result\.ok$"
    with pytest.raises(InputError, match=says):
        imported(tmp_path, *lines, outcomes={"correct": "result.ok"})
    assert not (tmp_path / "runs").exists()


def test_option_advised_by_the_refusal_imports_the_log(tmp_path, monkeypatch, capsys, invoke):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": CHAT, "ok": 55}) + "\n")
    assert main(["import", "log.jsonl", "--outcome", "ok"]) == 2
    assert "--outcome NAME=ok" in " ".join(capsys.readouterr().err.split())
    told = invoke(["import", "log.jsonl", "--outcome", "points=ok", "--name", "x"])
    assert told.exit_code == 0 and "no outcome `correct` is known of 1 rollout" in told.output
    with RunReader(tmp_path / "runs" / "x") as reader:
        assert [dict(row.outcome) for row in reader.trajectories] == [{"points": 55.0}]


def test_what_the_tracker_wrote_is_refused_and_renamed_alike(tmp_path):
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "4"}]}]
    span = {
        "name": "chat",
        "context": {"trace_id": "aa", "span_id": "01"},
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-01T00:00:01Z",
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.output.messages": said,
            "mappa.task.prompt": "2+2?",
            "mappa.outcome.correct": 12,
        },
    }
    with pytest.raises(InputError, match=r"line 1: span 'chat': mappa\.outcome\.correct: 12 is not within 0\.\.1"):
        imported(tmp_path, span)
    made = imported(tmp_path, span, outcomes={"points": "mappa.outcome.correct"})
    assert outcomes(made) == [{"points": 12.0}]
