"""Probe of a publish: compares log-probabilities of the same tokens between learner and sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.engine import Experience
from mappa_engine.arrays import Float32, Int32
from mappa_engine.cluster.errors import SyncError

SEQUENCES, LENGTH = 4, 32
"""A wrong tensor affects every token, so few suffice; they are from several sequences, as a stale cache may affect only
one."""
MAX_MEAN_NATS = {"float32": 1e-4, "bfloat16": 0.25}
"""Limits of the mean over tokens, by dtype. Two sound computations of SmolLM2-135M differ by 1e-5 in float32, but by
more than 1e-4 at a token that nobody would sample; in bfloat16 by a few hundredths. A model that lacks a matrix differs
by more than the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Result of a probe: maximum and mean absolute difference in nats over its tokens."""

    max_diff: float
    mean_diff: float
    tokens: int


def sequences_from_experience(experience: Experience, policy: str, *, window: int) -> tuple[Int32, ...]:
    """Take the last tokens of prompt plus action from rows of the policy, spread over the iteration; () without any.
    Each leaves room for one more token in the window: vLLM would never begin with one that fills it."""
    if policy not in experience.policies:
        return ()
    rows = np.flatnonzero(experience.policy == experience.policies.index(policy))
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, SEQUENCES).astype(int))] if len(rows) else rows
    return tuple(
        sequence
        for sequence in (_end(experience, int(row), min(LENGTH, window - 1)) for row in chosen)
        if len(sequence) > 1
    )


def _end(experience: Experience, row: int, length: int) -> Int32:
    prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
    action = experience.tokens[experience.offsets[row] : experience.offsets[row + 1]]
    end: Int32 = np.concatenate([prompt, action])[-length:].astype(np.int32)
    return end


def sequences_from_seed(seed: int, *, vocabulary: int, window: int) -> tuple[Int32, ...]:
    """Draw random tokens, for probes before the first experience. Each leaves room for one more token in the window."""
    shape = (SEQUENCES, min(LENGTH, window - 1))
    return tuple(np.random.default_rng(seed).integers(0, vocabulary, shape, dtype=np.int32))


def compare_logprobs(learner: Sequence[Float32], sampler: Sequence[Float32]) -> ProbeResult:
    """Compute the differences. NaN in any value makes both NaN, which fails every limit."""
    if [len(logprobs) for logprobs in learner] != [len(logprobs) for logprobs in sampler]:
        raise SyncError("learner and sampler gave log-probabilities of different tokens to a probe")
    gaps = np.abs(np.concatenate(learner, dtype=np.float64) - np.concatenate(sampler, dtype=np.float64))
    return ProbeResult(max_diff=float(gaps.max()), mean_diff=float(gaps.mean()), tokens=len(gaps))


def check_probe(probe: ProbeResult, max_nats: float, *, policy: str, version: int, engine: str) -> None:
    """Raise SyncError where the mean difference exceeds the limit."""
    if not probe.mean_diff <= max_nats:  # NaN exceeds every limit
        raise SyncError(
            f"policy {policy!r}, version {version}, engine {engine!r}: the log-probabilities of {probe.tokens} tokens "
            f"differ from the learner's by {probe.mean_diff:.2g} nats in the mean and {probe.max_diff:.2g} at most; "
            f"the mean may be {max_nats:.2g} (engine.options.probe_limit)"
        )
