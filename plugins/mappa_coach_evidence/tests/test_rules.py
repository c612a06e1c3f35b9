"""Each rule on conversations whose fault is known, and on ones that it must leave alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mappa_coach_evidence.rules import answers, claims, programs, progress
from mappa_coach_evidence.transcript import read_transcript
from mappa_core import Breach

from .conversations import (
    conversation,
    crashed,
    printed,
    program,
    scenes_of_steps,
    step,
    with_result,
)

TASK = "How many seats does the theatre have?"


def places(rule, scenes):
    return [finding.place for finding in rule(read_transcript(scenes))]


def reasons(rule, scenes):
    return [finding.reason for finding in rule(read_transcript(scenes))]


def test_the_author_of_a_failed_program_is_the_latest_program_before_its_output():
    scenes = conversation(
        ("manager", TASK),
        ("coder", program("print(x)")),
        ("checker", "Let us wait for it."),
        ("terminal", crashed("NameError: name 'x' is not defined")),
        ("coder", program("print(7)")),
        ("terminal", printed("7")),
    )
    assert places(programs.failed_programs, scenes) == [1]
    assert reasons(programs.failed_programs, scenes) == ["Its program failed: NameError: name 'x' is not defined"]


def test_an_output_that_is_a_message_and_no_action_is_read_once():
    said = ["Do it.", program("1/0"), crashed("ZeroDivisionError: division by zero")]
    steps = [
        step(0, "coder", said[1], messages=said[:1]),
        step(1, "checker", "It failed.", messages=said),
        step(2, "coder", "I give up.", messages=[*said, "It failed."]),
    ]
    assert places(programs.failed_programs, scenes_of_steps(steps)) == [0]


def test_two_equal_outputs_are_two_executions():
    said = [program("1/0"), crashed("ZeroDivisionError"), program("1/0 "), crashed("ZeroDivisionError")]
    steps = [step(0, "coder", said[0]), step(1, "coder", said[2], messages=said[:2]), step(2, "c", "so", messages=said)]
    assert places(programs.failed_programs, scenes_of_steps(steps)) == [0, 1]
    assert places(programs.repeated_failures, scenes_of_steps(steps)) == [1]


def test_results_of_calls_are_executions():
    fails = with_result(step(0, "coder", "on it"), "KeyError: 'age'", status="error")
    works = with_result(step(1, "coder", "again"), "12")
    scenes = scenes_of_steps([fails, works])
    assert reasons(programs.failed_programs, scenes) == ["Its program failed: KeyError: 'age'"]
    assert places(programs.unchecked_programs, scenes_of_steps([works])) == [0]


def test_a_program_that_is_changed_is_no_repetition():
    scenes = conversation(
        ("coder", program("a")), ("terminal", crashed("E")), ("coder", program("b")), ("terminal", crashed("E"))
    )
    assert places(programs.repeated_failures, scenes) == []


def test_only_files_that_are_owed_are_a_breach_of_the_agent():
    owes = Breach(agent="coder", kind="missing_output", path="model.pkl")
    lacks = Breach(agent="coder", kind="missing_input", path="data.csv")
    scenes = scenes_of_steps([replace(step(0, "coder", "done"), breaches=(owes, lacks))])
    assert reasons(programs.broken_contracts, scenes) == ["model.pkl is missing."]


def test_a_reply_at_its_limit_is_cut_off():
    whole = step(0, "coder", "so we")
    cut = replace(whole, completion=replace(whole.completion, finish="length"))
    assert places(programs.cut_off_replies, scenes_of_steps([whole, cut])) == [1]


@pytest.mark.parametrize("said, at_fault", [("I saved clean.csv for you.", [0]), ("Please load clean.csv.", [])])
def test_a_file_that_was_announced_and_is_not_there(said, at_fault):
    scenes = conversation(
        ("engineer", said),
        ("modeler", program("load()")),
        ("terminal", crashed("FileNotFoundError: [Errno 2] No such file or directory: 'out/clean.csv'")),
    )
    assert places(programs.missing_files, scenes) == at_fault


def test_the_first_action_that_says_a_value_of_the_answer_made_it_up():
    scenes = conversation(
        ("manager", f"{TASK} Ask the guide for all 3 halls."),
        ("guide", "I shall ask."),
        ("guide", "There are 412 seats and 12 boxes."),
        ("writer", "The answer is 412 seats, in 3 halls. TERMINATE"),
    )
    assert places(answers.made_up_values, scenes) == [2]
    assert reasons(answers.made_up_values, scenes) == ["The answer uses 412, which no output before it held."]


def test_a_value_that_an_output_holds_with_more_decimals_comes_from_its_program():
    scenes = conversation(
        ("manager", TASK),
        ("coder", program("print(a)")),
        ("terminal", printed("-4.93610475")),
        ("writer", "It is -4.9361. TERMINATE"),
    )
    assert places(answers.made_up_values, scenes) == []
    assert places(answers.computed_values, scenes) == [1]


def test_an_answer_is_traced_only_where_the_team_says_that_it_is_done():
    scenes = conversation(("manager", TASK), ("guide", "There are 412 seats."), ("writer", "I shall check 412."))
    assert places(answers.made_up_values, scenes) == []


def test_a_claim_to_have_looked_needs_an_execution():
    said = (("manager", TASK), ("guide", "I will look."), ("guide", "I have now verified it: many."))
    done = ("guide", "TERMINATE")
    assert places(answers.pretended_checks, conversation(*said, done)) == [2]
    ran = (("coder", program("look()")), ("terminal", printed("many")))
    assert places(answers.pretended_checks, conversation(*said, *ran, done)) == []


def test_a_task_with_none_of_its_words_is_lost():
    lost = conversation(("manager", "Your task is to fix exit code 1."), ("coder", "Which program?"))
    assert places(answers.lost_task, lost) == [0]
    assert places(answers.lost_task, conversation(("manager", f"Your task: {TASK}"), ("coder", "Well."))) == []
    assert places(answers.lost_task, conversation(("solver", "Forty."), ("coder", "Well."))) == []


def test_without_any_execution_the_first_claim_after_the_task_is_unproved():
    scenes = conversation(("manager", TASK), ("guide", "Many."), ("writer", "Many it is."))
    assert places(answers.unproved_claims, scenes) == [1]
    own_work = conversation(("guide", "Many."), ("writer", "Many it is."))
    assert places(answers.unproved_claims, own_work) == [0]


def ledger(*, done=False, progress=True, loop=False):
    record = {
        "is_request_satisfied": {"reason": "so", "answer": done},
        "is_in_loop": {"reason": "so", "answer": loop},
        "is_progress_being_made": {"reason": "so", "answer": progress},
    }
    return f"Updated ledger:\n{json.dumps(record)}\nNext."


@pytest.mark.parametrize(
    "records, at_fault",
    [
        ([ledger(), ledger(progress=False), ledger()], 3),
        ([ledger(loop=True), ledger(progress=False), ledger()], 1),
        ([ledger(progress=False), ledger(done=True), ledger()], 3),
        ([ledger(), ledger(), ledger()], 5),
    ],
)
def test_the_record_of_progress_points_at_the_action_before_it(records, at_fault):
    said = [("orchestrator", "The plan.")]
    for record in records:
        said += [("surfer", "I clicked."), ("orchestrator", record)]
    assert places(progress.recorded_progress, conversation(*said)) == [at_fault]


def test_a_record_before_any_work_blames_what_stands_before_it():
    scenes = conversation(("orchestrator", "It is 7."), ("orchestrator", ledger(done=True)))
    assert places(progress.recorded_progress, scenes) == [0]


@pytest.mark.parametrize("text", ["{", "{'progress': 1}", '{"a": 1}', "[1]", ""])
def test_what_is_no_record_has_no_state(text):
    assert progress.read_state(text) is None


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("So 2 * 20.00 * 4 = 160.00 and 3 + 4 = 8.", ["“3 + 4 = 8”, it says; the left side is 7."]),
        ("2022 - 1995 = 27", []),
        (r"\(12 \times 12 = 146\)", ["“12 * 12 = 146”, it says; the left side is 144."]),
        ("10 / 3 = 3.33", []),
        ("10 / 3 = 3.36", ["“10 / 3 = 3.36”, it says; the left side is 3.33333."]),
        ("4 / 0 = 1", []),
        ("1 + 2 * 3 = 7", []),
        ("```python\n1 + 1 = 3\n```", []),
        ("3 + 4 = 7 * 1", []),
    ],
)
def test_sums_are_computed_again(text, wrong):
    assert reasons(claims.wrong_sums, conversation(("solver", text))) == wrong


def test_what_a_program_printed_is_held_against_its_output():
    said = (("coder", program("print(5)")), ("terminal", printed("5")))
    assert places(claims.contradicted_outputs, conversation(*said, ("writer", "The output was 6."))) == [2]
    assert places(claims.contradicted_outputs, conversation(*said, ("writer", "The output was 5."))) == []
    failed = (("coder", program("print(5)")), ("terminal", crashed("line 5")))
    assert places(claims.contradicted_outputs, conversation(*failed, ("writer", "The output was 6."))) == []


def test_an_answer_may_change_only_on_new_evidence():
    first, other = ("solver", r"\boxed{5}"), ("writer", r"\boxed{6}")
    assert places(claims.changed_answers, conversation(first, other)) == [1]
    assert places(claims.changed_answers, conversation(first, first)) == []
    evidence = (("coder", program("print(6)")), ("terminal", printed("6")))
    assert places(claims.changed_answers, conversation(first, *evidence, other)) == []


def test_going_on_in_words_after_a_failure_leaves_it_unrepaired():
    scenes = conversation(
        ("coder", program("1/0")),
        ("terminal", crashed("ZeroDivisionError: division by zero")),
        ("checker", "Let us assume 7."),
        ("coder", program("print(7)")),
        ("terminal", printed("7")),
        ("checker", "It is 7."),
    )
    assert places(programs.unrepaired_failures, scenes) == [2]


def test_what_an_action_admits_counts_and_what_its_program_says_does_not():
    said = (("guide", "Unfortunately there is no list."), ("coder", program("raise ValueError('not found')")))
    assert places(claims.admitted_failures, conversation(*said)) == [0]


def test_handing_on_a_task_admits_no_failure():
    task = "The search failed. How many?"
    said = (("manager", task), ("guide", "It failed."))
    assert places(claims.admitted_failures, conversation(*said, task=task)) == [1]


def test_the_agent_that_keeps_a_record_is_found():
    scenes = conversation(("leader", ledger()), ("surfer", "I clicked."))
    assert progress.find_keepers(read_transcript(scenes)) == {"leader"}
