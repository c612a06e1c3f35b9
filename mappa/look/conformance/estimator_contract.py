"""A contract for advantage estimators to subclass: their expected gradient over every possible batch is the one that
they claim. Needs pytest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest

from mappa.look.arrays import Float32, Float64
from mappa.look.conformance.batches import METRIC, expected_gradient, possible_batches
from mappa.look.conformance.decision_process import DecisionProcess
from mappa.look.conformance.exact_gradient import Objective, SiblingRule, policy_gradient
from mappa.look.conformance.standard_processes import (
    COMPLETE,
    FIXED_TURNS,
    INCOMPLETE,
    MISSING,
    MISSING_OF_THREE,
    ONE_DECISION,
)
from mappa_core import Estimator, Experience, Rewards, Shaper, Trajectory
from mappa_core.engine import element_indices, select_rows

Claim = Literal["action", "return"]


def returns_to_go(trajectory: Trajectory, rewards: Rewards) -> Rewards:
    """Sum the rewards of an action and all later ones, as the shaper `return_to_go` does; all are known here."""
    known = [reward for reward in rewards if reward is not None]
    return tuple(np.cumsum(known[::-1])[::-1].tolist())


def outcomes(trajectory: Trajectory, rewards: Rewards) -> Rewards:
    """Reward every action with the outcome of its trajectory, as the shaper `outcome` does."""
    return (trajectory.outcome[METRIC],) * len(rewards)


REWARD_KINDS: Mapping[str, tuple[tuple[Shaper, ...], Objective]] = {
    "verdicts": ((), "action"),
    "returns": ((returns_to_go,), "team"),
    "outcomes": ((outcomes,), "outcome"),
}
"""Rewards that a recipe's shapers make of verdicts, and the objective of the resulting gradient."""
MAX_BATCHES_TESTED = 40
"""Approximate number of batches to test where a violation shows in nearly every one."""
ROUNDING_TOLERANCE = 1e-6
"""Relative rounding error of float32 sums in another order."""


