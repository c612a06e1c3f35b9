from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import Advantages, ConfigError
from mappa_core.credit.by_agent import combine_estimators
from mappa_core.credit.estimators import ReinforcePlusPlus, ReinforcePlusPlusOptions, Rloo, RlooOptions

WHITENING = ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.0))


class Counting:
    """Counts the rows it has seen so far, and gives that number as advantage and as value target."""

    def __call__(self, experience, state):
        seen = len(experience.reward) + (state["seen"] if state else 0)
        numbers = np.full(len(experience.tokens), seen, np.float32)
        return Advantages(advantages=numbers, value_targets=numbers), {"seen": seen}


def test_each_estimator_sees_its_own_agents_rows_alone(make_experience) -> None:
    experience = make_experience([1] * 6, [0.0, 0.0, 2.0, 2.0, 50.0, 90.0], agent=[0, 1, 0, 1, 2, 2])
    result, _ = combine_estimators(WHITENING, {"c": Rloo(RlooOptions())})(experience, {})
    np.testing.assert_allclose(result.advantages, [-1, -1, 1, 1, -40, 40], rtol=1e-6)


def test_states_are_kept_apart_and_survive_json(make_experience) -> None:
    estimator = combine_estimators(Counting(), {"b": Counting()})
    experience = make_experience([1, 2, 1], [1.0, 1.0, 1.0], agent=[0, 1, 2])
    first, state = estimator(experience, {})
    assert state == {"default": {"seen": 2}, "by_agent": {"b": {"seen": 1}}}
    second, state = estimator(experience, json.loads(json.dumps(state)))
    assert first.advantages.tolist() == [2, 1, 1, 2]
    assert second.advantages.tolist() == [4, 2, 2, 4]


def test_value_targets_are_missing_where_an_estimator_has_none(make_experience) -> None:
    experience = make_experience([1, 2], [1.0, 1.0], agent=[0, 1])
    mixed, _ = combine_estimators(WHITENING, {"b": Counting()})(experience, {})
    np.testing.assert_array_equal(mixed.value_targets, np.array([np.nan, 1, 1], np.float32))
    without, _ = combine_estimators(WHITENING, {"b": WHITENING})(experience, {})
    assert without.value_targets is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.floats(0, 1)), max_size=8))
def test_the_same_estimator_for_every_agent_is_that_estimator_by_agent(make_experience, rows) -> None:
    agent, lengths, reward = zip(*rows, strict=True) if rows else ((), (), ())
    experience = make_experience(lengths, reward, agent=agent)
    apart, _ = combine_estimators(WHITENING, {"a": WHITENING, "b": WHITENING})(experience, {})
    options = ReinforcePlusPlusOptions(kl_coef=0.0, normalize="agent")
    together, _ = ReinforcePlusPlus(options)(experience, {})
    assert np.array_equal(apart.advantages, together.advantages)


def test_default_estimator_without_exceptions_is_returned_unchanged() -> None:
    assert combine_estimators(WHITENING, {}) is WHITENING


def test_an_agent_that_is_not_trained_is_refused(make_experience) -> None:
    with pytest.raises(ConfigError, match="'d' is no agent that is trained; those are a, b, c"):
        combine_estimators(WHITENING, {"d": WHITENING})(make_experience([1], [1.0]), {})
