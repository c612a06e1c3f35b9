"""When a provider is left alone, by a table of what happened at which second."""

import pytest

from mappa_core.calls.circuit_breaker import CircuitBreaker
from mappa_core.transport import CallError

FAULT = CallError("server", "500 of example.org")


def is_open(breaker: CircuitBreaker, now: float) -> bool:
    try:
        breaker.check(now)
    except CallError as error:
        assert error.kind == "breaker"
        return True
    return False


def test_breaker_opens_after_consecutive_failures_and_rests():
    breaker = CircuitBreaker("gemini", failures=3, rest_s=30.0)
    breaker.record_failure(FAULT, 0.0)
    breaker.record_failure(FAULT, 1.0)
    assert not is_open(breaker, 1.0)
    breaker.record_failure(FAULT, 2.0)
    assert [is_open(breaker, now) for now in (2.0, 31.9, 32.0)] == [True, True, False]


def test_an_answer_ends_the_row():
    breaker = CircuitBreaker("gemini", failures=3, rest_s=30.0)
    for now in range(10):
        breaker.record_failure(FAULT, now)
        breaker.record_failure(FAULT, now)
        assert not is_open(breaker, now)
        breaker.record_success()


def test_half_open_breaker_admits_one_call():
    breaker = CircuitBreaker("gemini", failures=1, rest_s=30.0)
    breaker.record_failure(FAULT, 0.0)
    breaker.begin_call(30.0)
    with pytest.raises(CallError):
        breaker.begin_call(30.0)
    breaker.record_success()
    breaker.begin_call(31.0)
    breaker.begin_call(31.0)


def test_failed_probe_opens_the_breaker_again():
    breaker = CircuitBreaker("gemini", failures=4, rest_s=30.0)
    for _ in range(4):
        breaker.record_failure(FAULT, 0.0)
    breaker.begin_call(30.0)
    breaker.record_failure(FAULT, 35.0)
    assert [is_open(breaker, now) for now in (60.0, 64.9, 65.0)] == [True, True, False]


def test_unanswered_probe_is_followed_by_a_second_probe():
    breaker = CircuitBreaker("gemini", failures=1, rest_s=30.0)
    breaker.record_failure(FAULT, 0.0)
    breaker.begin_call(40.0)
    assert [is_open(breaker, now) for now in (69.9, 70.0)] == [True, False]


def refusal(breaker: CircuitBreaker, now: float) -> CallError:
    with pytest.raises(CallError) as caught:
        breaker.check(now)
    return caught.value


def test_error_of_an_open_breaker_names_provider_failures_pause_and_reason():
    breaker = CircuitBreaker("gemini", failures=2, rest_s=30.0)
    breaker.record_failure(CallError("timeout", "no reply within 60 s"), 0.0)
    breaker.record_failure(FAULT, 0.0)
    assert str(refusal(breaker, 10.0)) == (
        "breaker: gemini failed 2 times in a row and is left alone, but for one call every 30 s. "
        "The last of these times: server: 500 of example.org"
    )
    assert refusal(breaker, 10.0).retry_after_s == 20.0


def test_error_stays_the_same_until_the_breaker_closes():
    breaker = CircuitBreaker("gemini", failures=2, rest_s=30.0)
    later = CallError("timeout", "no reply within 60 s")
    said = set()
    breaker.record_failure(FAULT, 0.0)
    breaker.record_failure(FAULT, 0.0)
    said.add(str(refusal(breaker, 1.0)))
    breaker.record_failure(later, 2.0)  # a call that was under way
    said.add(str(refusal(breaker, 3.0)))
    breaker.begin_call(40.0)
    said.add(str(refusal(breaker, 41.0)))
    breaker.record_failure(later, 42.0)
    said.add(str(refusal(breaker, 43.0)))
    assert len(said) == 1
    breaker.record_success()
    breaker.record_failure(later, 50.0)
    breaker.record_failure(later, 50.0)
    assert str(refusal(breaker, 51.0)).endswith("The last of these times: timeout: no reply within 60 s")
