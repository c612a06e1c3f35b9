"""What tests of samplers are made of: a pool whose weights the test publishes, and what the model itself computes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from mappa_engine.cluster.samplers.messages import SamplerConfig
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.remote_engine import Deadlines, EngineResources
from mappa_engine.cluster.sync.buckets import fill_buckets

from .conftest import WINDOW

TIED = {"model.embed_tokens.weight": "lm_head.weight"}
EXACT = 1e-4


class Side:
    """What the learners' side of a publish does here: it has the tensors, and hands them over."""

    def __init__(self, ray_actors) -> None:
        self.ray_actors = ray_actors
        self.pool: SamplerPool
        self.current: dict[str, tuple[int, Mapping[str, torch.Tensor], dict | None]] = {}

    async def publish(self, policy, version, tensors, adapter=None) -> None:
        self.current[policy] = version, tensors, adapter
        for engine in self.pool.engines:
            await self.deliver(engine, policy)

    async def load(self, engine, policy, version, tensors, adapter=None):
        if adapter is None:
            await engine.pause()
        await engine.begin_load(policy, version, adapter)
        for bucket in fill_buckets(tensors.items(), 1 << 15):
            await engine.load_bucket(self.ray_actors.put(bucket))
        return await engine.finish_load()

    async def deliver(self, engine, policy) -> None:
        version, tensors, adapter = self.current[policy]
        received = await self.load(engine, policy, version, tensors, adapter)
        assert received.version == version
        assert set(tensors) <= set(received.names)
        await engine.activate(policy, version)

    async def refresh(self, name) -> None:
        (engine,) = [engine for engine in self.pool.engines if engine.name == name]
        for policy in self.current:
            await self.deliver(engine, policy)


def sampler_config(model: str, **options) -> SamplerConfig:
    """An engine of a model of the tests, on a CPU."""
    room = {"kv_cache_bytes": 64 << 20, "max_batch": 64}
    return SamplerConfig(model=model, device="cpu", window=WINDOW, **{"dtype": "float32", **room, **options})


DEADLINES = Deadlines(start_s=300, sync_s=120, call_s=300)


async def open_pool(ray_actors, setup, *, name, engines, full) -> Side:
    side = Side(ray_actors)
    side.pool = SamplerPool(
        ray_actors,
        setup,
        [EngineResources(cpus=1)] * engines,
        name=name,
        full=full,
        deadlines=DEADLINES,
        refresh=side.refresh,
    )
    await side.pool.open()
    return side


def prompts(count, seed=0, length=60):
    random = np.random.default_rng(seed)
    return [random.integers(3, 259, random.integers(2, length)).astype(np.int32) for _ in range(count)]


async def ask(sampler, requests):
    return await asyncio.gather(*(sampler.sample(prompt, sampling) for prompt, sampling in requests))


@torch.inference_mode()
def logprobs(model, prompt, tokens, temperature=1.0, masks=None):
    """Of `tokens` after `prompt`, by the model's own forward in float32; of what `masks` left where there are any."""
    ids = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    for row, mask in enumerate(masks or ()):
        cut = torch.ones(logits.shape[1], dtype=torch.bool)
        cut[torch.tensor(mask).long()] = False
        logits[row, cut] = -torch.inf
    return torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


def model_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def masks_of(found):
    return None if found.mask_sizes is None else np.split(found.mask_tokens, np.cumsum(found.mask_sizes)[:-1])


def gap(model, found):
    expected = logprobs(model, found.prompt_tokens, found.tokens, found.temperature, masks_of(found))
    return np.abs(found.logprobs - expected).max()


def kill(engine) -> None:
    os.kill(engine.actor.process.pid, signal.SIGKILL)
