from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import ConfigError, Estimator, Experience
from mappa_core.credit.build_experience import select_rows
from mappa_core.credit.estimators import (
    DrGrpo,
    DrGrpoOptions,
    Gae,
    GaeOptions,
    Gigpo,
    GigpoOptions,
    Grpo,
    GrpoOptions,
    Reinforce,
    ReinforceOptions,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReinforcePlusPlusBaselineOptions,
    ReinforcePlusPlusOptions,
    Rloo,
    RlooOptions,
)

ALL = [
    *(ReinforcePlusPlus(ReinforcePlusPlusOptions(gamma=0.9, normalize=n)) for n in ("policy", "agent", "all", "none")),
    ReinforcePlusPlus(ReinforcePlusPlusOptions(gamma=0.0, kl_coef=0.0)),
    Reinforce(ReinforceOptions()),
    Reinforce(ReinforceOptions(baseline="mean", kl_coef=0.1)),
    *(Rloo(RlooOptions(kl_coef=0.1, groups=groups)) for groups in ("turn", "state", "episode")),
    *(Grpo(GrpoOptions(kl_coef=0.1, eps=0.01, groups=groups)) for groups in ("turn", "state", "episode")),
    *(DrGrpo(DrGrpoOptions(groups=groups)) for groups in ("turn", "state", "episode")),
    *(
        ReinforcePlusPlusBaseline(ReinforcePlusPlusBaselineOptions(groups=groups))
        for groups in ("turn", "state", "episode")
    ),
    Gae(GaeOptions()),
    Gae(GaeOptions(gamma=0.9, lam=0.5, normalize="none")),
    Gae(GaeOptions(gamma=0.0, normalize="agent")),
    Gigpo(GigpoOptions(kl_coef=0.1, eps=0.01)),
    Gigpo(GigpoOptions(scale="none", groups="turn")),
]
estimators = st.sampled_from(ALL)


def advantages(estimator: Estimator, experience: Experience) -> np.ndarray:
    result, state = estimator(experience, {"kept": 1})
    assert state == {"kept": 1}
    assert (result.value_targets is None) == (not isinstance(estimator, Gae))
    assert result.advantages.dtype == np.float32
    assert result.advantages.shape == experience.tokens.shape
    return result.advantages


@st.composite
def batches(draw: st.DrawFn, max_rows: int = 9) -> dict[str, Any]:
    """Columns of a ragged experience; about a third of the rows have no reward."""
    n = draw(st.integers(0, max_rows))
    lengths = draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))

    def column(values: st.SearchStrategy[Any], size: int = n) -> list[Any]:
        return draw(st.lists(values, min_size=size, max_size=size))

    logprob = st.floats(-4, 0, width=32)
    reward = st.one_of(st.just(float("nan")), st.sampled_from([0.0, 1.0]), st.floats(-10, 10, width=32))
    return {
        "lengths": lengths,
        "reward": column(reward),
        "agent": column(st.integers(0, 2)),
        "policy": column(st.integers(0, 1)),
        "group": column(st.integers(0, 3)),
        "task": column(st.integers(0, 1)),
        "trajectory": column(st.integers(0, 3)),
        "finished": column(st.booleans()),
        "prompts": column(st.sampled_from([[0], [1, 0], [1]])),
        "values": column(st.floats(-2, 2, width=32), sum(lengths)),
        "old_logprobs": column(logprob, sum(lengths)),
        "ref_logprobs": column(logprob, sum(lengths)),
    }


# reinforce_plus_plus


def test_reinforce_plus_plus_by_hand(make_experience) -> None:
    experience = make_experience([3, 1], [1.0, 3.0], old_logprobs=[-1, -1, -1, -1], ref_logprobs=[-2, -1, -3, -1])
    returns = advantages(ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.1, normalize="none")), experience)
    np.testing.assert_allclose(returns, [0.7, 0.8, 0.8, 3.0], rtol=1e-6)
    discounted = ReinforcePlusPlusOptions(kl_coef=0.1, gamma=0.5, normalize="none")
    np.testing.assert_allclose(
        advantages(ReinforcePlusPlus(discounted), experience), [0.1, 0.4, 0.8, 3.0], rtol=1e-6, atol=1e-7
    )
    whitened = advantages(ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.0)), experience)
    np.testing.assert_allclose(whitened, [-1 / 3**0.5] * 3 + [3**0.5], rtol=1e-6)


