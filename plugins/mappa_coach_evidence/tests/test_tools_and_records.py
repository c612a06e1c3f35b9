"""Whose fault a failed call is, and claims against what tools answered."""

from __future__ import annotations

import json

import pytest

from mappa_coach_evidence.rules import calls, claims, records
from mappa_coach_evidence.transcript import read_transcript

from .conversations import conversation, scenes_of_steps, step, with_result

HOTELS = json.dumps(
    {
        "hotels": [
            {"name": "Astor", "price_per_night": 210, "currency": "EUR"},
            {"name": "Linden", "price_per_night": 180, "currency": "EUR"},
        ]
    }
)


def called(place, agent, tool, output, text="", **arguments):
    return with_result(step(place, agent, text), output, tool=tool, arguments=arguments)


def find(rule, *steps, task="Plan a trip for 3 people and 4 nights."):
    return list(rule(read_transcript(scenes_of_steps(steps, task=task))))


def test_a_wrong_argument_is_its_callers_fault():
    failed = called(0, "searcher", "get_hotel", "Error: missing required argument 'name'", city="Porto")
    (finding,) = find(calls.wrong_calls, failed, step(1, "writer", "I have no rate."))
    assert (finding.place, finding.blame) == (0, None)
    assert "missing required argument" in finding.reason


def test_a_wrong_name_is_the_fault_of_whoever_named_it_first():
    steps = [
        step(0, "planner", "Look up the Grand Plaza."),
        called(1, "searcher", "get_hotel", '{"error": "hotel not found: Grand Plaza"}', name="Grand Plaza"),
    ]
    (finding,) = find(calls.wrong_calls, *steps)
    assert finding.place == 0
    (finding,) = find(calls.wrong_calls, *steps, task="Book the Grand Plaza.")
    assert finding.place == 1


def test_a_call_that_works_later_is_no_fault():
    steps = [
        called(0, "searcher", "get_hotel", "Error: unknown hotel Astr", name="Astr"),
        called(1, "searcher", "get_hotel", HOTELS, name="Astor"),
    ]
    assert find(calls.wrong_calls, *steps) == []


@pytest.mark.parametrize("answer", ["Error: flight X is not available on 2024-05-13", "Error: not enough seats on X"])
def test_what_cannot_be_had_is_nobodys_fault(answer):
    assert find(calls.wrong_calls, called(0, "a", "book", answer, flight="X")) == []


@pytest.mark.parametrize(
    "answer", ["Error: request timed out after 30 s", '{"error": "service unavailable", "code": 503}']
)
def test_a_service_that_is_down_is_the_environments_fault(answer):
    (finding,) = find(calls.unavailable_tools, called(0, "a", "search", answer, query="x"))
    assert finding.blame == "environment"
    assert find(calls.wrong_calls, called(0, "a", "search", answer, query="x")) == []


def test_a_program_that_runs_out_of_time_is_not_the_environments_fault():
    assert (
        find(calls.unavailable_tools, called(0, "a", "python", "Error: timed out after 4 s", code="while 1: 0")) == []
    )


def test_only_a_call_that_is_repeated_at_once_and_fails_again_is_a_repetition():
    failed = [called(place, "a", "get", "Error: unknown id 7", id=7) for place in range(2)]
    assert [finding.place for finding in find(calls.repeated_calls, *failed)] == [1]
    between = called(1, "a", "create", "created 7", id=7)
    assert find(calls.repeated_calls, failed[0], between, called(2, "a", "get", "7: x", id=7)) == []


@pytest.mark.parametrize(
    "text, accused",
    [
        ("Everything is booked: Astor, 4 nights.", True),
        ("Your hotel has been booked successfully.", True),
        ("Unfortunately the booking failed, nothing is booked.", False),
        ("I will try again until it is booked.", False),
        ("The card was declined.", False),
    ],
)
def test_success_that_is_claimed_after_a_failure(text, accused):
    failed = called(0, "writer", "book_hotel", "Error: card was declined", hotel="Astor")
    found = find(calls.claimed_successes, failed, step(1, "writer", text))
    assert [finding.place for finding in found] == [1] * accused


def test_success_may_be_claimed_once_the_call_worked():
    steps = [
        called(0, "writer", "book", "Error: card was declined"),
        called(1, "writer", "book", '{"status": "confirmed"}'),
        step(2, "writer", "Everything is booked."),
    ]
    assert find(calls.claimed_successes, *steps) == []


@pytest.mark.parametrize(
    "text, accused",
    [
        ("Astor has a price of 235 EUR per night.", True),
        ("- Astor: 180 EUR per night", True),  # That is Linden's.
        ("Astor has a price of 210 EUR per night.", False),
        ("Astor: 840 EUR for 4 nights", False),
        ("With a discount Astor would be 189 EUR per night.", False),
        ("Ritz has a price of 235 EUR per night.", False),
    ],
)
def test_figures_are_held_against_the_record_that_is_named(text, accused):
    steps = [called(0, "searcher", "get_hotel", HOTELS), step(1, "searcher", text)]
    assert [finding.place for finding in find(records.contradicted_records, *steps)] == [1] * accused


def test_whoever_repeats_a_false_figure_is_not_accused():
    text = "Astor has a price of 235 EUR per night."
    steps = [called(0, "a", "get_hotel", HOTELS), step(1, "a", text), step(2, "b", text)]
    assert [finding.place for finding in find(records.contradicted_records, *steps)] == [1]


@pytest.mark.parametrize(
    "state, text, accused",
    [
        ("pending", "Astor is confirmed for 4 nights.", True),
        ("declined", "Your stay at Astor is booked.", True),
        ("confirmed", "Astor is confirmed for 4 nights.", False),
        ("pending", "Astor is not confirmed yet.", False),
        ("pending", "Linden is confirmed.", False),
    ],
)
def test_claims_are_held_against_the_state_of_a_record(state, text, accused):
    booking = json.dumps({"hotel": "Astor", "status": state, "reference": "R1"})
    steps = [called(0, "writer", "book", booking), step(1, "writer", text)]
    assert [finding.place for finding in find(records.contradicted_states, *steps)] == [1] * accused


@pytest.mark.parametrize(
    "total, accused",
    [("The total is 1342 EUR.", False), ("The total is 955 EUR.", True), ("The total is 423 EUR.", False)],
)
def test_the_last_result_is_held_against_what_was_computed(total, accused):
    said = (("calculator", "3 * 141 = 423 and 423 + 919 = 1342."), ("writer", total))
    found = list(claims.contradicted_results(read_transcript(conversation(*said))))
    assert [finding.place for finding in found] == [1] * accused


@pytest.mark.parametrize(
    "text", ["[" * 3000, '{"a": ' * 500 + "1" + "}" * 500, "{}", "[1, 2]", '{"name": null}', "NaN"]
)
def test_any_answer_of_a_tool_can_be_read(text):
    assert records.read_records(text) == []
