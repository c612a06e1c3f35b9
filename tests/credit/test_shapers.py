from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ConfigError, Failure
from mappa_core.credit.shapers import (
    DifferenceOptions,
    DifferenceShaper,
    LengthPenaltyOptions,
    LengthPenaltyShaper,
    OutcomeMixOptions,
    OutcomeMixShaper,
    OutcomeOptions,
    OutcomeShaper,
    ReturnToGoOptions,
    ReturnToGoShaper,
    ScaleOptions,
    ScaleShaper,
)

optional_rewards = st.lists(st.none() | st.integers(-10, 10).map(float), max_size=12)


# scale


def test_points_become_a_share_of_the_best_score(played) -> None:
    assert ScaleShaper(ScaleOptions())(played(), (0.0, None, 10.0)) == (0.0, None, 1.0)
    assert ScaleShaper(ScaleOptions())(played("ab"), (5.0, 2.5)) == (0.5, 0.25)


def test_a_range_maps_onto_another_in_a_straight_line(played) -> None:
    shaper = ScaleShaper(ScaleOptions(source_low=2.0, source_high=6.0, low=1.0, high=-1.0))
    assert shaper(played("abcd"), (2.0, 4.0, 6.0, 8.0)) == (1.0, 0.0, -1.0, -2.0)


def test_a_range_without_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="source_low and source_high are both 3"):
        ScaleShaper(ScaleOptions(source_low=3.0, source_high=3.0))


# outcome


def test_every_action_gets_the_outcome_whatever_its_verdict(played) -> None:
    shaper = OutcomeShaper(OutcomeOptions(metric="won", scale=10.0))
    assert shaper(played(won=0.5), (9.0, None, 1.0)) == (5.0, 5.0, 5.0)


def test_without_an_outcome_no_action_is_rewarded(played) -> None:
    assert OutcomeShaper(OutcomeOptions(metric="won"))(played(correct=1.0), (9.0, None, 1.0)) == (None, None, None)


# outcome_mix


def test_process_and_outcome_add_up_and_a_missing_reward_stays_missing(played) -> None:
    shaper = OutcomeMixShaper(OutcomeMixOptions(process_weight=0.5, outcome_weight=2.0))
    assert shaper(played(correct=1.0), (1.0, None, 0.5)) == (2.5, None, 2.25)


def test_missing_outcome_gives_no_reward_unless_its_weight_is_0(played) -> None:
    assert OutcomeMixShaper(OutcomeMixOptions())(played(), (1.0, 2.0, 3.0)) == (None, None, None)
    shaper = OutcomeMixShaper(OutcomeMixOptions(process_weight=2.0, outcome_weight=0.0))
    assert shaper(played(), (1.0, None, 3.0)) == (2.0, None, 6.0)


# return_to_go


def test_rewards_flow_back_over_all_agents(played) -> None:
    shaper = ReturnToGoShaper(ReturnToGoOptions(gamma=0.5))
    assert shaper(played("abab"), (1.0, 2.0, 4.0, 8.0)) == (4.0, 6.0, 8.0, 8.0)


def test_rewards_flow_back_to_the_same_agent_only(played) -> None:
    shaper = ReturnToGoShaper(ReturnToGoOptions(gamma=0.5, across="own"))
    assert shaper(played("abba"), (1.0, 2.0, 4.0, 8.0)) == (5.0, 4.0, 4.0, 8.0)


def test_a_missing_reward_is_missing_in_every_return_that_needs_it(played) -> None:
    rewards = (1.0, None, 4.0, 8.0)
    assert ReturnToGoShaper(ReturnToGoOptions())(played("abba"), rewards) == (None, None, 12.0, 8.0)
    assert ReturnToGoShaper(ReturnToGoOptions(across="own"))(played("abba"), rewards) == (9.0, None, 4.0, 8.0)
    assert ReturnToGoShaper(ReturnToGoOptions(gamma=0.0))(played("abba"), rewards) == rewards