def test_each_share_is_whitened_by_its_own_tokens(make_experience) -> None:
    columns = {"lengths": [1, 1, 1, 1], "reward": [0.0, 2.0, 10.0, 14.0]}
    shares = {"agent": [0, 1, 0, 1], "policy": [0, 0, 1, 1]}
    experience = make_experience(**columns, **shares)

    def whitened(normalize: str) -> list[float]:
        options = ReinforcePlusPlusOptions(kl_coef=0.0, normalize=normalize)
        return pytest.approx(advantages(ReinforcePlusPlus(options), experience).tolist(), rel=1e-6)

    assert whitened("policy") == [-1, 1, -1, 1]
    assert whitened("agent") == [-1, -1, 1, 1]
    std = np.std([0, 2, 10, 14])
    assert whitened("all") == [-6.5 / std, -4.5 / std, 3.5 / std, 7.5 / std]
    assert whitened("none") == [0, 2, 10, 14]


def slow_reinforce_plus_plus(experience: Experience, options: ReinforcePlusPlusOptions) -> list[float]:
    """The formula, token after token in plain Python."""
    result = [0.0] * len(experience.tokens)
    shares: dict[int, list[int]] = {}
    earned: dict[int, list[float]] = {}
    for row in range(len(experience.reward)):
        if experience.weight[row] == 0:
            continue
        key = {"policy": int(experience.policy[row]), "agent": int(experience.agent[row]), "all": 0, "none": 0}
        earned.setdefault(key[options.normalize], []).append(float(experience.reward[row]))
        running, last = 0.0, experience.offsets[row + 1] - 1
        for t in range(last, experience.offsets[row] - 1, -1):
            kl = float(experience.old_logprobs[t]) - float(experience.ref_logprobs[t])
            reward = float(experience.reward[row]) if t == last else 0.0
            running = reward - options.kl_coef * kl + options.gamma * running
            result[t] = running
            shares.setdefault(key[options.normalize], []).append(t)
    for share, tokens in shares.items() if options.normalize != "none" else ():
        mean = sum(result[t] for t in tokens) / len(tokens)
        variance = sum((result[t] - mean) ** 2 for t in tokens) / len(tokens)
        differ = np.var(earned[share]) > 1e-18
        for t in tokens:
            result[t] = (result[t] - mean) / max(variance, 1e-8) ** 0.5 if differ else 0.0
    return result


@given(
    batches(), st.floats(0, 1), st.sampled_from([0.0, 0.01, 1.0]), st.sampled_from(["policy", "agent", "all", "none"])
)
def test_reinforce_plus_plus_equals_the_formula_token_by_token(
    make_experience, batch, gamma, kl_coef, normalize
) -> None:
    experience = make_experience(**batch)
    options = ReinforcePlusPlusOptions(gamma=gamma, kl_coef=kl_coef, normalize=normalize)
    expected = slow_reinforce_plus_plus(experience, options)
    np.testing.assert_allclose(advantages(ReinforcePlusPlus(options), experience), expected, rtol=1e-4, atol=1e-5)


@given(batches())
def test_whitened_tokens_have_mean_0_and_variance_1_or_0(make_experience, batch) -> None:
    experience = make_experience(**batch)
    result = advantages(ReinforcePlusPlus(ReinforcePlusPlusOptions(normalize="all")), experience)
    counted = result[experience.token_weight > 0].astype(np.float64)
    if len(counted):
        assert abs(counted.mean()) < 1e-3
        assert counted.var() < 1 + 1e-3


def test_one_token_alone_has_advantage_0(make_experience) -> None:
    experience = make_experience([1], [5.0])
    assert advantages(ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.0)), experience).tolist() == [0.0]


def test_equal_returns_have_advantage_0(make_experience) -> None:
    experience = make_experience([2, 3], [0.3, 0.3])
    assert advantages(ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.0)), experience).tolist() == [0.0] * 5


