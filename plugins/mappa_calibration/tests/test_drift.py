"""The monitor: which gaps are watched, when an alarm is raised, and that nothing is forgotten over a restart.

That the alarms keep their promises over many runs is held by tests/evidence/test_drift.py.
"""

import json

import msgspec
import numpy as np
import pytest

from mappa.store.iteration_report import IterationReport
from mappa_calibration.actions import ActionColumns
from mappa_calibration.comparison import Comparison
from mappa_calibration.drift import FALSE_ALARM_RATES, LATE_SHARE, DriftMonitor
from mappa_calibration.options import AlarmOptions, BiasOptions
from mappa_core import ConfigError

SOLVER = ("live", "solver", "task")
BASIS = {"task": "by hand", "length": "by hand"}


def monitor(**options):
    return DriftMonitor(AlarmOptions(**options))


def iteration(rng, gap=0.0, tasks=32, strata=("a", "b"), names=None, excess=None, tokens=None):
    """The actions of one agent: four on each task, the first stratum favoured by `gap`."""
    task = np.arange(tasks).repeat(4)
    name = np.array(strata, dtype=object)[task % len(strata)] if names is None else names[task]
    noisy = 5 + gap * (name == strata[0]) + rng.normal(size=len(task))
    unknown = np.full(len(task), np.nan)
    actions = ActionColumns(
        agent=np.full(len(task), "solver", dtype=object),
        points=unknown,
        reference=unknown,
        prompt=task,
        cluster=task,
        tokens=unknown if tokens is None else tokens,
        strata={"task": name},
    )
    return Comparison(
        actions=actions,
        excess=noisy if excess is None else excess,
        group=np.zeros(len(task), int),
    )


def observe(watching, found, number=0, subject=SOLVER):
    return watching.observe({subject: found}, number, BASIS)


def watch(monitor, gaps, *, seed=0, **options):
    """Alarms as (iteration, kind) over iterations of these gaps."""
    rng, alarms = np.random.default_rng(seed), []
    for number, gap in enumerate(gaps):
        report = observe(monitor, iteration(rng, gap, **options), number)
        alarms += [(number, alarm.kind) for alarm in report.alarms]
    return alarms


def test_a_gap_is_found_at_once_and_reported_once():
    assert watch(monitor(), [2.0] * 12) == [(0, "level")]


def test_without_a_gap_there_is_no_alarm():
    assert watch(monitor(), [0.0] * 12) == []


def test_a_gap_that_is_acknowledged_raises_no_level_alarm_and_an_alarm_when_it_grows():
    known = {"acknowledged": ["solver/task"]}
    assert watch(monitor(**known), [2.0] * 12) == []
    assert [kind for _, kind in watch(monitor(**known), np.linspace(2, 6, 12))] == ["widening"]
    assert [kind for _, kind in watch(monitor(acknowledged=["coder/task"]), [2.0] * 12)] == ["level"]


def test_a_gap_that_comes_late_is_found_soon_after_however_long_all_was_well():
    alarms = watch(monitor(), [0.0] * 60 + [1.0] * 10)
    assert alarms[0][1] == "widening" and 60 <= alarms[0][0] <= 65


def test_a_gap_that_closes_is_no_widening():
    assert [kind for _, kind in watch(monitor(), np.linspace(3, 0.5, 15))] == ["level"]


def test_a_gap_that_turns_over_widens_to_the_other_side():
    assert [kind for _, kind in watch(monitor(acknowledged=["solver/task"]), np.linspace(1, -3, 20))] == ["widening"]


