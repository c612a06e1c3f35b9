"""What estimators that are biased by design are biased by: exactly, over all batches, and as derived by hand.

Every test prints what it found (`pytest -rP`)."""

from math import sqrt

import numpy as np
import pytest

from mappa.look.conformance import Action, Decision, DecisionProcess, expected_gradient, policy_gradient
from mappa.look.conformance.estimator_contract import describe_difference
from mappa.look.conformance.standard_processes import FIXED_TURNS, ONE_DECISION, TRIPLE, VARIABLE_TURNS
from mappa.testing import load_plugins

REGISTRY = load_plugins(only=())
ROUNDING = 1e-6
"""Of advantages in float32."""


def built(name, **options):
    return REGISTRY.build("estimators", name, REGISTRY.offer("estimators", name).options(**options))


def bandit(actions, *, samples=2):
    """One decision; actions are (chance, tokens, points, chance that the verdict is missing)."""
    told = tuple(
        Action(
            tokens=(20 + place, *range(30, 29 + length)),
            chances=(chance, *[1.0] * (length - 1)),
            points=points,
            missing=missing,
            then=points,
        )
        for place, (chance, length, points, missing) in enumerate(actions)
    )
    root = Decision(agent="solver", prompt=(1,), actions=told)
    return DecisionProcess(name="bandit", tasks=(root,), policies={"solver": "solver"}, samples=samples)


def weighted(process, worth):
    """sum_a pi(a) worth(a) d log pi(a), worth by the action's number."""
    (root,) = process.tasks
    return sum(
        action.chance * worth(number, action) * process.scores(root, action).sum(axis=0)
        for number, action in enumerate(root.actions)
    )


def shown(process, found, by_hand, objective="action"):
    print(f"{process.name}: {describe_difference(process, found, policy_gradient(process, objective))}")
    np.testing.assert_allclose(found, by_hand, atol=ROUNDING)
    assert np.abs(found - policy_gradient(process, objective)).max() > 0.01, "there is nothing to be shown"


THREE = bandit([(0.25, 1, 2.0, 0.0), (0.25, 1, 3.0, 0.0), (0.5, 1, 10.0, 0.0)])


def win_rate(process, reward):
    """P(a sibling got less) - P(it got more), by the action's number."""
    (root,) = process.tasks
    return lambda number, action: sum(other.chance * np.sign(reward(action) - reward(other)) for other in root.actions)


@pytest.mark.parametrize("process", [ONE_DECISION, TRIPLE], ids=lambda one: one.name)
@pytest.mark.parametrize("name", ["dr_grpo", "reinforce"])
def test_a_mean_that_holds_the_action_itself_takes_one_nth_of_the_gradient(process, name):
    """E[(R_i - mean) s_i] = E[R_i s_i] - E[R_i s_i] / n, as E[R_j s_i] = 0 for every other row j. n is the group's
    rows, or the policy's."""
    estimator = built(name, baseline="mean") if name == "reinforce" else built(name)
    n = process.samples if name == "dr_grpo" else process.trajectories
    exact = policy_gradient(process, "action")
    shown(process, expected_gradient(process, estimator), (n - 1) / n * exact)


@pytest.mark.parametrize(
    "name, options",
    [
        ("reinforce", {"baseline": "mean"}),
        ("dr_grpo", {"groups": "episode"}),
        ("reinforce_plus_plus_baseline", {"groups": "episode", "kl_coef": 0.0, "normalize": "none"}),
    ],
)
def test_a_mean_over_own_later_actions_takes_their_reward_off(name, options):
    """A mean over the agent's n rows, 2 a trajectory: E[R_j s_k] is not 0 for own later rows j of the same trajectory,
    which the action led to. sum_k sum_j>=k E[R_j s_k] / n is the gradient of the agent's own return, over n."""
    process = FIXED_TURNS
    rows = {"solver": 2 * process.samples, "checker": process.samples}
    n = np.array([rows[policy] for policy, _, _ in process.parameters])
    by_hand = policy_gradient(process, "action") - policy_gradient(process, "return") / n
    shown(process, expected_gradient(process, built(name, **options)), by_hand)


def test_two_siblings_over_their_deviation_are_compared_by_rank_alone():
    """GRPO, n = 2: (R_1 - R_2)/2 / (|R_1 - R_2|/sqrt 2 + eps) = sign(R_1 - R_2)/sqrt 2 up to eps: the gradient of how
    often an action beats its sibling, whatever the rewards are worth."""
    by_hand = weighted(THREE, win_rate(THREE, lambda action: action.points)) / sqrt(2)
    shown(THREE, expected_gradient(THREE, built("grpo", eps=1e-9)), by_hand)


