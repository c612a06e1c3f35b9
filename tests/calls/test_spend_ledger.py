"""The cap on what a run may cost."""

import pytest

from mappa_core import Usage
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.transport import CallError


def paid(usd: float | None, calls: int = 1) -> Usage:
    return Usage(calls=calls, usd=usd)


def test_ledger_sums_costs_and_stops_at_the_cap():
    ledger = Ledger(1.0)
    ledger.check()
    ledger.add(paid(0.25))
    ledger.add(paid(0.5))
    ledger.check()
    assert ledger.total_usd == 0.75
    ledger.add(paid(0.25))
    with pytest.raises(CallError) as caught:
        ledger.check()
    assert caught.value.kind == "spend"
    ledger.add(paid(0.125))  # a call that was under way
    with pytest.raises(CallError) as again:
        ledger.check()
    assert str(again.value) == str(caught.value) == "spend: coach.spend_usd=1 is reached"


def test_resumed_run_continues_from_its_former_spending():
    ledger = Ledger(1.0)
    ledger.add(paid(0.75, calls=24))
    ledger.add(paid(None))
    ledger.check()  # the one of unknown cost counts as one of the 24
    ledger.add(paid(0.21875, calls=7))
    with pytest.raises(CallError):
        ledger.check()


def test_unknown_cost_makes_the_sum_unknown():
    ledger = Ledger(None)
    assert ledger.total_usd == 0.0
    ledger.add(paid(0.25))
    ledger.add(paid(None))
    assert ledger.total_usd is None


def test_verdict_without_a_call_costs_nothing():
    ledger = Ledger(1.0)
    ledger.add(None)
    ledger.check()
    assert ledger.total_usd == 0.0


def test_ledger_without_a_cap_never_stops():
    ledger = Ledger(None)
    ledger.add(paid(1e9))
    ledger.add(paid(None))
    ledger.check()


def test_unknown_cost_counts_as_the_highest_known_cost_against_the_cap():
    ledger = Ledger(1.0)
    ledger.add(paid(0.25))
    ledger.add(paid(0.125))
    ledger.add(paid(None))
    ledger.check()  # 0.375 + 0.25
    ledger.add(paid(None))
    ledger.add(paid(0.125))
    with pytest.raises(CallError, match=r"=1 is reached, with every call of unknown cost taken for the dearest"):
        ledger.check()


def test_cap_without_any_known_cost_is_an_error():
    ledger = Ledger(1.0)
    ledger.add(paid(None))
    with pytest.raises(CallError, match=r"spend: coach\.spend_usd=1 cannot be kept: what the calls took is not known"):
        ledger.check()


def test_shared_call_of_several_verdicts_counts_in_full():
    ledger = Ledger(1.0)
    for calls in (1, 0, 0, 0):
        ledger.add(paid(0.125, calls=calls))
    for calls in (1, 0, 0):
        ledger.add(paid(None, calls=calls))
    ledger.check()
    ledger.add(paid(None, calls=0))
    with pytest.raises(CallError, match=r"coach\.spend_usd=1 is reached"):
        ledger.check()


def test_rest_of_the_cap_counts_unknown_costs_as_the_highest():
    ledger = Ledger(1.0)
    assert Ledger(None).left_usd is None
    assert ledger.left_usd == 1.0
    ledger.add(paid(0.5, calls=2))
    ledger.add(paid(None))  # taken for the dearest, 0.25
    assert ledger.left_usd == 0.25
    ledger.add(paid(0.5))
    assert ledger.left_usd == -0.5  # the unknown one may have been as dear
