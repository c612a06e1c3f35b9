"""Early warnings: hand-made series, and what a run does with them."""

import io
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mappa.runs import RunReader
from mappa.training import Run
from mappa.training.health import HEALTH_RULES, HealthMonitor, reward_spread
from mappa_core.engine import TrainSection

DEFAULTS = TrainSection().health
OFF = replace(DEFAULTS, **dict.fromkeys(asdict(DEFAULTS)))


def raised(figure, values, **limits):
    """The iterations, from 1, after which a rule raises a warning."""
    health = HealthMonitor(replace(OFF, **limits))
    found = []
    for number, value in enumerate(values, start=1):
        found += [(number, one.rule) for one in health.observe({"p": {} if value is None else {figure: value}})]
    return found


def test_every_limit_has_its_rule_and_a_sentence_that_says_what_to_do():
    assert {rule.limit for rule in HEALTH_RULES} == set(asdict(DEFAULTS))
    health = HealthMonitor(DEFAULTS)
    found = [health.observe({"solver": {"kl": value}}) for value in (9.0, 0.1, 0.6, 0.7, 0.8)]
    assert found[:4] == [()] * 4
    (warning,) = found[4]
    assert (warning.rule, warning.policy, warning.value, warning.limit) == ("kl", "solver", 0.7, 0.5)
    assert str(warning) == (
        "policy solver: the policy is 0.70 nats a token from its reference (limit 0.5): what the start model knew is "
        "being unlearned. What may help: lower train.learning_rate, or weigh the divergence more (kl_coef of the "
        "estimator or the loss)."
    )


def test_entropy_is_held_against_its_start():
    # Starts at 0.5 on average; 0.1 of it is 0.05.
    start, last = [0.4, 0.5, 0.6], [0.04, 0.06, 0.04, 0.9, 0.04]
    assert raised("entropy", [*start, *last], entropy=0.1) == [(8, "entropy")]
    assert raised("entropy", [*start, 0.06, *last[1:]], entropy=0.1) == []
    assert raised("entropy", [0.01] * 12, entropy=0.1) == []
    assert raised("entropy", [0.0] * 12, entropy=0.1) == []


def test_a_burst_of_the_gradient_is_held_against_the_median_before():
    usual = [1.0, 1.2, 0.8, 1.0, 5.0]
    assert raised("grad_norm", [*usual, 11.0, 12.0], grad_norm=10.0) == [(7, "grad_norm")]
    assert raised("grad_norm", [*usual, 11.0, 1.0, 11.0, 1.0], grad_norm=10.0) == []
    assert raised("grad_norm", [*usual[:4], 100.0, 100.0], grad_norm=10.0) == []
    # The median goes along: a norm that stays is the usual one after a while.
    values = [1.0] * 20 + [11.0] * 30 + [200.0] * 2
    assert raised("grad_norm", values, grad_norm=10.0) == [(22, "grad_norm"), (52, "grad_norm")]


@pytest.mark.parametrize(
    ("figure", "good", "bad"),
    [("clip_share", 0.3, 0.31), ("ess", 0.3, 0.29), ("kl", 0.5, 0.6), ("equal_groups", 0.95, 1.0)],
)
def test_median_of_a_figure_is_compared_with_its_limit(figure, good, bad):
    limits = {figure: getattr(DEFAULTS, figure)}
    assert raised(figure, [good] * 9, **limits) == []
    assert raised(figure, [good, bad, good, bad, good], **limits) == []
    assert raised(figure, [bad, good, bad, good, bad], **limits) == [(5, figure)]
    assert raised(figure, [bad] * 20, **limits) == [(5, figure)]
    assert raised(figure, [bad] * 20, **{figure: None}) == []


def test_a_warning_is_raised_again_once_it_has_cleared():
    # The median is within the limit from the third good iteration to the second bad one; five such clear it.
    bad, good = [2.0] * 5, [0.5]
    assert raised("kl", bad + good * 4 + bad, kl=1.0) == [(5, "kl")]
    assert raised("kl", bad + good * 5 + bad, kl=1.0) == [(5, "kl"), (13, "kl")]


