"""A preference is told from merit whatever later agents do; fewer and shorter runs than docs/evidence/preferences.py.

The bounds are those that the study is held to: at most 0.25 of the 3.5 points of real merit are taken off, and at least
1.2 of a preference of 1.5, or the coach says itself that it cannot tell.
"""

import numpy as np
import pytest
from preferences import BONUS, WAYS, Case, cases, simulate

RUNS = 2


def run(way, bonus, right, later, iterations=25):
    return simulate(Case(way=way, bonus=bonus, right=right, later=later), RUNS, 0, iterations=iterations)


@pytest.mark.parametrize("way", ["plan, by siblings", "plan, by blind judgement", "length, by siblings"])
@pytest.mark.parametrize("later", [0.3, 0.9])
def test_an_honest_coach_keeps_what_it_says_of_worse_actions(way, later):
    assert np.abs(run(way, 0.0, "worse", (later, later)).removed).max() <= 0.25


@pytest.mark.parametrize("right", ["worse", "better"])
@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("task")])
def test_a_real_preference_is_taken_off(way, right):
    found = run(way, BONUS, right, (0.9, 0.9))
    assert np.mean(found.removed) >= 1.2 and np.max(found.removed) <= 1.9 and found.alarms == 1


def test_what_the_agent_does_not_choose_cannot_be_told_by_siblings():
    found = run("task, by siblings", BONUS, "equal", (0.9, 0.9))
    assert set(found.removed) == {0.0} and found.untold == 1


def test_later_agents_that_treat_a_plan_otherwise_are_no_preference():
    found = run("plan, by siblings", 0.0, "equal", (0.9, 0.3))
    assert np.abs(found.removed).max() <= 0.25 and found.untold == 1


def test_every_way_is_played_with_all_later_agents():
    assert len(list(cases())) == 5 * (2 * 3 * 4 + 3)