def test_two_whitened_tokens_are_compared_by_rank_alone():
    """REINFORCE++, two tokens in all: the deviation is |R_1 - R_2|/2, so A = sign(R_1 - R_2)."""
    estimator = built("reinforce_plus_plus", kl_coef=0.0)
    by_hand = weighted(THREE, win_rate(THREE, lambda action: action.points))
    shown(THREE, expected_gradient(THREE, estimator), by_hand)


def test_whitening_by_tokens_follows_lengths():
    """Lengths l, rewards R of two rows: mean (l_1 R_1 + l_2 R_2)/L, deviation sqrt(l_1 l_2)/L |R_1 - R_2| with
    L = l_1 + l_2, so A_1 = sign(R_1 - R_2) sqrt(l_2 / l_1): short rows weigh the most."""
    process = bandit([(0.25, 1, 2.0, 0.0), (0.25, 2, 3.0, 0.0), (0.5, 4, 10.0, 0.0)])
    (root,) = process.tasks

    def worth(number, action):
        return sum(
            other.chance * np.sign(action.points - other.points) * sqrt(len(other.tokens) / len(action.tokens))
            for other in root.actions
        )

    found = expected_gradient(process, built("reinforce_plus_plus", kl_coef=0.0))
    shown(process, found, weighted(process, worth))


def test_action_without_a_sibling_has_no_gradient():
    """RLOO, second turns: a share (1-q)^2 of them is alone, q the chance that another sample has one."""
    process = VARIABLE_TURNS
    q = 0.25 * 0.75
    thinned = np.array([1.0 if len(context) < 5 else 1.0 - (1.0 - q) ** 2 for _, context, _ in process.parameters])
    by_hand = thinned * policy_gradient(process, "action")
    shown(process, expected_gradient(process, built("rloo")), by_hand)


def test_verdicts_that_fail_by_what_they_judge_bend_the_gradient():
    """sum_a pi(a) (1 - f(a)) R(a) d log pi(a): an action whose verdict fails more often looks worse. Nothing that reads
    rewards alone can know."""
    process = bandit([(0.25, 1, 2.0, 0.0), (0.25, 1, 3.0, 0.0), (0.5, 1, 10.0, 0.875)])
    by_hand = weighted(process, lambda number, action: (1.0 - action.missing) * action.points)
    found = expected_gradient(process, built("reinforce"))
    (root,) = process.tasks
    kept = sum(action.chance * (1.0 - action.missing) for action in root.actions)
    exact = kept * weighted(process, lambda number, action: action.points)
    print(f"the best action's logit: {found[-1]:.4g}, had they failed at random {exact[-1]:.4g}")
    np.testing.assert_allclose(found, by_hand, atol=1e-10)
    assert exact[-1] > 1.0 > 0.0 > found[-1], "the best action is to become less likely"


def test_verdicts_that_fail_at_random_take_a_known_share():
    failing = bandit([(0.25, 1, 2.0, 0.375), (0.75, 2, 10.0, 0.375)])
    complete = bandit([(0.25, 1, 2.0, 0.0), (0.75, 2, 10.0, 0.0)])
    found = expected_gradient(failing, built("reinforce"))
    np.testing.assert_allclose(found, 0.625 * policy_gradient(complete, "action"), atol=1e-14)


def test_returns_with_missing_verdicts_reward_short_trajectories():
    """A return to go that would need a missing verdict is missing. Half of all verdicts are there; ending is worth 4
    and kept in 1/2, going on is worth 8 and kept in 1/4: 2 against 2, so nothing is left of the gradient."""
    last = Decision(agent="solver", prompt=(1, 6, 2), actions=_coin(then=(0.0, 0.0), missing=0.5))
    process = DecisionProcess(
        name="returns with missing verdicts",
        tasks=(Decision(agent="solver", prompt=(1,), actions=_coin(then=(0.0, last), missing=0.5)),),
        policies={"solver": "solver"},
        samples=1,
    )
    exact = policy_gradient(process, "team")[:2]
    found = expected_gradient(process, built("reinforce"), shapers=(REGISTRY.build("shapers", "return_to_go"),))[:2]
    print(f"the logit of ending: {found[0]:.4g}, by the share of verdicts {exact[0]:.4g}")
    np.testing.assert_allclose(found, 0.0, atol=1e-14)
    assert exact[0] == pytest.approx(0.5 * 0.25 * 0.75 * (4.0 - 8.0))


def test_gigpo_without_deviations_adds_two_returns():
    """F(sum of all own rewards) and F(own return to go): own earlier rewards expect to 0, so both parts are the
    gradient of the agent's own return, each less what its mean holds of itself: 1/n of n episodes, 1/n of n steps."""
    estimator = built("gigpo", scale="none", gamma=1.0, groups="turn", step_weight=0.5)

    def share(n):
        return (n - 1) / n

    for process in (FIXED_TURNS, VARIABLE_TURNS):
        episodes = policy_gradient(process, "return", share=share, siblings="episode")
        steps = policy_gradient(process, "return", share=share, siblings="turn")
        shown(process, expected_gradient(process, estimator), episodes + 0.5 * steps, "return")


