"""Which verdicts count where an action has several."""

from dataclasses import replace

import pytest

from mappa.look.counted_verdicts import select_counted
from mappa_core import Verdict


def given(step, phase, score=None):
    one = Verdict.failed("no key") if score is None else Verdict.scored(score, "because")
    return replace(one, step=step, phase=phase)


OWN, OWN_FAILED = [given("a", "live", 3.0), given("b", "live")], [given("a", "live"), given("b", "live")]
FIRST, LATER, FAILED = ([given(step, "again", score) for step in "ab"] for score in (5.0, 6.0, None))


@pytest.mark.parametrize(
    ("verdicts", "counted"),
    [
        ([*OWN, *LATER], OWN),
        ([*OWN_FAILED, *LATER], LATER),
        (OWN_FAILED, OWN_FAILED),
        ([*FIRST, *LATER], LATER),
        ([*FIRST, *FAILED], FIRST),
        ([*OWN_FAILED, *FAILED], OWN_FAILED),
        ([*FAILED, *FAILED], FAILED),
        ([], []),
    ],
)
def test_verdicts_of_the_run_count_or_else_those_of_the_last_judge(verdicts, counted):
    assert list(select_counted(verdicts)) == counted