@pytest.mark.parametrize("use", ["plain", "baseline"])
def test_an_agent_with_equal_rewards_is_not_trained_on_its_divergence_alone(make_experience, use) -> None:
    """Agent 0 was judged alike throughout; agent 1 was not."""
    columns = {
        "lengths": [2, 2, 2, 2], "reward": [0.7, 0.7, 0.2, 0.9], "agent": [0, 0, 1, 1], "policy": [0, 0, 1, 1],
        "task": [0, 0, 0, 0], "group": [0, 0, 1, 1], "trajectory": [0, 1, 0, 1],
        "old_logprobs": [-1, -2, -3, -1, -1, -2, -3, -1], "ref_logprobs": [-2, -2, -1, -1, -2, -2, -1, -1],
    }  # fmt: skip
    experience = make_experience(**columns)

    def of(kl_coef: float) -> list[float]:
        if use == "plain":
            estimator = ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=kl_coef))
        else:
            estimator = ReinforcePlusPlusBaseline(ReinforcePlusPlusBaselineOptions(kl_coef=kl_coef))
        return advantages(estimator, experience).tolist()

    assert of(0.01)[:4] == [0.0] * 4
    assert of(0.0)[4:] == pytest.approx([-1, -1, 1, 1], rel=1e-6)
    assert of(0.01)[4:] != of(0.0)[4:]
    assert abs(sum(of(0.01)[4:])) < 1e-5


def test_a_variance_below_the_floor_does_not_blow_up_the_advantages(make_experience) -> None:
    reward = np.array([0.5, 0.5 + 2**-20], np.float32)
    experience = make_experience([1, 1], reward)
    options = ReinforcePlusPlusOptions(kl_coef=0.0)
    expected = np.array([-(2.0**-21), 2.0**-21]) / 1e-4
    np.testing.assert_allclose(advantages(ReinforcePlusPlus(options), experience), expected, rtol=1e-6)


@pytest.mark.parametrize("gamma", [-0.1, 1.5, float("nan")])
def test_a_discount_outside_0_and_1_is_refused(gamma: float) -> None:
    with pytest.raises(ConfigError, match=r"gamma is .*; it must lie between 0 and 1"):
        ReinforcePlusPlus(ReinforcePlusPlusOptions(gamma=gamma))


# reinforce


def test_reinforce_by_hand(make_experience) -> None:
    columns = {"lengths": [2, 1, 1], "reward": [1.0, 3.0, 7.0], "policy": [0, 0, 1]}
    experience = make_experience(**columns, old_logprobs=[-1, -1, -1, -1], ref_logprobs=[-2, -3, -1, -1])
    assert advantages(Reinforce(ReinforceOptions()), experience).tolist() == [1, 1, 3, 7]
    assert advantages(Reinforce(ReinforceOptions(baseline="mean")), experience).tolist() == [-1, -1, 1, 0]
    assert advantages(Reinforce(ReinforceOptions(kl_coef=0.5)), experience).tolist() == [-0.5, -0.5, 3, 7]


# all of them


def strip(experience: Experience) -> Experience:
    return select_rows(experience, np.flatnonzero(experience.weight > 0))


@settings(max_examples=200)
@given(estimator=estimators, batch=batches(), data=st.data())
def test_row_of_weight_0_changes_no_bit_of_other_rows(make_experience, estimator, batch, data) -> None:
    experience = make_experience(**batch)
    out = experience.weight == 0
    bare = advantages(estimator, strip(experience))
    assert np.array_equal(advantages(estimator, experience)[experience.token_weight > 0], bare)
    wild = data.draw(st.sampled_from([np.nan, np.inf, -1e30, 7.0]))
    spoilt = replace(
        experience,
        reward=np.where(out, np.float32(wild), experience.reward),
        old_logprobs=np.where(np.repeat(out, experience.lengths), np.float32(wild), experience.old_logprobs),
        group=np.where(out, 0, experience.group),
        values=np.where(np.repeat(out, experience.lengths), np.float32(wild), experience.values),
        finished=np.where(out, data.draw(st.booleans()), experience.finished),
        truncated=~experience.truncated,
    )
    again = advantages(estimator, spoilt)
    assert np.array_equal(again[experience.token_weight > 0], bare)
    assert not again[experience.token_weight == 0].any()