@pytest.mark.parametrize("mean", ["tokens", "rows"])
def test_a_mean_over_what_was_sampled_rewards_short_actions(mean):
    """One row a batch, every reward 4: the policy gradient is 0. A mean over the row's own tokens makes it the gradient
    of 4 E[1/length]."""
    process = bandit([(0.25, 1, 4.0, 0.0), (0.75, 4, 4.0, 0.0)], samples=1)
    found = expected_gradient(process, built("reinforce"), mean=mean)
    by_hand = weighted(process, lambda number, action: 4.0 / len(action.tokens))
    shown(process, found, by_hand)
    assert found[0] == pytest.approx(0.25 * 0.75 * 4.0 * (1.0 - 0.25))


def test_a_mean_over_tokens_of_two_rows():
    """E[sum R_i s_i / (l_1 + l_2)] = 2 E[R_1 s_1 / (l_1 + l_2)], lengths independent given the action."""
    process = bandit([(0.25, 1, 2.0, 0.0), (0.75, 4, 10.0, 0.0)])
    (root,) = process.tasks

    def worth(number, action):
        lengths = [len(action.tokens) + len(other.tokens) for other in root.actions]
        return 2.0 * action.points * sum(one.chance / total for one, total in zip(root.actions, lengths, strict=True))

    found = expected_gradient(process, built("reinforce"), mean="tokens")
    scaled = policy_gradient(process, "action") * 2.0 / (2.0 * (0.25 * 1 + 0.75 * 4))
    print(f"E[g/N] {found[0]:.4g}, E[g]/E[N] {scaled[0]:.4g}")
    np.testing.assert_allclose(found, weighted(process, worth), atol=1e-10)
    assert np.abs(found - scaled).max() > 0.01


def test_a_mean_over_rows_rewards_few_turns():
    """The number of turns is the team's own doing, too: where all rewards are equal and no action leads to more reward,
    a mean over rows still pulls towards trajectories of few rows."""
    last = Decision(agent="solver", prompt=(1, 6, 2), actions=_coin(then=(0.0, 0.0)))
    process = DecisionProcess(
        name="turns",
        tasks=(Decision(agent="solver", prompt=(1,), actions=_coin(then=(0.0, last))),),
        policies={"solver": "solver"},
        samples=1,
    )
    assert policy_gradient(process, "action") == pytest.approx(0.0, abs=1e-14)
    found = expected_gradient(process, built("reinforce"), mean="rows")
    # E[4 s / rows] at the first decision: 1/4 * 4/1 * (1 - 1/4) for going no further, less 3/4 * 4/2 * 1/4.
    print(f"the logit of ending: {found[0]:.4g}")
    assert found[0] == pytest.approx(0.25 * 4.0 * 0.75 - 0.75 * 2.0 * 0.25)


def _coin(then, missing=0.0):
    return tuple(
        Action(tokens=(token,), chances=(chance,), points=4.0, then=after, missing=missing)
        for token, chance, after in zip((5, 6), (0.25, 0.75), then, strict=True)
    )


def test_a_discount_per_token_pays_first_tokens_less():
    """gamma^(l-1-t) R at token t. One token is all; of two, the first gets half."""
    estimator = built("reinforce_plus_plus", gamma=0.5, kl_coef=0.0, normalize="none")
    process = TRIPLE
    (root,) = process.tasks
    by_hand = sum(
        action.chance * action.points * (0.5 ** np.arange(len(action.tokens))[::-1] @ process.scores(root, action))
        for action in root.actions
    )
    shown(process, expected_gradient(process, estimator), by_hand)


@pytest.mark.parametrize(
    "name, options",
    [
        ("grpo", {}),
        ("reinforce_plus_plus", {"kl_coef": 0.0}),
        ("reinforce_plus_plus_baseline", {"kl_coef": 0.0}),
        ("gigpo", {}),
        ("gae", {"kl_coef": 0.0}),
    ],
    ids=str,
)
def test_estimators_without_a_closed_form_point_uphill(name, options):
    """What can be said of them: along the exact gradient the objective rises."""
    for process in (ONE_DECISION, VARIABLE_TURNS):
        found = expected_gradient(process, built(name, **options))
        exact = policy_gradient(process, "return" if name in ("gigpo", "gae") else "action")
        cosine = found @ exact / np.linalg.norm(found) / np.linalg.norm(exact)
        print(f"{process.name}: {name} {options}: cosine {cosine:.4f}, length {np.linalg.norm(found):.4g}")
        assert cosine > 0.5
