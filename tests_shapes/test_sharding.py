"""Ranks that hold unequal shares, at the vocabulary that models have: what they do together depends on no share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models import QWEN3_0_6B, VOCABULARY
from safetensors.numpy import load_file

from mappa_core.config.schema import TrainSection
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import PolicySpec
from mappa_engine.cluster.learners import LearnerConfig, LearnerGroup
from mappa_engine.learning.scoring import merge_scores
from mappa_engine.losses import PPOLoss
from mappa_engine.memory_estimate import head_rows
from mappa_engine.options import PlacedOptions, PPOOptions
from mappa_engine.testing import ExperienceRow, build_experience

pytestmark = pytest.mark.timeout(1800)

POLICY = "writer"
TRAIN = TrainSection(iterations=1, learning_rate=1e-3, grad_clip=1e9, micro_tokens=2048, entropy_coef=0.05)
LOSS = PPOLoss(PPOOptions(kl="k3", kl_coef=0.1))


def unequal(*tokens: int) -> Experience:
    """A row of so many sampled tokens each, and one without weight: of two ranks each gets one, and one no third."""
    random = np.random.default_rng(0)
    rows = [
        ExperienceRow(
            prompt=random.integers(0, VOCABULARY, 4).tolist(),
            tokens=random.integers(0, VOCABULARY, length).tolist(),
            logprobs=random.normal(-9.0, 0.5, length).tolist(),
            policy=POLICY,
            trajectory=number,
            weight=float(number < len(tokens)),
        )
        for number, length in enumerate((*tokens, 5))
    ]
    return build_experience(rows, (POLICY,))


async def learn(ray_actors, model: str, experience: Experience, folder: Path, *, zero: int, value_head: bool):
    """Take one step on two ranks; the gradient, from AdamW's first moments, and what was scored."""
    config = LearnerConfig(
        specs=(PolicySpec(name=POLICY, model=model, value_head=value_head),),
        train=TRAIN,
        options=PlacedOptions(zero=zero, packed_tokens=2048, call_s=240.0, start_s=240.0),
        dtype="float32",
        gpu=False,
        seed=0,
    )
    group = await LearnerGroup.open(f"zero{zero}", ray_actors, config, slots=[None] * 2)
    try:
        known = merge_scores(experience, await group.score(experience))
        drawn = np.random.default_rng(1).normal(size=(2, len(known.tokens))).astype(np.float32)
        drawn[:, known.token_weight == 0] = np.nan
        targets = drawn[1] if value_head else None
        metrics = await group.update(known, Advantages(advantages=drawn[0], value_targets=targets), LOSS, 0.0)
        assert (metrics[POLICY]["steps"], metrics[POLICY]["skipped"]) == (1, 0)
        await group.save(folder)
    finally:
        await group.close()
    moments = load_file(folder / POLICY / "optimiser.safetensors")
    return known, {name: moment.astype(np.float64) for name, moment in moments.items() if name.startswith("exp_avg.")}


@pytest.mark.parametrize("tokens", [(40, 10), (1100, 10)], ids=str)
async def test_sharded_weights_have_the_gradient_of_whole_ones(ray_actors, model_of, tmp_path, tokens):
    """One rank's tokens take as many passes through the head as the other's, or more."""
    assert (max(tokens) > head_rows(VOCABULARY)) == (tokens == (1100, 10))
    model, experience = model_of(QWEN3_0_6B), unequal(*tokens)
    with_values = max(tokens) < 1000
    whole, sharded = [
        await learn(ray_actors, model, experience, tmp_path / str(zero), zero=zero, value_head=with_values)
        for zero in (2, 3)
    ]
    np.testing.assert_allclose(sharded[0].old_logprobs, whole[0].old_logprobs, atol=1e-4)
    assert sharded[1].keys() == whole[1].keys()
    norm = np.sqrt(sum(np.square(tensor).sum() for tensor in whole[1].values()))
    apart = np.sqrt(sum(np.square(whole[1][name] - tensor).sum() for name, tensor in sharded[1].items()))
    print(f"{tokens} tokens: gradients differ by {apart / norm:.1e} of their norm")
    assert apart < 1e-5 * norm
