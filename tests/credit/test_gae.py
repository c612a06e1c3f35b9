"""GAE over the tokens of an agent's own actions: what it looks on to, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import Advantages, ConfigError, Experience, Failure
from mappa_core.credit.build_experience import build_experience, select_rows
from mappa_core.credit.estimators import Gae, GaeOptions


def gae(experience: Experience, *, gamma: float = 1.0, lam: float = 1.0, kl_coef: float = 0.0) -> Advantages:
    options = GaeOptions(gamma=gamma, lam=lam, kl_coef=kl_coef, normalize="none")
    return Gae(options)(experience, {})[0]


def test_within_an_action_by_hand(make_experience) -> None:
    """delta = (0 + 0.5 * 2 - 1, 3 - 2); A = (0 + 0.5 * 0.5 * 1, 1)."""
    experience = make_experience([2], [3.0], values=[1.0, 2.0])
    found = gae(experience, gamma=0.5, lam=0.5)
    np.testing.assert_allclose(found.advantages, [0.25, 1.0])
    np.testing.assert_allclose(found.value_targets, [1.25, 3.0])


def test_value_after_an_action_is_that_of_the_agents_next_action(make_experience) -> None:
    """Agents a, b, a of one trajectory: the last token of row 0 looks on to the value 4 of row 2, and never to b's."""
    experience = make_experience(
        [2, 1, 1], [1.0, 50.0, 3.0], agent=[0, 1, 0], trajectory=[0, 0, 0], values=[1.0, 2.0, 90.0, 4.0]
    )
    last = 3 - 4
    second = (1 + 0.5 * 4 - 2) + 0.25 * last
    first = (0.5 * 2 - 1) + 0.25 * second
    found = gae(experience, gamma=0.5, lam=0.5)
    np.testing.assert_allclose(found.advantages, [first, second, 50 - 90, last])
    np.testing.assert_allclose(found.value_targets, [first + 1, second + 2, 50, 3])


def test_lambda_1_is_the_return_less_the_value(make_experience) -> None:
    columns = {"trajectory": [0, 0], "old_logprobs": [-1, -1, -1], "ref_logprobs": [-2, -1, -1]}
    experience = make_experience([2, 1], [1.0, 3.0], values=[0.5, 0.25, 7.0], **columns)
    found = gae(experience, kl_coef=0.1)
    np.testing.assert_allclose(found.value_targets, [4 - 0.1, 4, 3], rtol=1e-6)
    np.testing.assert_allclose(found.advantages, [4 - 0.1 - 0.5, 4 - 0.25, 3 - 7], rtol=1e-6)


def test_value_targets_come_before_the_whitening(make_experience) -> None:
    experience = make_experience([1, 1], [1.0, 5.0], values=[0.0, 2.0])
    found, _ = Gae(GaeOptions(kl_coef=0.0))(experience, {})
    np.testing.assert_allclose(found.advantages, [-1, 1])
    np.testing.assert_allclose(found.value_targets, [1, 5])


def test_a_missing_reward_between_two_actions_is_no_time_step(make_experience) -> None:
    columns: dict[str, Any] = {"reward": [1.0, np.nan, 3.0], "trajectory": [0, 0, 0]}
    found = gae(make_experience([2, 2, 1], values=[1, 2, 50, 60, 4], **columns), lam=0.5, gamma=0.5)
    without = gae(make_experience([2, 1], [1.0, 3.0], trajectory=[0, 0], values=[1, 2, 4]), lam=0.5, gamma=0.5)
    assert found.advantages.tolist() == [*without.advantages[:2], 0, 0, without.advantages[2]]
    np.testing.assert_array_equal(found.value_targets, [*without.value_targets[:2], np.nan, np.nan, 3])


def test_a_truncated_action_is_an_action_like_any_other(make_experience) -> None:
    columns = {"lengths": [2, 1], "reward": [1.0, 3.0], "trajectory": [0, 0], "values": [1, 2, 4]}
    whole, cut = (gae(make_experience(**columns, truncated=[one, one])) for one in (False, True))
    assert np.array_equal(whole.advantages, cut.advantages)
    assert np.array_equal(whole.value_targets, cut.value_targets)


def test_last_action_of_an_unfinished_trajectory_has_no_value_target(make_experience) -> None:
    """Its last action says nothing; the one before is worth its reward and what its successor's first value says."""
    columns = {"trajectory": [0, 0, 1], "finished": [False, False, True], "values": [1.0, 2.0, 4.0, 5.0, 1.0]}
    experience = make_experience([2, 2, 1], [1.0, 3.0, 6.0], **columns)
    found = gae(experience)
    np.testing.assert_allclose(found.advantages, [1 + 4 - 1, 1 + 4 - 2, 0, 0, 5])
    np.testing.assert_array_equal(found.value_targets, [5, 5, np.nan, np.nan, 6])
    whitened, _ = Gae(GaeOptions(lam=1.0, kl_coef=0.0))(experience, {})
    known = np.array([4.0, 3.0, 5.0])
    np.testing.assert_allclose(whitened.advantages[[0, 1, 4]], (known - 4) / known.std(), rtol=1e-6)
    assert whitened.advantages[2:4].tolist() == [0, 0]


