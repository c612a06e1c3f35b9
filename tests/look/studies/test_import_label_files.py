"""Labels in a file of their own, steps counted from 1 or by actions, and logs that earlier had no way in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappa.cli import main
from mappa.look.importing.log_mapping import lookup
from mappa.runs import RunReader

BLAME = Path(__file__).parents[4] / "shared" / "data" / "blame"
needs_data = pytest.mark.skipif(not BLAME.is_dir(), reason="the public sets of labelled failures are not here")


def chat(name, *texts):
    said = [{"role": "user", "content": f"What is {name}?"}]
    for number, text in enumerate(texts):
        said.append({"role": "assistant", "name": "ab"[number % 2], "content": text})
    return {"id": name, "messages": said}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def log(tmp_path):
    return write(tmp_path / "log.jsonl", chat("q1", "one", "two", "three"), chat("q2", "four", "five"))


@pytest.fixture
def run_import(tmp_path, monkeypatch, capsys):
    """`mappa import` with these words; its exit code, its labels by trajectory, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = main(["import", *words, "--root", str(tmp_path), "--name", "run"])
        shown = capsys.readouterr()
        labels = []
        if code == 0:
            with RunReader(tmp_path / "run") as reader:
                labels = reader.labels()
        return code, labels, shown.out + shown.err

    return call


def said(labels):
    return [(one.trajectory.split("/")[1], one.agent, one.step and int(one.step[-3:]), one.labeller) for one in labels]


def test_labels_of_a_second_file_are_joined_by_the_name_of_the_rollout(log, tmp_path, run_import):
    labels = write(
        tmp_path / "ann.jsonl",
        {"id": "q2", "who": "b", "at": 2, "why": "wrong sum", "kind": "miscalculation"},
        {"id": "elsewhere", "who": "a", "at": 1},
    )
    keys = ("--guilty-agent", "who", "--guilty-step", "at", "--guilt-reason", "why", "--guilt-category", "kind")
    code, found, shown = run_import(log, "--task-id", "id", "--labels", labels, *keys)
    assert code == 0, shown
    assert said(found) == [("q2", "b", 1, "ann")]
    assert (found[0].reason, found[0].category) == ("wrong sum", "miscalculation")
    assert "ann.jsonl, line 2: 1 labels are of rollouts that are not here" in shown


@pytest.mark.parametrize(
    ("words", "step", "position"),
    [
        (("--steps-from", "1"), 2, 0),
        (("--steps-of", "actions"), 2, 2),
        (("--steps-of", "actions", "--steps-from", "1"), 2, 1),
    ],
)
def test_steps_are_counted_as_the_labels_count_them(log, tmp_path, run_import, words, step, position):
    labels = write(tmp_path / "ann.jsonl", {"id": "q1", "at": step})
    code, found, shown = run_import(log, "--task-id", "id", "--labels", labels, "--guilty-step", "at", *words)
    assert code == 0, shown
    assert said(found) == [("q1", "ab"[position % 2], position, "ann")]


def test_the_root_cause_of_agentrx_is_found_among_its_failures(log, tmp_path, run_import):
    failures = [
        {"failure_id": 1, "step_number": 2, "failed_agent": "A", "failure_category": "x", "step_reason": "no"},
        {"failure_id": 7, "step_number": 3, "failed_agent": "B", "failure_category": "y", "step_reason": "yes"},
    ]
    row = {"trajectory_id": "q1", "failures": failures, "root_cause": {"failure_id": 7}}
    theirs = {"trajectory_id": "q2", "failures": [{**failures[0], "failed_agent": "User", "step_number": 1}]}
    theirs["root_cause"] = {"failure_id": 1}
    code, found, shown = run_import(log, "--task-id", "id", "--labels", write(tmp_path / "rx.jsonl", row, theirs))
    assert code == 0, shown
    # Steps count from 1; a user's message is no action, and blames the user all the same.
    assert said(found) == [("q1", "b", 1, "rx"), ("q2", "user", None, "rx")]
    assert [one.category for one in found] == ["y", "x"]


def test_lines_of_one_file_may_be_of_several_labellers(log, tmp_path, run_import):
    rows = [{"id": "q1", "who": who, "by": by} for who, by in (("a", "Ann"), ("b", "Ben"))]
    words = ("--task-id", "id", "--labels", write(tmp_path / "both.jsonl", *rows), "--guilty-agent", "who")
    code, found, shown = run_import(log, *words, "--labelled-by", "by")
    assert code == 0, shown
    assert said(found) == [("q1", "a", None, "Ann"), ("q1", "b", None, "Ben")]


def test_a_key_goes_through_a_list_by_number_or_by_what_an_item_holds():
    row = {"all": [{"id": 3, "deep": {"at": 1}}, {"id": 4, "deep": {"at": 2}}], "cause": {"id": 4}, "a[0]": "as it is"}
    assert lookup(row, "all[0].deep.at") == 1 and lookup(row, "all[id=cause.id].deep.at") == 2
    assert lookup(row, "all[1]") == row["all"][1] and lookup(row, "a[0]") == "as it is"
    for missing in ("all[2].deep", "all[id=cause.no].deep", "cause[0].id", "all[0].none.at"):
        assert lookup(row, missing) is None


# --- sets of worked solutions, and logs without an object around them -----------------------------------------------


