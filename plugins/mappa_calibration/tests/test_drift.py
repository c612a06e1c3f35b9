"""The monitor: which gaps are watched, when an alarm is raised, and that nothing is forgotten over a restart.

That the alarms keep their promises over many runs is held by tests/evidence/test_drift.py.
"""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from mappa_calibration.contrasts import ActionColumns
from mappa_calibration.drift import FALSE_ALARM_RATES, LATE_SHARE, DriftMonitor
from mappa_calibration.options import AlarmOptions, BiasOptions
from mappa_core.errors import ConfigError
from mappa_core.records import Completion, Task, Trajectory, Usage, Verdict

AGENT = ("live", "solver")


def monitor(strata=("task",), **options):
    return DriftMonitor(AlarmOptions(**options), strata, metric="correct")


def iteration(rng, gap=0.0, tasks=32, strata=("a", "b"), names=None, **columns):
    """The actions of one agent: four on each task, the first stratum favoured by `gap`."""
    task = np.arange(tasks).repeat(4)
    name = np.array(strata, dtype=object)[task % len(strata)] if names is None else names[task]
    points = 5 + gap * (name == strata[0]) + rng.normal(size=len(task))
    fields = {
        "points": points,
        "outcome": np.full(len(task), np.nan),
        "cluster": task,
        "tokens": np.full(len(task), np.nan),
        "strata": {"task": name},
    }
    return ActionColumns(**{**fields, **columns})


def watch(monitor, gaps, *, agent=AGENT, seed=0, **options):
    """Alarms as (iteration, kind) over iterations of these gaps."""
    rng, alarms = np.random.default_rng(seed), []
    for number, gap in enumerate(gaps):
        report = monitor.observe_columns({agent: iteration(rng, gap, **options)}, number)
        alarms += [(number, alarm.kind) for alarm in report.alarms]
    return alarms


def test_a_gap_is_found_at_once_and_reported_once():
    assert watch(monitor(), [2.0] * 12) == [(0, "level")]


