"""`mappa coach label`: what is asked, what is kept, and what cannot be said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from mappa.cli import main
from mappa.cli.main import cli
from mappa.look.shortlist import rank_suspects
from mappa.runs import RunFolder, RunReader
from mappa_core import Verdict


def rows(count=3):
    for number in range(count):
        said = [{"role": "user", "content": f"Task {number}?"}]
        said += [{"role": "assistant", "name": name, "content": f"{name} {number}"} for name in ("ann", "bob", "ann")]
        said.insert(3, {"role": "user", "content": f"Are you sure of {number}?"})
        yield {"id": f"q{number}", "messages": said, "solved": number == 2}


@pytest.fixture
def run(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    words = ["--task-id", "id", "--outcome", "solved", "--root", str(tmp_path), "--name", "run"]
    assert main(["import", str(log), *words]) == 0
    return tmp_path / "run"


def label(run, answers, *words, labeller="me"):
    return CliRunner().invoke(cli, ["coach", "label", str(run), "--labeller", labeller, *words], input=answers)


def kept(run):
    with RunReader(run) as reader:
        return [
            (one.trajectory.split("/")[1], one.agent, one.step and int(one.step[-3:]) + 1, one.reason, one.labeller)
            for one in reader.labels()
        ]


def test_plays_are_shown_one_after_the_other_and_each_label_is_kept_at_once(run):
    told = label(run, "ann\n3\nmade it up\nq\n")
    assert told.exit_code == 0, told.output
    assert kept(run) == [("q0", "ann", 3, "made it up", "me")]
    shown = told.output.splitlines()
    # The steps are quoted in order, with what a person said between them.
    places = [shown.index(line) for line in ("| Task 0?", "| ann 0", "| bob 0", "| Are you sure of 0?")]
    assert places == sorted(places)
    # The third play succeeded: nobody failed there.
    assert "1 of 2  train-000000/q0/000" in told.output and "me labelled 1 of 2 plays: ann 1" in told.output


def test_it_goes_on_where_it_was_ended_and_skips_on_request(run):
    label(run, "bob\n\n\nq\n")
    told = label(run, "\n")
    assert "1 of 1  train-000000/q1/000" in told.output and "q0/000" not in told.output
    assert kept(run) == [("q0", "bob", 2, "", "me")]  # Who acted once failed there.
    assert "nothing" not in label(run, "nobody\n\n").output
    assert kept(run)[1:] == [("q1", "nobody", None, "", "me")]
    assert "me labelled 2 of 2 plays: bob 1, nobody 1" in label(run, "").output


def test_a_label_can_be_changed_and_that_of_another_person_stays(run):
    label(run, "ann\n1\nfirst\n", "--play", "q0")
    label(run, "ann\n3\nother\n", "--play", "q0", labeller="you")
    told = label(run, "user\n\nunclear\n", "--play", "q0")
    assert "you said: ann in step 1: first" in told.output
    assert sorted(kept(run)) == [("q0", "ann", 3, "other", "you"), ("q0", "user", None, "unclear", "me")]
    assert "me, you labelled 1 runs beside each other" in told.output or "you, me labelled 1 runs" in told.output


def test_what_cannot_be_said_is_asked_again(run):
    told = label(run, "carl\nann\n9\nann\nsecond\na\n3\n\nq\n")
    assert "'carl' did not act here; to blame may be ann, bob, environment, nobody, task, user" in told.output
    assert "there is no step 9: the play has the steps 1 to 3" in told.output
    assert "'second' is not the number of a step" in told.output
    assert kept(run) == [("q0", "ann", 3, "", "me")]


def test_a_label_without_a_question(run):
    told = label(run, "", "--play", "q1", "--who", "environment", "--step", "2", "--why", "the tool is down")
    assert told.exit_code == 0, told.output
    assert kept(run) == [("q1", "environment", 2, "the tool is down", "me")]
    assert "who (" not in told.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--play", "q1", "--who", "ann", "--step", "4"], "there is no step 4: the play has the steps 1 to 3"),
        (["--play", "q1", "--who", "carol"], "'carol' did not act here"),
        (["--play", "q9", "--who", "ann"], "no play is called 'q9'"),
        (["--play", "train", "--who", "ann"], "3 plays have 'train' in their id"),
        (["--who", "ann"], "--who labels one play: name it with --play ID"),
        (["--play", "q1", "--step", "1"], "--step and --why belong to a label: say --who"),
        (["--play", "q1", "--who", "ann", "--labeller", " "], "--labeller: the name is empty"),
    ],
)
def test_a_label_that_fits_no_play_is_exit_code_2(run, words, says, capsys):
    assert main(["coach", "label", str(run), *words]) == 2
    assert says in capsys.readouterr().err
    assert kept(run) == []


def test_two_labellers_under_one_name_are_refused(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({**row, "who": "ann"}) + "\n" for row in rows()))
    words = ["--task-id", "id", "--guilty-agent", "who", "--root", str(tmp_path), "--name", "run"]
    assert main(["import", str(log), *words]) == 0
    assert main(["coach", "label", str(tmp_path / "run"), "--labeller", "people"]) == 2
    assert "labels of that name came with the log, and two labellers under one name" in capsys.readouterr().err


def test_a_run_that_is_being_written_is_refused(run, capsys):
    with RunFolder.open(run):
        words = ["--labeller", "me", "--play", "q1", "--who", "ann"]
        assert main(["coach", "label", str(run), *words]) != 0
    assert "is in use by process" in capsys.readouterr().err
    assert kept(run) == []


# --- where to look first ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judged", "order"),
    [
        # By suspicion, whatever the scores; an abstained verdict may have one.
        ([(0, 2.0, 0.1), (1, None, 0.9), (2, 9.0, 0.5)], [1, 2, 0]),
        # Else by the lowest score, of equals the earlier; a perfect score suspects nobody.
        ([(2, 3.0, None), (1, 3.0, None), (0, 10.0, None)], [1, 2]),
        # The last verdict on an action counts.
        ([(0, 1.0, None), (0, 8.0, None), (1, 5.0, None)], [1, 0]),
        ([(0, None, None)], []),
    ],
)
def test_suspects_are_ranked_by_suspicion_else_by_score(run, judged, order):
    with RunReader(run) as reader:
        play = reader.trajectory(next(iter(reader.trajectories)).id)
    verdicts = tuple(
        Verdict(
            status="abstained" if score is None else "scored",
            score=score,
            suspicion=suspicion,
            step=play.steps[place].id,
        )
        for place, score, suspicion in judged
    )
    ranked = rank_suspects(replace(play, verdicts=verdicts))
    assert [int(one.step[-3:]) for one in ranked] == order


def test_suspects_are_shown_with_what_speaks_for_each(run, tmp_path):
    verdicts = tmp_path / "verdicts.jsonl"
    verdicts.write_text(json.dumps({"run": "train-000000/q0/000", "step": 2, "score": 1.0, "reasoning": "Odd."}) + "\n")
    words = ["judge", str(run), "--coach", "recorded", f"coach.options.path={verdicts}", "--quiet"]
    assert main(words) == 0
    assert "step 2, bob (recorded): Odd." in label(run, "q\n").output
