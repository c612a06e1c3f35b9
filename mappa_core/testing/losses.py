"""A contract for losses to subclass: a loss per token, of which the engine takes the mean. Needs pytest and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mappa_core.protocols import Loss, LossRows

LENGTHS = (1, 5, 3, 8)
"""Tokens per action."""
SPLIT = 6
"""Tokens of the first two actions: where a micro-batch may end."""
FAR = 60.0
"""Nats by which a policy has moved at one token, further than any does: e^60 is beyond what float32 squares."""


class LossContract:
    """Subclass it and write `loss`."""

    on_policy: bool = True
    """Whether its gradient, before the policy has moved, is that of the policy gradient. Not so where a term is added,
    as a divergence from the reference is."""
    tolerance: float = 1e-5

    def loss(self) -> Loss:
        """A fresh loss."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch", reason='a loss is written in torch: pip install "mappa-core[train]"')

    def test_every_token_has_one_finite_loss(self) -> None:
        """A tensor (n,) of finite numbers comes back, with a gradient for the new log-probabilities alone. Return the
        loss of each token; sum and mean are the engine's, which knows ranks and micro-batches."""
        new, rows, advantages = _batch(moved=0.3)
        losses, _ = self.loss()(new, rows, advantages)
        assert losses.shape == new.shape, f"one loss per token, {tuple(new.shape)}, not {tuple(losses.shape)}"
        losses.sum().backward()
        assert bool(losses.isfinite().all()) and bool(new.grad.isfinite().all())

    def test_before_the_policy_moves_it_is_the_policy_gradient(self) -> None:
        """Where new and old log-probabilities are equal, the gradient of a token's loss is minus its advantage. Check
        the sign, and that nothing is detached. Where a term of your own is added, say `on_policy = False`."""
        if not self.on_policy:
            return
        new, rows, advantages = _batch(moved=0.0)
        losses, _ = self.loss()(new, rows, advantages)
        losses.sum().backward()
        off = (new.grad + advantages).abs().max().item()
        assert off <= self.tolerance, f"the gradient is off by {off:.3g} from minus the advantage"

    def test_micro_batches_do_not_matter(self) -> None:
        """Cut between two actions, the parts have the losses of the whole, and their metrics add up to its metrics.
        Divide by nothing that is counted over the batch, and give metrics as sums over tokens: the engine divides."""
        new, rows, advantages = _batch(moved=0.3)
        whole, sums = self.loss()(new, rows, advantages)
        parts = [self.loss()(new[at], _part(rows, at), advantages[at]) for at in (slice(0, SPLIT), slice(SPLIT, None))]
        losses = np.concatenate([part.detach().numpy() for part, _ in parts])
        np.testing.assert_allclose(losses, whole.detach().numpy(), rtol=self.tolerance, atol=self.tolerance)
        for name, value in sums.items():
            added = sum(float(metrics[name]) for _, metrics in parts)
            assert added == pytest.approx(float(value), rel=1e-4, abs=1e-4), f"the metric {name} is no sum over tokens"

    def test_what_lies_beside_an_action_does_not_matter(self) -> None:
        """The losses of an action hang on its own tokens. Use `rows.row` to find them, never their place in the
        tensor."""
        new, rows, advantages = _batch(moved=0.3)
        whole, _ = self.loss()(new, rows, advantages)
        order = np.concatenate([np.flatnonzero(rows.row.numpy() == row) for row in reversed(range(len(LENGTHS)))])
        turned = _part(rows, order)
        renamed = LossRows(
            logprobs=turned.logprobs,
            old_logprobs=turned.old_logprobs,
            ref_logprobs=turned.ref_logprobs,
            weight=turned.weight,
            row=len(LENGTHS) - 1 - turned.row,
        )
        mixed, _ = self.loss()(new[order], renamed, advantages[order])
        expected = whole.detach().numpy()[order]
        np.testing.assert_allclose(mixed.detach().numpy(), expected, rtol=self.tolerance, atol=self.tolerance)

    @pytest.mark.parametrize("moved", [-FAR, FAR])
    def test_a_policy_that_has_moved_far_has_a_finite_loss(self, moved: float) -> None:
        """However far one token's log-probability has moved, loss and gradient are numbers. Bound the ratio, or work
        with its logarithm: one infinite token costs the whole optimiser step."""
        new, rows, advantages = _batch(moved=0.0, first=moved)
        losses, _ = self.loss()(new, rows, advantages)
        losses.sum().backward()
        assert bool(losses.isfinite().all()), "the loss of a token is not finite"
        assert bool(new.grad.isfinite().all()), "the gradient of a token is not finite"


def _batch(moved: float, first: float = 0.0) -> tuple[Any, LossRows, Any]:
    """(new log-probabilities, rows, advantages): actions of which each has one advantage on all its tokens. The new
    ones are `moved` times a normal draw away from the old ones, and that of the first token `first` nats more."""
    torch: Any = pytest.importorskip("torch")
    drawn = np.random.default_rng(0)
    tokens = sum(LENGTHS)
    row = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    old = -drawn.exponential(2.0, tokens).astype(np.float32)
    shift = moved * drawn.normal(size=tokens).astype(np.float32)
    shift[0] += first
    new = torch.tensor(old + shift, dtype=torch.float32, requires_grad=True)
    rows = LossRows(
        logprobs=torch.tensor(old),
        old_logprobs=torch.tensor(old),
        ref_logprobs=torch.tensor(old),
        weight=torch.ones(tokens),
        row=torch.tensor(row),
    )
    advantages = drawn.normal(size=len(LENGTHS)).astype(np.float32)[row]
    return new, rows, torch.tensor(advantages)


def _part(rows: LossRows, at: Any) -> LossRows:
    """The tokens at `at`, whose rows are numbered from 0 where they are cut off in front."""
    kept = rows.row[at]
    return LossRows(
        logprobs=rows.logprobs[at],
        old_logprobs=rows.old_logprobs[at],
        ref_logprobs=None if rows.ref_logprobs is None else rows.ref_logprobs[at],
        weight=rows.weight[at],
        row=kept - kept.min(),
    )
