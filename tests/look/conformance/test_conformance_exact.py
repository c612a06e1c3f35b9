"""The exact gradients that estimators are held to, against derivatives of the objectives by another way."""

import numpy as np
import pytest

from mappa.look.conformance import (
    Action,
    Decision,
    DecisionProcess,
    expected_gradient,
    policy_gradient,
    possible_batches,
)
from mappa.look.conformance.standard_processes import COMPLETE, INCOMPLETE, MISSING, SHARED, VARIABLE_TURNS
from mappa.testing import load_plugins
from mappa_core import Advantages

REGISTRY = load_plugins(only=())
STEP = 1e-30


def chance(process, decision, action, agents, parameter):
    """pi(a|h) where the logit `parameter` of the policy of `agents` has moved by a complex step."""
    policy, where, moved = parameter
    whole = 1.0
    for context, token, old in decision.contexts(action):
        hit = (process.policies[decision.agent], context) == (policy, where) and decision.agent in agents
        if not hit:
            whole = whole * old
            continue
        table = process.tables[policy, context]
        weights = {one: p * np.exp(1j * STEP * (one == moved)) for one, p in table.items()}
        whole = whole * weights[token] / sum(weights.values())
    return whole


def objective(process, node, agents, parameter, of, reach=1.0):
    """The objective below `node`, one of: the verdicts of the agents in `of`; all at fixed reach ("frozen"); the
    outcome."""
    if not isinstance(node, Decision):
        return node if of == "outcome" else 0.0
    total = 0.0
    for action in node.actions:
        p = chance(process, node, action, agents, parameter)
        rest = objective(process, action.then, agents, parameter, of, reach * action.chance)
        if of == "frozen":
            total = total + reach * p * action.points + rest
        else:
            total = total + p * (rest + (action.points if of != "outcome" and node.agent in of else 0.0))
    return total


def derivative(process, kind):
    """By complex steps, which have no rounding to speak of."""

    def of(agents, what, parameter):
        found = [objective(process, root, agents, parameter, what) for root in process.tasks]
        return np.mean(found).imag / STEP

    everyone = set(process.policies)
    gradient = []
    for parameter in process.parameters:
        if kind == "return":
            gradient.append(sum(of({agent}, {agent}, parameter) for agent in everyone))
        else:
            what = {"action": "frozen", "team": everyone, "outcome": "outcome"}[kind]
            gradient.append(of(everyone, what, parameter))
    return np.array(gradient)


@pytest.mark.parametrize("kind", ["action", "return", "team", "outcome"])
@pytest.mark.parametrize("process", COMPLETE, ids=lambda one: one.name)
def test_the_gradient_is_the_derivative_of_its_objective(process, kind):
    np.testing.assert_allclose(policy_gradient(process, kind), derivative(process, kind), atol=1e-14)


def test_objectives_have_different_gradients():
    found = {kind: policy_gradient(VARIABLE_TURNS, kind) for kind in ("action", "return", "team", "outcome")}
    for one in found:
        for other in found:
            assert (one == other) == (np.abs(found[one] - found[other]).max() < 0.05), (one, other)


@pytest.mark.parametrize("process", [*COMPLETE, *INCOMPLETE], ids=lambda one: one.name)
def test_batches_enumerate_all_outcomes_of_a_process(process):
    found = list(possible_batches(process))
    assert sum(batch.chance for batch in found) == pytest.approx(1.0, abs=1e-14)
    seen = {tuple(zip(batch.experience.steps, batch.experience.weight.tolist(), strict=True)) for batch in found}
    assert len(seen) == len(found)
    assert sum(batch.chance * batch.scores.sum(axis=0) for batch in found) == pytest.approx(0.0, abs=1e-14)


