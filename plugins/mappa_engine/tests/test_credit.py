"""MaxRL against the exact gradient of its objective, and the filter of actions that were cut off."""

from dataclasses import replace

import numpy as np
import pytest

from mappa.look.conformance import (
    Action,
    Decision,
    DecisionProcess,
    EstimatorContract,
    expected_gradient,
    policy_gradient,
)
from mappa.testing import ShaperContract
from mappa_core import ConfigError
from mappa_engine.credit.maxrl import MaxRL, MaxRLOptions
from mappa_engine.credit.truncation_filter import TruncationFilterOptions, TruncationFilterShaper


def chances_of_success(chance, siblings):
    """One decision of three actions, of which one is right."""
    actions = (((5,), (chance,), 1.0), ((6, 7), (1.0 - chance, 0.25), 0.0), ((6, 8), (1.0 - chance, 0.75), 0.0))
    root = Decision(
        agent="solver",
        prompt=(1,),
        actions=tuple(Action(tokens=ids, chances=odds, points=worth, then=worth) for ids, odds, worth in actions),
    )
    return DecisionProcess(name="a share", tasks=(root,), policies={"solver": "solver"}, samples=siblings)


@pytest.mark.parametrize("chance", [0.125, 0.5, 0.75])
@pytest.mark.parametrize("siblings", [1, 2, 3, 4])
def test_maxrl_gradient_is_that_of_the_likelihood(chance, siblings):
    """grad p times 1 + (1-p) + … + (1-p)^(n-2): nothing for one sibling, that of p for two, of log p for many."""
    process = chances_of_success(chance, siblings)
    found = expected_gradient(process, MaxRL(MaxRLOptions()))
    factor = sum((1.0 - chance) ** order for order in range(siblings - 1))
    np.testing.assert_allclose(found, factor * policy_gradient(process, "action"), atol=1e-7)


class TestMaxRL(EstimatorContract):
    unbiased_for = None

    def estimator(self):
        return MaxRL(MaxRLOptions())


def test_negative_reward_is_ignored(kit):
    experience = kit.experience(kit.rows(2))
    with pytest.raises(ConfigError, match=r"a reward is -1; .* at least 0"):
        MaxRL(MaxRLOptions())(replace(experience, reward=np.array([1.0, -1.0], np.float32)), {})


def test_by_hand(kit):
    """A group of rewards 1, 0, 0, 3 and one without: mean 1."""
    rows = [*kit.rows(4), *kit.rows(1, seed=3, weight=0.0)]
    experience = replace(kit.experience(rows), reward=np.array([1.0, 0.0, 0.0, 3.0, np.nan], np.float32))
    given, state = MaxRL(MaxRLOptions())(experience, {})
    assert given.advantages[experience.offsets[:-1]].tolist() == [0.0, -1.0, -1.0, 2.0, 0.0]
    assert state == {}
    none = replace(experience, reward=np.array([0.0, 0.0, 0.0, 0.0, np.nan], np.float32))
    assert not MaxRL(MaxRLOptions())(none, {})[0].advantages.any()


class TestTruncationFilter(ShaperContract):
    def shaper(self):
        return TruncationFilterShaper(TruncationFilterOptions())

    def test_truncated_actions_have_no_reward(self):
        (finished, *_) = self.trajectories()
        assert [step.truncated for step in finished.steps] == [False, True, False, False]
        assert self.shaper()(finished, (8.0, 2.0, 5.0, None)) == (8.0, None, 5.0, None)
