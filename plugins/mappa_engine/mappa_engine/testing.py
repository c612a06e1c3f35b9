"""A contract for losses to subclass (a loss per token, which the engine averages), and experiences as tests write them
down. Needs pytest, the contract torch, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mappa_core.engine import Experience, Loss, LossRows

LENGTHS = (1, 5, 3, 8)
"""Tokens per action."""
SPLIT_AT = 6
"""Tokens of the first two actions: where the batch is split into micro-batches."""
LARGE_SHIFT = 60.0
"""An unrealistically large change of a token's log-probability, in nats: the square of e^60 overflows float32."""


class LossContract:
    """Subclass it and implement `loss`."""

    on_policy: bool = True
    """Whether its gradient, before the policy has changed, is the policy gradient. False if it has another term, such
    as a KL penalty."""
    tolerance: float = 1e-5

    def loss(self) -> Loss:
        """Create a loss."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch", reason='a loss is written in torch: pip install "mappa-engine"')

    def test_every_token_has_one_finite_loss(self) -> None:
        """The loss is a tensor (n,) of finite numbers, with a gradient for the new log-probabilities alone. Return the
        loss of each token; the engine sums and averages over ranks and micro-batches."""
        new, rows, advantages = _batch(moved=0.3)
        losses, _ = self.loss()(new, rows, advantages)
        assert losses.shape == new.shape, f"one loss per token, {tuple(new.shape)}, not {tuple(losses.shape)}"
        losses.sum().backward()
        assert bool(losses.isfinite().all()) and bool(new.grad.isfinite().all())

    def test_before_the_policy_moves_it_is_the_policy_gradient(self) -> None:
        """With equal new and old log-probabilities, the gradient of a token's loss is minus its advantage. Check the
        sign, and that nothing is detached. If the loss has another term, set `on_policy = False`."""
        if not self.on_policy:
            return
        new, rows, advantages = _batch(moved=0.0)
        losses, _ = self.loss()(new, rows, advantages)
        losses.sum().backward()
        off = (new.grad + advantages).abs().max().item()
        assert off <= self.tolerance, f"the gradient is off by {off:.3g} from minus the advantage"

    def test_micro_batches_do_not_matter(self) -> None:
        """Split between two actions, the parts have the same losses as the whole batch, and their metrics add up to its
        metrics. Divide by nothing that depends on the batch, and return metrics as sums over tokens: the engine
        divides."""
        new, rows, advantages = _batch(moved=0.3)
        whole, sums = self.loss()(new, rows, advantages)
        parts = [
            self.loss()(new[at], _part(rows, at), advantages[at]) for at in (slice(0, SPLIT_AT), slice(SPLIT_AT, None))
        ]
        losses = np.concatenate([part.detach().numpy() for part, _ in parts])
        np.testing.assert_allclose(losses, whole.detach().numpy(), rtol=self.tolerance, atol=self.tolerance)
        for name, value in sums.items():
            added = sum(float(metrics[name]) for _, metrics in parts)
            assert added == pytest.approx(float(value), rel=1e-4, abs=1e-4), f"the metric {name} is no sum over tokens"

    def test_the_order_of_actions_does_not_matter(self) -> None:
        """The losses of an action depend on its own tokens alone. Find them by `rows.row`, never by their position in
        the tensor."""
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

    @pytest.mark.parametrize("moved", [-LARGE_SHIFT, LARGE_SHIFT])
    def test_a_policy_that_has_moved_far_has_a_finite_loss(self, moved: float) -> None:
        """However much a token's log-probability has changed, loss and gradient are finite. Bound the ratio, or work
        with its logarithm: one infinite token makes the engine skip the whole optimiser step."""
        new, rows, advantages = _batch(moved=0.0, first=moved)
        losses, _ = self.loss()(new, rows, advantages)
        losses.sum().backward()
        assert bool(losses.isfinite().all()), "the loss of a token is not finite"
        assert bool(new.grad.isfinite().all()), "the gradient of a token is not finite"


def _batch(moved: float, first: float = 0.0) -> tuple[Any, LossRows, Any]:
    """Return (new log-probabilities, rows, advantages) of actions that have one advantage on all their tokens. New
    log-probabilities are the old ones plus `moved` times normal noise, and plus `first` nats for the first token."""
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
    """Select the tokens at `at`, with rows renumbered from 0."""
    kept = rows.row[at]
    return LossRows(
        logprobs=rows.logprobs[at],
        old_logprobs=rows.old_logprobs[at],
        ref_logprobs=None if rows.ref_logprobs is None else rows.ref_logprobs[at],
        weight=rows.weight[at],
        row=kept - kept.min(),
    )


@dataclass(frozen=True)
class ExperienceRow:
    """One action: token ids of its prompt and of its own, and log-probabilities of these as the sampler had them."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float] | float = 0.0
    """One for each token, or the same for all."""
    policy: str = "solver"
    trajectory: int = 0
    temperature: float = 1.0
    weight: float = 1.0
    """0: the reward is missing."""


def build_experience(rows: Sequence[ExperienceRow], policies: Sequence[str] = ("solver",)) -> Experience:
    """Build the unscored experience of rows in the order of their turns, of one task, with an agent for each policy."""
    count, lengths = len(rows), [len(row.tokens) for row in rows]
    policy = np.array([policies.index(row.policy) for row in rows], np.int32)
    trajectory = np.array([row.trajectory for row in rows], np.int32)
    weight = np.array([row.weight for row in rows], np.float32)
    zeros, turns = np.zeros(count, np.int32), np.arange(count, dtype=np.int32)
    return Experience(
        agents=tuple(policies),
        policies=tuple(policies),
        trajectories=tuple(f"t{number}" for number in range(trajectory.max() + 1)),
        tasks=("task",),
        strata=("all",),
        steps=tuple(f"s{number}" for number in range(count)),
        agent=policy,
        policy=policy,
        trajectory=trajectory,
        task=zeros,
        group=zeros,
        stratum=zeros,
        position=turns,
        turn=turns,
        truncated=np.zeros(count, np.bool_),
        temperature=np.array([row.temperature for row in rows], np.float32),
        outcome=np.ones(count, np.float32),
        reward=np.where(weight > 0, np.float32(1.0), np.float32(np.nan)),
        weight=weight,
        tokens=np.concatenate([np.asarray(row.tokens, np.int32) for row in rows]),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        version=np.zeros(sum(lengths), np.int32),
        logprobs=np.concatenate(
            [np.broadcast_to(np.asarray(row.logprobs, np.float32), len(row.tokens)) for row in rows]
        ),
        prompt_tokens=np.concatenate([np.asarray(row.prompt, np.int32) for row in rows]),
        prompt_offsets=np.cumsum([0, *(len(row.prompt) for row in rows)], dtype=np.int64),
    )


def random_rows(
    count: int,
    seed: int = 0,
    *,
    prompt: tuple[int, int] = (3, 40),
    action: tuple[int, int] = (1, 20),
    tokens: tuple[int, int] = (3, 259),
    **fields: Any,
) -> list[ExperienceRow]:
    """Draw rows, each of a trajectory of its own. Lengths of prompts and actions, and token ids, are from the first
    number of their range and below the second; `fields` are others of every row."""
    random = np.random.default_rng(seed)
    return [
        ExperienceRow(
            prompt=random.integers(*tokens, random.integers(*prompt)).tolist(),
            tokens=random.integers(*tokens, random.integers(*action)).tolist(),
            trajectory=number,
            **fields,
        )
        for number in range(count)
    ]
