"""Score an iteration's tokens with learner and reference before the update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mappa_core.engine import Experience
from mappa_engine.arrays import Float32, Int64
from mappa_engine.learning.batching import BatchLayout, MicroBatch, build_batches
from mappa_engine.learning.logprob_model import Predictions

ForwardPass = Callable[[MicroBatch], Predictions]
"""Computes the predictions for a micro-batch, as `LogprobModel` does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """Scores from one rank of one policy, for its share of the sampled tokens."""

    source: Int64  # (m,) index of each token on the experience's N axis
    logprobs: Float32  # (m,)
    ref_logprobs: Float32 | None  # (m,)
    values: Float32 | None  # (m,)


def find_policy_rows(experience: Experience, policy: str) -> tuple[Int64, Int64]:
    """Return the rows of a policy: those of weight > 0, and the others."""
    if policy not in experience.policies:
        none = np.zeros(0, dtype=np.int64)
        return none, none
    own = experience.policy == experience.policies.index(policy)
    return np.flatnonzero(own & (experience.weight > 0)), np.flatnonzero(own & ~(experience.weight > 0))


def score_policy(
    policy: str,
    forward: ForwardPass,
    reference: ForwardPass | None,
    experience: Experience,
    *,
    layout: BatchLayout,
    device: torch.device,
    rank: int = 0,
    ranks: int = 1,
) -> TokenScores:
    """Score this rank's share of the policy's tokens with `forward` and, unless it is None, `reference`.

    Rows of weight 0 are batched separately, so that they affect no other row. All ranks run equally many micro-batches.
    """
    return _concatenate(
        [
            score_rows(rows, forward, reference, experience, layout=layout, device=device, rank=rank, ranks=ranks)
            for rows in find_policy_rows(experience, policy)
        ]
    )


@torch.no_grad()
def score_rows(
    rows: Int64,
    forward: ForwardPass,
    reference: ForwardPass | None,
    experience: Experience,
    *,
    layout: BatchLayout,
    device: torch.device,
    rank: int = 0,
    ranks: int = 1,
) -> TokenScores:
    """Score this rank's share of the tokens of `rows`, which are of one policy."""
    parts = []
    for batch in build_batches(experience, rows, layout, device=device, rank=rank, ranks=ranks):
        own, values, _ = forward(batch)
        ref_logprobs = None if reference is None else reference(batch).logprobs
        if not batch.dummy:  # it ran for the other ranks alone
            parts.append(
                TokenScores(
                    source=batch.source,
                    logprobs=own.cpu().numpy(),
                    ref_logprobs=None if ref_logprobs is None else ref_logprobs.cpu().numpy(),
                    values=None if values is None else values.cpu().numpy(),
                )
            )
    return _concatenate(parts)


def _concatenate(parts: Sequence[TokenScores]) -> TokenScores:
    if not parts:
        nothing = np.zeros(0, dtype=np.float32)
        return TokenScores(source=np.zeros(0, dtype=np.int64), logprobs=nothing, ref_logprobs=None, values=None)
    return TokenScores(
        source=np.concatenate([part.source for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        ref_logprobs=_concatenate_known([part.ref_logprobs for part in parts]),
        values=_concatenate_known([part.values for part in parts]),
    )


def _concatenate_known(columns: Sequence[Float32 | None]) -> Float32 | None:
    """Concatenate the columns that were computed; None if none was."""
    known = [column for column in columns if column is not None]
    return np.concatenate(known) if known else None


def merge_scores(experience: Experience, scores: Iterable[TokenScores]) -> Experience:
    """Return the experience with the scores of all ranks of all its policies filled in.

    Values are NaN for policies without a value head; a column that no rank computed is None. Raises ValueError unless
    every sampled token was scored once.
    """
    parts = list(scores)
    sources = np.concatenate([np.empty(0, np.int64), *(part.source for part in parts)])  # none where nothing is trained
    # A source beyond the tokens makes the counts longer.
    times = np.bincount(sources, minlength=len(experience.tokens))
    if len(times) != len(experience.tokens) or (times != 1).any():
        raise ValueError("the ranks' shares are not every sampled token once")
    logprobs, ref_logprobs, values = np.full((3, len(experience.tokens)), np.nan, dtype=np.float32)
    for part in parts:
        logprobs[part.source] = part.logprobs
        if part.ref_logprobs is not None:
            ref_logprobs[part.source] = part.ref_logprobs
        if part.values is not None:
            values[part.source] = part.values
    return replace(
        experience,
        old_logprobs=logprobs,
        ref_logprobs=ref_logprobs if any(part.ref_logprobs is not None for part in parts) else None,
        values=values if any(part.values is not None for part in parts) else None,
    )
