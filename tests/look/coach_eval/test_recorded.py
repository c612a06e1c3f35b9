"""Verdicts from a file: found by run and step, never made up, refused where they make no sense."""

from __future__ import annotations

import gzip
import json

import pytest

from mappa.look.coach_eval.labelled_runs import read_benchmark
from mappa.look.coach_eval.recorded import RecordedCoach, RecordedOptions, list_judges
from mappa_core import ConfigError, InputError

HISTORY = [
    {"role": "human", "content": "2+2?"},
    {"role": "planner (thought)", "content": "Add."},
    {"role": "solver", "content": "5"},
]
FAILURE = {"history": HISTORY, "question": "2+2?", "mistake_agent": "solver", "mistake_step": "2", "source": "h/1.json"}


@pytest.fixture
def scenes(tmp_path):
    (tmp_path / "failed.jsonl").write_text(json.dumps(FAILURE) + "\n")
    return read_benchmark("who-and-when", [tmp_path / "failed.jsonl"]).runs[0].scenes


def coach(tmp_path, *lines, judge=None):
    path = tmp_path / f"verdicts-{abs(hash(json.dumps(lines)))}.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return RecordedCoach(RecordedOptions(path=str(path), judge=judge))


async def test_verdicts_are_found_by_the_number_of_the_message(tmp_path, scenes):
    judge = coach(
        tmp_path,
        {"run": "h/1.json", "step": 1, "score": 8.5, "reasoning": "fine"},
        {"run": "h/1.json", "step": 2, "value": -1, "blame": "solver"},
    )
    first, second = await judge.review(scenes)
    assert (first.score, first.reasoning, first.blame) == (8.5, "fine", None)
    assert (second.score, second.blame) == (0.0, "solver")


async def test_values_of_all_steps_and_a_step_that_was_left_out(tmp_path, scenes):
    judge = coach(tmp_path, {"run": "h/1.json", "steps": {"1": 0, "2": None}})
    first, second = await judge.review(scenes)
    assert first.score == 5.0
    assert (second.status, second.score, second.reasoning) == (
        "abstained",
        None,
        "the judge said nothing on this step",
    )
    (other, _) = await coach(tmp_path, {"run": "h/2.json", "steps": {"1": 1}}).review(scenes)
    assert (other.status, other.reasoning) == ("abstained", "the file holds no verdict of this judge on this run")


async def test_a_guilty_agent_and_step_is_a_verdict_on_all_steps(tmp_path, scenes):
    first, second = await coach(tmp_path, {"run": "h/1.json", "agent": "planner", "step": 2}).review(scenes)
    assert (first.score, second.score, second.blame) == (10.0, 0.0, "planner")


def test_judges_of_a_file_are_named_and_one_has_to_be_chosen(tmp_path):
    lines = [{"run": "r", "judge": name, "steps": {"1": 1}} for name in ("a", "b")]
    with pytest.raises(ConfigError, match="holds verdicts of a, b: name one of them"):
        coach(tmp_path, *lines)
    with pytest.raises(ConfigError, match="holds none of c; it has a, b"):
        coach(tmp_path, *lines, judge="c")
    assert list_judges(next(tmp_path.glob("*.gz"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"steps": {"1": 1}}, "run: is not there; here are steps"),
        ({"run": "r"}, "neither step nor steps is there"),
        ({"run": "r", "steps": [1]}, "steps: not an object of steps"),
        ({"run": "r", "steps": {"1": 2}}, "steps.1: 2 is none of 1, 0, -1"),
        ({"run": "r", "step": 1, "value": True}, "value: True is none of 1, 0, -1"),
        ({"run": "r", "step": 1, "score": 11}, "score: 11 does not lie between 0 and 10 points"),
        ({"run": "r", "step": 1, "score": "high"}, "score: not a number: 'high'"),
        ({"run": "r", "step": 1, "score": 1, "blame": 7}, "blame: not a name: 7"),
        ({"run": "r", "judge": 7, "step": 1}, "judge: not a name: 7"),
    ],
)
def test_a_line_that_is_no_verdict_is_refused_with_its_place(tmp_path, line, says):
    with pytest.raises(InputError, match=rf"line 2: {says}"):
        coach(tmp_path, {"run": "r", "step": 1, "value": 1}, line)


def test_a_step_that_is_judged_twice_is_refused_unless_it_is_the_same_again(tmp_path):
    line = {"run": "r", "step": 1, "value": 1}
    coach(tmp_path, line, line)
    with pytest.raises(InputError, match="line 2: step 1 of r is judged already, and otherwise"):
        coach(tmp_path, line, {**line, "value": 0})
