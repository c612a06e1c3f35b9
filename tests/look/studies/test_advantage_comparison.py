"""Comparing advantages: hand-computed correlations, flips and movers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa.look.advantage_comparison import ActionAdvantages, align_actions, compare_advantages, select_movers
from mappa_core import Advantages, Experience


def action(before, after, *, step="t/000", trajectory=None, agent="solver"):
    return ActionAdvantages(
        step=step,
        trajectory=trajectory or step,
        agent=agent,
        iteration=0,
        reward_before=before,
        reward_after=after,
        before=before,
        after=after,
    )


def experience(lengths, reward):
    """Rows of one agent, each a trajectory of its own; NaN is a reward that is missing."""
    rows, tokens = len(lengths), sum(lengths)
    zeros, names = np.zeros(rows, np.int32), tuple(f"t{row}" for row in range(rows))
    rewards = np.array(reward, np.float32)
    return Experience(
        agents=("solver",),
        policies=("solver",),
        trajectories=names,
        tasks=("task",),
        strata=("all",),
        steps=tuple(f"{name}/000" for name in names),
        agent=zeros,
        policy=zeros,
        trajectory=np.arange(rows, dtype=np.int32),
        task=zeros,
        group=zeros,
        stratum=zeros,
        position=zeros,
        turn=zeros,
        truncated=np.zeros(rows, np.bool_),
        temperature=np.ones(rows, np.float32),
        outcome=np.full(rows, np.nan, np.float32),
        reward=rewards,
        weight=np.isfinite(rewards).astype(np.float32),
        tokens=np.zeros(tokens, np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        version=np.zeros(tokens, np.int32),
        logprobs=np.zeros(tokens, np.float32),
        prompt_tokens=np.zeros(rows, np.int32),
        prompt_offsets=np.arange(rows + 1, dtype=np.int64),
    )


def advantages(*values):
    return Advantages(advantages=np.array(values, np.float32))


def test_an_action_has_the_mean_advantage_of_its_tokens_and_none_without_a_reward():
    before = experience([2, 1, 3], [1.0, 0.5, math.nan]), advantages(1, 3, -1, 0, 0, 0)
    after = experience([2, 1, 3], [0.0, math.nan, 0.5]), advantages(-2, -2, 0, 1, 2, 6)
    first, second, third = align_actions(4, before, after)
    assert (first.step, first.trajectory, first.agent, first.iteration) == ("t0/000", "t0", "solver", 4)
    assert (first.before, first.after, first.reward_before, first.reward_after) == (2.0, -2.0, 1.0, 0.0)
    assert (second.before, second.after, second.reward_after) == (-1.0, None, None)
    assert (third.before, third.after, third.reward_before) == (None, 3.0, None)


def test_experiences_of_other_actions_cannot_be_compared():
    one, two = experience([1], [1.0]), experience([1, 1], [1.0, 1.0])
    with pytest.raises(ValueError, match="the same actions in the same order"):
        align_actions(0, (one, advantages(1)), (two, advantages(1, 1)))


def test_change_by_hand():
    # Compared: (1, 2), (2, -1), (-3, -1): means 0 and 0; 2 - 2 + 3 = 3 over sqrt(14 * 6).
    found = compare_advantages(
        [action(1.0, 2.0), action(2.0, -1.0), action(-3.0, -1.0), action(None, 1.0), action(1.0, None)],
    )
    assert (found.actions, found.missing_before, found.missing_after, found.compared) == (5, 1, 1, 3)
    assert found.correlation.value == pytest.approx(3 / math.sqrt(14 * 6))
    assert (found.flips, found.flip_share) == (1, pytest.approx(1 / 3))


def test_nothing_to_compare_has_no_figures():
    for found in (compare_advantages([]), compare_advantages([action(None, 1.0)])):
        assert (found.compared, found.correlation, found.flips, found.flip_share) == (0, None, 0, None)


def test_advantages_within_rounding_have_no_sign():
    assert not action(1e-9, -1.0).flips_sign
    assert not action(1.0, -1e-9).flips_sign
    assert action(1e-3, -1e-3).flips_sign


def test_movers_are_those_that_moved_furthest():
    still, little, far, gone = (
        action(1.0, 1.0, step="a"),
        action(0.0, 0.5, step="b"),
        action(2.0, -1.0, step="c"),
        action(5.0, None, step="d"),
    )
    assert [one.step for one in select_movers([still, little, far, gone], 10)] == ["c", "b"]
    assert [one.step for one in select_movers([still, little, far, gone], 1)] == ["c"]
    ties = [action(0.0, 1.0, step=name) for name in "cab"]
    assert [one.step for one in select_movers(ties, 2)] == ["a", "b"]


pairs = st.lists(st.tuples(st.none() | st.floats(-3, 3), st.none() | st.floats(-3, 3)), max_size=12)


@settings(max_examples=40)
@given(pairs)
def test_flips_and_correlation_are_the_same_the_other_way_round(drawn):
    there = compare_advantages([action(*pair, trajectory=f"t{place}") for place, pair in enumerate(drawn)])
    back = compare_advantages([action(*pair[::-1], trajectory=f"t{place}") for place, pair in enumerate(drawn)])
    assert (there.flips, there.compared) == (back.flips, back.compared)
    assert (there.missing_before, there.missing_after) == (back.missing_after, back.missing_before)
    assert (there.correlation is None) == (back.correlation is None)
    if there.correlation is not None:
        assert there.correlation.value == pytest.approx(back.correlation.value)


@settings(max_examples=40)
@given(pairs)
def test_an_advantage_that_is_scaled_never_flips_and_one_that_is_negated_always_does(drawn):
    known = [before for before, _ in drawn if before is not None and abs(before) >= 1e-3]
    assert compare_advantages([action(one, 3 * one) for one in known]).flips == 0
    assert compare_advantages([action(one, -one) for one in known]).flips == len(known)
