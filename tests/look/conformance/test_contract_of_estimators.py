"""The contract of estimators catches those that are subtly wrong, and says where."""

import numpy as np
import pytest

from mappa.look.conformance import EstimatorContract
from mappa.look.conformance.standard_processes import COMPLETE, INCOMPLETE
from mappa_core import Advantages

EXACT = "test_the_expected_gradient_is_the_policy_gradient"
THINNED = "test_missing_verdicts_only_thin_the_gradient"
SILENT = "test_an_action_without_reward_changes_nothing"
ORDER = "test_the_order_of_trajectories_does_not_matter"
EMPTY = "test_an_iteration_without_actions_is_one"
STATE = "test_state_is_json"


def broken_by(estimator, unbiased_for="action"):
    """The clauses that an estimator breaks, with what is said: {clause: message}."""

    class Contract(EstimatorContract):
        def estimator(self):
            return estimator

    contract, found = Contract(), {}
    contract.unbiased_for = unbiased_for
    for clause in (EXACT, THINNED, SILENT, ORDER, EMPTY, STATE):
        processes = {EXACT: COMPLETE, THINNED: INCOMPLETE}.get(clause)
        for arguments in [()] if processes is None else [(one,) for one in processes]:
            try:
                getattr(contract, clause)(*arguments)
            except AssertionError as error:
                found[clause] = str(error)
                break
            except pytest.skip.Exception as skipped:
                found.setdefault("skipped", str(skipped))
    return found


def each_token(experience, worth):
    advantages = np.where(experience.weight > 0, worth, 0.0).astype(np.float32)
    return Advantages(advantages=advantages[experience.row_of_token])


def rewards(experience):
    return np.where(experience.weight > 0, experience.reward, 0.0).astype(np.float64)


def group_means(experience, group):
    counts = (experience.weight > 0).astype(np.float64)
    sums, sizes = np.bincount(group, rewards(experience) * counts), np.bincount(group, counts)
    return (sums / np.maximum(sizes, 1.0))[group] if len(group) else np.zeros(0)


def own_mean(experience, state):
    """A group's mean, the action itself in it, and nothing said of it."""
    return each_token(experience, rewards(experience) - group_means(experience, experience.group)), state


def by_place(experience, state):
    """Rows cut into runs of `samples`, as if every trajectory were of one action."""
    worth = rewards(experience)
    whole = len(worth) // 2 * 2
    pairs = worth[:whole].reshape(-1, 2)
    worth[:whole] = (pairs - pairs[:, ::-1]).ravel()
    return each_token(experience, worth), state


def whitened_over_padding(experience, state):
    """Rows filled up with zeros to the longest one, and those counted."""
    width = experience.lengths.max(initial=0)
    filled = np.where(np.arange(width) < experience.lengths[:, None], rewards(experience)[:, None], 0.0)
    if not filled.size:
        return Advantages(advantages=np.zeros(0, np.float32)), state
    return each_token(experience, (rewards(experience) - filled.mean()) / (filled.std() + 1e-6)), state


def last_token_only(experience, state):
    advantages = np.zeros(len(experience.tokens), np.float32)
    advantages[experience.offsets[1:] - 1] = rewards(experience)
    return Advantages(advantages=advantages), state


def a_missing_verdict_is_0(experience, state):
    """A zero where there is no verdict, in the mean of the others."""
    sums, sizes = np.bincount(experience.group, rewards(experience)), np.bincount(experience.group)
    own = rewards(experience)
    if not len(own):
        return each_token(experience, own), state
    others = (sums[experience.group] - own) / np.maximum(sizes[experience.group] - 1, 1)
    return each_token(experience, np.where(sizes[experience.group] > 1, own - others, own)), state


def mean_of_own_trajectory(experience, state):
    """A baseline of what the same trajectory earned."""
    return each_token(experience, rewards(experience) - group_means(experience, experience.trajectory)), state


def mean_of_now(experience, state):
    """A running mean that takes this iteration in before it is used."""
    counts = experience.weight > 0
    if not counts.any():
        return each_token(experience, rewards(experience)), state
    mean = 0.5 * (state["mean"] if state else 0.0) + 0.5 * float(experience.reward[counts].mean())
    return each_token(experience, rewards(experience) - mean), {"mean": mean}


def by_length(experience, state):
    return each_token(experience, rewards(experience) / np.maximum(experience.lengths, 1)), state


def of_all_agents(experience, state):
    """Actions of other agents among the siblings, as if a task's actions were alike."""
    return each_token(experience, rewards(experience) - group_means(experience, experience.task)), state


def sound(experience, state):
    return each_token(experience, rewards(experience)), state


def test_a_sound_estimator_breaks_nothing():
    assert broken_by(sound) == {}


@pytest.mark.parametrize(
    "wrong, clauses",
    [
        (own_mean, {EXACT, THINNED}),
        (by_place, {EXACT, THINNED, SILENT, ORDER}),
        (last_token_only, {EXACT, THINNED}),
        (a_missing_verdict_is_0, {SILENT}),
        (mean_of_own_trajectory, {EXACT, THINNED}),
        (mean_of_now, {EXACT, THINNED}),
        (by_length, {EXACT, THINNED}),
        (of_all_agents, {EXACT, THINNED}),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_contract_catches_subtle_errors(wrong, clauses):
    assert set(broken_by(wrong)) == clauses


def test_padding_is_caught_even_where_nothing_is_claimed():
    found = broken_by(whitened_over_padding, unbiased_for=None)
    assert set(found) == {SILENT, "skipped"}
    assert "or its length does" in found[SILENT]


def test_failure_names_place_size_and_likely_cause():
    told = broken_by(own_mean)[EXACT]
    assert "over all batches of 'one decision, two tasks'" in told
    assert "of verdicts: off by -0.3281 (0.328125 for 0.65625; 0.5 of its length)" in told
    assert "at the logit of solver for token 11 after (1, 1, 10)" in told
    assert "Neither a baseline nor a divisor may depend on the action" in told


def test_without_a_claim_the_bias_is_told():
    told = broken_by(own_mean, unbiased_for=None)["skipped"]
    assert told.startswith("claims nothing; bias of verdicts: off by -0.3281")
    assert "; of returns: off by " in told
    assert "; of outcomes: off by " in told


def test_an_experience_is_not_to_be_written_to():
    def writes(experience, state):
        experience.reward[:] = 0.0
        return sound(experience, state)

    with pytest.raises(ValueError, match="read-only"):
        broken_by(writes)


def test_state_must_survive_a_checkpoint():
    def keeps_an_array(experience, state):
        return sound(experience, state)[0], {"mean": np.float32(0.0)}

    with pytest.raises(TypeError, match="not JSON serializable"):
        broken_by(keeps_an_array)


def test_every_clause_says_what_to_do() -> None:
    assert [name for name, test in vars(EstimatorContract).items() if "test_" in name and not test.__doc__] == []
