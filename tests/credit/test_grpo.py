"""Estimators that compare an action with others: RLOO, GRPO, Dr. GRPO, REINFORCE++-baseline, and their groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ConfigError, Estimator, Experience
from mappa_core.credit.build_experience import build_experience
from mappa_core.credit.estimators import (
    DrGrpo,
    DrGrpoOptions,
    Grpo,
    GrpoOptions,
    ReinforcePlusPlusBaseline,
    ReinforcePlusPlusBaselineOptions,
    Rloo,
    RlooOptions,
)

GROUPS = ("turn", "state", "episode")


def by_row(estimator: Estimator, experience: Experience) -> list[float]:
    """The advantage of every row, which is the same on all its tokens."""
    found = np.split(estimator(experience, {})[0].advantages, experience.offsets[1:-1])
    assert all((row == row[0]).all() for row in found)
    return [float(row[0]) for row in found]


def baseline(groups: str = "turn", normalize: str = "none", kl_coef: float = 0.0) -> Estimator:
    options = ReinforcePlusPlusBaselineOptions(groups=groups, normalize=normalize, kl_coef=kl_coef)
    return ReinforcePlusPlusBaseline(options)


def test_rloo_by_hand(make_experience) -> None:
    experience = make_experience([1, 2, 1, 1], [1.0, 2.0, 6.0, 9.0], group=[0, 0, 0, 1])
    assert by_row(Rloo(RlooOptions()), experience) == [-3.0, -1.5, 4.5, 0.0]


def test_grpo_and_dr_grpo_by_hand(make_experience) -> None:
    experience = make_experience([1, 2, 1, 1], [1.0, 3.0, 5.0, 9.0], group=[0, 0, 0, 1])
    assert by_row(DrGrpo(DrGrpoOptions()), experience) == [-2, 0, 2, 0]
    assert by_row(Grpo(GrpoOptions(eps=0.5)), experience) == pytest.approx([-2 / 2.5, 0, 2 / 2.5, 0])


def test_reinforce_plus_plus_baseline_by_hand(make_experience) -> None:
    """Rewards less their groups' means are -1, 1, -3, 3; weighted by tokens they have mean 1/3 and variance 44/9. The
    row that is alone has no say in either."""
    experience = make_experience([1, 2, 1, 2, 3], [1.0, 3.0, 4.0, 10.0, 50.0], group=[0, 0, 1, 1, 2])
    assert by_row(baseline(), experience) == [-1, 1, -3, 3, 0]
    mean = (-1 + 2 - 3 + 6) / 6
    std = np.sqrt((1 + 2 + 9 + 18) / 6 - mean**2)
    expected = [*((np.array([-1, 1, -3, 3]) - mean) / std), 0]
    assert by_row(baseline(normalize="policy"), experience) == pytest.approx(expected, rel=1e-6)


def test_the_kl_of_reinforce_plus_plus_baseline_is_not_centred(make_experience) -> None:
    columns = {"old_logprobs": [-1, -1, -1], "ref_logprobs": [-2, -4, -1]}
    experience = make_experience([2, 1], [1.0, 3.0], **columns)
    found = baseline(kl_coef=0.1)(experience, {})[0].advantages
    np.testing.assert_allclose(found, [-1 - 0.1 * (1 + 3), -1 - 0.1 * 3, 1], rtol=1e-6)


def test_a_group_of_equal_rewards_has_advantage_0(make_experience) -> None:
    experience = make_experience([1, 1, 1], [0.5, 0.5, 0.5])
    for estimator in (Rloo(RlooOptions()), Grpo(GrpoOptions()), DrGrpo(DrGrpoOptions()), baseline(normalize="all")):
        assert by_row(estimator, experience) == [0.0, 0.0, 0.0]


def test_a_sibling_without_reward_leaves_its_group(make_experience) -> None:
    experience = make_experience([1, 1, 1, 1], [1.0, 2.0, np.nan, np.nan], group=[0, 0, 0, 1])
    assert by_row(Rloo(RlooOptions()), experience) == [-1, 1, 0, 0]


def test_grpo_needs_an_eps_for_groups_of_equal_rewards() -> None:
    with pytest.raises(ConfigError, match="eps is 0; it must be above 0"):
        Grpo(GrpoOptions(eps=0.0))


def samples(make_step, make_trajectory, **rewards: Sequence[float]) -> Experience:
    """A trajectory of one agent for each name, with an action for each reward; the prompt of a turn is its number, but
    that of turn 2 is turn 0's again."""

    def sample(name: str, rewards: Sequence[float]):
        steps = [make_step(f"{name}{k}", position=k, turn=k, tokens=[1], prompt=[k % 2]) for k in range(len(rewards))]
        return make_trajectory(name, steps), tuple(rewards)

    trajectories, given_ = zip(*(sample(*pair) for pair in rewards.items()), strict=True)
    return build_experience(trajectories, given_, {"solver": "solver"}, ["solver"], "correct")


def test_samples_with_different_numbers_of_actions_are_compared_turn_by_turn(make_step, make_trajectory) -> None:
    experience = samples(make_step, make_trajectory, x=[1.0, 5.0, 9.0], y=[3.0], z=[5.0, 1.0])
    assert experience.steps == ("x0", "x1", "x2", "y0", "z0", "z1")
    assert by_row(Rloo(RlooOptions()), experience) == [-3.0, 4.0, 0.0, 0.0, 3.0, -4.0]