def test_values_are_what_is_still_to_come_on_average():
    """Over all batches, of tokens with equal pasts: the mean of the agent's own verdicts from this action on."""
    sums = {}
    for batch in possible_batches(VARIABLE_TURNS):
        e = batch.experience
        for token, row in enumerate(e.row_of_token):
            later = (e.trajectory == e.trajectory[row]) & (e.agent == e.agent[row]) & (e.turn >= e.turn[row])
            prompt = e.prompt_tokens[e.prompt_offsets[row] : e.prompt_offsets[row + 1]]
            past = (*prompt.tolist(), *e.tokens[e.offsets[row] : token].tolist())
            sums.setdefault((past, float(e.values[token])), []).append((batch.chance, e.reward[later].sum()))
    assert len({past for past, _ in sums}) == len(sums) == 6
    for (_, value), found in sums.items():
        chances, returns = zip(*found, strict=True)
        assert np.average(returns, weights=chances) == pytest.approx(value, abs=1e-12)


def test_shares_count_siblings_as_the_batches_have_them():
    """An estimator that gives share(n) * reward, n counted in the batch, has the expectation that `share` says."""

    def share(n):
        return 1.0 / (n + 1)

    def thinned(experience, state):
        counts = experience.weight > 0
        sizes = np.bincount(experience.group, counts, minlength=experience.group.max() + 1)[experience.group]
        worth = np.where(counts, experience.reward, 0.0) / (sizes + 1)
        return Advantages(advantages=worth[experience.row_of_token].astype(np.float32)), state

    for process in (VARIABLE_TURNS, SHARED, MISSING):
        exact = policy_gradient(process, "action", share=share)
        np.testing.assert_allclose(expected_gradient(process, thinned), exact, atol=1e-7)


def test_a_divergence_from_the_reference_is_the_derivative_of_it():
    process = DecisionProcess(
        name="coin",
        tasks=(
            Decision(
                agent="solver",
                prompt=(1,),
                actions=tuple(
                    Action(tokens=(token,), chances=(p,), points=0.0, then=0.0) for token, p in ((5, 0.25), (6, 0.75))
                ),
            ),
        ),
        policies={"solver": "solver"},
    )
    # KL(p || 1/2) = p log 2p + (1-p) log 2(1-p); dKL/dp = log(p/(1-p)); dp/dz = p(1-p), z the logit of token 5.
    slope = np.log(0.25 / 0.75) * 0.25 * 0.75
    np.testing.assert_allclose(policy_gradient(process, "action", kl_coef=2.0), [-2 * slope, 2 * slope], atol=1e-15)


def coin(*chances, points=(0.0, 1.0), samples=2):
    actions = tuple(
        Action(tokens=(5 + place,), chances=(p,), points=worth, then=0.0)
        for place, (p, worth) in enumerate(zip(chances, points, strict=True))
    )
    root = Decision(agent="solver", prompt=(1,), actions=actions)
    return DecisionProcess(name="coin", tasks=(root,), policies={"solver": "solver"}, samples=samples)


def test_chances_must_add_up():
    with pytest.raises(ValueError, match=r"coin: the chances of solver after \(1,\) add up to no 1"):
        coin(0.5, 0.25)


def test_one_policy_has_one_table_for_one_prompt():
    one, other = coin(0.5, 0.5).tasks + coin(0.25, 0.75).tasks
    with pytest.raises(ValueError, match=r"solver has two tables after the tokens \(1,\)"):
        DecisionProcess(name="two", tasks=(one, other), policies={"solver": "solver"})


def test_a_process_that_is_too_large_is_refused():
    with pytest.raises(ValueError, match="262144 batches are too many"):
        list(possible_batches(coin(0.5, 0.5, samples=18)))


def experiences_after(shaper, **options):
    built = REGISTRY.build("shapers", shaper, REGISTRY.offer("shapers", shaper).options(**options))
    return [batch.experience for batch in possible_batches(SHARED, (built,))]


def test_rewards_of_the_outcome_shaper_are_the_outcome():
    for experience in experiences_after("outcome", metric="solved"):
        assert experience.reward.tolist() == experience.outcome.tolist()


def test_rewards_to_go_are_sums_of_the_points_of_the_tables():
    for experience in experiences_after("return_to_go"):
        # What a row adds to the next of its trajectory is its own verdict.
        ends = np.append(experience.trajectory[1:] != experience.trajectory[:-1], True)
        own = experience.reward - np.where(ends, 0.0, np.append(experience.reward[1:], 0.0))
        assert set(own.tolist()) <= {0.0, 1.0, 3.0, 4.0, 8.0, 9.0}
