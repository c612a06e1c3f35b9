"""The coach: whom it blames, how sure it is, and where it says nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa.testing import CoachContract, load_plugins
from mappa_coach_evidence.coach import EvidenceCoach
from mappa_coach_evidence.evidence import FIRST, Evidence, collect_evidence, suspicions
from mappa_coach_evidence.options import EvidenceOptions
from mappa_coach_evidence.rules import RULES
from mappa_coach_evidence.transcript import read_transcript
from mappa_coach_evidence.weights import WEIGHTS
from mappa_core.coach import ENVIRONMENT

from .conversations import (
    SOLVED,
    conversation,
    crashed,
    printed,
    program,
    scenes_of_steps,
    step,
    with_result,
)

TASK = "How many seats does the theatre have?"
FAILURE = (
    ("manager", TASK),
    ("coder", program("count()")),
    ("terminal", crashed("NameError: name 'count' is not defined")),
    ("coder", program("print(7)")),
    ("terminal", printed("7")),
    ("writer", "Hard to say."),
)


WRONG_SUM = (("solver", "3 * 4 = 13, I think."), ("writer", "Unfortunately it failed. I have checked: 13."))


def judge(scenes):
    return asyncio.run(EvidenceCoach(EvidenceOptions()).review(scenes))


class TestContract(CoachContract):
    scenes = conversation(*FAILURE)

    def coach(self):
        return EvidenceCoach(EvidenceOptions())


def test_an_action_with_hard_evidence_is_accused_and_quoted():
    first, second = judge(conversation(*WRONG_SUM))
    (rule,) = [rule for rule in RULES if rule.name == "wrong sum"]
    assert (first.blame, first.category) == ("solver", "miscalculation")
    assert first.score == round(10 * (1 - rule.precision), 2)
    assert "“3 * 4 = 13”, it says; the left side is 12." in first.reasoning
    assert (second.status, second.blame) == ("abstained", None)


def test_words_and_places_accuse_nobody_and_rank_all_actions():
    verdicts = judge(conversation(*FAILURE))
    assert {verdict.blame for verdict in verdicts} == {None}
    assert "It cannot tell" in verdicts[5].reasoning
    assert [verdict.score for verdict in verdicts] == [None, None, None, 8.0, None, None]
    assert all(verdict.suspicion is not None for place, verdict in enumerate(verdicts) if place not in (2, 4))
    assert "NameError" in verdicts[1].reasoning
    # The first program failed, and nothing confirms it.
    assert max(range(6), key=lambda place: verdicts[place].suspicion or -9) == 1


def test_no_verdict_names_a_percentage():
    for scenes in (conversation(*FAILURE), conversation(*WRONG_SUM)):
        assert not any("%" in verdict.reasoning for verdict in judge(scenes))


def test_whoever_hard_evidence_speaks_against_is_the_first_to_look_at():
    said = [*FAILURE, ("solver", "Then 3 * 4 = 13.")]
    verdicts = judge(conversation(*said))
    assert max(range(len(said)), key=lambda place: verdicts[place].suspicion or -9) == len(said) - 1


def test_the_first_of_two_faults_has_the_lowest_score():
    first, second = judge(conversation(("a", "1 + 1 = 3"), ("b", "2 + 2 = 5")))
    assert (first.blame, second.blame) == ("a", "b")
    assert first.score < second.score < 10


def test_a_tool_that_is_down_is_to_blame_and_nobody_learns_from_it():
    down = with_result(step(0, "searcher", "Looking."), "Error: 503 Service Unavailable", tool="search")
    (verdict,) = judge(scenes_of_steps([down]))
    assert (verdict.blame, verdict.category, verdict.score) == (ENVIRONMENT, "system failure", None)
    assert "503" in verdict.reasoning


def test_an_agent_that_writes_what_an_executor_answers_makes_nobody_guilty():
    fake = "exitcode: 1 (execution failed)\nCode output: NameError: name 'x' is not defined"
    said = (("coder", "I would run it."), ("actor", fake), ("writer", "The answer is 4."))
    verdicts = judge(conversation(*said))
    assert {verdict.blame for verdict in verdicts} == {None}
    assert not read_transcript(conversation(*said)).machines


def test_an_empty_message_accuses_nobody():
    assert {verdict.blame for verdict in judge(conversation(("a", ""), ("b", "")))} == {None}


@pytest.mark.parametrize("places", [(1,), (0, 2), (4, 5)])
def test_an_action_is_judged_alike_whichever_others_are_judged_with_it(places):
    scenes = conversation(*FAILURE)
    scenes = [replace(scene, later=tuple(later.step for later in scenes[at + 1 :])) for at, scene in enumerate(scenes)]
    assert judge([scenes[place] for place in places]) == [judge(scenes)[place] for place in places]


def test_suspicions_add_what_evidence_weighs():
    two = Evidence(features={"a": 1.0, "b": 0.5, "unknown": 1.0}, faults={}, hints={})
    evidence = {0: Evidence(features={}, faults={}, hints={}), 3: two}
    assert suspicions(evidence, {"a": 1.0, "b": 3.0}) == {0: 0.0, 3: 2.5}


def test_the_first_finding_of_a_rule_is_told_from_its_others():
    said = (("coder", program("a")), ("terminal", crashed("E")), ("coder", program("b")), ("terminal", crashed("E")))
    evidence = collect_evidence(read_transcript(conversation(*said)), RULES)
    first, second = (set(evidence[place].features) for place in (0, 2))
    assert {"failed program", "failed program, first"} <= first
    assert "failed program" in second and "failed program, first" not in second


def test_every_piece_of_evidence_has_a_weight():
    for scenes in (conversation(*FAILURE), conversation(("leader", '{"progress": true}'), ("surfer", "I look."))):
        for found in collect_evidence(read_transcript(scenes), RULES).values():
            assert {name for name in found.features if not name.endswith(FIRST)} <= set(WEIGHTS)


def test_hard_rules_have_a_precision_of_more_than_a_half():
    assert all(0.5 <= rule.precision <= 1 for rule in RULES if rule.hard)


def test_an_action_that_cannot_be_checked_gets_no_score():
    verdicts = judge(conversation(("solver", "Perhaps."), ("writer", "Perhaps."), outcome=SOLVED))
    assert [verdict.status for verdict in verdicts] == ["abstained", "abstained"]


def test_a_success_is_not_accused():
    verdicts = judge(conversation(*WRONG_SUM, outcome=SOLVED))
    assert {(verdict.status, verdict.blame, verdict.suspicion) for verdict in verdicts} == {("abstained", None, None)}


def test_success_is_read_from_the_metric_and_from_no_other_figure():
    assert judge(conversation(*WRONG_SUM, outcome={"correct": 0.0, "tokens": 500.0}))[0].blame == "solver"
    assert judge(conversation(*WRONG_SUM, outcome={"loss": -2.0, "correct": 1.0}))[0].blame is None


@pytest.mark.parametrize("outcome", [None, {}, {"tokens": 500.0}])
def test_where_the_outcome_is_unknown_hard_evidence_accuses(outcome):
    assert judge(conversation(*WRONG_SUM, outcome=outcome))[0].blame == "solver"


def test_a_single_action_is_judged_by_what_came_before_it():
    fails = with_result(step(0, "coder", "on it"), "KeyError: 'age'", status="error")
    scenes = scenes_of_steps([fails, step(1, "writer", "Fine.")], outcome=None)
    verdict = asyncio.run(EvidenceCoach(EvidenceOptions()).score(scenes[1]))
    assert verdict.blame is None
    assert asyncio.run(EvidenceCoach(EvidenceOptions()).score(scenes[0])).blame == "coder"


def test_an_agent_that_only_executes_is_never_blamed():
    scenes = conversation(("terminal", printed("7")), ("terminal", crashed("E")), ("terminal", "TERMINATE"))
    assert {verdict.status for verdict in judge(scenes)} == {"abstained"}


def test_rules_have_names_of_their_own():
    assert len({rule.name for rule in RULES}) == len(RULES)


texts = st.one_of(
    st.text(max_size=60),
    st.sampled_from([text for _, text in FAILURE]),
    st.sampled_from(["1 + 1 = 3", "-", "$", "{" * 9, "4,,.", "\\boxed{1,}", "FINAL ANSWER: 3.", "I have checked 1."]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), texts), min_size=1, max_size=7), texts)
def test_any_conversation_gets_a_verdict_each_and_the_first_fault_the_lowest_score(said, task):
    verdicts = judge(conversation(*said, task=task))
    assert len(verdicts) == len(said)
    blamed = [verdict for verdict in verdicts if verdict.blame is not None and verdict.score is not None]
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    assert not blamed or blamed[0].score == min(scores)


def test_the_plugin_offers_the_coach_and_loads_none_of_its_rules():
    registry = load_plugins(only=["evidence"])
    assert not registry.broken
    assert registry.offer("coaches", "evidence").options is EvidenceOptions
    code = (
        "import sys, mappa_core.plugins as plugins\n"
        "plugins.load_plugins(only=['evidence'])\n"
        "print('mappa_coach_evidence.coach' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