@settings(max_examples=100)
@given(estimator=estimators, batch=batches(), random=st.randoms())
def test_the_order_of_the_rows_does_not_matter(make_experience, estimator, batch, random) -> None:
    experience = make_experience(**batch)
    order = list(range(len(experience.reward)))
    random.shuffle(order)
    shuffled = select_rows(experience, np.array(order, np.int64))
    by_row = np.split(advantages(estimator, experience), experience.offsets[1:-1]) if order else []
    expected = np.concatenate([np.zeros(0, np.float32), *(by_row[row] for row in order)])
    np.testing.assert_allclose(advantages(estimator, shuffled), expected, rtol=1e-4, atol=1e-5)


@given(estimator=estimators, batch=batches())
def test_estimator_does_not_change_the_experience(make_experience, estimator, batch) -> None:
    experience, before = make_experience(**batch), make_experience(**batch)
    advantages(estimator, experience)
    for field in fields(Experience):
        np.testing.assert_array_equal(getattr(experience, field.name), getattr(before, field.name))


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
def test_empty_or_weightless_experience_is_accepted(estimator, make_experience) -> None:
    columns: dict[str, Any] = {"old_logprobs": [], "ref_logprobs": [], "values": []}
    assert advantages(estimator, make_experience([], [], **columns)).tolist() == []
    scored = {"old_logprobs": [-1.0] * 3, "ref_logprobs": [-1.0] * 3, "values": [0.5] * 3}
    assert advantages(estimator, make_experience([2, 1], [np.nan, np.nan], **scored)).tolist() == [0, 0, 0]


KL = [
    ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.01)),
    ReinforcePlusPlusBaseline(ReinforcePlusPlusBaselineOptions(kl_coef=0.01)),
    Reinforce(ReinforceOptions(kl_coef=0.01)),
    Rloo(RlooOptions(kl_coef=0.01)),
    Grpo(GrpoOptions(kl_coef=0.01)),
    DrGrpo(DrGrpoOptions(kl_coef=0.01)),
    Gae(GaeOptions(kl_coef=0.01)),
    Gigpo(GigpoOptions(kl_coef=0.01)),
]


@pytest.mark.parametrize("estimator", KL, ids=lambda e: type(e).__name__)
def test_a_kl_penalty_needs_a_reference(estimator, make_experience) -> None:
    with pytest.raises(ConfigError, match=r"kl_coef is 0\.01 but the experience has no ref_logprobs"):
        estimator(make_experience([1, 1], [1.0, 2.0], values=[0, 0], old_logprobs=[-1, -1]), {})
    with pytest.raises(ConfigError, match="has no old_logprobs"):
        estimator(make_experience([1, 1], [1.0, 2.0], values=[0, 0], ref_logprobs=[-1, -1]), {})


@pytest.mark.parametrize("estimator", KL, ids=lambda e: type(e).__name__)
def test_an_infinite_logprob_of_a_trained_token_is_refused(estimator, make_experience) -> None:
    columns = {"values": [0, 0], "old_logprobs": [-1, -1], "ref_logprobs": [-1, -np.inf]}
    experience = make_experience([1, 1], [1.0, 2.0], **columns)
    with pytest.raises(ValueError, match=r"step s1: .* is inf at a token that is to be trained"):
        estimator(experience, {})


def test_a_row_that_counts_must_have_a_reward(make_experience) -> None:
    experience = make_experience([1, 1], [1.0, np.nan], weight=[1, 1])
    with pytest.raises(ValueError, match="step s1 has weight above 0 and no finite reward"):
        Rloo(RlooOptions())(experience, {})


def test_a_weight_above_0_counts_once_in_the_statistics(make_experience) -> None:
    whole = make_experience([1, 1], [1.0, 3.0], weight=[1.0, 1.0])
    light = make_experience([1, 1], [1.0, 3.0], weight=[0.25, 1.0])
    for estimator in (Rloo(RlooOptions()), ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=0.0))):
        assert np.array_equal(advantages(estimator, whole), advantages(estimator, light))
