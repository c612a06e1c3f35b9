"""The contract of estimators, to be subclassed: their gradient is the one that they claim, over every batch that can be
sampled. Needs pytest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest

from mappa_core.credit.experience import take
from mappa_core.credit.ragged import places
from mappa_core.credit.shapers import Outcome, OutcomeOptions, ReturnToGo, ReturnToGoOptions
from mappa_core.experience import Experience
from mappa_core.protocols import Estimator, Shaper
from mappa_core.records import Float32, Float64
from mappa_core.testing.conformance.batches import METRIC, expected_gradient, possible_batches
from mappa_core.testing.conformance.exact import Objective, Siblings, policy_gradient
from mappa_core.testing.conformance.process import DecisionProcess
from mappa_core.testing.conformance.standard import (
    COMPLETE,
    FIXED_TURNS,
    INCOMPLETE,
    MISSING,
    MISSING_OF_THREE,
    ONE_DECISION,
)

Claim = Literal["action", "return"]
REWARDS: Mapping[str, tuple[tuple[Shaper, ...], Objective]] = {
    "verdicts": ((), "action"),
    "returns": ((ReturnToGo(ReturnToGoOptions()),), "team"),
    "outcomes": ((Outcome(OutcomeOptions(metric=METRIC)),), "outcome"),
}
"""What a recipe's shapers can make of verdicts, and of what the gradient is then the gradient."""
SOME = 40
"""Batches of a process that are enough where what is looked for shows in nearly every one."""
ROUNDING = 1e-6
"""Relative: sums in another order, in float32."""