class EstimatorContract:
    """Subclass it, implement `estimator`, and set `unbiased_for`, the objective of its gradient.

    class TestMine(EstimatorContract):
        unbiased_for = "action"

        def estimator(self):
            return Mine(MineOptions())

    The gradient is `sum over tokens of A_t * d log pi(a_t)` per trajectory, in expectation over every batch that the
    `standard_processes` can sample. The expectation is exact: a finite sum.
    """

    unbiased_for: Claim | None
    """`action`: an action's own reward, as shaped (its verdict, the return to go, the outcome). `return`: an action's
    verdict plus all later ones of the same agent, for estimators that sum rewards over actions themselves. None: no
    claim; the test is skipped, and the reason reports the bias."""
    tolerance: float = 1e-10
    """Largest difference. Advantages are float32: use 1e-6 if they are not dyadic fractions (a mean of three)."""
    siblings: SiblingRule = "turn"
    """Which of an agent's actions on a task count as siblings for `share`: those of one `turn`, those after one prompt
    (`state`), or all (`episode`)."""
    kl_coef: float = 0.0
    """Coefficient of a KL penalty that is part of the reward; needs a tolerance of 1e-6."""

    def estimator(self) -> Estimator:
        """Create an estimator."""
        raise NotImplementedError

    def state(self) -> Mapping[str, Any]:
        """Return the state from earlier iterations that every batch starts with."""
        return {}

    def share(self, siblings: int) -> float:
        """Return the share of its gradient that an action keeps if so many trajectories, including its own, have a
        sibling with a reward. Here all; `float(siblings > 1)` if an action without others has advantage 0,
        `(siblings - 1) / siblings` if the baseline is a mean that includes the action."""
        return 1.0

    @pytest.mark.parametrize("process", COMPLETE, ids=lambda one: one.name)
    def test_the_expected_gradient_is_the_policy_gradient(self, process: DecisionProcess) -> None:
        """In expectation over every possible batch, the gradient is that of the objective in `unbiased_for`. The
        baseline must not depend on the action or its consequences; otherwise set `unbiased_for = None`, or return the
        known share that is kept from `share`."""
        if self.unbiased_for == "return":  # such estimators sum rewards themselves, so shapers must not
            self._compare(process, {"verdicts": ((), "return")})
        else:
            self._compare(process, REWARD_KINDS)

    @pytest.mark.parametrize("process", INCOMPLETE, ids=lambda one: one.name)
    def test_missing_verdicts_only_thin_the_gradient(self, process: DecisionProcess) -> None:
        """If verdicts are missing at random, the gradient is that of the remaining ones. Count only rows of weight
        above 0 in means and group sizes; never impute a missing verdict."""
        self._compare(process, {"verdicts": ((), self.unbiased_for or "action")})

    def test_an_action_without_reward_changes_nothing(self) -> None:
        """A row of weight 0 has advantage 0 and changes no other row's. Exclude it, and its tokens, from every baseline
        and normaliser."""
        for experience in _experiences(MISSING_OF_THREE, MISSING):
            counts = experience.weight > 0
            with_it = self._advantages(experience)
            without = self._advantages(select_rows(experience, np.flatnonzero(counts)))
            differences = np.repeat(counts, experience.lengths)
            assert not with_it[~differences].any(), (
                "an action without a reward has an advantage: it must be 0 (weight is 0)"
            )
            np.testing.assert_allclose(
                with_it[differences],
                without,
                rtol=ROUNDING_TOLERANCE,
                atol=ROUNDING_TOLERANCE,
                err_msg="an action without a reward changes the advantages of others, or its length does: take rows of "
                "weight above 0 alone, and no padding, into baselines and normalisers",
            )

    def test_the_order_of_trajectories_does_not_matter(self) -> None:
        """Reordered rows have the same advantages. Find siblings by `experience.group`, never by position."""
        for experience in _experiences(FIXED_TURNS, ONE_DECISION):
            rows = np.argsort(-(experience.trajectory % 2), kind="stable")
            np.testing.assert_allclose(
                self._advantages(select_rows(experience, rows)),
                self._advantages(experience)[element_indices(experience.offsets, rows)],
                rtol=ROUNDING_TOLERANCE,
                atol=ROUNDING_TOLERANCE,
                err_msg="advantages depend on the order of rows: compare rows by experience.group, never by position",
            )

    def test_an_iteration_without_actions_is_one(self) -> None:
        """An experience without rows gives no advantages and no error. Check the length before you divide by it."""
        (experience, *_) = _experiences(MISSING)
        assert len(self._advantages(select_rows(experience, np.zeros(0, np.int64)))) == 0

    def test_state_is_json(self) -> None:
        """The state is numbers, strings, lists and objects, and the next iteration accepts it. Convert arrays to lists
        and numpy numbers to Python's: it is saved in checkpoints."""
        (experience, *_) = _experiences(MISSING)
        _, state = self.estimator()(experience, self.state())
        assert json.loads(json.dumps(state)) == state, "state is kept in checkpoints: numbers, texts, lists and objects"
        self.estimator()(experience, state)

    def _advantages(self, experience: Experience) -> Float32:
        given, _ = self.estimator()(experience, self.state())
        assert given.advantages.shape == experience.tokens.shape, "one advantage per sampled token"
        assert given.advantages.dtype == np.float32
        assert np.isfinite(given.advantages).all(), "an advantage is not finite"
        return given.advantages

    def _compare(self, process: DecisionProcess, rewards: Mapping[str, tuple[tuple[Shaper, ...], Objective]]) -> None:
        differences = []
        for name, (shapers, objective) in rewards.items():
            found = expected_gradient(process, self.estimator(), shapers=shapers, state=self.state())
            exact = policy_gradient(process, objective, share=self.share, siblings=self.siblings, kl_coef=self.kl_coef)
            differences.append(f"of {name}: {describe_difference(process, found, exact)}")
            off = np.abs(found - exact).max()
            assert self.unbiased_for is None or off <= self.tolerance, (
                f"over all batches of {process.name!r} this is not the gradient of the objective {objective!r} "
                f"{differences[-1]}. Neither a baseline nor a divisor may depend on the action or its "
                "consequences; every token of an action needs its reward. If a known share of the gradient is lost, "
                "return the share that is kept from `share`"
            )
        if self.unbiased_for is None:
            pytest.skip(f"claims nothing; bias {'; '.join(differences)}")


def describe_difference(process: DecisionProcess, found: Float64, exact: Float64) -> str:
    """Describe the error of an expected gradient: the largest difference, where it is, and the relative norm."""
    place = int(np.abs(found - exact).argmax())
    policy, context, token = process.parameters[place]
    length = float(np.linalg.norm(exact))
    share = f"{np.linalg.norm(found - exact) / length:.4g} of its length" if length > 0.0 else "it is 0"
    return (
        f"off by {found[place] - exact[place]:.4g} ({found[place]:.6g} for {exact[place]:.6g}; {share}) "
        f"at the logit of {policy} for token {token} after {context}"
    )


def _experiences(*processes: DecisionProcess) -> list[Experience]:
    """Select possible experiences, evenly spread, that have rows of weight above 0."""
    found = []
    for process in processes:
        batches = [one.experience for one in possible_batches(process) if (one.experience.weight > 0).any()]
        found += batches[:: max(1, len(batches) // MAX_BATCHES_TESTED)]
    return found
