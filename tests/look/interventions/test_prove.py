"""`mappa prove`: what flips, what does not, and the tasks that are kept."""

from __future__ import annotations

import json
from random import Random

import pytest

from mappa.cli import main
from mappa.look.blame_proof import _Prover, write_tasks
from mappa.runs import RunReader
from mappa_core import Failure, RunError, Task, Trajectory


@pytest.fixture
def prove(trained, capsys, tmp_path):
    def run(coach, *words):
        capsys.readouterr()
        code = main(["prove", str(trained), "--coach", coach, "--quiet", "--json", f"run.root={tmp_path}", *words])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if code == 0 else printed.err

    return run


def test_a_right_correction_flips_every_failure_and_resampling_none(prove, trained):
    code, proven = prove("auditor")
    assert code == 0
    with RunReader(trained) as reader:
        rows = [row for row in reader.trajectories.where(split="train") if row.status == "done"]
    failed = {row.id for row in rows if row.outcome["correct"] == 0}
    proofs = proven["proofs"]
    assert {one["trajectory"] for one in proofs} == failed
    assert proven["failed"] == len(failed) > 4
    assert all((one["agent"], one["position"], one["corrected"]) == ("doubler", 0, True) for one in proofs)
    assert proven["shares"]["blamed"]["mean"] == proven["corrected_share"]["mean"] == 1.0
    assert proven["shares"]["resampled"]["mean"] == 0.0  # The script says the same again.
    at_doubler = [one["random_position"] == 0 for one in proofs]
    assert [one["flips"]["random"] for one in proofs] == at_doubler
    assert proven["shares"]["random"]["mean"] == pytest.approx(sum(at_doubler) / len(proofs))
    assert proven["beyond"]["resampled"]["mean"] == 1.0


def test_a_wrong_blame_flips_nothing(prove):
    _, proven = prove("grump")
    assert {one["agent"] for one in proven["proofs"]} == {"checker"}
    assert {one["flips"]["blamed"] for one in proven["proofs"]} == {False}
    assert proven["shares"]["blamed"]["mean"] == 0.0
    assert proven["tasks"] == []


def test_plays_in_which_nobody_is_blamed_are_counted_apart(prove):
    _, proven = prove("mild")
    assert proven["proofs"] == []
    assert proven["shares"] == {}
    assert proven["left_out"] == {"nobody is blamed": proven["failed"]}


def test_the_first_plays_are_taken_and_the_run_itself_is_not_written_to(prove, trained):
    before = (trained / "run.db").read_bytes()
    _, proven = prove("auditor", "--limit", "2")
    assert len(proven["proofs"]) == proven["failed"] == 2
    assert (trained / "run.db").read_bytes() == before


def test_exported_flips_are_tasks_that_eval_plays(prove, tmp_path, capsys):
    path = tmp_path / "tasks.jsonl"
    _, proven = prove("auditor", "--save", str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["id"] for row in rows] == [task["id"] for task in proven["tasks"]]
    assert all(int(row["answer"]) == 2 * int(row["prompt"]) for row in rows)
    options = f"tasks.options={{path: {path}, stratum: stratum}}"
    command = ["eval", "--plugin", "doubles", "tasks.use=file", options, f"run.root={tmp_path}", "eval.problems=9"]
    assert main([*command, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["rollouts"] == len(rows)
    assert evaluated["mean"] == 0.0  # Nothing was learned.
    assert evaluated["not_finished"] == {}


def test_prove_prints_shares_and_the_next_command(trained, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["prove", str(trained), "--coach", "auditor", "--quiet", f"run.root={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "blamed action, corrected" in printed
    assert "a random action, replaced the same way" in printed
    assert "mappa runs show" in printed


def test_an_unknown_coach_is_an_error_without_a_traceback(prove):
    code, error = prove("nobody")
    assert code == 2
    assert "nobody" in error
    assert "Traceback" not in error


def test_a_run_without_failures_says_so(registry, tmp_path, capsys):
    words = [f"run.root={tmp_path}", "run.name=run", "eval.problems=1", "train.iterations=1"]
    assert main(["train", "--plugin", "doubles", *words, "--quiet"]) == 0
    assert main(["prove", str(tmp_path / "run"), "--split", "eval", "--coach", "auditor"]) == 2
    assert "holds no failed plays of the split eval" in capsys.readouterr().err


def test_tasks_with_files_cannot_be_saved_as_lines(tmp_path):
    with pytest.raises(RunError, match="has files"):
        write_tasks(tmp_path / "tasks.jsonl", [Task(id="t", prompt="p", files={"a.csv": "/a.csv"})])


def test_folder_that_is_no_run_is_an_error(registry, tmp_path, capsys):
    assert main(["prove", str(tmp_path / "missing"), "--coach", "auditor"]) == 2
    assert "missing" in capsys.readouterr().err


def test_results_are_shown_even_if_they_cannot_be_saved(trained, tmp_path, capsys, monkeypatch):
    def fail(path, tasks):
        raise RunError(f"{path}: no space is left")

    monkeypatch.setattr("mappa.look.blame_proof.write_tasks", fail)
    words = ["prove", str(trained), "--coach", "auditor", "--quiet", "--json", f"run.root={tmp_path}"]
    assert main([*words, "--save", str(tmp_path / "tasks.jsonl")]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["proofs"] and "no space is left" in printed.err


@pytest.mark.parametrize(
    ("outcome", "kind", "flips"),
    [
        ({"correct": 1.0}, None, True),
        ({"correct": 0.0}, None, False),
        ({}, None, None),
        ({}, "ToolError", None),
        ({}, "PromptTooLong", False),
        ({"correct": 1.0}, "WorkflowError", False),
    ],
)
def test_a_play_that_the_team_could_not_finish_did_not_flip_and_a_lost_one_says_nothing(outcome, kind, flips):
    error = None if kind is None else Failure(kind=kind, message="")
    task = Task(id="t", prompt="p")
    play = Trajectory(id="t", task=task, sample=0, iteration=0, steps=(), outcome=outcome, error=error)
    assert _Prover("correct", player=None, random=Random(0))._flips(play) is flips


def test_an_imported_run_is_refused_before_a_model_is_looked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "no"}]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": said, "ok": False}))
    assert main(["import", "log.jsonl", "--outcome", "ok", "--name", "mine"]) == 0
    monkeypatch.setattr("mappa.look.blame_proof.open_session", None)
    assert main(["prove", "runs/mine", "--coach", "evidence"]) == 2
    assert "there is no team to play on with. Whom verdicts blame in it: mappa observe" in capsys.readouterr().err
