"""The race: its budget, its levels, and who goes on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.statistics import Interval, paired_gain
from mappa_gepa.advise.race import RacePlan, gain_at, race_cost


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


def test_a_gain_is_paired_by_task_and_at_95_per_cent_that_of_the_library():
    random = np.random.default_rng(0)
    before, after = ({f"t{at}": float(random.random() < share) for at in range(40)} for share in (0.4, 0.7))
    clusters = {task: task for task in before}
    expected = paired_gain(list(before.values()), list(after.values()))
    found = gain_at(before, after, clusters, 0.05)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    wider = gain_at(before, after, clusters, 0.001)
    assert wider.low < found.low < found.high < wider.high
    without = {task: value for task, value in after.items() if task != "t0"}
    known = [task for task in before if task != "t0"]
    assert gain_at(before, without, clusters, 0.05).mean == pytest.approx(
        np.mean([after[task] - before[task] for task in known])
    )
    assert gain_at(before, {}, clusters, 0.05) is None
    assert gain_at(before, after, dict.fromkeys(before, "one"), 0.05).low is None