def test_missing_figures_are_skipped_and_nan_exceeds_the_limit():
    assert raised("kl", [2.0, None, 2.0, None, 2.0, 2.0, 2.0], kl=1.0) == [(7, "kl")]
    assert raised("kl", [math.nan, 0.0, math.inf, 0.0, math.nan], kl=1.0) == [(5, "kl")]
    assert raised("ess", [math.nan, 1.0, math.nan, 1.0, math.nan], ess=0.3) == [(5, "ess")]


def test_policies_are_watched_apart():
    health = HealthMonitor(DEFAULTS)
    for _ in range(4):
        health.observe({"a": {"kl": 2.0}, "b": {"kl": 0.1}})
    found = health.observe({"a": {"kl": 2.0}, "b": {"kl": 2.0}})
    assert [(one.rule, one.policy) for one in found] == [("kl", "a")]


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=25), st.data())
def test_monitor_after_a_resume_warns_as_if_never_stopped(values, data):
    stop = data.draw(st.integers(0, len(values)))
    whole, resumed = HealthMonitor(DEFAULTS), HealthMonitor(DEFAULTS)
    figures = [{"kl": value, "entropy": value, "grad_norm": value} for value in values]
    said = [whole.observe({"a/b": figure}) for figure in figures]
    for one in figures[:stop]:
        resumed.observe({"a/b": one})
    assert [resumed.observe({"a/b": figure}) for figure in figures[stop:]] == said[stop:]


def rewarded(rewards, groups):
    """What of an experience tells how far rewards differ; None is a missing verdict."""
    missing = np.array([one is None for one in rewards])
    return SimpleNamespace(
        policies=("p",),
        policy=np.zeros(len(rewards), np.int32),
        group=np.array(groups, np.int32),
        reward=np.array([math.nan if one is None else one for one in rewards], np.float32),
        weight=np.where(missing, 0.0, 1.0),
    )


def test_the_spread_of_rewards_by_hand():
    # Groups (0, 0), (1, 2), a row alone, and one whose sibling has no verdict.
    experience = rewarded([0.0, 0.0, 1.0, 2.0, 5.0, 7.0, None], [0, 0, 1, 1, 2, 3, 3])
    std = np.std([0.0, 0.0, 1.0, 2.0, 5.0, 7.0])
    assert reward_spread(experience) == {"p": {"equal_groups": 0.5, "reward_std": pytest.approx(std)}}
    assert reward_spread(rewarded([1.0, 2.0], [0, 1])) == {"p": {"reward_std": 0.5}}
    assert reward_spread(rewarded([None], [0])) == {}


def test_health_warning_is_printed_once_and_recorded_and_not_repeated_on_resume(
    registry, tmp_path, line_progress, report_of, show_warnings
):
    """The sampler of the doubles always answers alike, so siblings never differ."""
    console = Console(file=io.StringIO(), width=400)
    words = (f"run.root={tmp_path}", "run.name=run", "eval.problems=1", "train.iterations=6")
    trained = Run.from_recipe("doubles/tiny", *words, registry=registry).train(listener=line_progress(console, 6))
    told = "health, equal_groups: policy doubler: in 100% of groups all siblings have the same reward (limit 95%)"
    assert console.file.getvalue().count(told) == 1
    Run.resume(trained.folder, "train.iterations=8", registry=registry).train()
    with RunReader(trained.folder) as reader:
        warnings = reader.warnings
        counts = [len(report.warnings) for report in reader.iterations]
    assert [(warning.iteration, warning.rule, warning.policy) for warning in warnings] == [
        (5, "equal_groups", "checker"), (5, "equal_groups", "doubler")
    ]  # fmt: skip
    assert counts == [0] * 4 + [2] + [0] * 3
    show_warnings(console, warnings)
    assert "health, equal_groups, after iteration 5: policy doubler: in 100%" in console.file.getvalue()
    page = report_of(trained)
    assert "<b>equal_groups</b> after iteration 5: policy doubler: in 100%" in page


def test_disabled_warnings_are_not_raised(registry, tmp_path):
    words = (f"run.root={tmp_path}", "run.name=run", "eval.problems=1", "train.iterations=6")
    trained = Run.from_recipe("doubles/tiny", *words, "train.health.equal_groups=null", registry=registry).train()
    with RunReader(trained.folder) as reader:
        assert reader.warnings == ()
