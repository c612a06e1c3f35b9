"""A preference is told from merit whatever later agents do; fewer and shorter runs than docs/evidence/preferences.py.

The bounds are those that the study is held to: at most 0.25 of the 3.5 points of real merit are taken off, and at least
1.2 of a preference of 1.5, or the coach says itself that it cannot tell.
"""

from dataclasses import replace

import numpy as np
import pytest
import second_form
from preferences import BONUS, WAYS, Case, Result, alarm_rates, cases, simulate

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


@pytest.mark.parametrize("way", ["plan, by blind judgement", "agent, by blind judgement"])
def test_blind_judgement_tells_a_preference_in_the_second_form_too(way):
    case = Case(way=way, bonus=BONUS, right="worse", later=(0.6, 0.6))
    found = simulate(case, RUNS, 0, iterations=40, form="second")
    assert found.alarms == 1 and 0.9 <= np.mean(found.removed) <= 1.9


def test_the_second_form_is_of_another_kind():
    case = Case(way="plan, by siblings", bonus=0.0, right="worse", later=(0.9, 0.9))
    rng = np.random.default_rng(0)
    played = [second_form.played(case, "plan", iteration, rng) for iteration in range(40)]
    points = np.concatenate([one.points for one in played])
    liked = np.concatenate([one.strata["plan"] == "sum" for one in played])
    outcome = np.concatenate([one.outcome for one in played])
    assert set(points) == set(range(11)) and np.mean(liked) == pytest.approx(0.2, abs=0.03)
    assert {len(np.flatnonzero(played[0].prompt == number)) for number in range(16)} == {2, 3, 4, 5, 6}
    assert set(played[0].cluster) == set(played[4].cluster) != set(played[1].cluster)
    # Quality 0.25 against 0.75: about 4 points of merit, and success by an S-shaped curve, repaired in 15 of 100.
    assert points[~liked].mean() - points[liked].mean() == pytest.approx(3.6, abs=0.5)
    assert 0.15 * 0.9 < outcome[liked].mean() < 0.45 < outcome[~liked].mean() < 0.9


def test_rates_of_alarms_are_of_honest_runs_alone():
    honest = Case(way="plan, by siblings", bonus=0.0, right="worse", later=(0.9, 0.9))
    found = [
        Result(case=honest, removed=(0.0,) * 8, alarms=0.25, untold=0.0),
        Result(case=replace(honest, bonus=BONUS), removed=(1.0,) * 8, alarms=1.0, untold=0.0),
    ]
    (words,) = alarm_rates(found)
    assert words.startswith("honest, plan, by siblings: an alarm in 2 of 8 runs, 25.0 % [7.1")  # Wilson: 2 of 8