class EstimatorContract:
    """Subclass it, write `estimator`, and say what its gradient claims to be the gradient of.

    class TestMine(EstimatorContract):
        unbiased_for = "action"

        def estimator(self):
            return Mine(MineOptions())

    The gradient is `sum over tokens of A_t * d log pi(a_t)` per trajectory, in expectation over every batch that the
    decision processes of `conformance.standard` can sample. None of what is claimed is estimated: it is a finite sum.
    """

    unbiased_for: Claim | None
    """`action`: of an action's own reward, whatever shapers made it (its verdict, the return to go, the outcome).
    `return`: of an action's verdict and all later ones of the same agent, as estimators give that add rewards up over
    actions by themselves. None: nothing; the bias is told as the reason why the test is skipped."""
    tolerance: float = 1e-10
    """Largest difference. Advantages are float32: 1e-6 where they are no dyadic fractions (a mean of three)."""
    siblings: Siblings = "turn"
    """Which of an agent's actions on a task `share` counts: those of one `turn`, those after one prompt (`state`), or
    all (`episode`)."""
    kl_coef: float = 0.0
    """Of a penalty on leaving the reference that is part of the reward; takes a tolerance of 1e-6."""

    def estimator(self) -> Estimator:
        """A fresh estimator."""
        raise NotImplementedError

    def state(self) -> Mapping[str, Any]:
        """What earlier iterations left: every batch starts with it."""
        return {}

    def share(self, siblings: int) -> float:
        """What an action keeps of its gradient where so many trajectories, its own among them, have a sibling with a
        reward. All of it; `float(siblings > 1)` where one alone has advantage 0, `(siblings - 1) / siblings` where the
        baseline is a mean that the action is part of."""
        return 1.0

    @pytest.mark.parametrize("process", COMPLETE, ids=lambda one: one.name)
    def test_the_expected_gradient_is_the_policy_gradient(self, process: DecisionProcess) -> None:
        """In expectation over every batch that can be sampled, the gradient is that of what `unbiased_for` names. Take
        out of the baseline what the action itself, or what came of it, has made; or say None, or the known share that
        is lost."""
        if self.unbiased_for == "return":  # it adds up by itself what shapers would have added up before
            self._compare(process, {"verdicts": ((), "return")})
        else:
            self._compare(process, REWARDS)

    @pytest.mark.parametrize("process", INCOMPLETE, ids=lambda one: one.name)
    def test_missing_verdicts_only_thin_the_gradient(self, process: DecisionProcess) -> None:
        """Where verdicts are missing by chance, what is left has the gradient of those that are there. Count rows of
        weight above 0 alone in means and group sizes; never put a number where a verdict is missing."""
        self._compare(process, {"verdicts": ((), self.unbiased_for or "action")})

    def test_an_action_without_reward_changes_nothing(self) -> None:
        """A row of weight 0 has advantage 0 and changes no other row's. Leave it, and its tokens, out of every baseline
        and normaliser."""
        for experience in _experiences(MISSING_OF_THREE, MISSING):
            counts = experience.weight > 0
            with_it = self._advantages(experience)
            without = self._advantages(take(experience, np.flatnonzero(counts)))
            told = np.repeat(counts, experience.lengths)
            assert not with_it[~told].any(), "an action without a reward has an advantage: it must be 0 (weight is 0)"
            np.testing.assert_allclose(
                with_it[told],
                without,
                rtol=ROUNDING,
                atol=ROUNDING,
                err_msg="an action without a reward changes the advantages of others, or its length does: take rows of "
                "weight above 0 alone, and no padding, into baselines and normalisers",
            )

    def test_the_order_of_trajectories_does_not_matter(self) -> None:
        """Rows in another order have the same advantages. Find siblings by `experience.group`, never by position."""
        for experience in _experiences(FIXED_TURNS, ONE_DECISION):
            rows = np.argsort(-(experience.trajectory % 2), kind="stable")
            np.testing.assert_allclose(
                self._advantages(take(experience, rows)),
                self._advantages(experience)[places(experience.offsets, rows)],
                rtol=ROUNDING,
                atol=ROUNDING,
                err_msg="advantages hang on where rows stand: compare rows by experience.group, never by position",
            )

    def test_an_iteration_without_actions_is_one(self) -> None:
        """No rows at all give no advantages, without an error. Look at the length before you divide by it."""
        (experience, *_) = _experiences(MISSING)
        assert len(self._advantages(take(experience, np.zeros(0, np.int64)))) == 0

    def test_state_is_json(self) -> None:
        """The state is numbers, texts, lists and objects, and the next iteration takes it up. Turn arrays into lists
        and numpy numbers into Python's: it is kept in checkpoints."""
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
        told = []
        for name, (shapers, objective) in rewards.items():
            found = expected_gradient(process, self.estimator(), shapers=shapers, state=self.state())
            exact = policy_gradient(process, objective, share=self.share, siblings=self.siblings, kl_coef=self.kl_coef)
            told.append(f"of {name}: {difference(process, found, exact)}")
            off = np.abs(found - exact).max()
            assert self.unbiased_for is None or off <= self.tolerance, (
                f"over all batches of {process.name!r} this is not the gradient of the objective {objective!r} "
                f"{told[-1]}. A baseline must hold nothing that the action itself, or what came of it, has made; "
                "a divisor neither; every token of an action needs its reward. What is lost in known shares is said by "
                "`share`"
            )
        if self.unbiased_for is None:
            pytest.skip(f"claims nothing; bias {'; '.join(told)}")


def difference(process: DecisionProcess, found: Float64, exact: Float64) -> str:
    """How far an expected gradient is off, in words: the largest difference and where, and as a share of the length."""
    place = int(np.abs(found - exact).argmax())
    policy, context, token = process.parameters[place]
    length = float(np.linalg.norm(exact))
    share = f"{np.linalg.norm(found - exact) / length:.4g} of its length" if length > 0.0 else "it is 0"
    return (
        f"off by {found[place] - exact[place]:.4g} ({found[place]:.6g} for {exact[place]:.6g}; {share}) "
        f"at the logit of {policy} for token {token} after {context}"
    )


def _experiences(*processes: DecisionProcess) -> list[Experience]:
    """Some of what can be sampled, spread over all of it; rows that count are in each."""
    found = []
    for process in processes:
        batches = [one.experience for one in possible_batches(process) if (one.experience.weight > 0).any()]
        found += batches[:: max(1, len(batches) // SOME)]
    return found