def test_rloo_leaves_the_own_trajectory_out_whatever_the_groups(make_step, make_trajectory) -> None:
    """By state, x0 and x2 answer the prompt of y0 and z0; by episode all do."""
    experience = samples(make_step, make_trajectory, x=[1.0, 5.0, 9.0], y=[3.0], z=[5.0, 1.0])
    by_state = [1 - 4, 5 - 1, 9 - 4, 3 - (1 + 9 + 5) / 3, 5 - (1 + 9 + 3) / 3, 1 - 5]
    assert by_row(Rloo(RlooOptions(groups="state")), experience) == pytest.approx(by_state)
    by_episode = [1 - 3, 5 - 3, 9 - 3, 3 - 21 / 5, 5 - 18 / 4, 1 - 18 / 4]
    assert by_row(Rloo(RlooOptions(groups="episode")), experience) == pytest.approx(by_episode)


def test_the_mean_of_dr_grpo_holds_the_whole_group(make_step, make_trajectory) -> None:
    experience = samples(make_step, make_trajectory, x=[1.0, 5.0, 9.0], y=[3.0], z=[5.0, 1.0])
    by_state = [1 - 4.5, 5 - 3, 9 - 4.5, 3 - 4.5, 5 - 4.5, 1 - 3]
    assert by_row(DrGrpo(DrGrpoOptions(groups="state")), experience) == by_state
    assert by_row(DrGrpo(DrGrpoOptions(groups="episode")), experience) == [-3, 1, 5, -1, 1, -3]


@pytest.mark.parametrize("groups", GROUPS)
def test_a_trajectory_is_not_compared_with_itself(groups, make_step, make_trajectory) -> None:
    experience = samples(make_step, make_trajectory, x=[1.0, 5.0, 9.0])
    options = (Rloo(RlooOptions(groups=groups)), Grpo(GrpoOptions(groups=groups)), baseline(groups))
    assert all(by_row(estimator, experience) == [0, 0, 0] for estimator in options)


@pytest.mark.parametrize("groups", ["state", "episode"])
def test_agents_and_tasks_are_never_compared(groups, make_experience) -> None:
    experience = make_experience([1] * 4, [1, 3, 5, 7], agent=[0, 0, 0, 1], task=[0, 0, 1, 1], group=[0] * 4)
    assert by_row(Rloo(RlooOptions(groups=groups)), experience) == [-2, 2, 0, 0]


def test_prompts_that_begin_alike_are_different_states(make_experience) -> None:
    prompts = [[1, 2], [1], [1, 2], [1, 258], [12]]
    experience = make_experience([1] * 5, [1, 3, 5, 7, 9], prompts=prompts)
    assert by_row(Rloo(RlooOptions(groups="state")), experience) == [-4, 0, 4, 0, 0]


@st.composite
def compared(draw: st.DrawFn) -> dict[str, list[float]]:
    n = draw(st.integers(1, 9))

    def column(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=n, max_size=n))

    reward = st.one_of(st.just(float("nan")), st.sampled_from([0.0, 1.0]), st.floats(-10, 10, width=32))
    return {
        "lengths": column(st.integers(1, 3)),
        "reward": column(reward),
        "group": column(st.integers(0, 2)),
        "task": column(st.integers(0, 1)),
        "agent": column(st.integers(0, 1)),
        "trajectory": column(st.integers(0, 3)),
        "prompts": column(st.sampled_from([[0], [1, 0], [1]])),
    }


@given(compared(), st.sampled_from(GROUPS), st.data())
def test_grpo_and_variants_equal_a_loop_over_the_groups(make_experience, batch, groups, data) -> None:
    n_tokens = sum(batch["lengths"])
    old, ref = data.draw(
        st.tuples(*(st.lists(st.floats(-4, 0, width=32), min_size=n_tokens, max_size=n_tokens) for _ in range(2)))
    )
    experience = make_experience(**batch, old_logprobs=old, ref_logprobs=ref)
    reward, keys = [], []
    for row, (start, end) in enumerate(zip(experience.offsets[:-1], experience.offsets[1:], strict=True)):
        reward.append(batch["reward"][row] - 0.1 * sum(old[t] - ref[t] for t in range(start, end)))
        place = (batch["task"][row], batch["agent"][row])
        key = {"turn": batch["group"][row], "state": (*place, tuple(batch["prompts"][row])), "episode": place}
        keys.append(key[groups])
    counted = [row for row in range(len(reward)) if experience.weight[row] > 0]
    expected = np.zeros((3, len(reward)))
    for row in counted:
        mates = [mate for mate in counted if keys[mate] == keys[row]]
        others = [reward[mate] for mate in mates if batch["trajectory"][mate] != batch["trajectory"][row]]
        if others:
            whole = [reward[mate] for mate in mates]
            centred = reward[row] - np.mean(whole)
            expected[:, row] = reward[row] - np.mean(others), centred, centred / (np.std(whole, ddof=1) + 0.01)
    estimators = (
        Rloo(RlooOptions(kl_coef=0.1, groups=groups)),
        DrGrpo(DrGrpoOptions(kl_coef=0.1, groups=groups)),
        Grpo(GrpoOptions(kl_coef=0.1, groups=groups, eps=0.01)),
    )
    for estimator, rows in zip(estimators, expected, strict=True):
        np.testing.assert_allclose(by_row(estimator, experience), rows, rtol=1e-4, atol=1e-5)
