"""Publishes for real: DeepSpeed ranks and vLLM engines in processes of their own, weights by Ray's object store."""

import asyncio
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio
import ray

from mappa_core.config.schema import TrainSection
from mappa_core.errors import EngineError
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Lora, PolicySpec
from mappa_core.records import Sampling
from mappa_engine.adapters import LORA_MATRICES, PEFT_PREFIX, adapter_config
from mappa_engine.cluster.errors import SyncError
from mappa_engine.cluster.learners.group import LearnerGroup
from mappa_engine.cluster.learners.rank import LearnerConfig
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.remote_engine import EngineResources
from mappa_engine.cluster.sync.buckets import bucket_tensors, fill_buckets
from mappa_engine.cluster.sync.probe import MAX_MEAN_NATS
from mappa_engine.cluster.sync.publisher import Publisher, WeightRoute
from mappa_engine.cluster.sync.transfer_records import ReceivedWeights
from mappa_engine.learning.scoring import merge_scores
from mappa_engine.losses import PPOLoss
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.options import PlacedOptions, PPOOptions
from mappa_engine.testing import build_experience, random_rows

from .conftest import WINDOW, write_model
from .sampler_cases import DEADLINES, TIED, sampler_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

LORA = Lora(rank=4, alpha=8.0)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def experience_of(policies: tuple[str, ...], seed: int, rows: int = 6) -> Experience:
    """A few rows of random tokens of every policy."""
    drawn = random_rows(rows * len(policies), seed=seed, prompt=(3, 60), action=(2, 30), logprobs=-5.0)
    return build_experience([replace(row, policy=policies[at // rows]) for at, row in enumerate(drawn)], policies)


class Both:
    """A group of learners and the pools that sample by its policies."""

    def __init__(self, group: LearnerGroup, model: str, dtype: str) -> None:
        self.group, self.model, self.dtype = group, model, dtype
        self.pools: dict[str, SamplerPool] = {}
        self.routes: dict[str, WeightRoute] = {}

    def publisher(self, *, deadline_s: float = 120.0, **changes) -> Publisher:
        routes = [replace(route, **changes) for route in self.routes.values()]
        return Publisher(routes, seed=0, deadline_s=deadline_s)

    async def learn(self, seed: int) -> Experience:
        """One iteration's update, on random advantages, that moves the weights by far more than a probe lets pass."""
        bare = experience_of(self.group.policies, seed)
        experience = merge_scores(bare, await self.group.score(bare))
        random = np.random.default_rng(seed)
        advantages = Advantages(advantages=random.normal(size=len(bare.tokens)).astype(np.float32))
        await self.group.update(experience, advantages, PPOLoss(PPOOptions()), 0.0)
        return experience


async def open_both(
    ray_actors, model: str, specs: tuple[PolicySpec, ...], *, dtype: str, ranks: int, zero: int
) -> Both:
    task = LearnerConfig(
        specs=specs,
        train=TrainSection(iterations=10, learning_rate=3e-3),
        options=PlacedOptions(zero=zero, start_s=300, sync_s=120, call_s=300),
        dtype=dtype,
        gpu=False,
        seed=0,
    )
    both = Both(await LearnerGroup.open(f"learners-{dtype}", ray_actors, task, slots=[None] * ranks), model, dtype)
    for spec in specs:
        lora = spec.kind == "lora"
        setup = sampler_config(
            model,
            dtype=dtype,
            tied=TIED,
            adapter_policies=(spec.name,) if lora else (),
            lora_rank=LORA.rank if lora else 0,
            max_adapters=2 if lora else 0,
        )
        pool = SamplerPool(
            ray_actors,
            setup,
            [EngineResources()],
            name=f"{spec.name}-{dtype}",
            full=not lora,
            deadlines=DEADLINES,
            refresh=lambda engine: both.publisher().refresh(engine, dict(both.group.versions)),
        )
        both.pools[spec.name] = pool
        both.routes[spec.name] = WeightRoute(
            policy=spec.name,
            learners=both.group,
            samplers=pool,
            tensors=_adapter_names(model) if lora else read_weight_names(read_model_info(model)).names,
            tied={} if lora else TIED,
            adapter=adapter_config(LORA, TARGETS, base=model) if lora else None,
            probe_limit=MAX_MEAN_NATS[dtype],
            vocabulary=259,
            window=WINDOW,
        )
    await asyncio.gather(*(pool.open() for pool in both.pools.values()))
    return both


def _adapter_names(model: str) -> frozenset[str]:
    layers = [
        name.removesuffix(".weight")
        for name in read_weight_names(read_model_info(model)).names
        if name.split(".")[-2] in TARGETS
    ]
    return frozenset(f"{PEFT_PREFIX}{layer}.{side}.weight" for layer in layers for side in LORA_MATRICES)


async def close(both: Both) -> None:
    for pool in both.pools.values():
        await pool.close()
    await both.group.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def exact(ray_actors, qwen3):
    """Float32, ZeRO-3 over two ranks: a policy of its own weights, and one that is an adapter."""
    specs = (
        PolicySpec(name="solver", model=qwen3),
        PolicySpec(name="critic", model=qwen3, kind="lora", lora=LORA),
    )
    both = await open_both(ray_actors, qwen3, specs, dtype="float32", ranks=2, zero=3)
    yield both
    await close(both)


async def sample(both: Both, policy: str):
    prompt = np.arange(10, 30, dtype=np.int32)
    return await both.pools[policy].sample(policy, prompt, Sampling(temperature=0.0, max_tokens=4), frozenset({2}))


async def test_every_publish_brings_the_learners_weights(exact):
    publisher = exact.publisher()
    checksums = set()
    for seed in range(3):
        publisher.take_probes_from(await exact.learn(seed))
        versions = exact.group.advance_versions()
        receipts = await publisher.publish(versions)
        assert {policy: receipt.version for policy, receipt in receipts.items()} == versions
        assert all(0 < receipt.probe < 1e-4 for receipt in receipts.values())
        checksums |= {receipt.checksum for receipt in receipts.values()}
        for policy, version in versions.items():
            drawn = await sample(exact, policy)
            assert {span.version for span in drawn.versions} == {version}
    assert len(checksums) == 6, "weights that were to change stayed as they were"


class Proxy:
    """An engine between whose ears and mouth something may be put."""

    def __init__(self, engine) -> None:
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)


class Stale(Proxy):
    """Says that it loaded what it was sent, and did not."""

    async def begin_load(self, policy, version, adapter) -> None:
        self.label, self.names, self.checksums = version, [], []

    async def load_bucket(self, bucket) -> None:
        found = ray.get(bucket)
        for name, checksum in zip(found.names, found.checksums, strict=True):
            for loaded in (name, *([TIED[name]] if name in TIED else [])):
                self.names.append(loaded)
                self.checksums.append(checksum)

    async def finish_load(self) -> ReceivedWeights:
        names, checksums = tuple(self.names), tuple(self.checksums)
        return ReceivedWeights(names=names, checksums=checksums, version=self.label, seconds=0.0)

    async def logprobs(self, policy, version, sequences):
        return await self._engine.logprobs(policy, version - 1, sequences)


class Lossy(Proxy):
    """Loses one tensor on the way."""

    async def load_bucket(self, bucket) -> None:
        kept = [
            (name, tensor)
            for name, tensor in bucket_tensors(ray.get(bucket))
            if not name.endswith("1.self_attn.q_proj.weight")
        ]
        for part in fill_buckets(kept):
            await self._engine.load_bucket(ray.put(part))


class Pool:
    def __init__(self, *engines) -> None:
        self.engines = engines

    async def restart_lost(self) -> None:
        pass


async def caught(both: Both, engine: Proxy, match: str) -> None:
    """The error of this iteration's publish through `engine`; nothing is sampled before a whole one."""
    await both.learn(7)
    publisher = Publisher([replace(both.routes["solver"], samplers=Pool(engine))], seed=0, deadline_s=60)
    version = both.group.advance_versions()["solver"]
    with pytest.raises(SyncError, match=match):
        await publisher.publish({"solver": version})
    answer = asyncio.ensure_future(sample(both, "solver"))
    await asyncio.sleep(0.5)
    assert not answer.done(), "an engine that was not verified samples"
    receipts = await both.publisher().publish(dict(both.group.versions))
    assert receipts["solver"].probe < 1e-4
    assert {span.version for span in (await answer).versions} == {version}


async def test_a_stale_engine_is_caught_in_the_same_iteration(exact):
    (engine,) = exact.pools["solver"].engines
    await caught(exact, Stale(engine), r"policy 'solver'.* the log-probabilities of \d+ tokens differ")


async def test_a_missing_tensor_is_caught_in_the_same_iteration(exact):
    (engine,) = exact.pools["solver"].engines
    await caught(
        exact, Lossy(engine), r"model\.layers\.1\.self_attn\.\w+\.weight arrived where .*q_proj\.weight was sent"
    )


async def test_rounded_weights_differ_by_little_in_the_mean(ray_actors, tmp_path):
    model = write_model(tmp_path / "model", "qwen3", spread=0.1)
    both = await open_both(
        ray_actors, model, (PolicySpec(name="solver", model=model),), dtype="bfloat16", ranks=1, zero=1
    )
    try:
        publisher = both.publisher()
        for seed in range(2):
            publisher.take_probes_from(await both.learn(seed))
            receipts = await publisher.publish(both.group.advance_versions())
            assert receipts["solver"].probe < 1.0
    finally:
        await close(both)


async def test_a_publish_to_an_engine_that_hangs_ends_in_time(exact):
    (engine,) = exact.pools["solver"].engines
    await exact.learn(9)
    pid = engine.actor.process.pid
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(EngineError, match=rf"within 4 s .*still waited for: engine '{engine.name}'"):
        await exact.publisher(deadline_s=4.0).publish(exact.group.advance_versions())
    assert time.monotonic() - begun < 60
    os.kill(pid, signal.SIGCONT)