def test_unfinished_trajectory_has_advantages_at_discount_0(make_experience) -> None:
    columns = {"trajectory": [0, 0], "finished": [False, False], "values": [1.0, 4.0]}
    found = gae(make_experience([1, 1], [2.0, 3.0], **columns), gamma=0.0)
    assert found.advantages.tolist() == [1, -1]
    assert found.value_targets.tolist() == [2, 3]


def test_trajectories_with_an_error_are_known_from_their_records(make_step, make_trajectory) -> None:
    error = Failure(kind="tool", message="the machine went away")
    trajectories = [
        make_trajectory("x", [make_step("x0", tokens=[1])], error=error),
        make_trajectory("y", [make_step("y0", tokens=[1])]),
    ]
    experience = build_experience(trajectories, [(1.0,), (1.0,)], {"solver": "solver"}, ["solver"], "correct")
    assert experience.finished.tolist() == [False, True]
    found = gae(replace(experience, values=np.zeros(2, np.float32)))
    assert found.advantages.tolist() == [0, 1]


def slow(experience: Experience, gamma: float, lam: float, kl_coef: float) -> tuple[list[float], list[float]]:
    """Trajectory by trajectory, agent by agent, token by token from the end."""
    advantages = [0.0] * len(experience.tokens)
    targets = [float("nan")] * len(experience.tokens)
    pairs = sorted(set(zip(experience.trajectory.tolist(), experience.agent.tolist(), strict=True)))
    for trajectory, agent in pairs:
        own = [
            row
            for row in np.argsort(experience.position).tolist()
            if experience.trajectory[row] == trajectory
            and experience.agent[row] == agent
            and experience.weight[row] > 0
        ]
        ahead, running = 0.0, 0.0
        for place, row in reversed(list(enumerate(own))):
            start, end = int(experience.offsets[row]), int(experience.offsets[row + 1])
            if gamma > 0 and place == len(own) - 1 and not experience.finished[row]:
                ahead = float(experience.values[start])
                continue
            for t in range(end - 1, start - 1, -1):
                reward = float(experience.reward[row]) if t == end - 1 else 0.0
                reward -= kl_coef * (float(experience.old_logprobs[t]) - float(experience.ref_logprobs[t]))
                value = float(experience.values[t])
                running = reward + gamma * ahead - value + gamma * lam * running
                ahead = value
                advantages[t], targets[t] = running, running + value
    return advantages, targets


@st.composite
def played(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 10))
    lengths = draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))

    def column(values: st.SearchStrategy[Any], size: int = n) -> list[Any]:
        return draw(st.lists(values, min_size=size, max_size=size))

    trajectory = column(st.integers(0, 2))
    broken = draw(st.sets(st.integers(0, 2)))
    logprob, number = st.floats(-4, 0, width=32), st.floats(-5, 5, width=32)
    return {
        "lengths": lengths,
        "reward": column(st.one_of(st.just(float("nan")), number)),
        "agent": column(st.integers(0, 1)),
        "trajectory": trajectory,
        "finished": [one not in broken for one in trajectory],
        "values": column(number, sum(lengths)),
        "old_logprobs": column(logprob, sum(lengths)),
        "ref_logprobs": column(logprob, sum(lengths)),
    }


@given(played(), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.floats(0, 1), st.randoms())
def test_gae_equals_a_loop_over_tokens_in_any_order_of_the_rows(make_experience, batch, gamma, lam, random) -> None:
    order = list(range(len(batch["lengths"])))
    random.shuffle(order)
    experience = select_rows(make_experience(**batch), np.array(order, np.int64))
    advantages, targets = slow(experience, gamma, lam, 0.1)
    found = gae(experience, gamma=gamma, lam=lam, kl_coef=0.1)
    np.testing.assert_allclose(found.advantages, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.value_targets, targets, rtol=1e-4, atol=1e-5)


def test_values_are_needed(make_experience) -> None:
    with pytest.raises(ConfigError, match="has no values; give the policies that it serves a value head"):
        gae(make_experience([1], [1.0]))
    experience = make_experience([1, 2], [1.0, 1.0], policy=[0, 1], values=[0, 0, np.nan])
    with pytest.raises(ConfigError, match=r"policy 'q' gave no finite value at step s1; set policies\.q\.value_head"):
        gae(experience)


def test_experience_without_the_column_finished_is_refused(make_experience) -> None:
    with pytest.raises(ValueError, match="which trajectories are `finished`"):
        gae(replace(make_experience([1], [1.0], values=[0]), finished=None))


@pytest.mark.parametrize("options", [{"gamma": -0.1}, {"gamma": 1.5}, {"lam": float("nan")}, {"lam": 2.0}])
def test_discounts_outside_0_and_1_are_refused(options) -> None:
    with pytest.raises(ConfigError, match=r"gae: (gamma|lam) is .*; it must lie between 0 and 1"):
        Gae(GaeOptions(**options))
