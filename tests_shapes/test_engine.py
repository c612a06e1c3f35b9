"""Real shapes from end to end through the cluster engine: every pair of settings, each shape with two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models import DEEPSEEK_DISTILL_1_5B, QWEN2_5_1_5B, QWEN3_0_6B, QWEN3_4B_THINKING, PublishedShape
from peft import PeftConfig, PeftModel
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from mappa.testing.fakes import fake_step
from mappa_core.config.schema import TrainSection
from mappa_core.credit.build_experience import build_experience
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Lora, PolicySpec
from mappa_core.records import Completion, Message, Sampling, Task, Trajectory
from mappa_engine.cluster import setup as cluster_setup
from mappa_engine.cluster.engine import ClusterEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.options import ClusterOptions, PPOOptions

pytestmark = pytest.mark.timeout(1800)

TRAIN = TrainSection(iterations=4, learning_rate=1e-4, micro_tokens=128, minibatch_rows=4)
LOSS = PPOLoss(PPOOptions(kl="k3", kl_coef=0.1))
LORA = Lora(rank=8, alpha=16.0)
TRAINED = ("writer", "critic")
PROMPTS = ("What is 6 * 7?", "Name a prime above 100, and say why it is one.", "Hi", "Sum 1, 2 and 3.")
SAMPLING = Sampling(max_tokens=24)
AGREEMENT = 1e-3
"""Nats by which two computations of a log-probability in float32 may differ."""


@dataclass(frozen=True)
class Settings:
    """Switches of one opening of the engine."""

    zero: int
    placement: str
    offload: bool

    def engine(self, ranks: int) -> ClusterEngine:
        return ClusterEngine(
            ClusterOptions(
                zero=self.zero,
                placement=self.placement,
                offload_optimizer=self.offload,
                learner_ranks=ranks,
                packed_tokens=128,
                max_model_len=256,
                kv_cache_mb=64,
                samplers=1,
                gradient_checkpointing=self.offload,
            )
        )


RING: Sequence[tuple[PublishedShape, Settings, Settings]] = (
    (QWEN3_0_6B, Settings(2, "colocated", False), Settings(3, "separate", True)),
    (QWEN2_5_1_5B, Settings(3, "colocated", True), Settings(2, "separate", False)),
    (QWEN3_4B_THINKING, Settings(2, "separate", True), Settings(3, "colocated", False)),
    (DEEPSEEK_DISTILL_1_5B, Settings(3, "separate", False), Settings(2, "colocated", True)),
)
"""Shapes with the settings they are trained with on two ranks, and go on with on one: together every combination.