def test_a_gap_too_small_to_matter_is_left_alone_however_certain():
    rng = np.random.default_rng(0)
    found = iteration(rng, 0.4, tasks=200, excess=np.where(np.arange(800) // 4 % 2 == 0, 5.4, 5.0))
    assert observe(monitor(min_gap=0.5), found).alarms == ()
    assert len(observe(monitor(min_gap=0.3), found).alarms) == 1


def test_too_few_tasks_raise_no_alarm_whatever_the_gap():
    assert watch(monitor(), [9.0] * 5, tasks=10) == []


def test_two_strata_have_one_gap_and_three_have_three():
    rng = np.random.default_rng(0)
    (two,) = observe(monitor(), iteration(rng, 1.0)).gaps
    assert (two.stratum, two.against, two.actions) == ("a", "b", (64, 64))
    three = observe(monitor(), iteration(rng, 1.0, strata=("a", "b", "c"), tasks=33)).gaps
    assert [(gap.stratum, gap.against) for gap in three] == [(stratum, "the rest") for stratum in "abc"]


def test_a_stratum_that_turns_up_late_is_watched_from_then_on():
    rng, watching = np.random.default_rng(0), monitor()
    observe(watching, iteration(rng))
    gaps = observe(watching, iteration(rng, strata=("a", "b", "c")), 1).gaps
    assert [(gap.stratum, sum(gap.actions)) for gap in gaps] == [("a", 256), ("b", 128), ("c", 128)]


def spent(watching, kind):
    return [watched["tests"][kind]["alpha"] for watched in watching.state_dict()["gaps"]]


def test_all_gaps_together_share_the_chance_of_a_false_alarm():
    rng, watching = np.random.default_rng(0), monitor()
    watching.observe({("live", agent, "task"): iteration(rng) for agent in ("one", "two", "three")}, 0, BASIS)
    assert spent(watching, "level") == pytest.approx([FALSE_ALARM_RATES["level"] * (1 - LATE_SHARE) / 3] * 3)
    for number in range(1, 4):
        observe(watching, iteration(rng), number, ("live", f"late {number}", "task"))
    assert spent(watching, "level")[3:] == pytest.approx(
        [FALSE_ALARM_RATES["level"] * LATE_SHARE / share for share in (2, 6, 12)]
    )
    assert sum(spent(watching, "level")) + sum(spent(watching, "widening")) < 0.05


def test_an_action_without_a_stratum_is_left_out_of_that_stratifier():
    rng = np.random.default_rng(0)
    names = np.array(["a", "b", None, "a"], dtype=object).repeat(8)
    (gap,) = observe(monitor(), iteration(rng, names=names)).gaps
    assert gap.actions == (64, 64)


def test_alarms_say_who_what_and_how_much():
    rng = np.random.default_rng(0)
    (alarm,) = observe(monitor(), iteration(rng, 2.0)).alarms
    assert str(alarm).startswith("the coach gives solver +2.")
    assert "where task is a, against b, by hand [+1." in str(alarm)
    growing = monitor(acknowledged=["solver/task"])
    rng = np.random.default_rng(0)
    reports = [observe(growing, iteration(rng, 2.0 + 0.4 * number), number) for number in range(10)]
    (alarm,) = [alarm for report in reports for alarm in report.alarms]
    assert "an iteration to +" in str(alarm)


def test_the_gap_now_is_on_the_line_of_its_growth():
    rng, watching = np.random.default_rng(0), monitor()
    exact = [
        observe(watching, iteration(rng, excess=5 + (1 + 0.5 * number) * (np.arange(128) // 4 % 2 == 0)), 100 + number)
        for number in range(5)
    ]
    (gap,) = exact[-1].gaps
    assert (gap.points.mean, gap.growth.mean, gap.now) == pytest.approx((2, 0.5, 3))
    assert exact[0].gaps[0].growth is None and exact[0].gaps[0].now is None


def test_the_monitor_goes_on_from_its_state():
    rng = np.random.default_rng(5)
    iterations = [iteration(rng, 0.2 * number, tokens=rng.integers(1, 99, 128).astype(float)) for number in range(12)]
    whole, first, second = monitor(), monitor(), monitor()
    expected = [observe(whole, actions, number) for number, actions in enumerate(iterations)]
    for number in range(6):
        observe(first, iterations[number], number)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found = [observe(second, iterations[number], number) for number in range(6, 12)]
    assert found == expected[6:]
    assert second.state_dict() == whole.state_dict()
    assert second.is_shown(SOLVER) and not second.is_shown(("live", "coder", "task"))


def test_longer_actions_that_get_more_have_a_gap_per_doubling():
    rng = np.random.default_rng(0)
    tokens = 2.0 ** rng.integers(3, 9, 128)
    subject = ("live", "solver", "length")
    report = observe(monitor(), iteration(rng, excess=5 + 0.4 * np.log2(tokens), tokens=tokens), subject=subject)
    (gap,) = report.gaps
    assert (gap.stratum, gap.against, gap.points.mean) == ("twice as long", "half as long", pytest.approx(0.4))
    assert [alarm.kind for alarm in report.alarms] == ["level"]
    (flat,) = observe(monitor(), iteration(rng, tokens=np.full(128, 7.0)), subject=subject).gaps
    assert flat.points is None


def test_the_report_is_json_and_flat_metrics():
    rng = np.random.default_rng(0)
    report = observe(monitor(), iteration(rng, 2.0))
    assert msgspec.json.decode(msgspec.json.encode(report))["alarms"][0]["kind"] == "level"
    metrics = IterationReport(iteration=1, drift=report).metrics()
    assert metrics["drift/alarms"] == 1
    assert metrics["drift/live/solver/task/a/gap"] == report.gaps[0].points.mean


@pytest.mark.parametrize("name", ["solver", "solver/plan", "task/solver"])
def test_what_is_acknowledged_is_an_agent_and_a_stratifier(name):
    with pytest.raises(ConfigError, match="AGENT/STRATIFIER"):
        BiasOptions(alarms=AlarmOptions(acknowledged=[name])).check()
