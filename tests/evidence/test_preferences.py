"""A preference is told from merit, and from errors that a coach repeats; fewer and shorter runs than those of
docs/evidence/preferences.py.

The bounds are those that the study is held to: 0.1 points are taken off a fair coach at most, and of a preference of
1.5 points at least 1.2, or the coach says itself that it cannot tell; single runs get some room.
"""

from dataclasses import replace

import numpy as np
import preferences
import pytest
import second_form
from click.testing import CliRunner
from preferences import BONUS, WAYS, Case, Result, alarm_rates, cases, simulate, summaries

RUNS = 2
INSTRUMENTS = [way for way, (_, method) in WAYS.items() if method != "siblings"]


def run(way, bonus, right, error, iterations=40, form="first"):
    case = Case(way=way, bonus=bonus, right=right, error=error, noise=0.5)
    return simulate(case, RUNS, 0, iterations=iterations, form=form)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [0.0, 1.5])
def test_a_fair_coach_keeps_what_it_says_of_worse_actions(way, error):
    assert np.abs(run(way, 0.0, "worse", error).removed).max() <= 0.1


@pytest.mark.parametrize("right", ["worse", "better"])
@pytest.mark.parametrize("way", INSTRUMENTS)
def test_a_real_preference_is_taken_off(way, right):
    found = run(way, BONUS, right, 0.5)
    assert np.mean(found.removed) >= 1.2 and np.max(found.removed) <= 1.9 and found.level == 1


@pytest.mark.parametrize("bonus", [0.0, BONUS])
def test_siblings_alone_raise_no_alarm_and_say_that_they_cannot_tell(bonus):
    found = run("length, by siblings", bonus, "better", 1.5)
    assert (set(found.removed), found.level, found.widening, found.untold) == ({0.0}, 0, 0, 1)


def test_every_way_is_played_with_all_errors_and_noises():
    assert len(list(cases())) == len(WAYS) * 2 * 3 * 4 * 4


@pytest.mark.parametrize("way", ["plan, by blind judgement", "length, by a second coach"])
def test_a_preference_is_told_in_the_second_form_too(way):
    found = run(way, BONUS, "worse", 1.0, form="second")
    assert found.level == 1 and 0.9 <= np.mean(found.removed) <= 1.9


def test_the_second_form_is_of_another_kind():
    case = Case(way="plan, by a second coach", bonus=0.0, right="worse", error=0.5, noise=0.5)
    rng = np.random.default_rng(0)
    played = [second_form.played(case, iteration, rng) for iteration in range(40)]
    points = np.concatenate([one.points for one in played])
    liked = np.concatenate([one.strata["plan"] == "sum" for one in played])
    assert set(points) == set(range(11)) and np.mean(liked) == pytest.approx(0.2, abs=0.03)
    assert {len(np.flatnonzero(played[0].prompt == number)) for number in range(16)} == {2, 3, 4, 5, 6}
    assert set(played[0].cluster) == set(played[4].cluster) != set(played[1].cluster)
    # Quality 0.25 against 0.75: 4 points of merit.
    assert points[~liked].mean() - points[liked].mean() == pytest.approx(4.0, abs=0.4)


def test_an_error_is_repeated_in_part_by_the_same_coach_and_not_at_all_by_another():
    correlations = []
    for way in ("plan, by blind judgement", "plan, by a second coach"):
        case = Case(way=way, bonus=0.0, right="equal", error=1.0, noise=0.0)
        draw = np.random.default_rng(0).standard_normal
        points, again = preferences.judge_twice(case, np.zeros(20_000), np.zeros(20_000), draw)
        assert (points.std(), again.std()) == pytest.approx((1, 1), abs=0.03)
        correlations.append(np.corrcoef(points, again)[0, 1])
    assert correlations == pytest.approx([0.5**0.5, 0], abs=0.03)


def results():
    fair = Case(way="plan, by blind judgement", bonus=0.0, right="worse", error=1.0, noise=0.5)
    biased = replace(fair, bonus=BONUS)
    return [
        Result(case=fair, removed=(0.0, 0.2) * 4, level=0.25, widening=0.0, untold=0.0),
        Result(case=biased, removed=(1.0,) * 8, level=1.0, widening=0.0, untold=0.0),
        Result(case=replace(biased, way="length, by siblings"), removed=(0.0,) * 8, level=0, widening=0, untold=1),
    ]


def test_rates_of_alarms_are_of_fair_runs_alone():
    level, widening = alarm_rates(results())
    # Wilson: 2 of 8
    assert level.startswith("fair, plan, by blind judgement: a level alarm in 2 of 8 runs, 25.0 % [7.1")
    assert widening.startswith("fair, plan, by blind judgement: a widening alarm in 0 of 8 runs")


def test_what_was_taken_off_is_summed_up_by_way():
    assert list(summaries(results())) == [
        "fair, plan, by blind judgement: at most 0.10 points taken off in a cell",
        "biased, plan, by blind judgement: 1.00 to 1.00 points taken off in a cell",
        "biased, length, by siblings: it says that it cannot tell",
    ]


def test_the_command_plays_a_short_grid():
    words = ["--way", "length, by siblings", "--fair", "--runs", "1", "--iterations", "2"]
    done = CliRunner().invoke(preferences.main, words, catch_exceptions=False)
    assert done.exit_code == 0 and "a level alarm in 0 of 48 runs" in done.output
