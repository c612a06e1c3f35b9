"""What learners say of an iteration's tokens before they learn from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mappa_core.engine.learning.forward import Predictions
from mappa_core.engine.learning.layout import Batch, Layout, batches
from mappa_core.experience import Experience
from mappa_core.records import Float32, Int64

Forward = Callable[[Batch], Predictions]
"""What is said of a micro-batch, as `Scorer` says it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What one rank of one policy says of the sampled tokens that are its share."""

    source: Int64  # (m,) index of each token on the experience's N axis
    logprobs: Float32  # (m,)
    ref_logprobs: Float32  # (m,)
    values: Float32 | None  # (m,)


def rows_of(experience: Experience, policy: str) -> tuple[Int64, Int64]:
    """The rows of a policy: those of weight > 0, and the others."""
    if policy not in experience.policies:
        none = np.zeros(0, dtype=np.int64)
        return none, none
    own = experience.policy == experience.policies.index(policy)
    return np.flatnonzero(own & (experience.weight > 0)), np.flatnonzero(own & ~(experience.weight > 0))


@torch.no_grad()
def score(
    policy: str,
    forward: Forward,
    reference: Forward,
    experience: Experience,
    *,
    layout: Layout,
    device: torch.device,
    rank: int = 0,
    ranks: int = 1,
) -> Scores:
    """Ask `forward` and `reference` about this rank's share of the policy's tokens.

    Rows of weight 0 are batched apart, so that they change no other. All ranks pass as many micro-batches.
    """
    parts = []
    for rows in rows_of(experience, policy):
        for batch in batches(experience, rows, layout, device=device, rank=rank, ranks=ranks):
            own, values, _ = forward(batch)
            ref_logprobs = reference(batch).logprobs
            if not batch.weightless:
                parts.append(
                    Scores(
                        source=batch.source,
                        logprobs=own.cpu().numpy(),
                        ref_logprobs=ref_logprobs.cpu().numpy(),
                        values=None if values is None else values.cpu().numpy(),
                    )
                )
    return _joined(parts)


def _joined(parts: Sequence[Scores]) -> Scores:
    if not parts:
        nothing = np.zeros(0, dtype=np.float32)
        return Scores(source=np.zeros(0, dtype=np.int64), logprobs=nothing, ref_logprobs=nothing, values=None)
    values = [one.values for one in parts if one.values is not None]
    return Scores(
        source=np.concatenate([one.source for one in parts]),
        logprobs=np.concatenate([one.logprobs for one in parts]),
        ref_logprobs=np.concatenate([one.ref_logprobs for one in parts]),
        values=np.concatenate(values) if values else None,
    )


def scored(experience: Experience, scores: Iterable[Scores]) -> Experience:
    """The experience with what all ranks of all its policies said filled in.

    Values are NaN for policies without a value head. Raises ValueError unless every sampled token was scored once.
    """
    found = list(scores)
    times = np.bincount(np.concatenate([one.source for one in found]), minlength=len(experience.tokens))
    if len(times) != len(experience.tokens) or (times != 1).any():
        raise ValueError("the ranks' shares are not every sampled token once")
    logprobs, ref_logprobs, values = np.full((3, len(experience.tokens)), np.nan, dtype=np.float32)
    for one in found:
        logprobs[one.source], ref_logprobs[one.source] = one.logprobs, one.ref_logprobs
        if one.values is not None:
            values[one.source] = one.values
    has_values = any(one.values is not None for one in found)
    return replace(experience, old_logprobs=logprobs, ref_logprobs=ref_logprobs, values=values if has_values else None)