def test_no_gap_no_alarm():
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
    columns = {AGENT: iteration(rng, 0.4, tasks=200, points=np.where(np.arange(800) // 4 % 2 == 0, 5.4, 5.0))}
    assert monitor(min_gap=0.5).observe_columns(columns, 0).alarms == ()
    assert len(monitor(min_gap=0.3).observe_columns(columns, 0).alarms) == 1


def test_too_few_tasks_raise_no_alarm_whatever_the_gap():
    assert watch(monitor(), [9.0] * 5, tasks=10) == []


def test_two_strata_have_one_gap_and_three_have_three():
    rng = np.random.default_rng(0)
    (two,) = monitor().observe_columns({AGENT: iteration(rng, 1.0)}, 0).gaps
    assert (two.stratum, two.against, two.actions) == ("a", "b", (64, 64))
    three = monitor().observe_columns({AGENT: iteration(rng, 1.0, strata=("a", "b", "c"), tasks=33)}, 0).gaps
    assert [(gap.stratum, gap.against) for gap in three] == [(one, "the rest") for one in "abc"]


def test_a_stratum_that_turns_up_late_is_watched_from_then_on():
    rng, watching = np.random.default_rng(0), monitor()
    watching.observe_columns({AGENT: iteration(rng)}, 0)
    gaps = watching.observe_columns({AGENT: iteration(rng, strata=("a", "b", "c"))}, 1).gaps
    assert [(gap.stratum, sum(gap.actions)) for gap in gaps] == [("a", 256), ("b", 128), ("c", 128)]


def spent(watching, kind):
    return [watched["tests"][kind]["alpha"] for watched in watching.state_dict()["watched"]]


def test_all_gaps_together_share_the_chance_of_a_false_alarm():
    rng, watching = np.random.default_rng(0), monitor()
    watching.observe_columns({("live", agent): iteration(rng) for agent in ("one", "two", "three")}, 0)
    assert spent(watching, "level") == pytest.approx([FALSE_ALARM_RATES["level"] * (1 - LATE_SHARE) / 3] * 3)
    for number in range(1, 4):
        watching.observe_columns({("live", f"late {number}"): iteration(rng)}, number)
    assert spent(watching, "level")[3:] == pytest.approx(
        [FALSE_ALARM_RATES["level"] * LATE_SHARE / share for share in (2, 6, 12)]
    )
    assert sum(spent(watching, "level")) + sum(spent(watching, "widening")) < 0.05


def test_an_action_without_a_stratum_is_left_out_of_that_stratifier():
    rng = np.random.default_rng(0)
    names = np.array(["a", "b", None, "a"], dtype=object).repeat(8)
    (gap,) = monitor().observe_columns({AGENT: iteration(rng, names=names)}, 0).gaps
    assert gap.actions == (64, 32)


def test_alarms_say_who_what_and_how_much():
    rng = np.random.default_rng(0)
    (alarm,) = monitor().observe_columns({AGENT: iteration(rng, 2.0)}, 0).alarms
    assert str(alarm).startswith("the coach gives solver +2.")
    assert "where task is a, against b, at equal outcome [+1." in str(alarm)
    growing = monitor(acknowledged=["solver/task"])
    rng = np.random.default_rng(0)
    reports = [growing.observe_columns({AGENT: iteration(rng, 2.0 + 0.4 * number)}, number) for number in range(10)]
    (alarm,) = [alarm for report in reports for alarm in report.alarms]
    assert "an iteration to +" in str(alarm)


def test_the_gap_now_is_on_the_line_of_its_growth():
    rng, watching = np.random.default_rng(0), monitor()
    exact = [
        watching.observe_columns(
            {AGENT: iteration(rng, points=5 + (1 + 0.5 * number) * (np.arange(128) // 4 % 2 == 0))}, 100 + number
        )
        for number in range(5)
    ]
    (gap,) = exact[-1].gaps
    assert (gap.points.mean, gap.growth.mean, gap.now) == pytest.approx((2, 0.5, 3))
    assert exact[0].gaps[0].growth is None and exact[0].gaps[0].now is None


def test_a_restart_forgets_nothing():
    rng = np.random.default_rng(5)
    iterations = [iteration(rng, 0.2 * number, tokens=rng.integers(1, 99, 128).astype(float)) for number in range(12)]
    whole, first, second = monitor(), monitor(), monitor()
    expected = [whole.observe_columns({AGENT: one}, number) for number, one in enumerate(iterations)]
    for number in range(6):
        first.observe_columns({AGENT: iterations[number]}, number)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found = [second.observe_columns({AGENT: iterations[number]}, number) for number in range(6, 12)]
    assert found == expected[6:]
    assert second.state_dict() == whole.state_dict()
    assert second.raised_kinds == whole.raised_kinds == {"level", "widening"}


def test_longer_actions_that_get_more_are_shown_and_raise_no_alarm():
    rng = np.random.default_rng(0)
    tokens = rng.permutation(128).astype(float) + 1
    columns = {AGENT: iteration(rng, points=5 + tokens / 32, tokens=tokens)}
    report = monitor().observe_columns(columns, 0)
    assert [gap.stratum for gap in report.lengths] == [str(tenth) for tenth in range(1, 11)]
    assert [gap.points.mean for gap in report.lengths] == sorted(gap.points.mean for gap in report.lengths)
    assert {gap.actions[0] for gap in report.lengths} <= {12, 13}
    assert report.alarms == ()


def test_actions_that_are_all_as_long_have_no_length_gap():
    rng = np.random.default_rng(0)
    report = monitor().observe_columns({AGENT: iteration(rng, tokens=np.full(128, 7.0))}, 0)
    assert all(gap.points is None for gap in report.lengths)


def test_the_correlation_is_that_of_known_outcomes():
    rng = np.random.default_rng(0)
    outcome = np.where(np.arange(128) < 100, rng.integers(0, 2, 128), np.nan)
    one = iteration(rng, outcome=outcome, points=rng.normal(size=128) + np.nan_to_num(outcome))
    (found,) = monitor().observe_columns({AGENT: one}, 0).correlations
    assert found.r == pytest.approx(np.corrcoef(one.points[:100], outcome[:100])[0, 1])
    assert (found.agent, found.actions) == ("solver", 100)
    flat = replace(one, points=np.full(128, 5.0))
    assert monitor().observe_columns({AGENT: flat}, 0).correlations[0].r is None


def test_the_report_is_json_and_flat_metrics():
    rng = np.random.default_rng(0)
    report = monitor().observe_columns({AGENT: iteration(rng, 2.0)}, 0)
    assert msgspec.json.decode(msgspec.json.encode(report))["alarms"][0]["kind"] == "level"
    metrics = report.metrics()
    assert metrics["drift/alarms"] == 1
    assert metrics["drift/live/solver/task/a/gap"] == report.gaps[0].points.mean
    assert metrics["drift/live/solver/correlation"] is None


@pytest.mark.parametrize("name", ["solver", "solver/plan", "task/solver"])
def test_what_is_acknowledged_is_an_agent_and_a_stratifier(name):
    with pytest.raises(ConfigError, match="AGENT/STRATIFIER"):
        BiasOptions(alarms=AlarmOptions(acknowledged=[name])).check()


@pytest.fixture
def trajectory(act):
    def make(number, *verdicts, outcome=1.0, **step):
        made = act("solver", "…", id=f"t{number}/0", strata={"task": "ab"[number % 2]}, **step)
        return Trajectory(
            id=f"t{number}",
            task=Task(id=f"task {number}", prompt="?"),
            sample=0,
            iteration=7,
            steps=(made,),
            verdicts=tuple(replace(verdict, step=made.id) for verdict in verdicts),
            outcome={} if outcome is None else {"correct": outcome},
        )

    return make


def test_raw_scores_are_watched_and_the_last_verdict_of_a_phase_counts(trajectory):
    def verdicts(number):
        raw = 8.0 if number % 2 == 0 else 5.0
        corrected = Verdict(status="scored", score=6.5, raw_score=raw)
        return Verdict.scored(0, "superseded"), corrected, replace(Verdict.scored(5, ""), phase="after")

    report = monitor().observe([trajectory(number, *verdicts(number)) for number in range(40)])
    assert [(gap.phase, gap.points.mean) for gap in report.gaps] == [
        ("live", pytest.approx(3)),
        ("after", pytest.approx(0)),
    ]
    assert [alarm.gap.phase for alarm in report.alarms] == ["live"]


def test_an_action_without_a_score_is_left_out(trajectory):
    found = [Verdict.scored(5, ""), Verdict.abstained("prose"), Verdict.failed("no key")]
    report = monitor().observe([trajectory(number, found[number % 3]) for number in range(30)])
    assert sum(report.gaps[0].actions) == 10


def test_nothing_played_is_nothing_learned():
    watching = monitor()
    assert watching.observe([]).gaps == ()
    assert watching.state_dict()["watched"] == []


def test_lengths_are_of_sampled_tokens_or_what_a_provider_says(trajectory):
    sampled = {"text": "…", "prompt_tokens": None, "logprobs": None, "finish": "stop"}
    local = Completion(tokens=np.zeros(9, np.int32), **sampled)
    said = Completion(tokens=None, usage=Usage(calls=1, completion_tokens=5), **sampled)
    silent = Completion(tokens=None, **sampled)
    each = [local, said, silent]
    report = monitor().observe(
        [trajectory(number, Verdict.scored(5, ""), completion=each[number % 3]) for number in range(30)]
    )
    assert sum(report.lengths[0].actions) == 20
