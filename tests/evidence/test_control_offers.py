"""The controls give out the same rewards, to actions that did not earn them."""

import control_offers
import numpy as np
import pytest

from mappa.testing import load_plugins, play
from mappa_core import Message, Role, Task, Workflow

ROWS = 40


def given(options, played, state):
    """The reward that every row was given in the end, and the state after."""
    advantages, after = control_offers.Permuted(options)(played, state)
    return advantages.advantages[played.offsets[:-1]], after


@pytest.fixture
def plain():
    return control_offers.PermutedOptions(kl_coef=0.0, normalize="none", seed=3)


def test_the_same_rewards_go_to_other_actions_of_whatever_agent(plain, experience):
    played = experience()
    rewards, _ = given(plain, played, {})
    assert sorted(rewards) == list(range(ROWS))
    assert (rewards != played.reward).mean() > 0.8
    assert (rewards % 2 != played.agent).any()


def test_every_iteration_and_every_seed_has_its_own_permutation_and_a_replay_the_same(plain, experience):
    first, after = given(plain, experience(), {})
    second, _ = given(plain, experience(), after)
    other, _ = given(control_offers.PermutedOptions(kl_coef=0.0, normalize="none", seed=4), experience(), {})
    again, _ = given(plain, experience(), {})
    assert after == {"iteration": 1}
    assert list(first) == list(again)
    assert list(first) != list(second) and list(first) != list(other)


def test_an_action_without_a_reward_gets_none_and_gives_none(plain, experience):
    rewards, _ = given(plain, experience(lost=(4, 7)), {})
    assert rewards[4] == rewards[7] == 0
    assert sorted(np.delete(rewards, [4, 7])) == sorted(set(range(ROWS)) - {4, 7})


def test_rewards_are_whitened_and_pay_for_kl_as_in_the_recipe():
    registry = load_plugins(only=("look", "engine", "mathchat", "sandbox"), modules={"controls": control_offers})
    recipe = registry.offer("estimators", "reinforce_plus_plus").options()
    permuted = registry.offer("estimators", "permuted").options()
    assert {name: getattr(permuted, name) for name in vars(recipe)} == vars(recipe)


class Three(Workflow):
    agents = {"solver": Role(brief="solves")}  # noqa: RUF012

    async def run(self, stage):
        for _ in range(3):
            await stage.act("solver", [Message(role="user", content="?")])


async def test_the_constant_coach_finds_all_actions_alike():
    coach = load_plugins(only=(), modules={"controls": control_offers}).build("coaches", "constant")
    trajectory = await play(Three(), Task(id="1", prompt="?"), ["right", "wrong", ""], coach=coach)
    assert [verdict.score for verdict in trajectory.verdicts] == [5.0] * 3
