"""Log-probabilities of the sampler in place of a scoring pass, where sampler and learner are one module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from mappa_core.engine import Experience, TrainSection, element_indices
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.importance_weights import compute_importance_weights
from mappa_engine.learning.scoring import ForwardPass, TokenScores, find_policy_rows, score_rows
from mappa_engine.local.policy import Policy
from mappa_engine.model_shape import is_large

MAX_GAP: Mapping[torch.dtype, float] = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Nats by which sampler and learner may differ in the mean, on the rows that are scored. Both round, in other orders:
SmolLM2-135M by 3e-6 in float32 and by 0.03 in bfloat16."""
_PROBED_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledScores:
    """Scores of a policy as its sampler knows them, and the metrics of the rows that were scored to compare."""

    scores: TokenScores
    metrics: Mapping[str, float]


def may_reuse(policy: Policy, experience: Experience, train: TrainSection) -> bool:
    """Whether the sampler's log-probabilities can be the old ones of a policy's rows.

    Its weights are those that sampled, nothing else is to be computed by the same pass, and no correction compares the
    two: the ratio of new to old then is the whole ratio of learner to sampler, rounding included, and is clipped as
    such. The numbers of a small model stay those of a scoring pass, which costs it little.
    """
    correction = train.correction
    corrected = correction.kind != "none" or not correction.geometric_low is correction.geometric_high is None
    if corrected or not is_large(policy.base.weights) or policy.optimiser is None or policy.value_head is not None:
        return False
    if experience.old_logprobs is not None or policy.steps != policy.published_steps:
        return False
    rows = np.concatenate(find_policy_rows(experience, policy.name))
    source = element_indices(experience.offsets, rows)
    known = np.isfinite(experience.logprobs[source]) & (experience.version[source] == policy.version)
    return bool(len(rows) > _PROBED_ROWS and known.all())


def reuse_sampled(
    policy: Policy, forward: ForwardPass, experience: Experience, train: TrainSection, layout: BatchLayout
) -> SampledScores | None:
    """Take the log-probabilities of the sampler for those of the learner, after scoring a few rows; None where these
    differ by more than rounding."""
    weighted, others = find_policy_rows(experience, policy.name)
    rows = weighted if len(weighted) else others
    # Spread over the iteration: rows beside each other are of one problem.
    probed = rows[:: -(-len(rows) // _PROBED_ROWS)]
    found = score_rows(probed, forward, None, experience, layout=layout, device=policy.model.device)
    old_logprobs = np.full(len(experience.tokens), np.nan, dtype=np.float32)
    old_logprobs[found.source] = found.logprobs
    scored = replace(experience, old_logprobs=old_logprobs)
    metrics = compute_importance_weights(scored, probed, train.correction).metrics
    if not metrics["mismatch_mean"] <= MAX_GAP[policy.model.dtype]:
        return None
    source = element_indices(experience.offsets, np.concatenate([weighted, others]))
    logprobs = experience.logprobs[source]
    return SampledScores(
        scores=TokenScores(source=source, logprobs=logprobs, ref_logprobs=None, values=None), metrics=metrics
    )
