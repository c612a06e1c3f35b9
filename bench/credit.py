"""Rewards to advantages for 1,000,000 tokens in 16,000 rows, against the loop over time steps that trainers use.

Both compute REINFORCE++ with a KL penalty of 0.01 per nat and gamma 1, are checked to agree, and take turns in one
process. The loop pads micro-batches of 8 rows and walks back over their columns, one Python step per token position.
The ratio is how many times less time ours takes: the median over the rounds, and the smallest and largest of them.

    python bench/credit.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from measure import print_result

from mappa_core.credit.estimators import ReinforcePlusPlus, ReinforcePlusPlusOptions
from mappa_core.credit.ragged import offsets_of
from mappa_core.experience import Experience
from mappa_core.records import Float32

TOKENS, ROWS, MICRO_BATCH, KL_COEF = 1_000_000, 16_000, 8, 0.01


def experience(seed: int = 0) -> Experience:
    """Rows of very different lengths, as actions have, of three policies."""
    random = np.random.default_rng(seed)
    share = random.lognormal(0.0, 0.8, ROWS)
    lengths = 1 + random.multinomial(TOKENS - ROWS, share / share.sum())
    policy = random.integers(0, 3, ROWS).astype(np.int32)
    old = random.normal(-1.0, 0.5, TOKENS).astype(np.float32)
    rows = np.arange(ROWS, dtype=np.int32)
    return Experience(
        agents=("a", "b", "c"),
        policies=("a", "b", "c"),
        trajectories=("t",),
        tasks=("task",),
        strata=("all",),
        steps=tuple(f"s{row}" for row in rows),
        agent=policy,
        policy=policy,
        trajectory=np.zeros(ROWS, np.int32),
        task=np.zeros(ROWS, np.int32),
        group=rows // 8,
        stratum=np.zeros(ROWS, np.int32),
        position=rows,
        turn=np.zeros(ROWS, np.int32),
        truncated=np.zeros(ROWS, np.bool_),
        temperature=np.ones(ROWS, np.float32),
        outcome=np.ones(ROWS, np.float32),
        reward=random.uniform(0.0, 1.0, ROWS).astype(np.float32),
        weight=np.ones(ROWS, np.float32),
        tokens=np.zeros(TOKENS, np.int32),
        offsets=offsets_of(lengths),
        version=np.zeros(TOKENS, np.int32),
        logprobs=old,
        prompt_tokens=np.zeros(ROWS, np.int32),
        prompt_offsets=np.arange(ROWS + 1, dtype=np.int64),
        old_logprobs=old,
        ref_logprobs=(old + random.normal(0.0, 0.1, TOKENS)).astype(np.float32),
    )


def ours(batch: Experience) -> Float32:
    advantages, _ = ReinforcePlusPlus(ReinforcePlusPlusOptions(kl_coef=KL_COEF))(batch, {})
    return advantages.advantages


def loop(batch: Experience) -> Float32:
    """Padded micro-batches, a Python step per token position, then one mean and deviation per policy."""
    returns = np.zeros(TOKENS)
    for first in range(0, ROWS, MICRO_BATCH):
        starts, ends = batch.offsets[first : first + MICRO_BATCH], batch.offsets[first + 1 : first + MICRO_BATCH + 1]
        width = int((ends - starts).max())
        rewards = np.zeros((len(starts), width))
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            rewards[row, : end - start] = -KL_COEF * (batch.old_logprobs[start:end] - batch.ref_logprobs[start:end])
            rewards[row, end - start - 1] += batch.reward[first + row]
        running = np.zeros(len(starts))
        for t in reversed(range(width)):
            running = rewards[:, t] + running
            rewards[:, t] = running
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            returns[start:end] = rewards[row, : end - start]
    policy = batch.policy[batch.row_of_token]
    for number in range(len(batch.policies)):
        own = returns[policy == number]
        returns[policy == number] = (own - own.mean()) / np.sqrt(max(own.var(), 1e-8))
    return returns.astype(np.float32)


def seconds(run: Callable[[Experience], Float32], batch: Experience) -> float:
    start = time.perf_counter()
    run(batch)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    batch = experience()
    np.testing.assert_allclose(ours(batch), loop(batch), rtol=1e-4, atol=1e-4)
    taken = np.array([(seconds(ours, batch), seconds(loop, batch)) for _ in range(rounds)])
    ratios = taken[:, 1] / taken[:, 0]
    print(f"ours {np.median(taken[:, 0]) * 1e3:.1f} ms, loop {np.median(taken[:, 1]) * 1e3:.1f} ms")
    against = f"a loop over time steps of padded micro-batches of {MICRO_BATCH} rows"
    print_result("credit", ratios, unit="times less wall time", against=against)


if __name__ == "__main__":
    main()
