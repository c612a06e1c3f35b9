"""The race: its budget, its levels, and who goes on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa.statistics import Interval, paired_gain
from mappa_gepa.advise.race import MIN_TASKS, RacePlan, gain_at, race_cost


def test_the_cost_of_a_race_by_hand():
    # One fix: it and the team as it is, on all tasks.
    assert race_cost(32, 1) == 64
    # Four fixes on 8 tasks, two on 8 more, one on the last 16, and the team as it is on all 32.
    assert race_cost(32, 4) == 4 * 8 + 2 * 8 + 16 + 32
    # Two go on after the first look.
    assert race_cost(32, 2) == 2 * 8 + 2 * 8 + 16 + 32


@given(rollouts=st.integers(0, 2000), fixes=st.integers(1, 9), tasks=st.integers(1, 300))
def test_a_race_keeps_within_its_rollouts_and_leaves_no_task_out_that_it_could_play(rollouts, fixes, tasks):
    plan = RacePlan.within(rollouts, fixes, tasks)
    size = plan.looks[-1]
    assert race_cost(size, fixes) <= rollouts and size <= tasks
    assert size == tasks or race_cost(size + 1, fixes) > rollouts


@given(fixes=st.integers(1, 9))
def test_all_looks_at_all_fixes_together_spend_five_per_cent(fixes):
    plan = RacePlan(fixes=fixes, looks=(8, 16, 32))
    assert fixes * sum(plan.alpha(look) for look in range(3)) == pytest.approx(0.05)


def test_those_that_are_clearly_worse_stop_and_of_the_others_the_best_go_on():
    plan = RacePlan(fixes=4, looks=(8, 16, 32))
    gains = {
        "worse": Interval(mean=-0.5, low=-0.8, high=-0.2),
        "open": Interval(mean=-0.1, low=-0.4, high=0.3),
        "good": Interval(mean=0.3, low=-0.1, high=0.6),
        "unknown": Interval(mean=0.1),
    }
    assert plan.survivors(gains, 0) == ["good", "unknown"]
    assert plan.survivors({name: gains[name] for name in ("good", "unknown")}, 1) == ["good"]
    assert plan.survivors({"worse": gains["worse"]}, 0) == []


def test_a_gain_is_paired_by_task(pairs):
    before, after = pairs(40, 0.4, 0.7)
    clusters = {task: task for task in before}
    found = gain_at(before, after, clusters, 0.05)
    usual = paired_gain(list(before.values()), list(after.values()))
    assert found.mean == pytest.approx(usual.mean)
    assert (found.low, found.high) == pytest.approx((usual.low, usual.high), abs=0.03), "in the middle both are alike"
    wider = gain_at(before, after, clusters, 0.001)
    assert wider.low < found.low < found.high < wider.high
    without = {task: value for task, value in after.items() if task != "t0"}
    known = [task for task in before if task != "t0"]
    assert gain_at(before, without, clusters, 0.05).mean == pytest.approx(
        np.mean([after[task] - before[task] for task in known])
    )
    assert gain_at(before, {}, clusters, 0.05) is None
    assert gain_at(before, after, dict.fromkeys(before, "one"), 0.05).low is None


@pytest.fixture
def pairs():
    """Draws values of so many tasks, right by chance of `then` and `now`."""
    random = np.random.default_rng(0)

    def draw(tasks, then, now):
        return tuple({f"t{at}": float(random.random() < share) for at in range(tasks)} for share in (then, now))

    return draw


def test_a_fix_that_fails_hardly_ever_is_told_from_a_team_that_often_fails(pairs):
    """One failure makes all of the error of the team with the fix: of itself that bounds next to nothing."""
    then, now = [0.5] * 60 + [1.0] * 33, [1.0] * 92 + [0.5]
    before, after = ({f"t{at}": value for at, value in enumerate(values)} for values in (then, now))
    level = RacePlan(fixes=5, looks=(24, 47, 93)).alpha(2)
    found = gain_at(before, after, {task: task for task in before}, level)
    assert found.mean == pytest.approx(29.5 / 93)
    assert found.low == pytest.approx(0.2456, abs=5e-4) and found.high == pytest.approx(0.3853, abs=5e-4)
    drawn = [pairs(MIN_TASKS, 0.35, 0.98) for _ in range(100)]
    assert all(gain_at(*pair, {task: task for task in pair[0]}, level).low > 0 for pair in drawn)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.83, 0.98])
def test_teams_that_are_equally_good_are_told_apart_no_more_often_than_the_level_says(pairs, share):
    drawn, level = [pairs(MIN_TASKS, share, share) for _ in range(1000)], 0.05
    gains = [gain_at(*pair, {task: task for task in pair[0]}, level) for pair in drawn]
    assert np.mean([gain.low > 0 for gain in gains]) <= 1.5 * level / 2
    assert np.mean([gain.high < 0 for gain in gains]) <= 1.5 * level / 2


@pytest.mark.parametrize(
    ("difference", "low", "high"), [(0.0, -0.3244, 0.3244), (1.0, 0.3511, 1.0), (0.5, 0.0133, 0.6622)]
)
def test_equal_differences_of_few_tasks_are_no_certainty(difference, low, high):
    """Of eight tasks none differs, so by Wilson's interval at most 32.4 % of others do: `z^2 / (n + z^2)`."""
    before = {f"t{at}": 0.0 for at in range(8)}
    found = gain_at(before, dict.fromkeys(before, difference), {task: task for task in before}, 0.05)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)