def test_returns_of_a_trajectory_that_broke_off_are_missing(played) -> None:
    broken = played("ab", error=Failure(kind="ToolError", message="the sandbox is gone"))
    assert ReturnToGoShaper(ReturnToGoOptions())(broken, (1.0, 2.0)) == (None, None)
    assert ReturnToGoShaper(ReturnToGoOptions(gamma=0.0))(broken, (1.0, 2.0)) == (1.0, 2.0)


@given(optional_rewards, st.floats(0, 1), st.sampled_from(["agents", "own"]), st.data())
def test_returns_equal_the_sum_written_out(played, rewards, gamma: float, across: str, data) -> None:
    agents = data.draw(st.lists(st.sampled_from("ab"), min_size=len(rewards), max_size=len(rewards)))
    returns = ReturnToGoShaper(ReturnToGoOptions(gamma=gamma, across=across))(played(agents), tuple(rewards))
    for k, result in enumerate(returns):
        counted = [
            r for agent, r in zip(agents[k:], rewards[k:], strict=True) if across == "agents" or agent == agents[k]
        ]
        if gamma == 0:
            assert result == rewards[k]
        elif None in counted:
            assert result is None
        else:
            assert result == pytest.approx(sum(gamma**n * r for n, r in enumerate(counted)))


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_a_discount_outside_0_and_1_is_refused(gamma: float) -> None:
    with pytest.raises(ConfigError, match=r"gamma is .*; it must lie between 0 and 1"):
        ReturnToGoShaper(ReturnToGoOptions(gamma=gamma))


# length_penalty


def test_an_action_of_unknown_length_or_reward_is_left_as_it_is(make_step, make_trajectory) -> None:
    steps = [make_step("api", tokens=None), make_step("own", position=1, tokens=[1] * 9)]
    shaper = LengthPenaltyShaper(LengthPenaltyOptions(limit=8, buffer=4))
    assert shaper(make_trajectory("t", steps), (3.0, None)) == (3.0, None)
    assert shaper(make_trajectory("t", steps), (3.0, 1.0)) == (3.0, 0.0)


@pytest.mark.parametrize("buffer", [0, -1, 9])
def test_buffer_longer_than_the_limit_is_refused(buffer: int) -> None:
    with pytest.raises(ConfigError, match="it must lie between 1 and 8"):
        LengthPenaltyShaper(LengthPenaltyOptions(limit=8, buffer=buffer))


@given(optional_rewards)
def test_no_shaper_makes_a_number_of_a_missing_verdict_unless_the_outcome_replaces_it(played, rewards) -> None:
    shapers = [
        ScaleShaper(ScaleOptions()),
        OutcomeMixShaper(OutcomeMixOptions(process_weight=0.0)),
        ReturnToGoShaper(ReturnToGoOptions(gamma=0.5)),
        LengthPenaltyShaper(LengthPenaltyOptions(limit=4, buffer=2)),
    ]
    trajectory = played("a" * len(rewards), correct=1.0)
    for shaper in shapers:
        shaped = shaper(trajectory, tuple(rewards))
        assert len(shaped) == len(rewards)
        assert all(after is None for before, after in zip(rewards, shaped, strict=True) if before is None)


# difference


def test_a_reward_is_what_replacing_the_action_takes_away(weighed) -> None:
    trajectory = weighed(1.0, 0.0, None, correct=0.25)
    assert DifferenceShaper(DifferenceOptions(weight=2.0))(trajectory, (None, None, None)) == (-1.5, 0.5, None)
    mixed = DifferenceShaper(DifferenceOptions(process_weight=0.5))
    assert mixed(trajectory, (4.0, None, 4.0)) == (-0.75 + 2.0, None, None)


def test_no_outcome_is_no_credit(weighed) -> None:
    assert DifferenceShaper(DifferenceOptions())(weighed(1.0, 0.0), (1.0, 1.0)) == (None, None)
    other = DifferenceOptions(metric="score")
    assert DifferenceShaper(other)(weighed(1.0, correct=1.0, score=1.0), (1.0,)) == (None,)