def test_a_list_of_texts_is_a_solution_in_steps_and_step_minus_one_is_nobody(tmp_path, run_import):
    rows = [{"id": "s1", "problem": "2+2+2?", "steps": ["2+2=5", "5+2=7"], "label": 0}]
    rows.append({"id": "s2", "problem": "2+2?", "steps": ["4"], "label": -1})
    words = ("--messages", "steps", "--prompt", "problem", "--task-id", "id", "--unnamed", "solver")
    code, found, shown = run_import(write(tmp_path / "s.jsonl", *rows), *words, "--guilty-step", "label")
    assert code == 0, shown
    assert said(found) == [("s1", "solver", 0, "people"), ("s2", "nobody", None, "people")]


@pytest.mark.parametrize("form", ["one JSON value", "a line a message", "a line a conversation"])
def test_messages_without_an_object_around_them_are_one_play(tmp_path, run_import, form):
    messages = chat("q", "one", "two")["messages"]
    path = tmp_path / "bare.jsonl"
    if form == "a line a message":
        write(path, *messages)
    elif form == "one JSON value":
        path = tmp_path / "bare.json"
        path.write_text(json.dumps(messages, indent=1))
    else:
        path.write_text(json.dumps(messages) + "\n" + json.dumps(messages) + "\n")
    code, _, shown = run_import(str(path))
    assert code == 0, shown
    assert f"{2 if 'conversation' in form else 1} rollout" in shown


# --- bad input --------------------------------------------------------------------------------------------------------


def test_actions_without_text_are_refused_until_their_key_is_named(tmp_path, run_import):
    said_elsewhere = [{"role": "user", "content": "Hi?"}, *({"role": "assistant", "body": "ho"} for _ in range(2))]
    path = write(tmp_path / "log.jsonl", {"messages": said_elsewhere})
    code, _, shown = run_import(path)
    assert code == 2 and "2 of 2 actions have no text: which key holds it? --text KEY" in shown
    said_elsewhere[0] = {"role": "user", "body": "Hi?"}
    code, _, shown = run_import(write(tmp_path / "log.jsonl", {"messages": said_elsewhere}), "--text", "body")
    assert code == 0, shown
    with RunReader(tmp_path / "run") as reader:
        assert [row.step.reply.content for row in reader.steps] == ["ho", "ho"]


@pytest.mark.parametrize(
    ("rows", "words", "says"),
    [
        ([{"id": "q2", "at": 3}], (), "ann.jsonl, line 1: at: there is no message 3; the first one is 0 and the last"),
        ([{"id": "q2", "at": 3}], (), "if steps are counted from 1, say --steps-from 1"),
        ([{"id": "q2", "at": 0}], ("--steps-from", "1"), "there is no message 0; the first one is 1"),
        ([{"id": "q2", "at": 2}], ("--steps-of", "actions"), "there is no action 2; the first one is 0 and the last"),
        ([{"id": "q2", "at": 1}, {"id": "q2", "at": 2}], (), "ann labelled this rollout already, in"),
        (
            [{"id": "q9", "at": 1}],
            (),
            "none of its 1 labels is of a rollout here: they are of q9, and the rollouts are",
        ),
        ([{"at": 1}], (), "nothing names the rollout; here are at: name the right key with --labels-of"),
        ([{"id": "q2", "at": 1}], ("--labelled-by", "by"), "by: no name of a labeller, and --labelled-by names it"),
    ],
)
def test_labels_that_fit_no_play_are_refused_with_line_and_key(log, tmp_path, run_import, rows, words, says):
    labels = write(tmp_path / "ann.jsonl", *rows)
    code, _, shown = run_import(log, "--task-id", "id", "--labels", labels, "--guilty-step", "at", *words)
    assert code == 2 and says in shown, shown
    assert not (tmp_path / "run").exists()


def test_a_step_beyond_the_play_in_the_log_itself_is_refused(tmp_path, run_import):
    path = write(tmp_path / "log.jsonl", {**chat("q1", "one"), "at": 7})
    code, _, shown = run_import(path, "--guilty-step", "at")
    assert code == 2 and "line 1: at: there is no message 7" in shown


def test_two_labellers_under_one_name_are_refused(tmp_path, run_import):
    log = write(tmp_path / "log.jsonl", {**chat("q1", "one"), "who": "a"})
    ann, other = (write(tmp_path / f"{name}.jsonl", {"id": "q1", "who": "a"}) for name in ("ann", "other"))
    words = (log, "--task-id", "id", "--guilty-agent", "who", "--labels", ann)
    code, _, shown = run_import(*words, "--labels", f"ann={other}")
    assert code == 2 and "ann labelled this rollout already" in shown and "of two labellers, name the file's" in shown


@needs_data
def test_labels_of_agentrx_come_in_with_steps_from_one(run_import):
    words = ("--messages", "traj", "--task-id", "task_id", "--labels", str(BLAME / "agentrx_tau_labels.jsonl.gz"))
    code, found, shown = run_import(str(BLAME / "agentrx_tau.jsonl.gz"), *words)
    assert code == 0, shown
    assert len(found) == 29 and sum(one.step is not None for one in found) == 20
    assert {one.agent for one in found} == {"assistant", "user"} and all(one.category for one in found)
