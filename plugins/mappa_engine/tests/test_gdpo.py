"""Several rewards, normalised apart: by hand, and what is missing. Public code: tests/golden/test_advantages.py."""

from dataclasses import replace

import numpy as np
import pytest

from mappa.look.conformance import EstimatorContract
from mappa.sessions import compose
from mappa.testing import load_plugins
from mappa_core import ConfigError
from mappa_engine.credit.gdpo import GDPO, GDPOOptions

HALF = 0.5**0.5  # what two siblings that differ are normalised to, with the sample standard deviation


def near(values):
    return pytest.approx(values, abs=1e-6)


def advantages(kit, rows, *, group, weights=None, normalize="none", agent=None, reward=None, outcome=None):
    """Advantages of rows, given (live, after) each; NaN is missing."""
    number = len(rows)
    given = replace(
        kit.experience(kit.rows(number)),
        scores=np.array(rows, np.float32),
        group=np.array(group, np.int32),
        agent=np.zeros(number, np.int32) if agent is None else np.array(agent, np.int32),
        reward=np.ones(number, np.float32) if reward is None else np.array(reward, np.float32),
        weight=np.ones(number, np.float32) if reward is None else np.isfinite(reward).astype(np.float32),
        outcome=np.full(number, np.nan, np.float32) if outcome is None else np.array(outcome, np.float32),
    )
    options = GDPOOptions(normalize=normalize, eps=1e-9, **({} if weights is None else {"weights": weights}))
    found, state = GDPO(options)(given, {})
    assert state == {}
    by_row = np.split(found.advantages, given.offsets[1:-1])
    assert all((row == row[0]).all() for row in by_row)
    return [float(row[0]) for row in by_row]


class TestGDPO(EstimatorContract):
    unbiased_for = None

    def estimator(self):
        return GDPO(GDPOOptions(weights={"reward": 1.0}))


def test_by_hand(kit):
    rows = [(0, 5), (10, 5), (4, 10), (6, 0)]
    apart = advantages(kit, rows, group=[0, 0, 1, 1])
    assert apart == near([-HALF, HALF, 0.0, 0.0])
    # Mean 0 and sample variance (1/2 + 1/2) / 3 over the four.
    again = advantages(kit, rows, group=[0, 0, 1, 1], normalize="all")
    assert again == near([-HALF * 3**0.5, HALF * 3**0.5, 0.0, 0.0])


def test_weights_are_of_normalised_rewards(kit):
    found = advantages(kit, [(0, 1), (10, 0)], group=[0, 0], weights={"live": 2.0, "after": -0.5})
    assert found == near([-2.5 * HALF, 2.5 * HALF])


def test_rewards_with_equal_sums_are_told_apart(kit):
    """The paper's example: of two siblings, the better one has one of two rewards, or both."""
    one = advantages(kit, [(0, 0), (1, 0)], group=[0, 0])
    both = advantages(kit, [(0, 0), (1, 1)], group=[0, 0])
    assert one == near([-HALF, HALF]) and both == near([-2 * HALF, 2 * HALF])


def test_rows_without_a_reward_are_in_no_group(kit):
    nan = float("nan")
    with_it = advantages(kit, [(0, 1), (10, 3), (9, nan)], group=[0, 0, 0])
    without = advantages(kit, [(0, 1), (10, 3)], group=[0, 0])
    assert with_it == near([*without, 0.0])
    assert advantages(kit, [(0, 1), (10, nan)], group=[0, 0]) == [0.0, 0.0]
    assert advantages(kit, [(0, 1), (10, 3), (9, 9)], group=[0, 0, 0], reward=[1, 1, nan]) == near([*without, 0])


def test_sums_are_normalised_by_agent(kit):
    rows, group = [(0, 0), (10, 0), (0, 0), (1, 1)], [0, 0, 1, 1]
    found = advantages(kit, rows, group=group, agent=[0, 0, 1, 1], normalize="agent")
    assert found == near([-HALF, HALF, -HALF, HALF])


def test_outcome_and_shaped_reward_count(kit):
    weights = {"outcome": 1.0, "reward": 1.0}
    found = advantages(kit, [(5, 5)] * 2, group=[0, 0], weights=weights, reward=[0, 1], outcome=[1, 0])
    assert found == near([0.0, 0.0])


def test_reward_of_no_action_is_an_error(kit):
    nan = float("nan")
    with pytest.raises(ConfigError, match=r"no action has the reward after: .*options\.weights.*coach\.reward\.after"):
        advantages(kit, [(0, nan), (1, nan)], group=[0, 0])
    assert advantages(kit, [(nan, nan)] * 2, group=[0, 0], reward=[nan, nan]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": {"again": 1.0}}, r"weights: must be of live, after, outcome, reward, not of 'again'"),
        ({"weights": {"live": 0.0}}, "weights: must be finite, one of them other than 0"),
        ({"eps": 0.0}, "eps: must be above 0"),
    ],
)
def test_invalid_options_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        GDPOOptions(**options).check()


def test_reward_without_a_weight_counts_nothing():
    settings = "estimator={use: gdpo, options: {weights: {live: 1, outcome: 0.5}}}"
    composed = compose(load_plugins(only=("engine", "sandbox", "mathchat")), "mathchat", overrides=(settings,))
    assert composed.config.estimator.options.weights == {"live": 1.0, "outcome": 0.5}


def test_gdpo_is_offered():
    assert isinstance(load_plugins(only=("engine", "sandbox")).build("estimators", "gdpo", GDPOOptions()), GDPO)
