"""GiGPO: an agent's episodes beside each other, and its steps from one state beside each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ConfigError, Experience
from mappa_core.credit.estimators import Gigpo, GigpoOptions


def by_row(experience: Experience, **options: Any) -> list[float]:
    found = np.split(Gigpo(GigpoOptions(**options))(experience, {})[0].advantages, experience.offsets[1:-1])
    assert all((row == row[0]).all() for row in found)
    return [float(row[0]) for row in found]


TWO = {
    "lengths": [2, 1, 1, 3],
    "reward": [1.0, 3.0, 0.0, 8.0],
    "trajectory": [0, 0, 1, 1],
    "prompts": [[5], [6], [5], [7]],
}
"""Two trajectories of one agent whose first prompts are the same and whose second ones are not."""


def test_by_hand(make_experience) -> None:
    """Episodes of 4 and 8 are 2 below and above their mean; the steps from prompt 5 return 2.5 and 4, 0.75 below and
    above theirs; the others have no counterpart."""
    experience = make_experience(**TWO)
    assert by_row(experience, gamma=0.5, scale="none") == [-2.75, -2, 2.75, 2]
    assert by_row(experience, gamma=0.5, scale="none", step_weight=2.0) == [-3.5, -2, 3.5, 2]
    by_turn = [-2 - 0.75, -2 - 2.5, 2 + 0.75, 2 + 2.5]
    experience = make_experience(**TWO, group=[0, 1, 0, 1])
    assert by_row(experience, gamma=0.5, scale="none", groups="turn") == by_turn


def test_each_part_is_scaled_by_its_own_group(make_experience) -> None:
    episode, step = 2 / (8**0.5 + 0.1), 0.75 / (1.125**0.5 + 0.1)
    expected = [-episode - step, -episode, episode + step, episode]
    assert by_row(make_experience(**TWO), gamma=0.5, eps=0.1) == pytest.approx(expected)


def test_an_episode_counts_once_however_many_actions_it_has(make_experience) -> None:
    experience = make_experience([1] * 4, [2.0, 1.0, 1.0, 1.0], trajectory=[0, 1, 1, 1], prompts=[[1], [2], [3], [4]])
    assert by_row(experience, scale="none") == [-0.5, 0.5, 0.5, 0.5]


def test_a_trajectory_that_broke_off_has_no_whole_return(make_experience) -> None:
    columns = {name: [*TWO[name], *more] for name, more in (("lengths", [1]), ("reward", [90.0]), ("trajectory", [2]))}
    experience = make_experience(**columns, prompts=[*TWO["prompts"], [5]], finished=[True] * 4 + [False])
    assert by_row(experience, gamma=0.5, scale="none") == [-2.75, -2, 2.75, 2, 0]


def test_agents_have_their_own_episodes(make_experience) -> None:
    experience = make_experience(
        [1] * 4, [1.0, 10.0, 3.0, 20.0], trajectory=[0, 0, 1, 1], agent=[0, 1, 0, 1], prompts=[[1], [2], [3], [4]]
    )
    assert by_row(experience, scale="none") == [-1, -5, 1, 5]


def against(values: dict[Any, float], keys: dict[Any, Any], trajectory: dict[Any, int]) -> dict[Any, float]:
    found = {}
    for one, value in values.items():
        mates = [other for other in values if keys[other] == keys[one]]
        if any(trajectory[other] != trajectory[one] for other in mates):
            group = [values[other] for other in mates]
            found[one] = (value - np.mean(group)) / (np.std(group, ddof=1) + 0.01)
        else:
            found[one] = 0.0
    return found


@st.composite
def played(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 10))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=n, max_size=n))

    trajectory = column(st.integers(0, 3))
    task, broken = draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)), draw(st.sets(st.integers(0, 3)))
    reward = st.one_of(st.just(float("nan")), st.sampled_from([0.0, 1.0]), st.floats(-5, 5, width=32))
    return {
        "lengths": column(st.integers(1, 3)),
        "reward": column(reward),
        "agent": column(st.integers(0, 1)),
        "trajectory": trajectory,
        "task": [task[one] for one in trajectory],
        "finished": [one not in broken for one in trajectory],
        "prompts": column(st.sampled_from([[0], [1, 0], [1]])),
    }


@given(played(), st.floats(0, 1))
def test_gigpo_equals_a_loop_over_episodes_and_steps(make_experience, batch, gamma) -> None:
    experience = make_experience(**batch)
    rows = [row for row in range(len(batch["reward"])) if experience.weight[row] > 0 and batch["finished"][row]]
    chain = {row: (batch["trajectory"][row], batch["agent"][row]) for row in rows}
    place = {row: (batch["task"][row], batch["agent"][row]) for row in rows}
    returns: dict[int, float] = {}
    for row in rows:
        later = [other for other in rows if chain[other] == chain[row] and other >= row]
        returns[row] = sum(gamma**k * batch["reward"][other] for k, other in enumerate(later))
    totals = {value: sum(batch["reward"][row] for row in rows if chain[row] == value) for value in set(chain.values())}
    episodes = against(totals, {chain[row]: place[row] for row in rows}, {one: one[0] for one in totals})
    states = {row: (*place[row], tuple(batch["prompts"][row])) for row in rows}
    steps = against(returns, states, {row: chain[row][0] for row in rows})
    expected = [episodes[chain[row]] + steps[row] if row in chain else 0.0 for row in range(len(batch["reward"]))]
    np.testing.assert_allclose(by_row(experience, gamma=gamma, eps=0.01), expected, rtol=1e-4, atol=1e-4)


def test_eps_and_discount_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="gigpo: eps is 0; it must be above 0"):
        Gigpo(GigpoOptions(eps=0.0))
    with pytest.raises(ConfigError, match=r"gigpo: gamma is 1\.1"):
        Gigpo(GigpoOptions(gamma=1.1))
