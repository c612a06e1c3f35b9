"""The coach: whom it blames, how sure it is, and where it says nothing."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa.testing import CoachContract, load_plugins
from mappa_coach_evidence.coach import EvidenceCoach
from mappa_coach_evidence.evidence import FIRST, Evidence, chances, collect_evidence
from mappa_coach_evidence.options import EvidenceOptions
from mappa_coach_evidence.rules import RULES
from mappa_coach_evidence.transcript import read_transcript
from mappa_coach_evidence.weights import WEIGHTS
from mappa_core import NOBODY

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


def judge(scenes, **options):
    return asyncio.run(EvidenceCoach(EvidenceOptions(**options)).review(scenes))


class TestContract(CoachContract):
    scenes = conversation(*FAILURE)

    def coach(self):
        return EvidenceCoach(EvidenceOptions())


def test_the_blamed_action_gets_what_its_chance_leaves_of_ten_points():
    verdicts = judge(conversation(*FAILURE))
    # The manager hands on the task; the coder's first program failed, and nothing confirms it; three actions follow the
    # task, the last two half-way and at the end.
    program_odds = sum(WEIGHTS[name + part] for name in ("failed program", "unchecked program") for part in ("", FIRST))
    odds = [0.0, program_odds, WEIGHTS["lateness"] / 2, WEIGHTS["lateness"]]
    chance = math.exp(odds[1]) / sum(map(math.exp, odds))
    assert [verdict.blame for verdict in verdicts] == [None, "coder", None, NOBODY, None, None]
    assert [verdict.score for verdict in verdicts] == [None, round(10 * (1 - chance), 2), None, 8.0, None, None]
    assert "NameError" in verdicts[1].reasoning
    assert f"(failed program, unchecked program: {chance:.0%} the decisive error)" in verdicts[1].reasoning


@pytest.mark.parametrize("places", [(1,), (0, 2), (4, 5)])
def test_an_action_is_judged_alike_whichever_others_are_judged_with_it(places):
    scenes = conversation(*FAILURE)
    scenes = [replace(scene, later=tuple(later.step for later in scenes[at + 1 :])) for at, scene in enumerate(scenes)]
    assert judge([scenes[place] for place in places]) == [judge(scenes)[place] for place in places]


def test_chances_multiply_what_evidence_weighs_and_add_up_to_one():
    two = Evidence(features={"a": 1.0, "b": 0.5}, findings={})
    evidence = {0: Evidence(features={}, findings={}), 3: two}
    weights = {"a": math.log(2), "b": math.log(4)}
    assert chances(evidence, weights, nobody=False) == pytest.approx({0: 1 / 5, 3: 4 / 5})
    assert chances(evidence, weights, nobody=True) == pytest.approx({0: 1 / 6, 3: 4 / 6})


def test_the_first_finding_of_a_rule_is_told_from_its_others():
    said = (("coder", program("a")), ("terminal", crashed("E")), ("coder", program("b")), ("terminal", crashed("E")))
    evidence = collect_evidence(read_transcript(conversation(*said)), RULES)
    first, second = (set(evidence[place].features) for place in (0, 2))
    assert {"failed program", "failed program, first"} <= first
    assert "failed program" in second and "failed program, first" not in second


def test_in_a_failure_without_evidence_the_place_alone_decides_and_the_verdict_says_so():
    done = json.dumps({"is_request_satisfied": False, "is_progress_being_made": True})
    said = [("leader", "The plan."), *[("surfer", "I look."), ("leader", done)] * 20]
    verdicts = judge(conversation(*said))
    assert verdicts[1].blame == "surfer"
    assert "No rule finds a fault in it. (its place alone: " in verdicts[1].reasoning
    assert [verdict.blame for verdict in judge(conversation(*said, outcome=SOLVED))] == [None] * len(said)


def test_every_piece_of_evidence_has_a_weight():
    for scenes in (conversation(*FAILURE), conversation(("leader", '{"progress": true}'), ("surfer", "I look."))):
        for found in collect_evidence(read_transcript(scenes), RULES).values():
            assert set(found.features) <= set(WEIGHTS)
    assert {rule.name + part for rule in RULES for part in ("", FIRST)} <= set(WEIGHTS)


def test_an_action_that_cannot_be_checked_gets_no_score():
    verdicts = judge(conversation(("solver", "Perhaps."), ("writer", "Perhaps."), outcome=SOLVED))
    assert [verdict.status for verdict in verdicts] == ["abstained", "abstained"]


def test_a_success_excuses_what_only_explains_failures_but_no_failed_program():
    unproved = (("solver", "Forty."), ("writer", "Forty."))
    assert judge(conversation(*unproved))[0].blame == "solver"
    assert judge(conversation(*unproved, outcome=SOLVED))[0].status == "abstained"
    assert judge(conversation(*FAILURE, outcome=SOLVED))[1].blame == "coder"


def test_success_is_read_from_the_metric_and_from_no_other_figure():
    unproved = (("solver", "Forty."), ("writer", "Forty."))
    assert judge(conversation(*unproved, outcome={"correct": 0.0, "tokens": 500.0}))[0].blame == "solver"
    assert judge(conversation(*unproved, outcome={"loss": -2.0, "correct": 1.0}))[0].status == "abstained"


@pytest.mark.parametrize("presume_failure, status", [(True, "scored"), (False, "abstained")])
@pytest.mark.parametrize("outcome", [None, {}, {"tokens": 500.0}])
def test_an_unknown_outcome_is_read_as_the_option_says(presume_failure, status, outcome):
    scenes = conversation(("solver", "Forty."), outcome=outcome)
    assert judge(scenes, presume_failure=presume_failure)[0].status == status


def test_a_single_action_is_judged_by_what_came_before_it():
    fails = with_result(step(0, "coder", "on it"), "KeyError", status="error")
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
def test_any_conversation_gets_a_verdict_each_and_at_most_one_blame(said, task):
    verdicts = judge(conversation(*said, task=task))
    assert len(verdicts) == len(said)
    blamed = [verdict for verdict in verdicts if verdict.blame not in (None, NOBODY)]
    assert len(blamed) <= 1
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    assert not blamed or scores.count(min(scores)) == 1
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
