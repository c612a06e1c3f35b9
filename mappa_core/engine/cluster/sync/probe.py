"""The second witness of a publish: learner and sampler say how likely the same stored tokens are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.errors import SyncError
from mappa_core.experience import Experience
from mappa_core.records import Float32, Int32

SEQUENCES, LENGTH = 4, 32
"""A wrong tensor shows in any token, so few are enough; they lie in several sequences, as a cache may be stale in one
alone."""
_EXACT, _ROUNDED = 1e-4, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Nats by which learner and sampler may differ: the largest difference of all tokens, or the mean one."""

    nats: float
    mean: bool

    @classmethod
    def of(cls, dtype: str, nats: float | None) -> Limit:
        """The limit for weights of `dtype`, `nats` where it was set. Rounded weights differ by a lot in single tokens,
        so there it is the mean that counts."""
        exact = dtype == "float32"
        return cls(nats=nats if nats is not None else _EXACT if exact else _ROUNDED, mean=not exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Absolute differences in nats over all tokens of a probe."""

    largest: float
    mean: float
    tokens: int


def from_experience(experience: Experience, policy: str) -> tuple[Int32, ...]:
    """Ends of prompts with their actions, of rows of the policy that are spread over the iteration; () without any."""
    if policy not in experience.policies:
        return ()
    rows = np.flatnonzero(experience.policy == experience.policies.index(policy))
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, SEQUENCES).astype(int))] if len(rows) else rows
    return tuple(one for one in (_end(experience, int(row)) for row in chosen) if len(one) > 1)


def _end(experience: Experience, row: int) -> Int32:
    prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
    action = experience.tokens[experience.offsets[row] : experience.offsets[row + 1]]
    end: Int32 = np.concatenate([prompt, action])[-LENGTH:].astype(np.int32)
    return end


def from_seed(seed: int, *, vocabulary: int, window: int) -> tuple[Int32, ...]:
    """Any tokens, for as long as there is no experience. A sequence leaves room for one more token in the window."""
    shape = (SEQUENCES, min(LENGTH, window - 1))
    return tuple(np.random.default_rng(seed).integers(0, vocabulary, shape, dtype=np.int32))


def compare(learner: Sequence[Float32], sampler: Sequence[Float32]) -> Probe:
    """The differences. Something that is no number makes both figures none, and no limit lets it pass."""
    if [len(one) for one in learner] != [len(one) for one in sampler]:
        raise SyncError("learner and sampler gave log-probabilities of different tokens to a probe")
    gaps = np.abs(np.concatenate(learner, dtype=np.float64) - np.concatenate(sampler, dtype=np.float64))
    return Probe(largest=float(gaps.max()), mean=float(gaps.mean()), tokens=len(gaps))


def check_probe(probe: Probe, limit: Limit, *, policy: str, version: int, engine: str) -> None:
    """Raise SyncError where the difference is beyond the limit."""
    found = probe.mean if limit.mean else probe.largest
    if not found <= limit.nats:
        raise SyncError(
            f"policy {policy!r}, version {version}, engine {engine!r}: the log-probabilities of {probe.tokens} tokens "
            f"differ from the learner's by {probe.mean:.2g} nats in the mean and {probe.largest:.2g} at most; the "
            f"{'mean' if limit.mean else 'largest'} may be {limit.nats:.2g} (engine.options.probe_limit)"
        )
