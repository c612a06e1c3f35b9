"""`mappa coach crash-test`: planted faults, whom the coach blames, and the figures."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from mappa.cli import main
from mappa.look.crash_test import crash_test
from mappa.look.crash_test.crash_test import find_own_fault
from mappa.look.crash_test.faults import Fault
from mappa.look.crash_test.figures import PlantedPlay, compute_found_rate
from mappa.look.interventions import find_blame
from mappa.runs import RunReader
from mappa_core import (
    NOBODY,
    Breach,
    Completion,
    Inspection,
    Message,
    Step,
    Task,
    ToolResult,
    Trajectory,
    Verdict,
    Workflow,
)


def make_step(name: str, agent: str, text: str, **fields: Any) -> Step:
    """An action of a policy behind an API."""
    reply = Message(role="assistant", content=text)
    completion = Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    known = {"turn": 0, "position": 0, "policy": agent, "messages": (), "reply": reply, "completion": completion}
    return Step(id=name, agent=agent, **{**known, **fields})


MORE = Fault("one more", lambda site: str(int(site.text) + 1))
NOWHERE = Fault("nowhere", lambda site: None)


@pytest.fixture
def crash(registry, tmp_path, capsys, monkeypatch):
    """Crash-test a coach with faults that the script of the team can be played on with."""
    monkeypatch.setattr(crash_test, "load_faults", lambda: (MORE, NOWHERE))

    def run(coach, *words):
        capsys.readouterr()
        command = ["coach", "crash-test", "--plugin", "doubles", "--plays", "4", "--samples", "2"]
        settings = [f"run.root={tmp_path}", f"run.name={coach}", f"coach.use={coach}", *words]
        code = main([*command, *settings, "--quiet", "--json"])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if code == 0 else printed.err

    return run


def test_a_coach_that_computes_again_finds_every_fault_where_it_is(crash, tmp_path):
    code, tested = crash("auditor")
    figures = tested["figures"]
    assert code == 0
    assert (figures["plays"], figures["succeeded"], figures["faultless"]) == (4, 2, 2)
    assert figures["blamed_faultless"] == []
    assert figures["overall"]["plays"] == 4
    assert figures["overall"]["agent"]["mean"] == figures["overall"]["step"]["mean"] == 1.0
    assert figures["overall"]["agent_by_chance"] == figures["overall"]["step_by_chance"] == 0.5
    assert {agent: rate["plays"] for agent, rate in figures["by_agent"].items()} == {"doubler": 2, "checker": 2}
    assert figures["left_out"] == {f"no place for the fault: nowhere in {agent}": 1 for agent in ("doubler", "checker")}
    assert len(tested["planted"]) == 4
    with RunReader(tmp_path / "auditor") as reader:
        # Two more show that the two successes are no luck.
        assert len(list(reader.trajectories.where(split="counterfactual"))) == 6
        planted = next(one for one in tested["planted"] if one["agent"] == "doubler")
        first, second = (step.reply.content for step in reader.trajectory(planted["trajectory"]).steps[-2:])
    assert first == second  # The checker was asked again, and repeats the wrong number.
    assert int(first) % 2 == 1


def test_a_coach_that_always_blames_one_agent_is_found_out(crash):
    _, tested = crash("grump")
    figures = tested["figures"]
    assert len(figures["blamed_faultless"]) == 2
    assert figures["by_agent"]["doubler"]["agent"]["mean"] == 0.0
    assert figures["by_agent"]["checker"]["agent"]["mean"] == 1.0
    assert figures["overall"]["agent"]["mean"] == 0.5


def test_a_coach_that_blames_nobody_finds_nothing(crash):
    _, tested = crash("mild")
    assert tested["figures"]["overall"]["agent"]["mean"] == 0.0
    assert {one["blamed_agent"] for one in tested["planted"]} == {None}


def test_a_team_that_never_succeeds_is_an_error_that_says_what_helps(crash):
    code, error = crash("auditor", "tasks.use=file", "tasks.options={path: /dev/null}")
    assert code == 2
    assert "Traceback" not in error


def planted(**fields):
    known = {"kind": "k", "agent": "a", "position": 1, "task": "t", "trajectory": "x", "broke": True, "changed": True}
    known |= {"blamed_agent": "a", "blamed_position": 1, "agents": 2, "actions": 4}
    return PlantedPlay(**known | fields)


def test_rates_count_only_plays_that_broke():
    rate = compute_found_rate(
        [
            planted(task="1"),
            planted(task="2", blamed_position=0),
            planted(task="3", blamed_agent="b", blamed_position=2, agents=4),
            planted(task="4", blamed_agent=None, blamed_position=None),
            planted(task="5", broke=False),
            planted(task="6", broke=False, changed=False, blamed_agent="b"),
        ]
    )
    assert rate.plays == 4
    assert rate.agent.mean == 0.5
    assert rate.step.mean == 0.25
    assert rate.agent_by_chance == pytest.approx((0.5 + 0.5 + 0.25 + 0.5) / 4)
    assert rate.step_by_chance == 0.25
    assert (rate.absorbed, rate.unchanged, rate.noticed) == (1, 1, 1)


def test_without_a_broken_play_there_is_no_rate():
    rate = compute_found_rate([planted(broke=False)])
    assert (rate.agent, rate.step, rate.agent_by_chance, rate.step_by_chance) == (None, None, None, None)


STEPS = [make_step(f"t/{place}", agent, "x", position=place) for place, agent in enumerate(("a", "b", "a", "c"))]
FINE = Verdict.scored(10, "", blame=NOBODY)


@pytest.mark.parametrize(
    "verdicts, blamed",
    [
        ([FINE, FINE, FINE, FINE], None),
        ([FINE, Verdict.scored(4, "", blame="b"), Verdict.scored(2, "", blame="a"), FINE], ("a", 2)),
        ([FINE, Verdict.scored(2, "", blame="b"), Verdict.scored(2, "", blame="a"), FINE], ("b", 1)),
        ([FINE, FINE, FINE, Verdict.scored(3, "", blame="a")], ("a", 2)),
        ([FINE, Verdict.scored(3, "", blame="c"), FINE, FINE], ("c", 1)),
        (
            [Verdict.scored(0, "", blame=NOBODY), Verdict.failed("x"), Verdict.abstained("y"), Verdict.scored(1, "")],
            None,
        ),
    ],
)
def test_the_blame_is_that_of_the_lowest_verdict_that_blames(verdicts, blamed):
    found = find_blame(STEPS, verdicts)
    assert (None if found is None else (found.agent, found.position)) == blamed


def breach(agent, kind, path="table.csv"):
    return Breach(agent=agent, kind=kind, path=path)


@pytest.mark.parametrize(
    "breaches, scores, blamed",
    [
        # b had nothing to work with, and its action is the worst: a left the file out.
        ({0: [("a", "missing_output")], 1: [("b", "missing_input")]}, (4, 1, None, None), ("a", 0)),
        # From c to b to a, file by file.
        (
            {
                0: [("a", "broken_output")],
                1: [("b", "broken_input"), ("b", "missing_output", "model.pkl")],
                3: [("c", "missing_input", "model.pkl")],
            },
            (6, 4, None, 1),
            ("a", 0),
        ),
        # a left two files broken, the second time for c: c's input is what a did last.
        (
            {0: [("a", "broken_output")], 2: [("a", "broken_output")], 3: [("c", "broken_input")]},
            (5, None, 6, 1),
            ("a", 2),
        ),
        # The coach holds a's action to be right, so there is no fault to follow.
        ({0: [("a", "missing_output")], 1: [("b", "missing_input")]}, (None, 1, None, None), ("b", 1)),
        # Another file is missing than the one that a broke; and a fault that comes later is no source.
        ({0: [("a", "broken_output", "notes.txt")], 1: [("b", "missing_input")]}, (4, 1, None, None), ("b", 1)),
        ({1: [("b", "missing_input")], 2: [("a", "missing_output")]}, (None, 1, 4, None), ("b", 1)),
        # b broke its own output: that is no reason to look further.
        ({0: [("a", "missing_output")], 1: [("b", "broken_output")]}, (4, 1, None, None), ("b", 1)),
    ],
)
def test_blame_follows_files_upstream_to_the_first_fault(breaches, scores, blamed):
    steps = [replace(step, breaches=tuple(breach(*one) for one in breaches.get(n, ()))) for n, step in enumerate(STEPS)]
    verdicts = [
        FINE if score is None else Verdict.scored(score, "", blame=step.agent)
        for step, score in zip(steps, scores, strict=True)
    ]
    found = find_blame(steps, verdicts)
    assert (found.agent, found.position) == blamed


class Boxed(Workflow):
    """Answers stand in boxes, and a second figure says what a success is worth."""

    agents = MappingProxyType({})
    figures = ("worth",)

    async def run(self, stage): ...

    def answer(self, steps):
        boxed = [step.reply.content for step in steps if step.reply.content.startswith("[")]
        return boxed[-1] if boxed else None


def success(*texts, outcome=None, **fields):
    """A play that succeeded; `fields` are of its first step."""
    steps = [
        make_step(f"t/{place}", "a", text, position=place, **({} if place else fields))
        for place, text in enumerate(texts)
    ]
    known = {"id": "t", "task": Task(id="t", prompt="p"), "sample": 0, "iteration": 0}
    return Trajectory(**known, steps=tuple(steps), outcome={"correct": 1.0, **(outcome or {})})


FAILED = ToolResult(tool="python", status="error")
MISSING = Breach(agent="a", kind="missing_output", path="x")
REMARK = Inspection(over=True, findings=("x is filled with what it holds itself",))


@pytest.mark.parametrize(
    "play, fault",
    [
        (success("plan", "[4]", outcome={"worth": 0.1}), None),
        (success("plan", "[4]"), None),
        (success("plan", "[4]", inspection=Inspection(over=True, facts={"model": "Ridge"})), None),
        (success("plan", "[4]", results=(FAILED,)), "a call failed"),
        (success("plan", "[4]", breaches=(MISSING,)), "a hand-off contract was broken"),
        (success("[5]", "[4]"), "an action gave another answer than the team"),
        (success("plan", "[4]", inspection=REMARK), "the workflow's inspection of its files found something"),
        (success("plan", "[4]", outcome={"worth": 0.0}), "a figure of its outcome is 0"),
    ],
)
def test_a_success_is_faultless_only_where_its_record_holds_nothing_against_it(play, fault):
    assert find_own_fault(Boxed(), play) == fault
