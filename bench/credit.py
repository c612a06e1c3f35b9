"""Rewards to advantages for 1,000,000 tokens in 16,000 rows, against the loop over token positions that trainers use.

Both compute REINFORCE++ with a KL penalty of 0.01 per nat, gamma 1, and one whitening over all tokens, and are checked
to agree. Ours computes in float64 on ragged rows, the rivals as trainers do: float32 tensors of torch, rows padded on
the right, all rows of a tensor at once, one Python step per token position from the end, whitened with a mask. They are

- `batch`: one tensor of all rows, as wide as the longest, as trainers with one driver have it;
- `micro`: tensors of 8 rows, each as wide as its own longest, as trainers with a buffer of experiences have it.

What comes before (padding the rows) is given to the rivals for nothing; all three begin with rewards and
log-probabilities as they hold them, and end with advantages. They take turns in one process on one thread. The ratio is
how many times less CPU time ours takes than the faster rival of the round: the median over the rounds, and a 95 %
bootstrap interval of it.

    python bench/credit.py [--rounds 7] [--rows 16000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from measure import parse_arguments, print_result
from torch import Tensor

from mappa_core.credit.estimators import ReinforcePlusPlus, ReinforcePlusPlusOptions
from mappa_core.credit.ragged import lengths_to_offsets
from mappa_core.experience import Experience
from mappa_core.records import Float32

ROWS, TOKENS_A_ROW, MICRO_BATCH, KL_COEF = 16_000, 62.5, 8, 0.01


def experience(row_count: int, seed: int = 0) -> Experience:
    """Rows of very different lengths, as actions have."""
    token_count = int(row_count * TOKENS_A_ROW)
    random = np.random.default_rng(seed)
    share = random.lognormal(0.0, 0.8, row_count)
    lengths = 1 + random.multinomial(token_count - row_count, share / share.sum())
    old = random.normal(-1.0, 0.5, token_count).astype(np.float32)
    rows, zeros = np.arange(row_count, dtype=np.int32), np.zeros(row_count, np.int32)
    return Experience(
        agents=("solver",),
        policies=("solver",),
        trajectories=tuple(map(str, rows)),
        tasks=("task",),
        strata=("all",),
        steps=tuple(map(str, rows)),
        agent=zeros,
        policy=zeros,
        trajectory=rows,
        task=zeros,
        group=rows // 8,
        stratum=zeros,
        position=zeros,
        turn=zeros,
        truncated=np.zeros(row_count, np.bool_),
        temperature=np.ones(row_count, np.float32),
        outcome=np.ones(row_count, np.float32),
        reward=random.uniform(0.0, 1.0, row_count).astype(np.float32),
        weight=np.ones(row_count, np.float32),
        tokens=np.zeros(token_count, np.int32),
        offsets=lengths_to_offsets(lengths),
        version=np.zeros(token_count, np.int32),
        logprobs=old,
        prompt_tokens=zeros,
        prompt_offsets=np.arange(row_count + 1, dtype=np.int64),
        old_logprobs=old,
        ref_logprobs=(old + random.normal(0.0, 0.1, token_count)).astype(np.float32),
    )


def ours(batch: Experience) -> Float32:
    advantages, _ = ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=KL_COEF, normalize="all"))(batch, {})
    return advantages.advantages


@dataclass(frozen=True, slots=True)
class Padded:
    """Some rows as trainers hold them."""

    old: Tensor  # (B, L)
    reference: Tensor  # (B, L)
    mask: Tensor  # (B, L) 1 for tokens, 0 for padding
    reward: Tensor  # (B,)

    @classmethod
    def of(cls, batch: Experience, rows: slice) -> Padded:
        assert batch.old_logprobs is not None and batch.ref_logprobs is not None
        starts, lengths = batch.offsets[:-1][rows], batch.lengths[rows]
        columns = np.arange(lengths.max())
        mask = columns < lengths[:, None]
        places = (starts[:, None] + columns)[mask]
        padded = np.zeros((2, *mask.shape), np.float32)
        padded[0][mask], padded[1][mask] = batch.old_logprobs[places], batch.ref_logprobs[places]
        old, reference = torch.from_numpy(padded)
        return cls(old, reference, torch.from_numpy(mask.astype(np.float32)), torch.from_numpy(batch.reward[rows]))


def loop(tensors: Sequence[Padded]) -> list[Tensor]:
    """KL, rewards at the last token, returns position by position, then one mean and deviation of all tokens."""
    returns = [_returns(one) for one in tensors]
    count = sum(one.mask.sum() for one in tensors)
    mean = sum((found * one.mask).sum() for found, one in zip(returns, tensors, strict=True)) / count
    squares = [((found - mean).square() * one.mask).sum() for found, one in zip(returns, tensors, strict=True)]
    scale = (torch.stack(squares).sum() / count).clamp(min=1e-8).rsqrt()
    return [(found - mean) * scale * one.mask for found, one in zip(returns, tensors, strict=True)]


def _returns(one: Padded) -> Tensor:
    rewards = -KL_COEF * (one.old - one.reference) * one.mask
    last = one.mask.sum(dim=1).long() - 1
    rewards[torch.arange(len(last)), last] += one.reward
    returns, running = torch.empty_like(rewards), torch.zeros(len(last))
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] + running
        returns[:, t] = running
    return returns


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def check(batch: Experience, *rivals: Sequence[Padded]) -> None:
    """All of them give the same advantages, as far as float32 goes."""
    expected = ours(batch)
    for tensors in rivals:
        found = [got[one.mask > 0] for got, one in zip(loop(tensors), tensors, strict=True)]
        np.testing.assert_allclose(torch.cat(found).numpy(), expected, rtol=1e-3, atol=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=ROWS)
    given = parse_arguments(parser, rounds=1, rows=800)
    torch.set_num_threads(1)
    batch = experience(given.rows)
    whole = [Padded.of(batch, slice(0, given.rows))]
    micro = [Padded.of(batch, slice(first, first + MICRO_BATCH)) for first in range(0, given.rows, MICRO_BATCH)]
    check(batch, whole, micro)
    runs = (lambda: ours(batch), lambda: loop(whole), lambda: loop(micro))
    taken = np.array([[seconds(run) for run in runs] for _ in range(given.rounds)])
    median = np.median(taken, axis=0) * 1e3
    print(f"ours {median[0]:.1f} ms, loop over one batch {median[1]:.1f} ms, over micro-batches {median[2]:.1f} ms")
    batches = f"one batch of {given.rows} padded rows, batches of {MICRO_BATCH}"
    against = f"the faster of two loops over token positions: {batches}"
    print_result("credit", taken[:, 1:].min(axis=1) / taken[:, 0], unit="times less CPU time", against=against)


if __name__ == "__main__":
    main()