CI has time for the first; `make soak` trains them all.
"""


def policies(model: str) -> list[PolicySpec]:
    """One policy with weights of its own and a value head, and one that is an adapter."""
    return [
        PolicySpec(name="writer", model=model, value_head=True),
        PolicySpec(name="critic", model=model, kind="lora", lora=LORA),
    ]


async def sampled(engine: ClusterEngine, policy: str, temperature: float = 1.0) -> list[Completion]:
    sampler = engine.sampler(policy)
    prompts = [sampler.render([Message(role="user", content=text)]) for text in PROMPTS]
    return await asyncio.gather(
        *(
            sampler.sample(prompt, replace(SAMPLING, seed=at, temperature=temperature))
            for at, prompt in enumerate(prompts)
        )
    )


async def iteration(engine: ClusterEngine) -> Experience:
    """Actions of every trained policy, the last of each without a reward."""
    trajectories, rewards = [], []
    for policy in TRAINED:
        for at, completion in enumerate(await sampled(engine, policy)):
            task = Task(id=f"{policy}{at}", prompt=PROMPTS[at])
            step = fake_step(f"{task.id}/0", policy, completion, policy=policy)
            trajectories.append(Trajectory(id=task.id, task=task, sample=0, iteration=0, steps=(step,)))
            rewards.append((None if at == len(PROMPTS) - 1 else float(at),))
    return build_experience(trajectories, rewards, {name: name for name in TRAINED}, set(TRAINED), "correct")


def advantages(experience: Experience) -> Advantages:
    drawn = np.random.default_rng(0).normal(size=(2, len(experience.tokens))).astype(np.float32)
    drawn[:, experience.token_weight == 0] = np.nan
    return Advantages(advantages=drawn[0], value_targets=drawn[1])


async def learn(engine: ClusterEngine, version: int) -> None:
    """One iteration: samplers and learners agree before it, and after the publish, which holds them to the probe."""
    experience = await engine.score(await iteration(engine))
    for column in (experience.old_logprobs, experience.ref_logprobs) if version == 1 else (experience.old_logprobs,):
        assert np.abs(column - experience.logprobs).max() < AGREEMENT
    metrics = await engine.update(experience, advantages(experience), LOSS, (version - 1) / TRAIN.iterations)
    for policy in TRAINED:
        assert (metrics[policy]["rows"], metrics[policy]["skipped"]) == (len(PROMPTS) - 1, 0)
        assert metrics[policy]["steps"] == 1 and metrics[policy]["grad_norm"] > 0.0
    receipts = await engine.publish()
    assert {name: receipt.version for name, receipt in receipts.items()} == dict.fromkeys(TRAINED, version)
    assert all(receipt.probe < 1e-4 for receipt in receipts.values())


def stored(folder: Path) -> dict[str, np.ndarray]:
    return {
        f"{path.relative_to(folder).parent}/{path.stem.partition('-')[0]}/{name}": tensor
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


@pytest.mark.parametrize(
    ("shape", "first", "second"),
    [pytest.param(*ring, id=ring[0].name, marks=() if ring is RING[0] else pytest.mark.soak) for ring in RING],
)
async def test_published_shape_trains_resumes_and_exports(shape, first, second, model_of, tmp_path, monkeypatch):
    # GPUs that are shared in turns, as far as a machine without has it: learners leave by DeepSpeed's own means, and
    # engines are told to sleep and wake.
    monkeypatch.setattr(
        cluster_setup.ClusterSetup, "colocated", property(lambda setup: setup.options.placement == "colocated")
    )
    model, kept, out = model_of(shape), tmp_path / "kept", tmp_path / "out"
    writer, critic = policies(model)
    engine = first.engine(ranks=2)
    try:
        await engine.open([writer, critic], TRAIN, seed=0)
        await learn(engine, 1)
        await engine.save(kept)
        told = [completion.logprobs for completion in await sampled(engine, "writer", temperature=0.0)]
    finally:
        await engine.close()
    out.mkdir()
    for spec, merged in ((writer, False), (critic, False), (critic, True)):
        engine.export(spec, kept / spec.name, out / f"{spec.name}{'-merged' * merged}", merged=merged, dtype="float32")
    assert_loads(out, kept)

    engine = second.engine(ranks=1)
    exported = PolicySpec(name="exported", model=str(out / "writer"), kind="frozen")
    try:
        await engine.open([writer, critic, exported], TRAIN, seed=0)
        await engine.load(kept)
        for policy in ("writer", "exported"):  # loaded by a learner and published, and by vLLM from the exported folder
            for expected, found in zip(told, await sampled(engine, policy, temperature=0.0), strict=True):
                np.testing.assert_allclose(found.logprobs, expected, atol=AGREEMENT)
        await engine.save(tmp_path / "again")
        expected, found = stored(kept), stored(tmp_path / "again")
        assert expected.keys() == found.keys() and any("exp_avg_sq" in name for name in expected)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(found[name], tensor, err_msg=name)
        await learn(engine, 2)
    finally:
        await engine.close()


def assert_loads(out: Path, kept: Path) -> None:
    """Exported models are loaded by transformers with the weights of the checkpoint, adapters by peft."""
    folder = "writer/weights/"
    weights = {name.removeprefix(folder): tensor for name, tensor in stored(kept).items() if name.startswith(folder)}
    own = {name for name in weights if not name.startswith("value_head.")}
    model = AutoModelForCausalLM.from_pretrained(out / "writer", dtype=torch.float32)
    named = dict(model.named_parameters())
    assert named.keys() == own
    for name in own:
        np.testing.assert_array_equal(named[name].detach().numpy(), weights[name], err_msg=name)
    merged = AutoModelForCausalLM.from_pretrained(out / "critic-merged", dtype=torch.float32).eval()
    config = PeftConfig.from_pretrained(out / "critic")
    base = AutoModelForCausalLM.from_pretrained(config.base_model_name_or_path, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, out / "critic").eval()
    ids = torch.arange(100, 140)[None]
    with torch.inference_mode():
        np.testing.assert_allclose(adapted(input_ids=ids).logits, merged(input_ids=ids).logits, atol=AGREEMENT)
